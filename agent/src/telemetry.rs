//! Sends the program's log lines to stderr; stdout belongs to the workers.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt};

use crate::{cli::LaunchArgs, host::Host, job_spec::JobSpecError};

/// How log lines look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

impl LogFormat {
    /// What `--log-format` says.
    ///
    /// # Errors
    ///
    /// Returns what was typed if it is none of the formats.
    pub fn of(args: &LaunchArgs) -> Result<Self, JobSpecError> {
        match args.log_format.as_deref() {
            None | Some("text") => Ok(Self::Text),
            Some("json") => Ok(Self::Json),
            Some(value) => Err(JobSpecError::LogFormat { value: value.to_owned() }),
        }
    }
}

/// Subscribes, once for the process; the filter is `RAGENT_LOG`.
pub fn start(format: LogFormat, host: &impl Host) {
    let filter = host.env("RAGENT_LOG").unwrap_or_else(|| "info".into());
    let filter = EnvFilter::builder().parse_lossy(filter.to_string_lossy());
    // A console that is gone is no reason to stop; to tell of it would take one, and panics.
    let lines = fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .log_internal_errors(false);
    // Another subscriber, as in a test that calls this twice, stays.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().with_target(true).try_init(),
    };
}
