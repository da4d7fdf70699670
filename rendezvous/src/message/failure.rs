//! Describes the failure of a worker.
//!
//! A failure has an age instead of a time, because clocks of different machines are never compared. The
//! coordinator orders failures by the time of receipt minus the age.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{HardwareFact, LINE_MAX, OomKill, time_text};
use crate::ids::{GlobalRank, LocalRank, RoundId};

/// The way in which a worker ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEnd {
    /// The worker exited with this code.
    Exited(i32),
    /// The worker was killed by this signal.
    Signaled(i32),
    /// The worker could not be started, for this reason.
    NotStarted(String),
    /// The worker's keeper was lost, and the worker with it.
    KeeperLost,
    /// The worker was killed because its node's workers had made no progress for this long.
    Hung(Duration),
    /// The worker was a standby, but its modules had read a variable that the script has changed since. The
    /// text names both, as a clause.
    StandbyUnfit(Box<str>),
}

impl WorkerEnd {
    /// Returns the same end without a text, which may be long.
    pub fn without_text(&self) -> Self {
        match self {
            Self::NotStarted(_) => Self::NotStarted(String::new()),
            Self::StandbyUnfit(_) => Self::StandbyUnfit("".into()),
            Self::Exited(_) | Self::Signaled(_) | Self::KeeperLost | Self::Hung(_) => self.clone(),
        }
    }
}

/// The failure of a worker, as its own node reports it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct WorkerFailure {
    /// The node's host name.
    pub host_name: String,
    /// The round in which it failed.
    pub round: RoundId,
    /// The worker's rank in the job.
    pub global_rank: GlobalRank,
    /// The worker's rank on its node.
    pub local_rank: LocalRank,
    /// Its process id; zero if it never ran.
    pub pid: u32,
    /// The way in which it ended.
    pub end: WorkerEnd,
    /// The time since it ended, when the message was sent.
    pub age: Duration,
    /// The text that the script wrote to its error file, if any.
    pub message: Option<String>,
    /// The path of that file.
    pub error_file: Option<String>,
    /// The last lines of its stderr, if captured.
    pub stderr_tail: String,
    /// True if its exit code rules out a restart.
    pub is_final: bool,
    /// The age of its error file when the message was sent; `None` if there is none, or if the node has not
    /// looked yet.
    pub error_file_age: Option<Duration>,
    /// Reports of the node's hardware since the round began, the worst first, and of these the newest; at most
    /// [`HARDWARE_FACTS_MAX`](super::HARDWARE_FACTS_MAX).
    #[serde(default)]
    pub hardware: Vec<HardwareFact>,
    /// Set if the kernel has probably killed the worker for lack of memory.
    pub oom: Option<OomKill>,
    /// True if no worker of the node had received the checkpoint in memory with which the round began.
    #[serde(default)]
    pub before_load: bool,
}

impl WorkerFailure {
    /// Describes a failure of which only the end of the worker is known. It has just ended.
    pub fn new(
        host_name: impl Into<String>,
        round: RoundId,
        (global_rank, local_rank): (GlobalRank, LocalRank),
        pid: u32,
        end: WorkerEnd,
    ) -> Self {
        Self {
            host_name: host_name.into(),
            round,
            global_rank,
            local_rank,
            pid,
            end,
            age: Duration::ZERO,
            message: None,
            error_file: None,
            stderr_tail: String::new(),
            is_final: false,
            error_file_age: None,
            hardware: Vec::new(),
            oom: None,
            before_load: false,
        }
    }

    /// Returns the time since it failed, when the message was sent. A worker has failed when it wrote its
    /// error file, if it ended only later: it may take seconds to exit, and its peers fail because of it
    /// meanwhile.
    pub fn event_age(&self) -> Duration {
        self.error_file_age.map_or(self.age, |age| age.max(self.age))
    }

    /// Returns the reports of the hardware with their times before or after the end of the worker, such as `GPU 3 reported
    /// XID 79 (fell off the bus) 0.4 s before`. Each has at most [`LINE_MAX`] bytes.
    pub fn hardware_lines(&self) -> Vec<String> {
        let line = |HardwareFact { text, age }: &HardwareFact| {
            let Some(age) = *age else { return text.clone() };
            let time = match age.checked_sub(self.age) {
                Some(before) => format!("{} before", time_text(before)),
                None => format!("{} after", time_text(self.age.saturating_sub(age))),
            };
            let text = &text[..text.floor_char_boundary(LINE_MAX - time.len() - 1)];
            format!("{text} {time}")
        };
        self.hardware.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of the hardware has its time before or after the end of the worker. If the line is too long, the report is cut.
    #[test]
    fn hardware_has_its_time() {
        let ranks = (GlobalRank(0), LocalRank(0));
        let end = WorkerEnd::Exited(1);
        let mut failure = WorkerFailure::new("a", RoundId::default(), ranks, 7, end);
        failure.age = Duration::from_secs(5);
        let fact = |text: &str, age: Option<u64>| HardwareFact {
            text: text.to_owned(),
            age: age.map(Duration::from_secs),
        };
        let long = "x".repeat(LINE_MAX);
        failure.hardware = vec![
            fact("old", None),
            fact("early", Some(7)),
            fact("late", Some(2)),
            fact(&long, Some(7)),
        ];
        let lines = failure.hardware_lines();
        assert_eq!(lines[..3], ["old", "early 2.0 s before", "late 3.0 s after"]);
        assert_eq!(lines[3].len(), LINE_MAX);
        assert!(lines[3].ends_with("x 2.0 s before"));
    }
}
