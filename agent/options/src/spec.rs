//! The meaning of the flags: a [`JobSpec`] without contradictions, or every mistake at once.

mod argument;
mod arguments;
mod auth;
mod command;
mod devices;
mod etcd;
mod hang;
mod health;
mod job_files;
mod launch_method;
mod launcher;
mod limits;
mod memory;
mod metrics_listen;
mod notices;
mod observation;
mod output;
mod ranks;
mod rdzv_conf;
mod rendezvous;
mod search;
mod signals;
mod standby;
mod step_pattern;
mod template;
mod usage;
mod voters;

use std::{collections::BTreeSet, net::SocketAddr, num::NonZeroU32, path::PathBuf, time::Duration};

use nix::sys::signal::Signal;
use ragent_base::{
    net::Endpoint,
    secret::{AuthRequest, Credentials},
    sys::host::{Host, numa::CpuSet},
};
use ragent_rendezvous::{ids::RunId, settings::SharedSettings, voter_count::VoterCount};

pub use self::{
    argument::Argument,
    auth::{auth_request, credentials, find_credentials, gives_auth, shared_credentials},
    command::{OWN_PYTHON, ScriptKind, interpreter},
    devices::asked_workers,
    etcd::{AskedEtcd, asked_etcd},
    launch_method::{MethodArguments, read_deepspeed_config},
    launcher::port_of,
    rendezvous::{asked_nodes, one_node},
    search::{AskedEndpoint, JobEndpoint, asked_endpoint},
    step_pattern::StepFinder,
    usage::UsageErrors,
    voters::{asked_voters, majority_warning, voters_among},
};
use self::{
    arguments::{Arguments, MAX_NAME_LEN},
    voters::voters_of_job,
};
pub use self::{
    command::WorkerCommand,
    devices::VirtualDevices,
    etcd::{EtcdConf, EtcdLogin, EtcdSpec, EtcdTls},
    hang::HangSpec,
    health::HealthSpec,
    job_files::{JobFiles, JobPath},
    launch_method::LaunchMethod,
    launcher::LauncherGroup,
    memory::MemorySpec,
    notices::{NoticeSignal, RequestKind},
    observation::{FLIGHT_RECORDER_FILE, ObservationSpec, WORKER_SERVER_SOCKET},
    output::{Output, PrefixValues, Sink, log_format},
    ranks::RankRanges,
    rdzv_conf::{RdzvConf, StorePorts},
    rendezvous::RendezvousMethod,
    search::{Eligible, SearchSpec},
    signals::{SignalList, Signaled},
    step_pattern::{LinePattern, StepPattern},
    template::substitute,
    usage::UsageError,
    voters::{VoterList, VoterListError},
};
use crate::cli::{LaunchArgs, ProgramName};

