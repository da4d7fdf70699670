//! Holds the configuration of a node's workers.

use std::{path::PathBuf, sync::Arc};

use ragent_base::{
    output::{console::Console, logs::LogFolder},
    report::measures::NodeMeasures,
};
use ragent_options::spec::JobSpec;

use super::{event_log::EventLog, health::timers::TimerPipe};

/// The configuration of the driver of a node's workers.
#[derive(Debug)]
pub struct WorkersSpec {
    /// The job, with the settings of its workers.
    pub job: Arc<JobSpec>,
    /// The log of the workers' events.
    pub events: EventLog,
    /// The counters of this node.
    pub measures: Arc<NodeMeasures>,
    /// The pipe through which workers set timers, if they may.
    pub timer_pipe: Option<TimerPipe>,
    /// The folder of the workers' files.
    pub logs: Arc<LogFolder>,
    /// True if the agent may choose the network interface that gloo uses in workers.
    pub chooses_gloo_interface: bool,
    /// The folder for the sockets of workers' reports.
    pub socket_dir: PathBuf,
    /// The limits that this process has changed for itself.
    pub given: GivenLimits,
    /// This machine's name, for reports.
    pub host_name: String,
    /// The writer of the workers' output.
    pub console: Console,
}

/// The soft limits and the nice value that this process was given. Workers get them.
#[derive(Clone, Copy, Debug, Default)]
pub struct GivenLimits {
    /// The number of open files.
    pub open_files: u64,
    /// The size of a core dump.
    pub core_dump: u64,
    /// The nice value.
    pub nice: i32,
}
