//! Writes the program's log lines to stderr; stdout belongs to the workers.
//!
//! A thread writes them, so that a blocked console delays nothing else. Lines that do not fit into
//! the queue are dropped, and their number is logged. By default few lines are printed; the others are
//! kept in memory, and become a file when something fails.

mod recent;
mod sentence;
mod writer;

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tracing::{Event, Level, Subscriber, error, info, warn};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{
        self, FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use self::{recent::Recent, sentence::Sentence, writer::TelemetryItem};
use crate::{
    output::temp_folders::AGENT_LOG,
    report::limits,
    sys::{clock, files, host::Host},
};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Human-readable text.
    Text,
}

/// The lines that a command prints by default.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DefaultLines {
    /// Warnings, errors and the lines for the user. Lines of level `info` are kept in memory, and written
    /// to a file when something fails.
    Few,
    /// The same without the lines for the user that are neither warnings nor errors.
    Warnings,
    /// Lines of level `info` and above.
    Info,
}

/// The target of lines of [`line()`].
const LINES: &str = "ragent::lines";

/// The target of log lines that users see as a line of [`error_line()`] or [`warning_line()`] instead.
pub(crate) const RECORD: &str = "ragent::record";

/// Prints a line for the user, unless `RAGENT_LOG` or `LOGLEVEL` selects log lines. Control characters,
/// which may come from other nodes, become spaces.
pub fn line(text: &str) {
    info!(target: LINES, "{}", text.replace(char::is_control, " "));
}

/// Prints an error for the user, like [`line()`].
pub(crate) fn error_line(text: &str) {
    error!(target: LINES, "{}", text.replace(char::is_control, " "));
}

/// Prints a warning for the user, like [`line()`].
pub(crate) fn warning_line(text: &str) {
    warn!(target: LINES, "{}", text.replace(char::is_control, " "));
}

/// The levels that the environment selects: `RAGENT_LOG`, else torch's `LOGLEVEL`.
fn given_filter(host: &impl Host) -> Option<String> {
    let text = |name| host.env(name).map(|value| value.to_string_lossy().into_owned());
    let level = || match text("LOGLEVEL")?.to_ascii_uppercase().as_str() {
        "DEBUG" | "NOTSET" => Some("debug"),
        "INFO" => Some("info"),
        "WARNING" | "WARN" => Some("warn"),
        "ERROR" | "CRITICAL" | "FATAL" => Some("error"),
        // A number, or a level of another program.
        _ => None,
    };
    let given = text("RAGENT_LOG").filter(|levels| !levels.trim().is_empty());
    given.or_else(|| level().map(str::to_owned))
}

/// Log lines of these levels, and errors in any case, without lines of [`line()`], which repeat some of them.
fn without_lines(levels: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(format!("error,{levels},{LINES}=off"))
}

/// Installs the subscriber of this process.
///
/// # Errors
///
/// Returns the system's refusal to start the writing thread.
pub fn start(format: LogFormat, default: DefaultLines, host: &impl Host) -> io::Result<Log> {
    let given = given_filter(host);
    let level = match default {
        DefaultLines::Few => Some("info"),
        DefaultLines::Warnings => Some("warn"),
        DefaultLines::Info => None,
    };
    let level = level.filter(|_| given.is_none() && format == LogFormat::Text);
    let log = Log::start(level.map(|_| Recent::default()))?;
    let is_terminal = io::stderr().is_terminal();
    // An internal error of the logger could only be printed to the console that failed.
    let lines = fmt::layer().with_writer(log.clone()).with_target(false).log_internal_errors(false);
    let text = lines.with_ansi(is_terminal).with_timer(LineTime { is_local: is_terminal });
    let filter = without_lines(given.as_deref().unwrap_or("info"));
    let mut layers = Vec::new();
    if let (Some((recent, _)), Some(level)) = (&log.recent, level) {
        let few = EnvFilter::builder().parse_lossy(format!("warn,{LINES}={level},{RECORD}=off"));
        layers.push(text.event_format(ForPeople).with_filter(few).boxed());
        let kept = fmt::layer().with_writer(recent.clone()).with_ansi(false).with_target(false);
        layers.push(kept.log_internal_errors(false).with_filter(filter).boxed());
    } else {
        layers.push(match format {
            LogFormat::Text => text.with_filter(filter).boxed(),
            LogFormat::Json => {
                let time = LineTime { is_local: false };
                text.with_timer(time).json().with_target(true).with_filter(filter).boxed()
            }
        });
    }
    // An earlier subscriber stays, as in a test that calls this twice.
    let _ = tracing_subscriber::registry().with(layers).try_init();
    Ok(log)
}