/// One node's part of a job, as its command line and its environment define it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// The name by which the program was called.
    pub name: ProgramName,
    /// The job's name.
    pub run_id: RunId,
    /// True if no earlier job can have this name, and no earlier agent of this node. Then the first round need not wait for an
    /// earlier job.
    pub is_new_name: bool,
    /// The method by which the nodes find each other, with its endpoint.
    pub rendezvous: RendezvousMethod,
    /// The number of voters that elect the coordinator, if as many nodes register.
    pub voters: VoterCount,
    /// The settings that must be the same on all nodes.
    pub shared: SharedSettings,
    /// The credentials of this node.
    pub auth: AuthRequest,
    /// Those credentials, once they were read; until then, none.
    pub credentials: Credentials,
    /// The place of this agent among the agents of a launcher, if a launcher started it.
    pub launcher_group: Option<LauncherGroup>,
    /// The number of workers on this node.
    pub local_world_size: NonZeroU32,
    /// The role of this node's workers.
    pub role: String,
    /// This node's address, if the user gave it.
    pub local_addr: Option<String>,
    /// This node's preferred rank among newcomers, or its rank if ranks are fixed.
    pub node_rank: Option<u32>,
    /// The ports on which it may serve the workers' store.
    pub store_ports: StorePorts,
    /// The checkpoints in the memory of this node.
    pub memory: MemorySpec,
    /// True if the agent serves that store, rather than the worker with rank 0.
    pub shares_store: bool,
    /// The command of each worker.
    pub command: WorkerCommand,
    /// The launch method: what each worker receives in addition to its environment.
    pub launch_method: LaunchMethod,
    /// Paths that are passed to all workers.
    pub files: JobFiles,
    /// The folder for the log folders; `None` for a temporary one.
    pub log_dir: Option<PathBuf>,
    /// The destinations of the workers' output.
    pub output: Output,
    /// True if the workers' events are printed on stderr.
    pub prints_events: bool,
    /// The address at which the metrics are served to every client; `None` if they are not.
    pub metrics_listen: Option<SocketAddr>,
    /// The file to which the job's result is written.
    pub report: Option<PathBuf>,
    /// `--journal`.
    pub journal: Option<PathBuf>,
    /// The file to which the first failure is written in torch's format, for the program that
    /// started the agent.
    pub error_file: Option<PathBuf>,
    /// The pipe through which workers set timers; `None` if they cannot.
    pub timers: Option<TimerFile>,
    /// The time that the agent waits for GPUs that processes of an earlier round still hold.
    pub held_gpu_timeout: Duration,
    /// The modules that standbys import; empty without standbys.
    pub standby: Vec<String>,
    /// True if standbys start torch's worker server.
    pub observe: bool,
    /// Signals that are passed on to the workers.
    pub forwarded: Vec<Signal>,
    /// The processes of a worker that receive its signals.
    pub signaled: Signaled,
    /// Signals to this agent that are notices.
    pub notice_on: Vec<NoticeSignal>,
    /// The program that prints notices, with its arguments; empty if there is none.
    pub notice_command: Vec<String>,
    /// The program that prints the hosts that get no place, with its arguments; empty if there is none.
    pub exclude_command: Vec<String>,
    /// The checks of the machine.
    pub health: HealthSpec,
    /// Exit codes of workers after which the job is not restarted.
    pub final_codes: BTreeSet<i32>,
    /// The pattern of training steps in the workers' output; `None` if they are not read.
    pub step_pattern: Option<StepPattern>,
    /// The condition under which workers count as hung; `None` if they never do.
    pub hang: Option<HangSpec>,
    /// The path of py-spy, if it is installed.
    pub py_spy: Option<PathBuf>,
    /// The variables that workers get for looks.
    pub observation: ObservationSpec,
    /// Signals on which the agent shuts down.
    pub signals: SignalList,
    /// The devices of workers that see one each, if they do.
    pub virtual_devices: Option<VirtualDevices>,
    /// The processors of each worker; empty if workers are not bound.
    pub cpus_by_rank: Vec<CpuSet>,
    /// `OMP_NUM_THREADS` for workers, if the user has not set it and several share the node.
    pub omp_num_threads: Option<u32>,
    /// True if workers get `TORCH_NCCL_ASYNC_ERROR_HANDLING`, because the user has not set it.
    pub nccl_async_error_handling: bool,
}

impl JobSpec {
    /// Returns true if no earlier job of this name can exist, so that the first round does not wait for a process that may know
    /// one.
    pub fn is_first_start(&self) -> bool {
        if self.is_new_name {
            return true;
        }
        // Its agent before this one has left a state file, or was on this machine as well, with all of its workers.
        let is_local = |endpoint: &Endpoint| self.shared.nodes.max() == 1 && endpoint.is_loopback();
        match &self.rendezvous {
            RendezvousMethod::Standalone => true,
            // No other agent knows a port that the system chooses.
            RendezvousMethod::Endpoint { endpoint, .. }
            | RendezvousMethod::Static { master: endpoint, .. } => {
                endpoint.port == 0 || is_local(endpoint)
            }
            RendezvousMethod::Voters(_)
            | RendezvousMethod::Etcd(_)
            | RendezvousMethod::Search(_) => false,
        }
    }
}

/// The pipe through which workers set timers: torch's `FileTimerClient`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TimerFile {
    /// A pipe in the temporary folder.
    Temporary,
    /// At this path.
    At(PathBuf),
}

/// The name of a job that was given none; the same as torch's.
pub const NO_NAME: &str = "none";

/// The error for a command line without a script.
pub const NO_SCRIPT: &str = "no training script is given";

/// The time that workers have to end without `--shutdown-timeout`; the same as torch's.
const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a driver may take to free a GPU: seconds if a process had much memory mapped.
const DEFAULT_HELD_GPU_TIMEOUT: Duration = Duration::from_secs(30);
/// A limit that is longer than any useful wait.
const MAX_HELD_GPU_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

