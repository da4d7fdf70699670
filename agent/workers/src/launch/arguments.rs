//! Builds the arguments of a worker: its own, and additions of the launch method.

use std::ffi::{OsStr, OsString};

use ragent_options::spec::{JobSpec, LaunchMethod, substitute};
use ragent_rendezvous::{
    ids::{JobUid, LocalRank},
    message::Admission,
};

use super::environment::shown_rank;

/// Returns the arguments of the worker with `local_rank`, in a round with this admission.
pub(crate) fn of_worker(
    job: &JobSpec,
    admission: &Admission,
    job_uid: &JobUid,
    local_rank: LocalRank,
) -> Vec<OsString> {
    let of_round = match job.launch_method {
        LaunchMethod::Basic { .. } => basic(job, admission, job_uid, local_rank),
        LaunchMethod::Torchrun | LaunchMethod::DeepSpeed { .. } => Vec::new(),
    };
    with(job, local_rank, of_round)
}

/// Returns the arguments of a worker that are known before a round: all of them, unless the
/// launch method passes ranks as arguments.
pub(crate) fn of_standby(job: &JobSpec, local_rank: LocalRank) -> Vec<OsString> {
    with(job, local_rank, Vec::new())
}

fn with(job: &JobSpec, local_rank: LocalRank, of_round: Vec<OsString>) -> Vec<OsString> {
    let (command, method) = (&job.command, &job.launch_method);
    let rank = local_rank.to_string();
    let substituted = |arg: &OsString| substitute(arg, &[("local_rank", &rank)]);
    let (head, own) = command.args.split_at(command.own_args_at.min(command.args.len()));
    let mut args: Vec<OsString> = head.iter().map(substituted).collect();
    if let LaunchMethod::DeepSpeed { .. } = method {
        args.push(format!("--local_rank={}", shown_rank(job, local_rank)).into());
    }
    args.extend(own.iter().map(substituted));
    args.extend(of_round);
    if let LaunchMethod::DeepSpeed { config: Some(config) } = method {
        args.extend(["--deepspeed".into(), "--deepspeed_config".into(), config.into()]);
    }
    if let Some(path) = job.files.save_path() {
        args.extend(["--save_path".into(), path.into()]);
    }
    if let Some(path) = job.files.checkpoint_path() {
        args.extend(["--checkpoint_path".into(), path.into()]);
    }
    args
}

fn basic(
    job: &JobSpec,
    admission: &Admission,
    job_uid: &JobUid,
    local_rank: LocalRank,
) -> Vec<OsString> {
    let Admission { first_global_rank, world_size, round, .. } = admission;
    let rank = first_global_rank.0.saturating_add(local_rank.0);
    let words = ["--rank", &rank.to_string(), "--world_size", &world_size.to_string()];
    let mut args: Vec<OsString> = words.map(OsString::from).into();
    if let Some(path) = job.files.shared_file(&job.launch_method) {
        // No other round of any run has this path, because torch's `FileStore` must not be used twice.
        let suffix = format!("-{job_uid}-{}-{}", round.term, round.round);
        let parts = [OsStr::new("file://"), path.as_os_str(), OsStr::new(&suffix)];
        args.extend(["--init_method".into(), parts.into_iter().collect()]);
    }
    args
}

#[cfg(test)]
mod tests {
    use ragent_options::{
        spec::{JobFiles, JobPath, VirtualDevices, WorkerCommand},
        testing::job_spec,
    };
    use ragent_rendezvous::ids::{GlobalRank, GroupRank, RoleRank, Round, RoundId, Term};

    use super::*;

    fn admission() -> Admission {
        Admission {
            round: RoundId { term: Term(1), round: Round(4) },
            group_rank: GroupRank(1),
            group_world_size: 3,
            first_global_rank: GlobalRank(2),
            world_size: 6,
            first_role_rank: RoleRank(2),
            role_world_size: 6,
            restart_count: 1,
            charged_through: Round(3),
            master_address: "10.0.0.1".into(),
            master_port: 41000,
            ..Admission::default()
        }
    }

    fn args(method: LaunchMethod, files: &JobFiles) -> String {
        let args = ["-u", "-m", "pkg.train", "--out", "$local_rank"].map(OsString::from).into();
        let command = WorkerCommand { args, own_args_at: 3, ..WorkerCommand::default() };
        let devices = VirtualDevices { visible: vec!["5".into(), "3".into()], hip: false };
        let job = JobSpec {
            command,
            launch_method: method,
            files: files.clone(),
            virtual_devices: Some(devices),
            ..job_spec()
        };
        let args = of_worker(&job, &admission(), &JobUid::new("u1"), LocalRank(1));
        args.join(OsStr::new(" ")).into_string().unwrap()
    }

    /// By default, a worker gets its own arguments and nothing else.
    #[test]
    fn torchrun_adds_nothing() {
        let args = args(LaunchMethod::Torchrun, &JobFiles::default());
        assert_eq!(args, "-u -m pkg.train --out 1");
    }

    /// With `basic`, each worker gets its rank, the size of the round, and a file of this round.
    #[test]
    fn basic() {
        let method = |shared_file| LaunchMethod::Basic { shared_file };
        assert_eq!(
            args(method(None), &JobFiles::default()),
            "-u -m pkg.train --out 1 --rank 3 --world_size 6"
        );
        assert_eq!(
            args(method(Some(JobPath::At("/shared/x".into()))), &JobFiles::default()),
            "-u -m pkg.train --out 1 --rank 3 --world_size 6 --init_method file:///shared/x-u1-1-4"
        );
    }

    /// With `deepspeed`, the local rank comes before the script's arguments, as with DeepSpeed's
    /// launcher. It equals the one in the environment.
    #[test]
    fn deepspeed() {
        let config = Some("ds.json".into());
        assert_eq!(
            args(LaunchMethod::DeepSpeed { config }, &JobFiles::default()),
            "-u -m pkg.train --local_rank=0 --out 1 --deepspeed --deepspeed_config ds.json"
        );
        assert_eq!(
            args(LaunchMethod::DeepSpeed { config: None }, &JobFiles::default()),
            "-u -m pkg.train --local_rank=0 --out 1"
        );
    }

    /// The paths of the job are the same for all workers, with any method. Macros in them are not expanded.
    #[test]
    fn paths_of_the_job() {
        let files = JobFiles {
            folder_name: "ragent-j".into(),
            save: Some(JobPath::At("out/$rank".into())),
            checkpoint: Some(JobPath::Auto { within: "/$local_rank".into() }),
        };
        assert_eq!(
            args(LaunchMethod::Torchrun, &files),
            "-u -m pkg.train --out 1 --save_path out/$rank \
             --checkpoint_path /$local_rank/ragent-j/checkpoint.pt"
        );
    }
}
