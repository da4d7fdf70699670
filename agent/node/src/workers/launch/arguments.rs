//! Builds the arguments of a worker: its own, and additions of the launch method.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use ragent_base::spec::{JobFiles, LaunchMethod, WorkerCommand, substitute};
use ragent_rendezvous::{
    ids::{JobUid, LocalRank},
    message::Admission,
};

/// The arguments that are added for all workers, in every round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ArgumentSpec {
    method: LaunchMethod,
    /// The path prefix of the files through which workers meet, if any.
    shared_file: Option<PathBuf>,
    /// The arguments that all workers get at the end.
    shared: Vec<OsString>,
}

/// The round of a worker, and its rank on the node.
#[derive(Clone, Copy, Debug)]
pub struct WorkerContext<'a> {
    /// The admission of its node.
    pub admission: &'a Admission,
    /// The run of the job.
    pub job_uid: &'a JobUid,
    /// Its local rank on the node.
    pub local_rank: LocalRank,
    /// The local rank that the worker sees.
    pub shown_rank: LocalRank,
}

impl ArgumentSpec {
    /// Collects the arguments of `method` and the paths of the job.
    pub fn new(method: &LaunchMethod, files: &JobFiles) -> Self {
        let mut shared: Vec<OsString> = Vec::new();
        if let LaunchMethod::DeepSpeed { config: Some(config) } = method {
            shared.extend(["--deepspeed".into(), "--deepspeed_config".into(), config.into()]);
        }
        if let Some(path) = files.save_path() {
            shared.extend(["--save_path".into(), path.into()]);
        }
        if let Some(path) = files.checkpoint_path() {
            shared.extend(["--checkpoint_path".into(), path.into()]);
        }
        Self { method: method.clone(), shared_file: files.shared_file(method), shared }
    }

    /// Returns the arguments of the worker with `context`. It runs `command`.
    pub fn of_worker(&self, command: &WorkerCommand, context: &WorkerContext<'_>) -> Vec<OsString> {
        let of_round = match self.method {
            LaunchMethod::Basic { .. } => self.basic(context),
            LaunchMethod::Torchrun | LaunchMethod::DeepSpeed { .. } => Vec::new(),
        };
        self.with(command, context.local_rank, context.shown_rank, of_round)
    }

    /// Returns the arguments of a worker that are known before a round: all of them, unless the
    /// launch method passes ranks as arguments.
    pub(crate) fn of_standby(
        &self,
        command: &WorkerCommand,
        local_rank: LocalRank,
        shown_rank: LocalRank,
    ) -> Vec<OsString> {
        self.with(command, local_rank, shown_rank, Vec::new())
    }

    fn with(
        &self,
        command: &WorkerCommand,
        local_rank: LocalRank,
        shown_rank: LocalRank,
        of_round: Vec<OsString>,
    ) -> Vec<OsString> {
        let rank = local_rank.to_string();
        let substituted = |arg: &OsString| substitute(arg, &[("local_rank", &rank)]);
        let (head, own) = command.args.split_at(command.own_args_at.min(command.args.len()));
        let mut args: Vec<OsString> = head.iter().map(substituted).collect();
        if let LaunchMethod::DeepSpeed { .. } = self.method {
            args.push(format!("--local_rank={shown_rank}").into());
        }
        args.extend(own.iter().map(substituted));
        args.extend(of_round);
        args.extend(self.shared.iter().cloned());
        args
    }

    fn basic(&self, context: &WorkerContext<'_>) -> Vec<OsString> {
        let Admission { first_global_rank, world_size, .. } = context.admission;
        let rank = first_global_rank.0.saturating_add(context.local_rank.0);
        let words = ["--rank", &rank.to_string(), "--world_size", &world_size.to_string()];
        let mut args: Vec<OsString> = words.map(OsString::from).into();
        args.extend(self.init_method(context).map(|_| "--init_method".into()));
        args.extend(self.init_method(context));
        args
    }

    /// Returns `file://` with a path that no other round of any run has, because torch's
    /// `FileStore` must not be used twice.
    fn init_method(&self, context: &WorkerContext<'_>) -> Option<OsString> {
        let WorkerContext { job_uid, admission: Admission { round, .. }, .. } = context;
        let suffix = format!("-{job_uid}-{}-{}", round.term, round.round);
        let path = self.shared_file.as_ref()?.as_os_str();
        Some([OsStr::new("file://"), path, OsStr::new(&suffix)].into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::spec::JobPath;
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
        let (admission, job_uid) = (admission(), JobUid::new("u1"));
        let (local_rank, shown_rank) = (LocalRank(1), LocalRank(0));
        let context =
            WorkerContext { admission: &admission, job_uid: &job_uid, local_rank, shown_rank };
        let args = ArgumentSpec::new(&method, files).of_worker(&command, &context);
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
