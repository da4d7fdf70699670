//! Lists every way in which a command can fail, with its message and exit code.

use std::{
    borrow::Cow,
    ffi::OsString,
    fmt::Write,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use ragent_base::{
    report::{
        outcome_text::{closed, differences, with_hint},
        status_text::progress::grouped,
    },
    sys::system_error::SystemError,
};
use ragent_coordinator::client::StreamError;
use ragent_core::agent::{CLOSED_BEFORE, Ending, HOST_GONE, REFUSED, SAVED};
use ragent_leadership::{
    StateLoss,
    state_file::{RunningAgent, Stage},
};
use ragent_node::{
    endpoint::{
        CHECK_NAME, HostOrJoinError, LocateError, MetricsPortError, search::sockets::SocketsError,
    },
    node::driver::{DependsOn, NodeEnd},
};
use ragent_options::{
    cli::{self, ProgramName},
    spec::{Argument, StorePorts, UsageError},
};
use ragent_proto::printable;
use ragent_rendezvous::{
    message::{JobResult, Outcome, RefuseReason, WorkerEnd, WorkerFailure},
    settings::SharedSettings,
};

/// The exit code of a program that needs a port which another program has.
pub(crate) const PORT_IN_USE: u8 = 10;

/// The reason why a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The system refused something that every launch needs.
    #[error(transparent)]
    System(#[from] SystemError),
    /// This node could neither host nor join the job.
    #[error(transparent)]
    HostOrJoin(#[from] HostOrJoinError),
    /// The metrics cannot be served at the address of `--metrics-listen`.
    #[error(transparent)]
    Metrics(#[from] MetricsPortError),
    /// The job, or this node's part in it, did not succeed.
    #[error("the job did not succeed")]
    Ended(Box<Ended>),
    /// A service manager starts this agent again, but its job has already failed.
    #[error("the job was already closed as failed")]
    StaysClosed {
        /// The outcome of the job.
        outcome: Box<Outcome>,
        /// The title of its command.
        title: String,
        /// The file that records the outcome.
        path: PathBuf,
    },
    /// `ragent status` does not know which endpoint to ask.
    #[error("{0}")]
    NoJob(String),
    /// The agent that `ragent status` would ask has not found its job yet.
    #[error("job {} has no coordinator yet: {}", .0.run_id, waits(.0))]
    NotMet(Box<RunningAgent>),
    /// `ragent status` cannot ask.
    #[error("failed to get the status of the job at {endpoint}{}", of_agent(*agent))]
    Status {
        /// The endpoint that was asked.
        endpoint: String,
        /// The process id of an agent of that job on this machine, if there is one.
        agent: Option<u32>,
        /// The cause.
        #[source]
        source: StreamError,
    },
    /// None of the voters answers `ragent status` with the state of the job.
    #[error(
        "failed to get the status of the job from any of its voters{}",
        of_agent(*agent)
    )]
    StatusOfVoters {
        /// Each voter that was asked, with the cause.
        failures: Vec<String>,
        /// The process id of an agent of that job on this machine, if there is one.
        agent: Option<u32>,
    },
    /// No store for the workers of a round can be opened.
    #[error("failed to open a store for the workers{}", on_ports(*ports))]
    WorkerStore {
        /// The ports that the store may use.
        ports: StorePorts,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A command failed, with an exit code and a report of its own.
    #[error("the command failed")]
    Command {
        /// The exit code.
        code: u8,
        /// The message for the user.
        report: String,
    },
    /// The arguments are invalid on this machine.
    #[error("the command line is invalid")]
    Usage(Vec<UsageError>),
}

impl From<UsageError> for LaunchError {
    fn from(error: UsageError) -> Self {
        Self::Usage(vec![error])
    }
}

impl From<Vec<UsageError>> for LaunchError {
    fn from(errors: Vec<UsageError>) -> Self {
        Self::Usage(errors)
    }
}

/// Adds the attempted operation to an error of the system.
pub(crate) fn system(attempt: &'static str) -> impl Fn(io::Error) -> LaunchError {
    move |source| LaunchError::System(SystemError { attempt, source })
}

/// Returns an error of the flag that names an output file or folder, which cannot be written.
pub(crate) fn unwritable(flag: &str, path: &Path) -> impl FnOnce(io::Error) -> LaunchError {
    let given = Argument::new(flag, &path.to_string_lossy());
    move |error| {
        let hint = "its folder must exist, and this user must be allowed to write to it";
        given.invalid(format_args!("cannot be written: {error}")).with_hint(hint).into()
    }
}

/// The end of a job, or of this node's part in it, other than success.
#[derive(Debug)]
pub struct Ended {
    /// The end of this node's part.
    pub end: NodeEnd,
    /// The settings of this node.
    pub settings: SharedSettings,
    /// The title of its command.
    pub title: String,
    /// The interpreter of its workers; `None` if they are programs of another kind.
    pub interpreter: Option<PathBuf>,
    /// The arguments of its script.
    pub script_args: Vec<OsString>,
}

impl LaunchError {
    /// Returns the exit code of the process. `docs/exit-codes.md` lists all of them.
    pub fn exit_code(&self, name: ProgramName) -> ExitCode {
        ExitCode::from(self.code(name))
    }

    /// Returns the exit code as a number. torchrun has only the codes 1 and 2, and tools that start it may not know others.
    pub fn code(&self, name: ProgramName) -> u8 {
        match (name, self.own_code()) {
            (ProgramName::Torchrun, code) if code != 2 && code != SAVED => 1,
            (ProgramName::Ragent | ProgramName::Torchrun, code) => code,
        }
    }

    fn own_code(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::HostOrJoin(HostOrJoinError::Locate(LocateError::SameAddress { .. })) => 2,
            Self::Command { code, .. } => *code,
            Self::Ended(ended) => ended.exit_code(),
            Self::StaysClosed { .. } => CLOSED_BEFORE,
            #[cfg(feature = "etcd")]
            Self::HostOrJoin(HostOrJoinError::Locate(LocateError::EtcdAway { .. })) => HOST_GONE,
            #[cfg(not(feature = "etcd"))]
            Self::HostOrJoin(HostOrJoinError::Locate(LocateError::NoEtcd)) => 2,
            Self::HostOrJoin(HostOrJoinError::Locate(LocateError::Auth(_)))
            | Self::Status { source: StreamError::Mismatch(_), .. } => REFUSED,
            error if error.is_port_in_use() => PORT_IN_USE,
            Self::System(_)
            | Self::HostOrJoin(_)
            | Self::Metrics(_)
            | Self::NoJob(_)
            | Self::NotMet(_)
            | Self::Status { .. }
            | Self::StatusOfVoters { .. }
            | Self::WorkerStore { .. } => 1,
        }
    }

    /// Returns true if another program has a port that this one needs.
    fn is_port_in_use(&self) -> bool {
        let is_taken = |source: &io::Error| source.kind() == io::ErrorKind::AddrInUse;
        match self {
            Self::HostOrJoin(HostOrJoinError::Locate(error)) => match error {
                LocateError::Held { .. } | LocateError::Other { .. } => true,
                LocateError::Bind { source, .. }
                | LocateError::Search(SocketsError::Bind { source, .. }) => is_taken(source),
                #[cfg(feature = "etcd")]
                LocateError::Etcd(_) | LocateError::EtcdAway { .. } => false,
                #[cfg(not(feature = "etcd"))]
                LocateError::NoEtcd => false,
                LocateError::Auth(_)
                | LocateError::NotHere { .. }
                | LocateError::SameAddress { .. }
                | LocateError::Search(SocketsError::NoInterface { .. })
                | LocateError::NotFound { .. }
                | LocateError::Unresolved { .. }
                | LocateError::TimedOut { .. } => false,
            },
            Self::Metrics(error) => matches!(error, MetricsPortError::Held { .. }),
            Self::WorkerStore { source, .. } => is_taken(source),
            Self::System(error) | Self::HostOrJoin(HostOrJoinError::System(error)) => {
                is_taken(&error.source)
            }
            Self::Ended(_)
            | Self::StaysClosed { .. }
            | Self::NoJob(_)
            | Self::NotMet(_)
            | Self::Status { .. }
            | Self::StatusOfVoters { .. }
            | Self::Command { .. }
            | Self::Usage(_) => false,
        }
    }

    /// Returns the message for the user: the operation, the cause and a hint.
    pub fn report(&self) -> String {
        // The report may quote text that was received or read from a file.
        printable(&self.raw_report())
    }

    fn raw_report(&self) -> String {
        match self {
            Self::Usage(errors) => usage(errors),
            Self::Command { report, .. } => report.clone(),
            Self::Ended(ended) => ended.report(),
            Self::StaysClosed { outcome, title, path } => with_hint(
                format!("error: {self}\n{}", closed(outcome, title)),
                Some(&format!(
                    "to run it again, stop its unit first, or remove {}",
                    path.display()
                )),
            ),
            Self::StatusOfVoters { failures, .. } => with_hint(
                format!("error: {self}\n  {}", failures.join("\n  ")),
                self.hint().as_deref(),
            ),
            Self::System(_)
            | Self::HostOrJoin(_)
            | Self::Metrics(_)
            | Self::NoJob(_)
            | Self::NotMet(_)
            | Self::Status { .. }
            | Self::WorkerStore { .. } => with_hint(chain(self), self.hint().as_deref()),
        }
    }

    fn hint(&self) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(match self {
            Self::HostOrJoin(HostOrJoinError::System(_)) => return None,
            Self::HostOrJoin(HostOrJoinError::Locate(error)) => return Some(error.hint()),
            Self::Metrics(error) => return error.hint().map(Cow::Borrowed),
            Self::Status { source: StreamError::Mismatch(mismatch), .. } => {
                return Some(mismatch.hint().into());
            }
            Self::Status { source: StreamError::Resolve(_), .. } => CHECK_NAME,
            Self::NoJob(_) => "give the endpoint of the job as `--rdzv-endpoint HOST:PORT`",
            Self::Status { source: StreamError::Other { .. }, .. } => {
                "check the port: `--rdzv-endpoint` must be the endpoint of the job"
            }
            Self::Status { agent: None, .. } => {
                "check that its agent is running; on any node of the job you need no `--rdzv-endpoint`, also if that host is gone"
            }
            Self::StatusOfVoters { .. } => {
                "check that the agents on these hosts are running, and that no firewall blocks \
                 their ports"
            }
            Self::NotMet(agent) if !matches!(agent.stage, Stage::Waiting { .. }) => {
                "check that the other agents are running with the same `--rdzv-id` and the same secret; `ragent \
                 doctor --rdzv-endpoint auto` checks the network"
            }
            Self::Status { agent: Some(_), .. } | Self::NotMet(_) => {
                "check that the agent on the endpoint's host is running, and that no firewall \
                 blocks its port"
            }
            Self::WorkerStore { ports: StorePorts::Range { .. }, .. } => {
                "free the ports, or give a larger range in `store_port` (`--rdzv-conf`): each \
                 agent of a machine needs its own"
            }
            Self::WorkerStore { ports: StorePorts::Any, .. }
            | Self::System(_)
            | Self::Ended(_)
            | Self::StaysClosed { .. }
            | Self::Command { .. }
            | Self::Usage(_) => return None,
        }))
    }
}

