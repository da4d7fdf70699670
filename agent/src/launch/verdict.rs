//! What a launch came to, for the shell and for people.

use std::fmt::Write;

use nix::sys::signal::Signal;

use super::{order::AgentEnd, ssh};

/// How a launch ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The job has succeeded.
    Succeeded,
    /// It has not.
    Failed {
        /// What its agents say, in one exit code.
        code: u8,
        /// Hosts that ended in a way of their own, each with how.
        ends: Vec<(String, String)>,
    },
    /// The user has ended it.
    Interrupted {
        /// By which signal.
        signal: Signal,
    },
    /// Nothing was started.
    TooFewHosts {
        /// How many were reached.
        reached: usize,
        /// How many the job needs.
        min: usize,
        /// The others, each with why.
        unreachable: Vec<(String, String)>,
    },
}

/// What the ends of all agents come to; `cause` is the signal by which the user has ended them.
///
/// An agent exits with 0 only if the job has succeeded, so one such is enough: others may have left
/// before. Else the job's own verdict, 1, wins over what only one host says.
pub(super) fn of_ends(
    ends: &[(String, Result<AgentEnd, String>)],
    cause: Option<Signal>,
) -> Verdict {
    let codes: Vec<i32> = ends
        .iter()
        .filter_map(|(_, end)| match end {
            Ok(AgentEnd::Exited(code)) => Some(*code),
            Ok(AgentEnd::Signaled(_) | AgentEnd::NotStarted(_)) | Err(_) => None,
        })
        .collect();
    if codes.contains(&0) {
        return Verdict::Succeeded;
    }
    if let Some(signal) = cause {
        return Verdict::Interrupted { signal };
    }
    // What one host cannot do (2) is not what arguments and this host can tell.
    let lasting = codes.iter().find(|code| [3, 4].contains(*code)).filter(|_| !codes.contains(&1));
    let code = lasting.and_then(|code| u8::try_from(*code).ok()).unwrap_or(1);
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
    Verdict::Failed { code, ends: ends.iter().filter_map(own).collect() }
}

impl Verdict {
    /// What `ragent launch` exits with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed { code, .. } => *code,
            Self::Interrupted { .. } | Self::TooFewHosts { .. } => 1,
        }
    }

    /// What people read.
    pub(crate) fn report(&self) -> String {
        match self {
            Self::Succeeded => "ragent: the job has succeeded".to_owned(),
            Self::Interrupted { signal } => {
                format!("ragent: ended on all hosts because of {signal}")
            }
            Self::Failed { ends, .. } => format!("error: the job did not succeed{}", list(ends)),
            Self::TooFewHosts { reached, min, unreachable } => {
                let mut text = format!(
                    "error: {reached} hosts are reached, and the job needs {min}; nothing was started{}",
                    list(unreachable)
                );
                let mut hints: Vec<&str> =
                    unreachable.iter().filter_map(|(_, why)| ssh::hint(why)).collect();
                hints.sort_unstable();
                hints.dedup();
                // Without any there would be nobody to start.
                if hints.is_empty() && *reached > 0 {
                    hints.push("with `--nnodes MIN:MAX` the job starts without the others");
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

/// How many hosts are named: where more have failed, they have failed alike.
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
            Verdict::Succeeded => 0,
            Verdict::Failed { code, .. } => code,
            Verdict::Interrupted { .. } | Verdict::TooFewHosts { .. } => unreachable!(),
        }
    }

    /// One that has heard of success is enough; else the job's verdict wins over a host's.
    #[test]
    fn codes_are_ranked() {
        assert_eq!(code(&[1, 0, 2]), 0);
        assert_eq!(code(&[3, 1, 4]), 1);
        assert_eq!(code(&[2, 3]), 3);
        assert_eq!(code(&[4, 4]), 4);
        assert_eq!(code(&[2, 2]), 1);
        assert_eq!(code(&[]), 1);
    }

    /// Hosts that have ended in a way of their own are named, not those that only heard.
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

    /// To start without the others is hinted at only where there would be somebody to start.
    #[test]
    fn starting_without_anybody_is_no_hint() {
        let report = |reached| {
            let unreachable = vec![("a".to_owned(), "no".to_owned())];
            Verdict::TooFewHosts { reached, min: 2, unreachable }.report()
        };
        assert!(report(1).contains("hint: with `--nnodes MIN:MAX`"), "{}", report(1));
        assert!(!report(0).contains("hint: "), "{}", report(0));
    }
}
