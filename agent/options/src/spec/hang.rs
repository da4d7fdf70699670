//! Reads the time after which workers count as hung, and the means to take their stacks.

use std::{path::PathBuf, time::Duration};

use nix::sys::signal::Signal;

use super::{UsageError, WorkerCommand, arguments::Arguments};
use ragent_base::sys::host::Host;

/// The time after which workers count as hung, and the means to take their stacks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HangSpec {
    /// The time that all of them may make no progress.
    pub timeout: Duration,
    /// The signal on which a worker prints its stack, if the user has named one.
    pub signal: Option<Signal>,
}

/// The value with which the coordinator decides which worker hangs.
const AUTO: &str = "auto";

/// The longest allowed timeout: a year.
const MAX_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

impl<H: Host> Arguments<'_, H> {
    pub(super) fn hang(&self) -> Result<Option<HangSpec>, UsageError> {
        let timeout = self.hang_timeout()?;
        let signal = self.hang_signal()?;
        Ok(timeout.map(|timeout| HangSpec { timeout, signal }))
    }

    /// Returns the path of py-spy, if it is installed next to the program of the workers or in `PATH`.
    pub(super) fn py_spy(&self, command: &WorkerCommand) -> Option<PathBuf> {
        let next_to_program = command.program.parent().map(|folder| folder.join("py-spy"));
        let next_to_program = next_to_program.filter(|path| self.host.is_executable(path));
        next_to_program.or_else(|| self.host.find_program("py-spy".as_ref()))
    }

    /// Returns true if the coordinator decides which worker hangs: `--hang-timeout auto`.
    pub(super) fn hang_auto(&self) -> bool {
        let given = self.argument("hang_timeout", &self.args.hang_timeout);
        given.is_some_and(|given| given.text.trim() == AUTO)
    }

    fn hang_timeout(&self) -> Result<Option<Duration>, UsageError> {
        let given = self.argument("hang_timeout", &self.args.hang_timeout);
        let given = given.filter(|given| given.text.trim() != AUTO);
        let is_allowed = |seconds| seconds > 0.0 && seconds <= MAX_SECONDS;
        let hint = "give the seconds after which workers count as hung, or `auto`: the steps of the job decide";
        let seconds = given.map(|given| given.seconds(is_allowed)).transpose();
        let seconds = seconds.map_err(|error| error.with_hint(hint))?;
        Ok(seconds.map(Duration::from_secs_f64))
    }

    fn hang_signal(&self) -> Result<Option<Signal>, UsageError> {
        let given = self.argument("hang_signal", &self.args.hang_signal);
        let choose = |text: &str| text.trim().parse().ok();
        given.map(|given| given.choice("a signal such as `SIGQUIT`", choose)).transpose()
    }
}