/// Describes why an agent has not found its job yet.
fn waits(agent: &RunningAgent) -> String {
    let RunningAgent { endpoint, pid, stage, .. } = agent;
    match stage {
        Stage::Registered => {
            format!("its agent on this machine (process {pid}) is registered at {endpoint}")
        }
        Stage::Launching => format!("process {pid} on this machine has launched it at {endpoint}"),
        Stage::Searching => {
            format!(
                "its agent on this machine (process {pid}) is searching for the others ({endpoint})"
            )
        }
        Stage::Waiting { cause } => {
            let cause = cause.as_ref().map_or_else(String::new, |cause| format!(" ({cause})"));
            format!("its agent on this machine (process {pid}) is waiting for {endpoint}{cause}")
        }
    }
}

fn of_agent(agent: Option<u32>) -> String {
    agent.map_or_else(String::new, |pid| {
        format!("; its agent on this machine is running (process {pid})")
    })
}

fn on_ports(ports: StorePorts) -> String {
    match ports {
        StorePorts::Any => String::new(),
        StorePorts::Range { first, last } if first == last => format!(" on port {first}"),
        StorePorts::Range { first, last } => format!(" on a port from {first} to {last}"),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, "\n  caused by: {error}");
        cause = error.source();
    }
    text
}

fn usage(errors: &[UsageError]) -> String {
    let one = |(index, error): (usize, &UsageError)| {
        // If several errors in a row have the same hint, it follows the last one.
        let next = errors.get(index + 1).and_then(UsageError::hint);
        let hint = error.hint().filter(|hint| Some(*hint) != next);
        with_hint(format!("error: {error}"), hint)
    };
    errors.iter().enumerate().map(one).collect::<Vec<_>>().join("\n")
}