/// The time of a line: short and local on a terminal, else RFC 3339.
#[derive(Clone, Copy, Debug)]
struct LineTime {
    is_local: bool,
}

impl FormatTime for LineTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        if self.is_local {
            return write!(writer, "{}", clock::local_time_of_day());
        }
        SystemTime.format_time(writer)
    }
}

/// Lines that begin with the time, the program's name and, for a warning or an error, that word.
#[derive(Clone, Copy, Debug)]
struct ForPeople;

impl<S, N> FormatEvent<S, N> for ForPeople
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        LineTime { is_local: writer.has_ansi_escapes() }.format_time(&mut writer)?;
        writer.write_str(match *event.metadata().level() {
            Level::ERROR => " ragent: error: ",
            Level::WARN => " ragent: warning: ",
            _ => " ragent: ",
        })?;
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        writeln!(writer, "{sentence}")
    }
}

/// An item for the thread that writes `agent.log`: another one than that of the console, as either may
/// block.
#[derive(Debug)]
enum ToFile {
    /// A request to write the recent lines.
    Keep(PathBuf),
    /// A request to remove the file.
    Discard(PathBuf),
    /// A request to reply once all earlier items are done.
    Flush(mpsc::SyncSender<()>),
}

/// The queue of the writing thread.
#[derive(Clone, Debug)]
pub struct Log {
    queue: mpsc::SyncSender<TelemetryItem>,
    dropped: Arc<AtomicU64>,
    /// The recent lines, and the queue of the thread that writes them, unless all lines are printed.
    recent: Option<(Recent, mpsc::SyncSender<ToFile>)>,
    /// The file for the recent lines, once its folder is known.
    file: Arc<OnceLock<PathBuf>>,
    is_kept: Arc<AtomicBool>,
}

impl Log {
    fn start(recent: Option<Recent>) -> io::Result<Self> {
        let (queue, items) = mpsc::sync_channel(limits::LOG_QUEUE);
        let mut log = Self::new(queue);
        let dropped = Arc::clone(&log.dropped);
        let write = move || writer::write_all(&items, &dropped);
        thread::Builder::new().name("log".to_owned()).spawn(write)?;
        if let Some(recent) = recent {
            let (files, items) = mpsc::sync_channel(limits::LOG_FILE_QUEUE);
            let (lines, is_kept) = (recent.clone(), Arc::clone(&log.is_kept));
            let keep = move || keep_all(&items, &lines, &is_kept);
            thread::Builder::new().name("agent-log".to_owned()).spawn(keep)?;
            log.recent = Some((recent, files));
        }
        Ok(log)
    }

    fn new(queue: mpsc::SyncSender<TelemetryItem>) -> Self {
        Self {
            queue,
            dropped: Arc::default(),
            recent: None,
            file: Arc::default(),
            is_kept: Arc::default(),
        }
    }

    /// A log without a thread, for drivers that are run without the program.
    pub fn disabled() -> Self {
        let (queue, _) = mpsc::sync_channel(0);
        Self::new(queue)
    }

    /// Prints `text` after all earlier lines.
    pub fn print(&self, text: &str) {
        // A blocked console has filled the queue, and would not accept this either.
        let _ = self.queue.try_send(TelemetryItem::Line(format!("{text}\n").into_bytes()));
    }

    /// Waits until all earlier items are written, at most for `limit`; returns true if they are.
    pub fn flush(&self, limit: Duration) -> bool {
        let (done, written) = mpsc::sync_channel(1);
        // A blocked console has filled the queue, and gets no further time.
        self.queue.try_send(TelemetryItem::Flush(done)).is_ok()
            && written.recv_timeout(limit).is_ok()
    }

