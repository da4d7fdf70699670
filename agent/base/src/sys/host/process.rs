//! The settings that this process has inherited: signals and resource limits.

use std::io;

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SaFlags, SigAction, SigHandler, SigSet, Signal},
};

use super::ThisHost;
use crate::sys::{proc, unix};

impl ThisHost {
    /// Returns true if this process was started with `signal` ignored, as `nohup` does.
    pub fn ignores(self, signal: Signal) -> bool {
        let mask = proc::field("self/status", "SigIgn");
        let mask = mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
    }

    /// Resets inherited signal settings that would break the agent: an ignored `SIGCHLD`, and
    /// blocked signals. Ignores `SIGXFSZ`, so that reaching the file size limit is an error of the
    /// write, not the end of the process.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn settle_signals(self) -> io::Result<()> {
        let action = |handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty());
        unix::set_disposition(Signal::SIGCHLD, &action(SigHandler::SigDfl))?;
        unix::set_disposition(Signal::SIGXFSZ, &action(SigHandler::SigIgn))?;
        SigSet::empty().thread_set_mask()?;
        Ok(())
    }

    /// Raises the limit of open files to the hard limit; returns the old limit and the present one.
    ///
    /// A coordinator has a connection for each agent, and the usual soft limit is 1024. Workers get
    /// the old limit back.
    pub fn raise_open_files(self) -> (u64, u64) {
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
            return (u64::MAX, u64::MAX);
        };
        // If the system refuses, the old limit stays.
        let is_raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
        (soft, if is_raised { hard } else { soft })
    }

    /// Disables core dumps of this process, which would contain secrets; returns the old limit,
    /// which workers get back. systemd-coredump respects the limit, too.
    ///
    /// `PR_SET_DUMPABLE` is not used: under `hidepid=2` it would hide the process from its own
    /// user.
    pub fn disable_core_dumps(self) -> u64 {
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_CORE) else { return u64::MAX };
        // Lowering a soft limit is not refused.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
        soft
    }
}
