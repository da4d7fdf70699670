//! Describes the end of a process, and the exit codes for it.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

use ragent_rendezvous::message::WorkerEnd;
use serde::{Deserialize, Serialize};

use crate::signal::Signal;

/// The end of a process, as the kernel reports it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ProcessEnd {
    /// The process exited with this code.
    Exited(i32),
    /// The process was killed by this signal.
    Signaled(i32),
}

impl ProcessEnd {
    /// The end of a process with a status that cannot be read. It is not a success.
    pub const UNKNOWN: Self = Self::Exited(255);
}

impl From<ExitStatus> for ProcessEnd {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signaled(signal),
            // The process was stopped or continued, which a plain wait does not report.
            (None, None) => Self::UNKNOWN,
        }
    }
}

impl From<ProcessEnd> for WorkerEnd {
    fn from(end: ProcessEnd) -> Self {
        match end {
            ProcessEnd::Exited(code) => Self::Exited(code),
            ProcessEnd::Signaled(signal) => Self::Signaled(signal),
        }
    }
}

/// Returns the exit code of a worker in event logs and error files. As in torchrun, a signal is its negated
/// number.
///
/// A worker that could not be started has 127, as in a shell. A worker that the agent killed has the code of
/// SIGKILL.
pub fn exit_code(end: &WorkerEnd) -> i32 {
    match end {
        WorkerEnd::Exited(code) => *code,
        WorkerEnd::Signaled(signal) => signal.saturating_neg(),
        WorkerEnd::NotStarted(_) => 127,
        WorkerEnd::KeeperLost | WorkerEnd::Hung(_) => -Signal::KILL.0,
        WorkerEnd::StandbyUnfit(_) => -Signal::TERM.0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A status of the kernel is converted into the end that it describes.
    #[test]
    fn status_becomes_an_end() {
        assert_eq!(ProcessEnd::from(ExitStatus::from_raw(3 << 8)), ProcessEnd::Exited(3));
        assert_eq!(ProcessEnd::from(ExitStatus::from_raw(9)), ProcessEnd::Signaled(9));
        assert_eq!(ProcessEnd::from(ExitStatus::from_raw(0xffff)), ProcessEnd::UNKNOWN);
    }

    /// Signals are negative, and a process that was killed or never ran has no success code.
    #[test]
    fn exit_codes_follow_torchrun() {
        assert_eq!(exit_code(&WorkerEnd::Exited(3)), 3);
        assert_eq!(exit_code(&ProcessEnd::Signaled(11).into()), -11);
        assert_eq!(exit_code(&WorkerEnd::NotStarted("no such file".to_owned())), 127);
        assert_eq!(exit_code(&WorkerEnd::Hung(Duration::ZERO)), -9);
        assert_eq!(exit_code(&WorkerEnd::KeeperLost), -9);
        assert_eq!(exit_code(&WorkerEnd::StandbyUnfit("".into())), -15);
    }
}