/// Returns a hint if the first failure is an interpreter that lacks a module. The user may expect another interpreter, or another folder.
fn missing_module(failure: &WorkerFailure, interpreter: Option<&Path>) -> Option<String> {
    let last = failure.stderr_tail.trim_end().lines().next_back()?.trim();
    let interpreter = interpreter?.display();
    if let Some(module) = last.strip_prefix("ModuleNotFoundError: No module named ") {
        return Some(format!(
            "install {module} for the interpreter of the workers, which is {interpreter} on this node, or set PYTHON_EXEC to another one; if \
             the module is your own, add its folder to PYTHONPATH"
        ));
    }
    let (_, module) = last.split_once(": No module named ")?;
    // A package without `__main__` gets an explanation.
    let module = module.split(';').next()?;
    Some(format!(
        "check the name `{module}` after `-m`: {interpreter} searches for it in the working directory, in PYTHONPATH and among the installed \
         modules"
    ))
}

/// Returns a hint if the arguments of a script that has refused them contain a flag of ragent. The script may have a flag of that name.
fn misplaced_flag(failure: &WorkerFailure, script_args: &[OsString]) -> Option<String> {
    // The code with which argparse, and most other parsers, refuse a command line.
    let flag = (failure.end == WorkerEnd::Exited(2)).then(|| cli::own_flag(script_args))??;
    Some(format!(
        "`{flag}` is after the script, so it is an argument of the script; if it is meant for ragent, write it before the script"
    ))
}

