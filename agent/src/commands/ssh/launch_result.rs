//! Turns the ends of the agents into the result of a launch: an exit code and a text.

use std::fmt::Write;

use nix::sys::signal::Signal;
use ragent_core::agent::{CLOSED_BEFORE, HOST_GONE, LEFT, NO_PROGRESS, REFUSED, SAVED};

use super::{order::AgentEnd, ssh_command};
use crate::commands::error::PORT_IN_USE;

/// The result of a launch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum LaunchResult {
    /// The job has succeeded.
    Succeeded,
    /// The job has ended after a notice, and all ranks have saved.
    Saved,
    /// The job has failed.
    Failed {
        /// The exit code, by the exit codes of the agents.
        code: u8,
        /// Hosts whose agents did not fail with the job, but in another way, each with its end.
        ends: Vec<(String, String)>,
    },
    /// The user has ended the launch.
    Interrupted {
        /// The signal.
        signal: Signal,
    },
    /// Too few hosts were reached. No agent was started.
    TooFewHosts {
        /// The number of hosts that were reached.
        reached: usize,
        /// The minimum number of hosts of the job.
        min: usize,
        /// The other hosts, each with the reason.
        unreachable: Vec<(String, String)>,
    },
}

/// The exit codes of agents, the most important first.
const PRECEDENCE: [u8; 6] = [NO_PROGRESS, 1, CLOSED_BEFORE, HOST_GONE, REFUSED, PORT_IN_USE];

/// Returns the result by the ends of all agents. `cause` is the signal by which the user has ended them.
///
/// One agent that exits with 0 is enough, because an agent does so only if the job has succeeded. Other agents may have left before.
/// Without a success, the codes of a failed job take precedence over codes for a single host.
pub(super) fn of_ends(
    ends: &[(String, Result<AgentEnd, String>)],
    cause: Option<Signal>,
) -> LaunchResult {
    let codes: Vec<i32> = ends
        .iter()
        .filter_map(|(_, end)| match end {
            Ok(AgentEnd::Exited(code)) => Some(*code),
            Ok(AgentEnd::Signaled(_) | AgentEnd::NotStarted(_)) | Err(_) => None,
        })
        .collect();
    if codes.contains(&0) {
        return LaunchResult::Succeeded;
    }
    let has_progress = !codes.contains(&i32::from(NO_PROGRESS));
    // An agent that left between two rounds has lost nothing, but the others may have failed later.
    if codes.contains(&i32::from(SAVED)) && has_progress && !codes.contains(&1) {
        return LaunchResult::Saved;
    }
    if let Some(signal) = cause.filter(|_| has_progress) {
        return LaunchResult::Interrupted { signal };
    }
    // Code 2 means a mistake on one host. As the code of `ragent launch` it would mean a mistake in its own arguments.
    let code = PRECEDENCE.into_iter().find(|code| codes.contains(&i32::from(*code)));
    // The user has sent no signal, so agents left because this launch has stopped them after a loss.
    let code = code.unwrap_or(1);
    let own = |(name, end): &(String, Result<AgentEnd, String>)| {
        let how = match end {
            Ok(AgentEnd::Exited(1)) => return None,
            Ok(AgentEnd::Exited(code)) => format!("its agent exited with {code}"),
            Ok(AgentEnd::Signaled(signal)) => format!("its agent was killed by signal {signal}"),
            Ok(AgentEnd::NotStarted(why)) => why.clone(),
            Err(why) => format!("it was lost: {why}"),
        };
        Some((name.clone(), how))
    };
    LaunchResult::Failed { code, ends: ends.iter().filter_map(own).collect() }
}

