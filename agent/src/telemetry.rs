//! Sends the program's log lines to stderr; stdout belongs to the workers.
//!
//! A thread writes them, so that a console that blocks stops nobody's clock: what does not fit into
//! the queue meanwhile is dropped, and how much that was is said.

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

/// What is logged: `RAGENT_LOG`, else torch's `LOGLEVEL`, else `info`.
fn filter(host: &impl Host) -> EnvFilter {
    let text = |name| host.env(name).map(|value| value.to_string_lossy().into_owned());
    let level = || match text("LOGLEVEL")?.to_ascii_uppercase().as_str() {
        "DEBUG" | "NOTSET" => Some("debug"),
        "INFO" => Some("info"),
        "WARNING" | "WARN" => Some("warn"),
        "ERROR" | "CRITICAL" | "FATAL" => Some("error"),
        // A number, or a word that means something to somebody else.
        _ => None,
    };
    let filter = text("RAGENT_LOG").or_else(|| level().map(str::to_owned));
    EnvFilter::builder().parse_lossy(filter.unwrap_or_else(|| "info".to_owned()))
}

/// Subscribes, once for the process.
///
/// # Errors
///
/// Returns the system's refusal to start the thread that writes.
pub fn start(format: LogFormat, host: &impl Host) -> io::Result<LogEnd> {
    let (log, end) = Log::start()?;
    // To tell that a line could not be written would take a console.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(host))
        .with_writer(log)
        .with_target(false)
        .log_internal_errors(false);
    // Another subscriber, as in a test that calls this twice, stays.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().with_target(true).try_init(),
    };
    Ok(end)
}

/// What goes to the thread that writes.
#[derive(Debug)]
enum ToWrite {
    Line(Vec<u8>),
    /// Everything before has been handed over: say when it is written.
    Flush(mpsc::SyncSender<()>),
}

/// The queue of lines that are to be written.
#[derive(Clone, Debug)]
struct Log {
    lines: mpsc::SyncSender<ToWrite>,
    dropped: Arc<AtomicU64>,
}

/// Lets the last lines out.
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
    /// Writes `text` as a line of its own, after every line so far.
    pub fn say(&self, text: &str) {
        // A console that blocks has filled the queue, and would not take this either.
        let _ = self.0.try_send(ToWrite::Line(format!("{text}\n").into_bytes()));
    }

    /// Waits until every line so far is written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let (done, written) = mpsc::sync_channel(1);
        // A console that blocks has filled the queue, and gets no further time.
        if self.0.try_send(ToWrite::Flush(done)).is_ok() {
            let _ = written.recv_timeout(limit);
        }
    }
}

fn write_all(queue: &mpsc::Receiver<ToWrite>, dropped: &AtomicU64) {
    for next in queue {
        // A console that is gone (EPIPE) is no reason to stop taking lines.
        let _ = match next {
            ToWrite::Line(line) => write_line(&line, dropped.swap(0, Ordering::Relaxed)),
            ToWrite::Flush(done) => {
                // Whoever asked may have stopped waiting.
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
    /// Takes one whole line, as the formatter hands them over.
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

    /// A console that blocks keeps nobody waiting: what does not fit is counted.
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
