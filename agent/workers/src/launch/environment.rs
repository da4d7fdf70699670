//! Builds the environment of a worker: the agent's own, and the variables that torchrun adds.

use std::{ffi::OsString, path::Path, time::Duration};

use ragent_options::spec::{
    FLIGHT_RECORDER_FILE, JobSpec, LaunchMethod, RendezvousMethod, WORKER_SERVER_SOCKET,
};
use ragent_rendezvous::{ids::LocalRank, message::Admission};

pub(crate) use ragent_base::sys::user_command::NOT_INHERITED;

/// Returns the variables through which a worker reports its progress, and learns of notices. If hangs are detected, there are two more, under
/// systemd's names. Programs that find these behave differently, so they are absent otherwise.
pub(crate) fn of_reports(
    socket: &Path,
    notice_file: &Path,
    hang_timeout: Option<Duration>,
) -> Vec<(String, OsString)> {
    let mut env = vec![
        ("RAGENT_SOCKET".to_owned(), socket.into()),
        ("RAGENT_NOTICE_FILE".to_owned(), notice_file.into()),
    ];
    if let Some(timeout) = hang_timeout {
        env.push(("NOTIFY_SOCKET".to_owned(), socket.into()));
        env.push(("WATCHDOG_USEC".to_owned(), timeout.as_micros().to_string().into()));
    }
    env
}

/// The path of the socket through which a worker keeps checkpoints in memory.
pub(crate) const MEMORY_SOCKET: &str = "RAGENT_MEMORY_SOCKET";

/// Returns `LOCAL_RANK`.
pub(crate) fn shown_rank(job: &JobSpec, local_rank: LocalRank) -> LocalRank {
    if job.virtual_devices.is_some() { LocalRank(0) } else { local_rank }
}

/// Returns the variables of the worker with `local_rank`, in a round with this admission.
pub(crate) fn of_worker(
    job: &JobSpec,
    admission: &Admission,
    local_rank: LocalRank,
    error_file: Option<&Path>,
) -> Vec<(String, OsString)> {
    let mut env = of_standby(job, local_rank);
    let of_round = of_round(job, admission, local_rank, error_file);
    env.extend(of_round.into_iter().map(|(name, value)| (name.to_owned(), value)));
    env
}

