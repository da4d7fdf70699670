//! Holds the configuration of a node's workers.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use ragent_base::{
    output::{console::Console, logs::LogFolder},
    report::{event_log::EventLog, measures::NodeMeasures},
    spec::{HangSpec, HealthSpec, ObservationSpec, Output, Signaled, StepPattern, WorkerCommand},
    sys::host::numa::CpuSet,
};

use super::{
    health::timers::TimerPipe,
    launch::{arguments::ArgumentSpec, environment::EnvironmentSpec},
    standby::StandbySpec,
};

/// The configuration of a supervisor.
#[derive(Debug)]
pub struct SupervisorSpec {
    /// The command that workers run.
    pub command: WorkerCommand,
    /// The arguments that are added to the command.
    pub arguments: ArgumentSpec,
    /// The variables that are added to the environment of workers.
    pub environment: EnvironmentSpec,
    /// The destinations of the workers' output.
    pub output: Output,
    /// The log of the workers' events.
    pub events: EventLog,
    /// The counters of this node.
    pub measures: Arc<NodeMeasures>,
    /// The pipe through which workers set timers, if they may.
    pub timer_pipe: Option<TimerPipe>,
    /// The processors of each worker, by local rank; empty if workers are not bound.
    pub cpus_by_rank: Vec<CpuSet>,
    /// The folder of the workers' files.
    pub logs: Arc<LogFolder>,
    /// The processes of a worker that receive its signals.
    pub signaled: Signaled,
    /// The signals that workers ignore from their start on: those that are notices to the agent. A scheduler may send them to all
    /// processes of a job.
    pub ignored: Vec<i32>,
    /// The time that they have to end after one of them has failed.
    pub stop_grace: Duration,
    /// The time to wait for GPUs that processes of an earlier round still hold.
    pub held_gpu_timeout: Duration,
    /// True if the agent may choose the network interface that gloo uses in workers.
    pub chooses_gloo_interface: bool,
    /// The checks of the machine.
    pub health: HealthSpec,
    /// The exit codes after which the job is not restarted.
    pub final_codes: BTreeSet<i32>,
    /// The standbys of the workers; `None` if there are none.
    pub standby: Option<StandbySpec>,
    /// The detection and treatment of hangs; `None` if disabled.
    pub hang: Option<HangSpec>,
    /// The path of py-spy, if it is installed.
    pub py_spy: Option<PathBuf>,
    /// The variables that workers get for looks.
    pub observation: ObservationSpec,
    /// The pattern of training steps in the output; `None` if steps are not read from it.
    pub step_pattern: Option<StepPattern>,
    /// The folder for the sockets of workers' reports.
    pub socket_dir: PathBuf,
    /// The soft limit of open files of each worker.
    pub open_files: u64,
    /// The soft limit of the core dump of each worker.
    pub core_dump: u64,
    /// The nice value of each worker.
    pub nice: i32,
    /// This machine's name, for reports.
    pub host_name: String,
    /// The writer of the workers' output.
    pub console: Console,
}