impl Ended {
    fn exit_code(&self) -> u8 {
        let NodeEnd { ending, depends_on, .. } = &self.end;
        match ending {
            Ending::Unreachable { complete_step: None, .. }
                if *depends_on != DependsOn::OneHost =>
            {
                HOST_GONE
            }
            ending => ending.exit_code(),
        }
    }

    fn report(&self) -> String {
        let Self { end, settings, title, interpreter, script_args } = self;
        let NodeEnd { ending, workers_succeeded, endpoint, depends_on, .. } = end;
        match ending {
            Ending::Closed(Outcome { result: JobResult::AllLeft, complete_step: None, .. })
                if settings.nodes.max() == 1 =>
            {
                "ragent: the job was stopped by a signal".to_owned()
            }
            Ending::Closed(outcome) => {
                let failure = outcome.first_failure.as_ref();
                let hint = failure.and_then(|failure| {
                    missing_module(failure, interpreter.as_deref())
                        .or_else(|| misplaced_flag(failure, script_args))
                });
                with_hint(closed(outcome, title), hint.as_deref())
            }
            Ending::Outlived => with_hint(
                "error: the job has ended while this node had no connection to its coordinator"
                    .to_owned(),
                Some(
                    "look for its outcome on another node; start the agent again to take part in the next run",
                ),
            ),
            Ending::Left { signal, saved_step } => {
                let cause = signal.map_or("a notice".to_owned(), |signal| signal.to_string());
                let saved = saved_step.map(|step| {
                    let step = grouped(step);
                    format!("; the job is saved at step {step}: start it again, and it goes on from there")
                });
                format!("ragent: left the job because of {cause}{}", saved.unwrap_or_default())
            }
            Ending::Refused(reason) => refused(reason, settings, endpoint, title),
            Ending::Unreachable { waited, was_registered, has_left, complete_step } => {
                let seconds = waited.as_secs();
                let what = match (depends_on, has_left, was_registered) {
                    (DependsOn::Voters(loss), ..) => {
                        let loss = loss.as_ref().map(|loss| format!(": {loss}"));
                        format!(
                            "error: no coordinator was reached for {seconds} s among the voters {endpoint}{}",
                            loss.unwrap_or_default()
                        )
                    }
                    (DependsOn::Etcd, ..) => {
                        format!(
                            "error: no coordinator was reached through {endpoint} for {seconds} s"
                        )
                    }
                    (DependsOn::OneHost, true, _) => format!(
                        "error: the coordinator's host ({endpoint}) has left the job, and was not \
                         started again within {seconds} s"
                    ),
                    (DependsOn::OneHost, false, true) => format!(
                        "error: the coordinator at {endpoint} was unreachable for {seconds} s"
                    ),
                    (DependsOn::OneHost, false, false) => format!(
                        "error: the coordinator at {endpoint} was not reached within {seconds} s"
                    ),
                };
                let hint = match depends_on {
                    _ if *workers_succeeded => {
                        "the workers of this node have succeeded; check on the other nodes whether \
                         the job has"
                    }
                    DependsOn::Voters(Some(_)) => StateLoss::HINT,
                    DependsOn::Voters(None) => {
                        "start agents on a majority of the hosts in `--rdzv-endpoint`, and check that this \
                         node reaches their ports"
                    }
                    DependsOn::Etcd => {
                        "check that this node reaches a majority of etcd's members, and the ports of the other agents"
                    }
                    DependsOn::OneHost if *was_registered => {
                        "start ragent again on the coordinator's host within `join_timeout` \
                         (`--rdzv-conf`), or raise `join_timeout`"
                    }
                    DependsOn::OneHost => "check that this node can reach that port",
                };
                let saved = complete_step.filter(|_| *has_left).map(|step| {
                    format!(
                        "\n  the job is saved at step {}, and goes on from there",
                        grouped(step)
                    )
                });
                with_hint(format!("{what}{}", saved.unwrap_or_default()), Some(hint))
            }
        }
    }
}

