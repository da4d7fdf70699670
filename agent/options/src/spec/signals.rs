//! Reads the signals on which the agent shuts down: torchrun's `--signals-to-handle`.

use std::str::FromStr;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// The signals on which the agent shuts down.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignalList {
    /// The list as typed; it is passed on to workers.
    pub text: String,
    /// The signals that exist.
    pub signals: Vec<Signal>,
    /// Names that are not signals on this system; torchrun ignores them with a warning.
    pub unknown: Vec<String>,
}

/// The processes of a worker that receive its signals.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Signaled {
    /// The main process if that is the job's interpreter, else the group: a wrapper, such as a shell or a profiler, may pass no signal
    /// on.
    #[default]
    Auto,
    /// The main process. The rest of its group follows when it has ended, because a checkpoint may need data loaders and helpers until
    /// then.
    Main,
    /// Its process group, as under torchrun.
    Group,
}

/// The signals that torchrun handles by default.
const DEFAULT: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// Signals that must not be handled. No process can handle the first two. The others report a fault
/// of this program itself, or the end of a child.
const NOT_HANDLED: [Signal; 8] = [
    Signal::SIGKILL,
    Signal::SIGSTOP,
    Signal::SIGBUS,
    Signal::SIGCHLD,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGTRAP,
];

impl Default for SignalList {
    fn default() -> Self {
        let text = DEFAULT.map(Signal::as_str).join(",");
        Self { text, signals: DEFAULT.to_vec(), unknown: Vec::new() }
    }
}

impl FromStr for SignalList {
    type Err = Signal;

    /// Reads `NAME,…`.
    ///
    /// # Errors
    ///
    /// Returns a signal that cannot be handled.
    fn from_str(text: &str) -> Result<Self, Signal> {
        let mut list = Self { text: text.to_owned(), signals: Vec::new(), unknown: Vec::new() };
        for name in text.split(',').map(str::trim) {
            match name.parse::<Signal>() {
                Ok(signal) if NOT_HANDLED.contains(&signal) => return Err(signal),
                Ok(signal) if list.signals.contains(&signal) => {}
                Ok(signal) => list.signals.push(signal),
                Err(_) => list.unknown.push(name.to_owned()),
            }
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are read as by torchrun: unknown ones are listed, and signals that cannot be handled
    /// are errors.
    #[test]
    fn lists_of_signals() {
        let list: SignalList = "SIGTERM, SIGUSR1,SIGTERM,SIGNOPE".parse().unwrap();
        assert_eq!(list.signals, [Signal::SIGTERM, Signal::SIGUSR1]);
        assert_eq!(list.unknown, ["SIGNOPE"]);
        assert_eq!(list.text, "SIGTERM, SIGUSR1,SIGTERM,SIGNOPE");
        assert_eq!("SIGINT,SIGKILL".parse::<SignalList>(), Err(Signal::SIGKILL));
        assert_eq!(SignalList::default().text, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    }
}