/// Returns the variables of the worker with `local_rank` that are known before a round.
pub(crate) fn of_standby(job: &JobSpec, local_rank: LocalRank) -> Vec<(String, OsString)> {
    let shares_store = if job.shares_store { "True" } else { "False" };
    let size = job.local_world_size.get();
    let mut env = vec![
        ("LOCAL_RANK", number(shown_rank(job, local_rank).0)),
        ("ROLE_NAME", text(&job.role)),
        ("LOCAL_WORLD_SIZE", number(size)),
        ("TORCHELASTIC_MAX_RESTARTS", number(job.shared.max_restarts)),
        ("TORCHELASTIC_RUN_ID", text(job.run_id.as_str())),
        ("TORCHELASTIC_USE_AGENT_STORE", text(shares_store)),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", text(&job.signals.text)),
    ];
    env.extend(job.omp_num_threads.map(|threads| ("OMP_NUM_THREADS", number(threads))));
    if is_deepspeed(job) {
        env.push(("LOCAL_SIZE", number(size)));
    }
    if job.nccl_async_error_handling {
        env.push(("TORCH_NCCL_ASYNC_ERROR_HANDLING", text("1")));
    }
    if let Some(devices) = &job.virtual_devices
        && let Some(device) = devices.visible.get(local_rank.0 as usize)
    {
        env.push(("CUDA_VISIBLE_DEVICES", text(device)));
        if devices.hip {
            env.push(("HIP_VISIBLE_DEVICES", text(device)));
        }
    }
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn of_round(
    job: &JobSpec,
    admission: &Admission,
    local_rank: LocalRank,
    error_file: Option<&Path>,
) -> Vec<(&'static str, OsString)> {
    let master = match &job.rendezvous {
        // The address that the user gave.
        RendezvousMethod::Static { master, .. } => &master.host,
        _ => &admission.master_address,
    };
    let mut env = vec![
        ("RANK", number(admission.first_global_rank.0.saturating_add(local_rank.0))),
        ("GROUP_RANK", number(admission.group_rank.0)),
        ("ROLE_RANK", number(admission.first_role_rank.0.saturating_add(local_rank.0))),
        ("WORLD_SIZE", number(admission.world_size)),
        ("GROUP_WORLD_SIZE", number(admission.group_world_size)),
        ("ROLE_WORLD_SIZE", number(admission.role_world_size)),
        ("MASTER_ADDR", text(master)),
        ("MASTER_PORT", number(admission.master_port.into())),
        ("TORCHELASTIC_RESTART_COUNT", number(admission.restart_count)),
        ("TORCHELASTIC_ERROR_FILE", error_file.map(OsString::from).unwrap_or_default()),
        ("RAGENT_ROUNDS_WITHOUT_PROGRESS", number(admission.rounds_without_progress)),
        (
            "RAGENT_SAVED_STEP",
            admission.saved_step.map(|step| step.to_string().into()).unwrap_or_default(),
        ),
    ];
    if is_deepspeed(job) {
        env.push(("CROSS_RANK", number(admission.group_rank.0)));
        env.push(("CROSS_SIZE", number(admission.group_world_size)));
    }
    env
}

/// The names of the variables that only a round defines. A module that reads one of them while it is imported cannot be imported before
/// the round. `RAGENT_SOCKET` is included, because the reports of a standby would count for the running worker. `RAGENT_NOTICE_FILE` is
/// included, because a notice is for running workers.
pub(crate) const OF_ROUND: [&str; 19] = [
    "CROSS_RANK",
    "CROSS_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    MEMORY_SOCKET,
    "RAGENT_NOTICE_FILE",
    "RAGENT_ROUNDS_WITHOUT_PROGRESS",
    "RAGENT_SAVED_STEP",
    "RAGENT_SOCKET",
    "RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RESTART_COUNT",
    FLIGHT_RECORDER_FILE,
    WORKER_SERVER_SOCKET,
    "WORLD_SIZE",
];

/// True if the additional variables of DeepSpeed's launcher are set.
fn is_deepspeed(job: &JobSpec) -> bool {
    matches!(job.launch_method, LaunchMethod::DeepSpeed { .. })
}

fn number(number: u32) -> OsString {
    OsString::from(number.to_string())
}

fn text(text: &str) -> OsString {
    OsString::from(text)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, num::NonZeroU32};

    use ragent_base::net::Endpoint;
    use ragent_options::{spec::VirtualDevices, testing::job_spec};
    use ragent_rendezvous::{
        ids::{GlobalRank, GroupRank, RoleRank, Round, RoundId, RunId, Term},
        settings::SharedSettings,
    };

    use super::*;

    const DEEPSPEED: LaunchMethod = LaunchMethod::DeepSpeed { config: None };

    fn spec() -> JobSpec {
        let job = job_spec();
        JobSpec {
            run_id: RunId::new("job7"),
            shared: SharedSettings { max_restarts: 3, ..job.shared },
            local_world_size: NonZeroU32::new(2).unwrap(),
            omp_num_threads: Some(1),
            ..job
        }
    }

    fn environment(spec: &JobSpec) -> BTreeMap<String, String> {
        let admission = Admission {
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
        };
        let error_file = Path::new("/logs/error.json");
        let env = of_worker(spec, &admission, LocalRank(1), Some(error_file));
        env.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect()
    }

    /// A worker gets exactly the variables that torchrun 2.15 sets, and what ragent knows of its job.
    #[test]
    fn environment_is_torchruns() {
        let env = environment(&spec());
        let expected = [
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "3"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "41000"),
            ("OMP_NUM_THREADS", "1"),
            ("RAGENT_ROUNDS_WITHOUT_PROGRESS", "0"),
            ("RAGENT_SAVED_STEP", ""),
            ("RANK", "3"),
            ("ROLE_NAME", "default"),
            ("ROLE_RANK", "3"),
            ("ROLE_WORLD_SIZE", "6"),
            ("TORCHELASTIC_ERROR_FILE", "/logs/error.json"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_RUN_ID", "job7"),
            ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("WORLD_SIZE", "6"),
        ];
        let expected: BTreeMap<String, String> =
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(env, expected);
    }

    /// With the static backend, the master is the address that the user gave. A worker that sees
    /// one device has local rank 0.
    #[test]
    fn environment_by_other_flags() {
        let devices = VirtualDevices { visible: vec!["5".into(), "3".into()], hip: true };
        let master = Endpoint { host: "node0".into(), port: 1 };
        let env = environment(&JobSpec {
            rendezvous: RendezvousMethod::Static { master, node_rank: 0 },
            shares_store: false,
            virtual_devices: Some(devices),
            ..spec()
        });
        for (name, value) in [
            ("CUDA_VISIBLE_DEVICES", "3"),
            ("HIP_VISIBLE_DEVICES", "3"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "node0"),
            ("RANK", "3"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ] {
            assert_eq!(env[name], value, "{name}");
        }
    }

    /// DeepSpeed's launcher sets three more variables, and all of torch's.
    #[test]
    fn environment_for_deepspeed() {
        let mut env = environment(&JobSpec { launch_method: DEEPSPEED, ..spec() });
        for (name, value) in [("CROSS_RANK", "1"), ("CROSS_SIZE", "3"), ("LOCAL_SIZE", "2")] {
            assert_eq!(env.remove(name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(env, environment(&spec()));
    }

    /// Exactly the variables that only a round defines are missing in a standby.
    #[test]
    fn variables_of_a_round() {
        let spec = JobSpec { launch_method: DEEPSPEED, ..spec() };
        let standby: BTreeMap<_, _> = of_standby(&spec, LocalRank(1)).into_iter().collect();
        let socket = of_reports(Path::new("/run/0"), Path::new("/run/notice.json"), None);
        let all: BTreeMap<_, _> = environment(&spec)
            .into_keys()
            .chain(socket.into_iter().map(|(name, _)| name))
            .chain([MEMORY_SOCKET, FLIGHT_RECORDER_FILE, WORKER_SERVER_SOCKET].map(str::to_owned))
            .map(|name| (name, ()))
            .collect();
        let of_round = all.keys().filter(|name| !standby.contains_key(*name));
        assert_eq!(of_round.collect::<Vec<_>>(), OF_ROUND);
    }
}
