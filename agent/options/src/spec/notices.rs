//! Reads the flags about notices: `--notice`, `--notice-on`, `--notice-command` and `--no-progress-limit`.

use std::time::Duration;

use nix::sys::signal::Signal;
use ragent_base::sys::host::Host;
use ragent_rendezvous::training::CHARGED_ROUNDS_MAX;
use serde::{Deserialize, Serialize};

use super::{SignalList, UsageError, arguments::Arguments};
use crate::cli::ProgramName;

/// What a source of notices announces or wants.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// The node leaves the job.
    Leave,
    /// The job ends.
    End,
    /// A checkpoint is wanted.
    Save,
    /// A look at the workers of all nodes is wanted.
    Look,
}

/// A signal to the agent that is a notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoticeSignal {
    /// The signal.
    pub signal: Signal,
    /// Its meaning.
    pub kind: RequestKind,
}

/// The longest `--notice`: a day is more than any checkpoint takes.
const NOTICE_MAX: Duration = Duration::from_secs(24 * 3600);

/// `--no-progress-limit` without the flag.
const DEFAULT_NO_PROGRESS_LIMIT: u32 = 3;

impl<H: Host> Arguments<'_, H> {
    pub(super) fn notice(&self) -> Result<Duration, UsageError> {
        let Some(given) = self.argument("notice", &self.args.job.notice) else {
            return Ok(Duration::ZERO);
        };
        let range = 0.0..=NOTICE_MAX.as_secs_f64();
        let seconds = given.seconds(|seconds| range.contains(&seconds));
        let hint = "give the longest time that a checkpoint may take, such as 60";
        Ok(Duration::from_secs_f64(seconds.map_err(|error| error.with_hint(hint))?))
    }

    pub(super) fn no_progress_limit(&self) -> Result<u32, UsageError> {
        let typed = &self.args.no_progress_limit;
        let Some(given) = self.argument("no_progress_limit", typed) else {
            return Ok(match self.args.name {
                ProgramName::Torchrun => 0,
                ProgramName::Ragent => DEFAULT_NO_PROGRESS_LIMIT,
            });
        };
        let most = u32::try_from(CHARGED_ROUNDS_MAX).unwrap_or(u32::MAX);
        let number = given.text.trim().parse().ok();
        number.filter(|number| *number == 0 || (2..=most).contains(number)).ok_or_else(|| {
            given
                .is_not(format!("0 or a number from 2 to {most}"))
                .with_hint("give 0 to restart a job as often as `--max-restarts` allows")
        })
    }

    pub(super) fn notice_on(&self, handled: &SignalList) -> Result<Vec<NoticeSignal>, UsageError> {
        let Some(given) = self.argument("notice_on", &self.args.notice_on) else {
            return Ok(Vec::new());
        };
        let forwarded = self.argument("signals_to_forward", &self.args.signals_to_forward);
        let forwarded: Option<SignalList> = forwarded.and_then(|given| given.text.parse().ok());
        let is_forwarded =
            |signal: &Signal| forwarded.as_ref().is_some_and(|list| list.signals.contains(signal));
        let mut notices: Vec<NoticeSignal> = Vec::new();
        for part in given.text.split(',').map(str::trim) {
            let (name, kind) = part.split_once('=').unwrap_or((part, "end"));
            let wrong = |problem: String| {
                let hint =
                    "list signals that the agent does not use otherwise, such as SIGUSR1=end";
                given.invalid(problem).with_hint(hint)
            };
            let kind = match kind {
                "end" => RequestKind::End,
                "leave" => RequestKind::Leave,
                "save" => RequestKind::Save,
                _ => {
                    return Err(wrong(format!(
                        "contains the kind `{kind}`, which is not `end`, `leave` or `save`"
                    )));
                }
            };
            // Slurm writes USR1 for SIGUSR1.
            let full = format!("SIG{}", name.trim_start_matches("SIG"));
            let signal = match full.parse::<SignalList>() {
                Ok(list) => list.signals.first().copied(),
                Err(signal) => {
                    return Err(wrong(format!("contains {signal}, which cannot be handled")));
                }
            };
            let Some(signal) = signal else {
                return Err(wrong(format!("contains `{name}`, which is not a signal")));
            };
            if handled.signals.contains(&signal) {
                return Err(wrong(format!("contains {signal}, on which the agent leaves")));
            }
            if is_forwarded(&signal) {
                return Err(wrong(format!("contains {signal}, which is forwarded to workers")));
            }
            if notices.iter().any(|known| known.signal == signal) {
                return Err(wrong(format!("contains {signal} twice")));
            }
            notices.push(NoticeSignal { signal, kind });
        }
        Ok(notices)
    }

    pub(super) fn notice_command(&self) -> Result<Vec<String>, UsageError> {
        let given = self.argument("notice_command", &self.args.notice_command);
        given.map_or(Ok(Vec::new()), |given| given.command(self.host, "'ragent-notices aws'"))
    }
}
