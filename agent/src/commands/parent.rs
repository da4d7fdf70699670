//! The end of a process together with its parent.

use nix::{
    sys::{
        prctl,
        signal::{Signal, raise},
    },
    unistd::{self, Pid},
};

use super::error::{LaunchError, system};
use crate::{spec::Argument, sys::host::Host};

/// The process id of the parent with which a launch ends. The Python module sets it, so that a job does not outlive
/// the program that has started it.
const VARIABLE: &str = "RAGENT_EXIT_WITH_PARENT";

/// Ends this launch, as SIGTERM does, when the parent ends that `RAGENT_EXIT_WITH_PARENT` names.
///
/// # Errors
///
/// Returns [`LaunchError`] if the value is not a process id, or the system refuses.
pub fn watch(host: &impl Host) -> Result<(), LaunchError> {
    let Some(value) = host.env(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let given = Argument::new(VARIABLE, &value.to_string_lossy());
    let parent = given.number(1..=u32::MAX)?;
    end_with(Pid::from_raw(parent.cast_signed()))
}

/// Requests SIGTERM for this process at the end of the thread of `parent` that has started it. If `parent` is not, or no
/// longer, its parent, the signal is sent at once.
///
/// # Errors
///
/// Returns [`LaunchError`] if the system refuses.
pub(super) fn end_with(parent: Pid) -> Result<(), LaunchError> {
    let attempt = "request a signal at the end of the parent process";
    prctl::set_pdeathsig(Signal::SIGTERM).map_err(|errno| system(attempt)(errno.into()))?;
    if unistd::getppid() != parent {
        raise(Signal::SIGTERM).map_err(|errno| system(attempt)(errno.into()))?;
    }
    Ok(())
}