impl JobSpec {
    /// Resolves the arguments on this machine.
    ///
    /// # Errors
    ///
    /// Returns every mistake, in the order of the flags.
    pub fn resolve(args: LaunchArgs, host: &impl Host) -> Result<Self, Vec<UsageError>> {
        let mut arguments = Arguments { args: &args, host, placement: None };
        let mut errors = UsageErrors::default();
        arguments.placement = errors.or_default(arguments.placement());
        let conf = errors.or_default(arguments.rdzv_conf());
        let nodes = errors.or(arguments.nodes(&conf), one_node());
        let local_world_size = errors.or(arguments.local_world_size(), NonZeroU32::MIN);
        let backend = errors.or_default(arguments.backend());
        let rendezvous = errors.or_default(arguments.rendezvous(nodes, backend, &conf));
        let auth = errors.or_default(arguments.auth());
        let mut timeouts = conf.timeouts;
        let nodes = rendezvous.adapt(nodes, &conf, &mut timeouts);
        let launcher_group = arguments.launcher_group();
        let launcher = launcher_group.as_ref().map(|group| group.launcher);
        let voters = voters_of_job(&conf, nodes, &rendezvous, launcher);
        let node_rank = match &rendezvous {
            RendezvousMethod::Static { node_rank, .. } => Some(*node_rank),
            RendezvousMethod::Standalone
            | RendezvousMethod::Endpoint { .. }
            | RendezvousMethod::Voters(_)
            | RendezvousMethod::Etcd(_)
            | RendezvousMethod::Search(_) => errors
                .or_default(arguments.optional_number("node_rank", &args.node_rank))
                .or_else(|| launcher_group.as_ref().map(|group| group.node_rank)),
        };
        let max_restarts =
            errors.or_default(arguments.number("max_restarts", &args.job.max_restarts, 0));
        let run_id = errors.or(arguments.run_id(), RunId::new(NO_NAME));
        let is_named = nodes.max() == 1 || run_id.as_str() != NO_NAME;
        let final_codes = errors.or_default(arguments.final_codes());
        errors.or_default(arguments.monitor_interval());
        errors.or_default(arguments.start_method());
        errors.or_default(arguments.logs_specs());
        timeouts.stop_grace = errors.or_default(arguments.shutdown_timeout());
        let role = errors.or_default(arguments.name("role", &args.role));
        let local_addr = errors.or_default(arguments.name("local_addr", &args.local_addr));
        let command = errors.or_default(arguments.command());
        let files = arguments.job_files(&run_id, is_named, &mut errors);
        let launch_method = arguments.launch_method(&files.folder_name, is_named, &mut errors);
        let signals = errors.or_default(arguments.signals());
        let shared_store = arguments.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
        let error_file = arguments.variable("TORCHELASTIC_ERROR_FILE");
        let path = |given: Option<String>| given.filter(|path| !path.is_empty()).map(PathBuf::from);
        let fixed_ranks = matches!(rendezvous, RendezvousMethod::Static { .. });
        let exclude_command = errors.or_default(arguments.exclude_command(fixed_ranks));
        let spec = Self {
            name: args.name,
            run_id,
            is_new_name: args.first_start || arguments.is_task_of_step(),
            voters,
            shared: SharedSettings {
                nodes,
                max_restarts,
                timeouts,
                fixed_ranks,
                store_access: errors.or_default(arguments.store_access()),
                notice: errors.or_default(arguments.notice()),
                no_progress_limit: errors.or_default(arguments.no_progress_limit()),
                hang_auto: arguments.hang_auto(),
                memory_copies: errors.or_default(arguments.memory_copies()),
                as_torchrun: args.name == ProgramName::Torchrun,
            },
            auth,
            credentials: Credentials::default(),
            launcher_group,
            local_world_size,
            role: role.unwrap_or_else(|| "default".to_owned()),
            local_addr: local_addr.filter(|address| !address.is_empty()),
            node_rank,
            store_ports: conf.store_ports,
            memory: MemorySpec {
                limit: errors.or_default(arguments.memory_limit()),
                failure_domain: errors.or_default(arguments.failure_domain()),
            },
            shares_store: matches!(rendezvous, RendezvousMethod::Static { .. })
                || shared_store.is_none_or(|given| given.text != "1"),
            rendezvous,
            hang: errors.or_default(arguments.hang()),
            py_spy: arguments.py_spy(&command),
            observation: ObservationSpec::new(args.name, host),
            step_pattern: errors.or_default(arguments.step_pattern()),
            standby: errors.or_default(arguments.standby(&command, &launch_method)),
            observe: errors.or_default(arguments.observe()),
            command,
            launch_method,
            files,
            log_dir: path(arguments.text("log_dir", &args.log_dir)),
            output: errors.or_default(arguments.output()),
            prints_events: errors.or_default(arguments.prints_events()),
            journal: path(arguments.text("journal", &args.journal)),
            metrics_listen: errors.or_default(arguments.metrics_listen()),
            report: report_path(&args, host),
            error_file: path(error_file.map(|given| given.text)),
            timers: arguments.timers(),
            final_codes,
            held_gpu_timeout: errors.or_default(arguments.held_gpu_timeout()),
            forwarded: errors.or_default(arguments.forwarded(&signals)),
            signaled: errors.or_default(arguments.signaled()),
            notice_on: errors.or_default(arguments.notice_on(&signals)),
            notice_command: errors.or_default(arguments.notice_command()),
            exclude_command,
            health: HealthSpec {
                check: errors.or_default(arguments.health_check()),
                timeout: errors.or_default(arguments.health_timeout()),
                is_reported: args.name != ProgramName::Torchrun,
                ..errors.or_default(arguments.health())
            },
            signals,
            virtual_devices: errors.or_default(arguments.virtual_devices(local_world_size)),
            cpus_by_rank: errors.or_default(arguments.cpus_by_rank(local_world_size)),
            omp_num_threads: (local_world_size.get() > 1 && host.env("OMP_NUM_THREADS").is_none())
                .then_some(1),
            nccl_async_error_handling: host.env("TORCH_NCCL_ASYNC_ERROR_HANDLING").is_none(),
        };
        errors.into_result(spec)
    }
}

