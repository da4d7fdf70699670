//! Writes the result of the job to files: the file of `--report`, and torch's own error file if an elastic agent has started this one.

use std::{borrow::Cow, fs, io, path::Path};

use ragent_base::{
    limits,
    report::news,
    sys::{clock, files},
};
use ragent_core::{agent::Ending, process_end};
use ragent_options::spec::JobSpec;
use ragent_rendezvous::message::{JobResult, OomKill, RefuseReason, WorkerEnd, WorkerFailure};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::warn;

use super::Success;
use crate::commands::error::LaunchError;

/// The contents of the file of `--report`. Later versions only add fields.
#[derive(Default, Serialize)]
struct Report<'a> {
    ragent: &'static str,
    run_id: &'a str,
    script: &'a str,
    /// The interpreter of the script on this node. `None` if the workers are programs.
    interpreter: Option<Cow<'a, str>>,
    /// A stable word: [`JobResult::name`] if the job has ended, else `left`, `refused`, `unreachable` or `error`.
    result: &'static str,
    exit_code: u8,
    /// The error message. Empty after success.
    text: String,
    restarts_used: u32,
    first_failure: Option<Failure<'a>>,
    /// The number of other workers that failed by themselves in the same round.
    other_failures: u32,
    /// Milliseconds since the Unix epoch.
    ended_at: u128,
}

/// The first failure of the job, on any node.
#[derive(Serialize)]
struct Failure<'a> {
    host_name: &'a str,
    round: u64,
    global_rank: u32,
    local_rank: u32,
    pid: u32,
    /// The way in which the worker ended, as text.
    ended: String,
    /// The reports of the node's hardware since the round began.
    hardware: Vec<String>,
    /// Set if the kernel has probably killed the worker for lack of memory.
    oom: Option<OomKill>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    error_file: Option<&'a str>,
    message: Option<&'a str>,
    stderr_tail: &'a str,
}

impl<'a> From<&'a WorkerFailure> for Failure<'a> {
    fn from(failure: &'a WorkerFailure) -> Self {
        let (exit_code, signal) = match failure.end {
            WorkerEnd::Exited(code) => (Some(code), None),
            WorkerEnd::Signaled(signal) => (None, Some(signal)),
            WorkerEnd::NotStarted(_)
            | WorkerEnd::KeeperLost
            | WorkerEnd::Hung(_)
            | WorkerEnd::StandbyUnfit(_) => (None, None),
        };
        Self {
            host_name: &failure.host_name,
            round: failure.round.round.0,
            global_rank: failure.global_rank.0,
            local_rank: failure.local_rank.0,
            pid: failure.pid,
            ended: news::failed(&failure.end, failure.oom, &[]),
            hardware: failure.hardware_lines(),
            oom: failure.oom,
            exit_code,
            signal,
            error_file: failure.error_file.as_deref(),
            message: failure.message.as_deref(),
            stderr_tail: &failure.stderr_tail,
        }
    }
}

/// Checks that a report can be written, and removes the contents of an older one.
///
/// # Errors
///
/// Returns the system's error.
pub(super) fn prepare(path: &Path) -> io::Result<()> {
    files::rewrite(path).map(drop)
}

/// Writes the result of the launch to the files that `spec` names.
pub(super) fn write(spec: &JobSpec, result: &Result<Success, LaunchError>) {
    let outcome = match result {
        Ok(Success { outcome, .. }) => Some(outcome),
        Err(LaunchError::StaysClosed { outcome, .. }) => Some(outcome.as_ref()),
        Err(LaunchError::Ended(ended)) => match &ended.end.ending {
            Ending::Closed(outcome) | Ending::Refused(RefuseReason::Closed(outcome)) => {
                Some(outcome)
            }
            Ending::Left { .. }
            | Ending::Refused(_)
            | Ending::Outlived
            | Ending::Unreachable { .. } => None,
        },
        Err(_) => None,
    };
    let failure = outcome.and_then(|outcome| outcome.first_failure.as_ref());
    if let Some(path) = &spec.report {
        let report = Report {
            ragent: env!("CARGO_PKG_VERSION"),
            run_id: spec.run_id.as_str(),
            script: &spec.command.title,
            interpreter: spec.command.interpreter().map(Path::to_string_lossy),
            result: word(result),
            exit_code: result.as_ref().err().map_or(0, |error| error.code(spec.name)),
            text: result.as_ref().err().map(LaunchError::report).unwrap_or_default(),
            restarts_used: outcome.map_or(0, |outcome| outcome.restarts_used),
            first_failure: failure.map(Failure::from),
            other_failures: outcome.map_or(0, |outcome| outcome.other_failures),
            ended_at: clock::wall_time().as_millis(),
        };
        write_report(path, &report);
    }
    if let (Some(path), Some(failure), Err(_)) = (&spec.error_file, failure, result)
        && let Some(error) = torch_error(failure)
    {
        log_failure(rewrite(path, &error.to_string()), path);
    }
}

