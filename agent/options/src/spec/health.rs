//! Reads the flags about the health of the machine: `--health`, `--health-check`, `--health-timeout` and `--exclude-command`.

use std::time::Duration;

use super::{UsageError, arguments::Arguments};
use ragent_base::sys::host::Host;

/// The checks of a machine: its hardware, and the user's own program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HealthSpec {
    /// True if it reads and watches GPUs.
    pub gpus: bool,
    /// True if it reads InfiniBand and RoCE ports.
    pub ports: bool,
    /// True if it reads the folder of the logs, and `/dev/shm`.
    pub folders: bool,
    /// The program of the user's check, with its arguments; empty if there is none.
    pub check: Vec<String>,
    /// The time that the program has.
    pub timeout: Duration,
    /// True if an unhealthy machine is reported to the coordinator, which may give it no place. Not as torchrun, which uses all nodes.
    pub is_reported: bool,
}

impl Default for HealthSpec {
    fn default() -> Self {
        Self {
            gpus: true,
            ports: true,
            folders: true,
            check: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            is_reported: true,
        }
    }
}

/// `--health-timeout` without the flag.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest `--health-timeout`: nodes wait for each other for 600 s by default, and an hour is more than any test of a machine.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

impl<H: Host> Arguments<'_, H> {
    pub(super) fn health(&self) -> Result<HealthSpec, UsageError> {
        let mut spec = HealthSpec::default();
        if let Some(given) = self.argument("health", &self.args.health) {
            (spec.gpus, spec.ports, spec.folders) = (false, false, false);
            for part in given.text.split(',').map(str::trim) {
                match part {
                    "gpu" => spec.gpus = true,
                    "nic" => spec.ports = true,
                    "disk" => spec.folders = true,
                    "off" if given.text.trim() == "off" => {}
                    _ => return Err(given.is_not("`off`, or a list of `gpu`, `nic` and `disk`")),
                }
            }
        }
        Ok(spec)
    }

    pub(super) fn health_check(&self) -> Result<Vec<String>, UsageError> {
        let given = self.argument("health_check", &self.args.health_check);
        given.map_or(Ok(Vec::new()), |given| given.command(self.host, "'nvidia-smi -L'"))
    }

    pub(super) fn exclude_command(&self, fixed_ranks: bool) -> Result<Vec<String>, UsageError> {
        let given = self.argument("exclude_command", &self.args.exclude_command);
        if let Some(given) = given.as_ref().filter(|_| fixed_ranks) {
            let hint = "use `--rdzv-backend c10d`, where another node can replace an excluded one";
            return Err(given
                .invalid("does not work with fixed ranks: each of these nodes is needed")
                .with_hint(hint));
        }
        given.map_or(Ok(Vec::new()), |given| given.command(self.host, "'cat bad-hosts'"))
    }

    pub(super) fn health_timeout(&self) -> Result<Duration, UsageError> {
        let Some(given) = self.argument("health_timeout", &self.args.health_timeout) else {
            return Ok(DEFAULT_TIMEOUT);
        };
        let range = 0.001..=TIMEOUT_MAX.as_secs_f64();
        Ok(Duration::from_secs_f64(given.seconds(|seconds| range.contains(&seconds))?))
    }
}
