//! Writes the program's log lines to stderr; stdout belongs to the workers.
//!
//! A thread writes them, so that a blocked console delays nothing else. Lines that do not fit into
//! the queue are dropped, and their number is logged.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::{cli::LaunchArgs, host::Host, job_spec::JobSpecError, limits};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Human-readable text.
    Text,
}

impl LogFormat {
    /// Returns the format that `--log-format` selects.
    ///
    /// # Errors
    ///
    /// Returns the value if it is not a known format.
    pub fn of(args: &LaunchArgs) -> Result<Self, JobSpecError> {
        match args.log_format.as_deref() {
            None | Some("text") => Ok(Self::Text),
            Some("json") => Ok(Self::Json),
            Some(value) => Err(JobSpecError::LogFormat { value: value.to_owned() }),
        }
    }
}

/// Returns the log filter: `RAGENT_LOG`, else torch's `LOGLEVEL`, else `info`.
fn filter(host: &impl Host) -> EnvFilter {
    let text = |name| host.env(name).map(|value| value.to_string_lossy().into_owned());
    let level = || match text("LOGLEVEL")?.to_ascii_uppercase().as_str() {
        "DEBUG" | "NOTSET" => Some("debug"),
        "INFO" => Some("info"),
        "WARNING" | "WARN" => Some("warn"),
        "ERROR" | "CRITICAL" | "FATAL" => Some("error"),
        // A number, or a level of another program.
        _ => None,
    };
    let filter = text("RAGENT_LOG").or_else(|| level().map(str::to_owned));
    EnvFilter::builder().parse_lossy(filter.unwrap_or_else(|| "info".to_owned()))
}

/// Installs the subscriber of this process.
///
/// # Errors
///
/// Returns the system's refusal to start the writing thread.
pub fn start(format: LogFormat, host: &impl Host) -> io::Result<LogEnd> {
    let (log, end) = Log::start()?;
    // An internal error of the logger could only be printed to the console that failed.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(host))
        .with_writer(log)
        .with_target(false)
        .log_internal_errors(false);
    // An earlier subscriber stays, as in a test that calls this twice.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().with_target(true).try_init(),
    };
    Ok(end)
}

/// An item for the writing thread.
#[derive(Debug)]
enum ToWrite {
    Line(Vec<u8>),
    /// A request to reply once all earlier lines are written.
    Flush(mpsc::SyncSender<()>),
}

/// The queue of lines to write.
#[derive(Clone, Debug)]
struct Log {
    lines: mpsc::SyncSender<ToWrite>,
    dropped: Arc<AtomicU64>,
}

/// A handle that writes and flushes the last lines.
#[derive(Debug)]
pub struct LogEnd(mpsc::SyncSender<ToWrite>);

impl Log {
    fn start() -> io::Result<(Self, LogEnd)> {
        let (lines, queue) = mpsc::sync_channel(limits::LOG_QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&queue, &count))?;
        Ok((Self { lines: lines.clone(), dropped }, LogEnd(lines)))
    }
}

impl LogEnd {
    /// Writes `text` as a line of its own, after all lines so far.
    pub fn say(&self, text: &str) {
        // A blocked console has filled the queue, and would not take this line either.
        let _ = self.0.try_send(ToWrite::Line(format!("{text}\n").into_bytes()));
    }

    /// Waits until all lines so far are written, for at most `limit`.
    pub fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        // A blocked console has filled the queue, and gets no further time.
        if self.0.try_send(ToWrite::Flush(done)).is_ok() {
            let _ = written.recv_timeout(limit);
        }
    }
}

fn write_all(queue: &mpsc::Receiver<ToWrite>, dropped: &AtomicU64) {
    for next in queue {
        // Lines are taken even if the console is gone (EPIPE).
        let _ = match next {
            ToWrite::Line(line) => write_line(&line, dropped.swap(0, Ordering::Relaxed)),
            ToWrite::Flush(done) => {
                // The caller may have stopped waiting.
                let _ = done.try_send(());
                Ok(())
            }
        };
    }
}

fn write_line(line: &[u8], dropped: u64) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    if dropped > 0 {
        writeln!(stderr, "ragent: {dropped} log lines were lost while the console was blocked")?;
    }
    stderr.write_all(line)
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Log {
    /// Takes one whole line, as the formatter passes them.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(ToWrite::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A blocked console delays no caller: lines that do not fit are counted.
    #[test]
    fn full_queue_drops_and_counts() {
        let (lines, _nobody_reads) = mpsc::sync_channel(2);
        let dropped = Arc::new(AtomicU64::new(0));
        let mut log = Log { lines, dropped: Arc::clone(&dropped) };
        for _ in 0..5 {
            assert_eq!(log.write(b"line\n").unwrap(), 5);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
    }
}