/// Writes that the command line of a launch is refused, with the message to the user.
pub fn write_refusal(path: &Path, exit_code: u8, text: String) {
    let ended_at = clock::wall_time().as_millis();
    let (ragent, result) = (env!("CARGO_PKG_VERSION"), "error");
    write_report(path, &Report { ragent, result, exit_code, text, ended_at, ..Report::default() });
}

fn write_report(path: &Path, report: &Report<'_>) {
    let text = serde_json::to_string_pretty(report).map_err(io::Error::other);
    let written = text.and_then(|text| rewrite(path, &(text + "\n")));
    log_failure(written, path);
}

fn word(result: &Result<Success, LaunchError>) -> &'static str {
    match result {
        Ok(Success { has_run: false, .. }) => "not_run",
        Ok(Success { has_run: true, .. }) => JobResult::Succeeded.name(),
        Err(LaunchError::Ended(ended)) => match &ended.end.ending {
            Ending::Closed(outcome) => outcome.result.name(),
            Ending::Left { .. } => "left",
            Ending::Refused(_) => "refused",
            Ending::Outlived => "outlived",
            Ending::Unreachable { .. } => "unreachable",
        },
        Err(LaunchError::StaysClosed { .. }) => "refused",
        Err(_) => "error",
    }
}

/// Returns the first failure in the format of torch's `@record`, with the exit code that torchrun adds. Returns `None` if the worker has
/// written no error file, or hung.
fn torch_error(failure: &WorkerFailure) -> Option<Value> {
    let is_hung = matches!(failure.end, WorkerEnd::Hung(_));
    // Without such a file, the message is the agent's own.
    let is_of_worker = !is_hung && failure.error_file.is_some();
    let message = failure.message.as_deref().filter(|_| is_of_worker)?;
    let exit_code = process_end::exit_code(&failure.end);
    // The error file is read if it is on this node. Workers on other nodes have sent only the end of their message.
    let original = failure.error_file.as_deref().and_then(|path| {
        let size = fs::metadata(path).ok()?.len();
        let text = (size <= limits::MAX_ERROR_FILE).then(|| fs::read_to_string(path).ok())??;
        serde_json::from_str::<Value>(&text).ok()
    });
    let mut error = original.unwrap_or_else(|| {
        let last = message.lines().last().unwrap_or_default();
        json!({ "message": { "message": last, "extraInfo": { "py_callstack": message } } })
    });
    match &mut error["message"] {
        Value::Object(message) => {
            message.insert("errorCode".to_owned(), exit_code.into());
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
    Some(error)
}

/// Overwrites the file in place, because the path may be a pipe.
fn rewrite(path: &Path, text: &str) -> io::Result<()> {
    let mut file = files::rewrite(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

fn log_failure(written: io::Result<()>, path: &Path) {
    if let Err(error) = written {
        warn!(path = %path.display(), %error, "failed to write the report of the job");
    }
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::ids::{GlobalRank, LocalRank, RoundId};

    use super::*;

    fn failure(message: Option<&str>, error_file: Option<String>) -> WorkerFailure {
        WorkerFailure {
            message: message.map(str::to_owned),
            error_file,
            ..WorkerFailure::new(
                "node1",
                RoundId::default(),
                (GlobalRank(3), LocalRank(1)),
                7,
                WorkerEnd::Signaled(9),
            )
        }
    }

    /// A local error file is passed on unchanged, except for the added exit code.
    #[test]
    fn error_files_are_passed_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"message": {"message": "E: x", "extraInfo": {"timestamp": "1"}}}"#;
        fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let error = torch_error(&failure(Some("E: x"), Some(path))).unwrap();
        let expected = json!({
            "message": { "message": "E: x", "extraInfo": { "timestamp": "1" }, "errorCode": -9 }
        });
        assert_eq!(error, expected);
    }

    /// The error of a worker on another node consists of the message that it has sent, if any.
    #[test]
    fn errors_of_other_nodes() {
        let sent = failure(Some("Traceback\nE: x"), Some("/there/error.json".into()));
        let error = torch_error(&sent).unwrap();
        assert_eq!(error["message"]["message"], "E: x");
        assert_eq!(error["message"]["extraInfo"]["py_callstack"], "Traceback\nE: x");
        assert_eq!(torch_error(&failure(None, None)), None);
    }
}