impl<H: Host> Arguments<'_, H> {
    fn rdzv_conf(&self) -> Result<RdzvConf, UsageError> {
        let text = self.text("rdzv_conf", &self.args.rdzv_conf).unwrap_or_default();
        RdzvConf::parse(&text)
    }

    fn run_id(&self) -> Result<RunId, UsageError> {
        let given = self.argument("rdzv_id", &self.args.rdzv_id);
        let assigned = || self.launchers_name().unwrap_or(NO_NAME);
        let given = given.unwrap_or_else(|| Argument::new("--rdzv-id", assigned()));
        let sound = |c: char| !c.is_control() && c != '/';
        if given.text.is_empty()
            || given.text.len() > MAX_NAME_LEN
            || !given.text.chars().all(sound)
        {
            return Err(given
                .is_not("a valid job name: 1 to 200 bytes, without `/` and control characters"));
        }
        Ok(RunId::new(given.text))
    }

    fn final_codes(&self) -> Result<BTreeSet<i32>, UsageError> {
        let typed = &self.args.no_restart_exit_codes;
        let Some(given) = self.argument("no_restart_exit_codes", typed) else {
            return Ok(BTreeSet::new());
        };
        let code = |part: &str| part.trim().parse::<u8>().ok().filter(|code| *code > 0);
        let codes = given.text.split(',').map(|part| code(part).map(i32::from));
        codes
            .collect::<Option<_>>()
            .ok_or_else(|| given.is_not("a list of exit codes from 1 to 255, such as 2,64"))
    }

    fn monitor_interval(&self) -> Result<(), UsageError> {
        let given = self.argument("monitor_interval", &self.args.monitor_interval);
        given.map(|given| given.seconds(|seconds| seconds > 0.0)).transpose().map(|_| ())
    }

    fn start_method(&self) -> Result<(), UsageError> {
        // The variable is ignored: torchrun accepts any value of it.
        let given = Argument::of_flag("--start-method", &self.args.start_method);
        let choose = |text: &str| ["spawn", "fork", "forkserver"].contains(&text).then_some(());
        let choices = "`spawn`, `fork` or `forkserver`";
        given.map_or(Ok(()), |given| given.choice(choices, choose))
    }

    fn logs_specs(&self) -> Result<(), UsageError> {
        let given = Argument::of_flag("--logs-specs", &self.args.logs_specs);
        // torchrun's name of its own kind of log files.
        given.filter(|given| given.text != "default").map_or(Ok(()), |given| {
            let problem = "is a Python plug-in, which ragent cannot load";
            let hint = "use `--log-dir`, `--redirects`, `--tee` and `--log-line-prefix-template` to \
                        configure the output";
            Err(given.invalid(problem).with_hint(hint))
        })
    }

    fn shutdown_timeout(&self) -> Result<Duration, UsageError> {
        let flag = self.argument("shutdown_timeout", &self.args.job.shutdown_timeout);
        let Some(given) = flag.or_else(|| self.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) else {
            return Ok(DEFAULT_SHUTDOWN_TIMEOUT);
        };
        given.whole_seconds(0..=u32::MAX).map(|seconds| Duration::from_secs(seconds.into()))
    }

    fn signals(&self) -> Result<SignalList, UsageError> {
        let Some(given) = self.argument("signals_to_handle", &self.args.signals_to_handle) else {
            return Ok(SignalList::default());
        };
        given.text.parse().map_err(|signal: Signal| {
            given.invalid(format_args!("contains {signal}, which cannot be handled"))
        })
    }

    fn signaled(&self) -> Result<Signaled, UsageError> {
        let Some(given) = self.argument("signal_workers", &self.args.signal_workers) else {
            return Ok(match self.args.name {
                ProgramName::Torchrun => Signaled::Group,
                ProgramName::Ragent => Signaled::Auto,
            });
        };
        let choice = given.choice("`auto`, `main` or `group`", |text| match text {
            "auto" => Some(Signaled::Auto),
            "main" => Some(Signaled::Main),
            "group" => Some(Signaled::Group),
            _ => None,
        });
        choice.map_err(|error| error.with_hint("leave it out, or give `group` for torchrun's way"))
    }

    fn forwarded(&self, handled: &SignalList) -> Result<Vec<Signal>, UsageError> {
        let typed = &self.args.signals_to_forward;
        let Some(given) = self.argument("signals_to_forward", typed) else { return Ok(Vec::new()) };
        let wrong = |name: &str| {
            let hint = "list signals that `--signals-to-handle` does not contain, such as SIGUSR1";
            given
                .invalid(format_args!("contains {name}, which cannot be forwarded"))
                .with_hint(hint)
        };
        let list: SignalList =
            given.text.parse().map_err(|signal: Signal| wrong(signal.as_str()))?;
        if let Some(name) = list.unknown.first() {
            return Err(wrong(name));
        }
        match list.signals.iter().find(|signal| handled.signals.contains(signal)) {
            Some(signal) => Err(wrong(signal.as_str())),
            None => Ok(list.signals),
        }
    }

    fn held_gpu_timeout(&self) -> Result<Duration, UsageError> {
        let Some(given) = self.argument("held_gpu_timeout", &self.args.held_gpu_timeout) else {
            return Ok(DEFAULT_HELD_GPU_TIMEOUT);
        };
        let range = 0.0..=MAX_HELD_GPU_TIMEOUT.as_secs_f64();
        given.seconds(|seconds| range.contains(&seconds)).map(Duration::from_secs_f64)
    }

    fn timers(&self) -> Option<TimerFile> {
        self.variable("TORCHELASTIC_ENABLE_FILE_TIMER").filter(|given| given.text == "1")?;
        let path = self.host.env("TORCHELASTIC_TIMER_FILE");
        Some(path.map_or(TimerFile::Temporary, |path| TimerFile::At(path.into())))
    }

    fn command(&self) -> Result<WorkerCommand, UsageError> {
        let module = self.switch("module", self.args.job.module)?;
        let no_python = self.switch("no_python", self.args.job.no_python)?;
        let run_path = self.switch("run_path", self.args.run_path)?;
        let Some((script, args)) = self.args.job.script.split_first() else {
            return Err(UsageError::new(NO_SCRIPT).with_hint("see `ragent --help`"));
        };
        let (script, args) = (script.clone(), args.to_vec());
        if run_path {
            return WorkerCommand::run_path(script, args, self.host);
        }
        match ScriptKind::of(module, no_python)? {
            ScriptKind::Module => WorkerCommand::module(script, args, self.host),
            ScriptKind::Program => WorkerCommand::program(script, args, self.host),
            ScriptKind::Script => WorkerCommand::script(script, args, self.host),
        }
    }
}

/// Returns the file of `--report`, if the flag or its variable names one.
pub fn report_path(args: &LaunchArgs, host: &impl Host) -> Option<PathBuf> {
    let given = Arguments { args, host, placement: None }.text("report", &args.report);
    given.filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests;