impl LaunchResult {
    /// Returns the exit code of `ragent launch`.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Saved => SAVED,
            Self::Failed { code, .. } => *code,
            Self::Interrupted { .. } => LEFT,
            Self::TooFewHosts { .. } => 1,
        }
    }

    /// Returns the text for the user.
    pub(crate) fn report(&self) -> String {
        match self {
            Self::Succeeded => "ragent: the job has succeeded".to_owned(),
            Self::Saved => {
                "ragent: the job is saved: start it again, and it goes on from there".to_owned()
            }
            Self::Interrupted { signal } => {
                format!("ragent: ended on all hosts because of {signal}")
            }
            Self::Failed { ends, .. } => format!("error: the job did not succeed{}", list(ends)),
            Self::TooFewHosts { reached, min, unreachable } => {
                let mut text = format!(
                    "error: {reached} hosts were reached, but the job needs {min}; no agent was \
                     started{}",
                    list(unreachable)
                );
                let mut hints: Vec<&str> =
                    unreachable.iter().filter_map(|(_, why)| ssh_command::hint(why)).collect();
                hints.sort_unstable();
                hints.dedup();
                // That hint needs at least one reached host.
                if hints.is_empty() && *reached > 0 {
                    hints.push("give `--nnodes MIN:MAX` to start the job without the others");
                }
                for hint in hints {
                    // Writing to a string does not fail.
                    let _ = write!(text, "\nhint: {hint}");
                }
                text
            }
        }
    }
}

/// The maximum number of hosts in a report. More hosts than that fail for similar reasons.
const NAMED: usize = 20;

fn list(hosts: &[(String, String)]) -> String {
    let lines = hosts.iter().take(NAMED).map(|(name, how)| format!("\n  {name}: {how}"));
    let mut text: String = lines.collect();
    if let Some(more) = hosts.len().checked_sub(NAMED).filter(|more| *more > 0) {
        let _ = write!(text, "\n  and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(ends: &[i32]) -> u8 {
        let end = |code: &i32| ("a".to_owned(), Ok(AgentEnd::Exited(*code)));
        match of_ends(&ends.iter().map(end).collect::<Vec<_>>(), None) {
            LaunchResult::Succeeded => 0,
            LaunchResult::Saved => SAVED,
            LaunchResult::Failed { code, .. } => code,
            LaunchResult::Interrupted { .. } | LaunchResult::TooFewHosts { .. } => unreachable!(),
        }
    }

    /// One agent that exits with 0 is enough. Otherwise the code of a failed job takes precedence over the code of a single host.
    #[test]
    fn codes_are_ranked() {
        assert_eq!(code(&[1, 0, 5]), 0);
        assert_eq!(code(&[8, 5, 3]), 5);
        assert_eq!(code(&[8, 5, 1]), 1);
        assert_eq!(code(&[5, 6]), 6);
        assert_eq!(code(&[1, 6]), 6);
        assert_eq!(code(&[3, 1, 4]), 1);
        assert_eq!(code(&[2, 3]), 3);
        assert_eq!(code(&[4, 4]), 4);
        assert_eq!(code(&[2, 2]), 1);
        assert_eq!(code(&[]), 1);
    }

    /// Hosts whose agents did not fail with the job, but in another way, are named. The others are not.
    #[test]
    fn odd_ends_are_named() {
        let ends = [
            ("a".to_owned(), Ok(AgentEnd::Exited(1))),
            ("b".to_owned(), Err("cut".to_owned())),
            ("c".to_owned(), Ok(AgentEnd::Signaled(9))),
        ];
        let text = of_ends(&ends, None).report();
        assert!(text.contains("b: it was lost: cut") && text.contains("c: its agent was killed"));
        assert!(!text.contains("a:"), "{text}");
    }

    /// The hint to start without the others is given only if at least one host was reached.
    #[test]
    fn starting_without_anybody_is_no_hint() {
        let report = |reached| {
            let unreachable = vec![("a".to_owned(), "no".to_owned())];
            LaunchResult::TooFewHosts { reached, min: 2, unreachable }.report()
        };
        assert!(report(1).contains("hint: give `--nnodes MIN:MAX`"), "{}", report(1));
        assert!(!report(0).contains("hint: "), "{}", report(0));
    }
}
