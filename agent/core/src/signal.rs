//! Names signals by number, without a system interface.

use std::fmt;

/// The number of a signal on Linux.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Signal(pub i32);

impl Signal {
    /// `SIGINT`, which Ctrl-C sends.
    pub const INT: Self = Self(2);
    /// `SIGKILL`, which no process can handle.
    pub const KILL: Self = Self(9);
    /// `SIGTERM`, the request to end.
    pub const TERM: Self = Self(15);

    /// Returns true if the signal has a name.
    pub fn has_name(self) -> bool {
        self.standard_name().is_some() || self.0 >= SIGRTMIN
    }

    fn standard_name(self) -> Option<&'static str> {
        let index = usize::try_from(self.0).ok()?.checked_sub(1)?;
        NAMES.get(index).copied()
    }
}

/// The first real-time signal that programs may use. The two below it are reserved by libc.
const SIGRTMIN: i32 = 34;

/// Names of the standard signals, from number 1.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

impl fmt::Display for Signal {
    /// Formats the signal as its name, or as `signal N` if it has none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = *self;
        match self.standard_name() {
            Some(name) => f.write_str(name),
            None if number == SIGRTMIN => f.write_str("SIGRTMIN"),
            None if number > SIGRTMIN => write!(f, "SIGRTMIN+{}", number - SIGRTMIN),
            None => write!(f, "signal {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Standard and real-time signals have their usual names. Other numbers are printed as numbers.
    #[test]
    fn signals_have_names() {
        assert_eq!(Signal::TERM.to_string(), "SIGTERM");
        assert_eq!(Signal(31).to_string(), "SIGSYS");
        assert_eq!(Signal(34).to_string(), "SIGRTMIN");
        assert_eq!(Signal(36).to_string(), "SIGRTMIN+2");
        assert_eq!(Signal(32).to_string(), "signal 32");
        assert_eq!(Signal(0).to_string(), "signal 0");
        assert_eq!(Signal(-1).to_string(), "signal -1");
        assert_eq!(
            [15, 32, 33, 34, 64].map(|number| Signal(number).has_name()),
            [true, false, false, true, true]
        );
    }
}