fn refused(
    reason: &RefuseReason,
    settings: &SharedSettings,
    endpoint: &str,
    title: &str,
) -> String {
    let refused = |why: String, hint: &str| {
        let text = format!("error: the coordinator at {endpoint} refuses this node\n");
        with_hint(format!("{text}  caused by: {why}"), Some(hint))
    };
    match reason {
        RefuseReason::Closed(outcome) => {
            format!("error: the job was closed before this node joined\n{}", closed(outcome, title))
        }
        RefuseReason::EarlierRun => refused(
            "it belongs to an earlier run of the job".to_owned(),
            "restart the agent, so that it joins the current run",
        ),
        RefuseReason::LoopbackAddress { address } => refused(
            format!("the node's address {address} cannot be reached from other machines"),
            "give addresses that all nodes can reach as `--rdzv-endpoint` or `--local-addr`",
        ),
        RefuseReason::NodeRankTaken { node_rank, host_name } => refused(
            format!("{host_name} already has `--node-rank {node_rank}`"),
            "give each node a different rank, starting with 0",
        ),
        RefuseReason::NodeRankTooHigh { node_rank, nodes } => refused(
            format!("`--node-rank {node_rank}` is not a rank of a job of {nodes} nodes"),
            "give each node a different rank, starting with 0",
        ),
        RefuseReason::OtherScript { script, host_name } => refused(
            format!("its script is `{title}`, but {host_name} runs `{script}` in this job"),
            "give each job an endpoint of its own; nodes of one job that run different scripts need a different \
             `--role` for each script",
        ),
        RefuseReason::ProtocolVersion { ours } => refused(
            format!(
                "it uses version {} of the protocol, the coordinator uses version {ours}",
                ragent_rendezvous::message::PROTOCOL_VERSION
            ),
            "install the same version of ragent on all nodes",
        ),
        RefuseReason::RunId { ours } => refused(
            format!("the job at this endpoint is `{ours}`"),
            "use the same `--rdzv-id` on all nodes, and a different endpoint for each job",
        ),
        RefuseReason::Settings { ours } => {
            refused(differences(settings, ours), "use the same flags on all nodes")
        }
        RefuseReason::TooManyNodes { limit } => refused(
            format!("the coordinator serves at most {limit} nodes, including spares"),
            "start fewer agents, or raise MAX in `--nnodes` on all nodes; check that no program \
             starts agents repeatedly",
        ),
    }
}