    /// Sets the folder where [`Log::keep`] writes `agent.log`.
    pub fn set_folder(&self, folder: &Path) {
        // The folder is set once in the life of a process.
        let _ = self.file.set(folder.join(AGENT_LOG));
    }

    /// Writes the recent lines to `agent.log`, replacing earlier ones: something has failed. Does not wait
    /// for the disk.
    pub fn keep(&self) {
        self.to_file(ToFile::Keep);
    }

    /// Removes `agent.log`.
    pub fn discard(&self) {
        self.to_file(ToFile::Discard);
    }

    /// Waits until `agent.log` is written or removed, at most for `limit`.
    pub fn settle(&self, limit: Duration) {
        let Some((_, files)) = &self.recent else { return };
        let (done, settled) = mpsc::sync_channel(1);
        // A blocked disk has filled the queue, and gets no further time.
        if files.try_send(ToFile::Flush(done)).is_ok() {
            let _ = settled.recv_timeout(limit);
        }
    }

    fn to_file(&self, item: impl FnOnce(PathBuf) -> ToFile) {
        if let (Some((_, files)), Some(path)) = (&self.recent, self.file.get()) {
            // If the queue is full, the disk is blocked, and the file out of date.
            let _ = files.try_send(item(path.clone()));
        }
    }

    /// The path of `agent.log`, if it has been written.
    pub fn kept(&self) -> Option<&Path> {
        let is_kept = self.is_kept.load(Ordering::Acquire);
        self.file.get().map(PathBuf::as_path).filter(|_| is_kept)
    }
}

fn keep_all(items: &mpsc::Receiver<ToFile>, recent: &Recent, is_kept: &AtomicBool) {
    for item in items {
        match item {
            ToFile::Keep(path) => {
                let lines = recent.bytes();
                if lines.is_empty() {
                    continue;
                }
                let written = files::rewrite_log(&path).and_then(|mut file| file.write_all(&lines));
                is_kept.store(written.is_ok(), Ordering::Release);
            }
            ToFile::Discard(path) => {
                // It may not have been written.
                let _ = fs::remove_file(path);
                is_kept.store(false, Ordering::Release);
            }
            ToFile::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
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
        if self.queue.try_send(TelemetryItem::Line(line.to_vec())).is_err() {
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
    use crate::sys::host::FakeHost;

    /// A blocked console delays no caller: lines that do not fit are counted.
    #[test]
    fn full_queue_drops_and_counts() {
        let (lines, _nobody_reads) = mpsc::sync_channel(2);
        let mut log = Log::new(lines);
        for _ in 0..5 {
            assert_eq!(log.write(b"line\n").unwrap(), 5);
        }
        assert_eq!(log.dropped.load(Ordering::Relaxed), 3);
    }

    /// The recent lines become a file when something fails, and the file is removed if the job succeeds.
    #[test]
    fn recent_lines_become_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let limit = Duration::from_secs(300);
        let mut recent = Recent::default();
        let log = Log::start(Some(recent.clone())).unwrap();
        recent.write_all(b"one\n").unwrap();
        log.keep();
        log.set_folder(folder.path());
        log.settle(limit);
        assert_eq!(log.kept(), None, "no folder was known");
        log.keep();
        log.settle(limit);
        assert_eq!(
            (log.kept(), fs::read(&path).unwrap()),
            (Some(path.as_path()), b"one\n".to_vec())
        );
        log.discard();
        log.settle(limit);
        assert_eq!((log.kept(), path.exists()), (None, false));
    }

    /// An empty value in the environment selects nothing, and an invalid one hides no errors.
    #[test]
    fn invalid_levels_hide_no_errors() {
        for levels in ["", "=,=", "info,[", "warn"] {
            let filter = without_lines(levels);
            let most = filter.max_level_hint().expect("levels are bounded");
            assert!(most >= tracing_subscriber::filter::LevelFilter::ERROR, "{levels}: {most}");
        }
        let host = |value: &str| {
            let env = [("RAGENT_LOG".to_owned(), value.into())].into();
            given_filter(&FakeHost { env, ..FakeHost::default() })
        };
        assert_eq!((host(""), host(" ")), (None, None));
        assert_eq!(host("debug"), Some("debug".to_owned()));
    }
}
