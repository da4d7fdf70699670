//! Ends a launch when its parent process ends.

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{self, Pid},
};
use ragent_base::sys::host::Host;
use ragent_options::spec::Argument;

use super::error::{LaunchError, system};

/// The variable with the process id of the parent. The Python module sets it, so that a job does not outlive the program that started it.
pub(super) const VARIABLE: &str = "RAGENT_EXIT_WITH_PARENT";

/// Ends this launch as SIGTERM does, when the parent that `RAGENT_EXIT_WITH_PARENT` names ends.
///
/// # Errors
///
/// Returns [`LaunchError`] if the value is not the id of the parent, or the system refuses.
pub fn watch(host: &impl Host) -> Result<(), LaunchError> {
    let Some(value) = host.env(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(()) };
    let given = Argument::new(VARIABLE, &value.to_string_lossy());
    let parent = given.number(1..=u32::MAX)?;
    if end_with(Pid::from_raw(parent.cast_signed()))? {
        return Ok(());
    }
    let error = given.invalid("is not the parent of this process, or has ended");
    let hint = "start ragent directly from the process with that id, or unset the variable";
    Err(error.with_hint(hint).into())
}

/// Requests SIGTERM for this process when the thread of `parent` that started it ends. Returns false if `parent` is not the parent of this
/// process, or is gone.
fn end_with(parent: Pid) -> Result<bool, LaunchError> {
    prctl::set_pdeathsig(Signal::SIGTERM).map_err(|errno| {
        system("request a signal at the end of the parent process")(errno.into())
    })?;
    Ok(unistd::getppid() == parent)
}
