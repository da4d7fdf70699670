//! Reads the time after which workers count as hung, and the means to take their stacks.

use std::{path::PathBuf, time::Duration};

use nix::sys::signal::Signal;

use super::{JobSpecError, WorkerCommand, given::Given};
use crate::sys::host::Host;

/// The time after which workers count as hung, and the means to take their stacks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HangSpec {
    /// The time for which all of them may make no progress.
    pub timeout: Duration,
    /// The path of py-spy, if it is installed.
    pub py_spy: Option<PathBuf>,
    /// The signal on which a worker prints its stack, if the user has named one.
    pub signal: Option<Signal>,
}

/// The longest allowed timeout: a year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

impl<H: Host> Given<'_, H> {
    pub(super) fn hang(&self, command: &WorkerCommand) -> Result<Option<HangSpec>, JobSpecError> {
        let timeout = self.hang_timeout()?;
        let signal = self.hang_signal()?;
        let beside = command.program.parent().map(|folder| folder.join("py-spy"));
        let beside = beside.filter(|path| self.host.is_executable(path));
        let py_spy = || beside.or_else(|| self.host.find_program("py-spy".as_ref()));
        Ok(timeout.map(|timeout| HangSpec { timeout, py_spy: py_spy(), signal }))
    }

    fn hang_timeout(&self) -> Result<Option<Duration>, JobSpecError> {
        let Some(given) = self.typed("hang_timeout", &self.args.hang_timeout) else {
            return Ok(None);
        };
        match given.text.trim().parse::<f64>() {
            Ok(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => {
                Ok(Some(Duration::from_secs_f64(seconds)))
            }
            Ok(_) | Err(_) => {
                Err(JobSpecError::Seconds { source_: given.source, value: given.text })
            }
        }
    }

    fn hang_signal(&self) -> Result<Option<Signal>, JobSpecError> {
        let Some(given) = self.typed("hang_signal", &self.args.hang_signal) else {
            return Ok(None);
        };
        match given.text.trim().parse::<Signal>() {
            Ok(signal) => Ok(Some(signal)),
            Err(_) => Err(JobSpecError::Choice {
                source_: given.source,
                value: given.text,
                choices: "a signal such as `SIGQUIT`",
            }),
        }
    }
}
