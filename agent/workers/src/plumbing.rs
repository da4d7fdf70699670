//! Connects the streams of workers to their destinations: pipes, files, the agent's own streams.

mod route;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::Arc,
};

use ragent_base::output::{
    capture::{self, Drain},
    console::Console,
    flow::{FlowOrder, StreamDestination},
    lines::Choice,
    logs::{LogFolder, WorkerFolder},
    sources::{Content, OutputFile, Outputs},
    streams::Stream,
    tail::SharedTail,
};
use ragent_options::spec::{Output, PrefixValues};
use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::Admission,
};
use tokio::sync::Notify;
use tracing::warn;

use self::route::{LogFile, Route, route};
use super::spec::WorkersSpec;

/// The last lines of a worker's stderr.
#[derive(Default)]
pub(super) enum StderrTail {
    /// There are none: stderr goes to a terminal, or is discarded.
    #[default]
    NotCaptured,
    Captured(SharedTail),
}

/// The files for the workers of a round. They are opened before the start, because a disk may be slow.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) workers: BTreeMap<LocalRank, WorkerFiles>,
    /// The files for selected lines of all workers: first stdout, then stderr.
    pub(super) chosen: [Option<Arc<File>>; 2],
}

/// The files of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerFiles {
    pub(super) folder: Option<WorkerFolder>,
    stdout: Option<LogOfStream>,
    stderr: Option<LogOfStream>,
}

/// The file of a stream.
#[derive(Debug)]
struct LogOfStream {
    file: File,
    path: PathBuf,
    /// Its length before the worker started.
    begin: u64,
}

impl LogOfStream {
    fn open(folder: &WorkerFolder, stream: Stream) -> io::Result<Self> {
        let file = folder.open(stream)?;
        let begin = file.metadata()?.len();
        Ok(Self { file, path: folder.log_file(stream), begin })
    }
}

/// Opens the output files for the workers of a round. If a file cannot be opened, that is logged: a
/// worker must not fail because its log cannot be written.
pub(super) fn prepare(
    logs: &LogFolder,
    output: &Output,
    restart_count: u32,
    size: u32,
) -> Prepared {
    logs.forget_before(restart_count);
    let mut errors = BTreeSet::new();
    let mut prepared = Prepared::default();
    for local_rank in (0..size).map(LocalRank) {
        let folder = logs.worker(restart_count, local_rank);
        let folder = folder.unwrap_or_else(|error| {
            errors.insert(error.to_string());
            None
        });
        let mut open = |stream| {
            let wanted = output.has_file(local_rank, stream);
            let folder = folder.as_ref().filter(|_| wanted)?;
            let file = LogOfStream::open(folder, stream);
            file.map_err(|error| errors.insert(error.to_string())).ok()
        };
        let (stdout, stderr) = (open(Stream::Stdout), open(Stream::Stderr));
        prepared.workers.insert(local_rank, WorkerFiles { folder, stdout, stderr });
    }
    prepared.chosen = [Stream::Stdout, Stream::Stderr].map(|stream| {
        let is_wanted = !output.filters(stream).is_empty();
        let file = is_wanted.then(|| logs.filtered(restart_count, stream))?;
        file.map_err(|error| errors.insert(error.to_string())).ok().flatten().map(Arc::new)
    });
    for error in errors {
        warn!(%error, "failed to create log files of workers; their output goes to the console");
    }
    prepared
}

/// A worker's connected streams.
pub(super) struct Plumbing {
    pub(super) fds: [OwnedFd; 3],
    /// The copied streams for the keeper, each with its descriptors.
    pub(super) flows: Vec<(FlowOrder, Vec<OwnedFd>)>,
    pub(super) drains: Vec<Drain>,
    pub(super) stderr: StderrTail,
    /// The ends of the streams that are searched for training steps.
    pub(super) searched: Vec<SharedTail>,
    /// The content of stdout and of stderr for readers; `None` if a stream does not pass through the agent.
    pub(super) readable: [Option<Content>; 2],
}

/// Connects a worker's streams to their destinations. `output` is notified of new content in streams that are searched for training steps.
///
/// # Errors
///
/// Returns the system's error for a pipe.
pub(super) fn plumb(
    spec: &WorkersSpec,
    admission: &Admission,
    choices: &[Option<Choice>; 2],
    local_rank: LocalRank,
    files: &WorkerFiles,
    output: &Arc<Notify>,
) -> io::Result<Plumbing> {
    let global_rank = GlobalRank(admission.first_global_rank.0.saturating_add(local_rank.0));
    let prefix = spec.job.output.prefix(PrefixValues {
        role: &spec.job.role,
        local_rank,
        global_rank: global_rank.0,
        host_name: &spec.host_name,
    });
    let outputs = &spec.measures.outputs;
    let connector =
        Connector { console: &spec.console, prefix: prefix.as_bytes(), choices, outputs };
    let is_terminal = io::stderr().is_terminal();
    let route_of = |stream| {
        let sink = spec.job.output.sink(local_rank, global_rank, stream);
        route(stream, sink, files.log(&spec.logs, stream), is_terminal)
    };
    let [to_stdout, to_stderr] = [Stream::Stdout, Stream::Stderr].map(route_of);
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let watched = spec.job.step_pattern.as_ref().map(|_| Arc::clone(output));
    // Only the agent's memory has the end of lines that go to the console.
    let stdout_tail = match to_stdout {
        Route::Lines(None) => Some(SharedTail::readable(watched.clone())),
        _ => watched.clone().map(SharedTail::sampled),
    };
    let tail = match to_stderr {
        Route::Lines(None) | Route::Console => SharedTail::readable(watched.clone()),
        _ => SharedTail::watched(watched.clone()),
    };
    let readable = [
        readable(to_stdout, stdout_tail.as_ref(), files.stdout.as_ref()),
        readable(to_stderr, Some(&tail), files.stderr.as_ref()),
    ];
    let stdout = connector.connect(Stream::Stdout, to_stdout, stdout_tail.clone())?;
    let stderr = connector.connect(Stream::Stderr, to_stderr, Some(tail.clone()))?;
    let searched_stdout = stdout_tail.filter(|_| watched.is_some() && stdout.copy.is_some());
    let mut searched: Vec<_> = searched_stdout.into_iter().collect();
    let stderr_tail = match &stderr.copy {
        Some(_) => {
            searched.extend(watched.map(|_| tail.clone()));
            StderrTail::Captured(tail)
        }
        None => StderrTail::NotCaptured,
    };
    let (drains, flows) = [stdout.copy, stderr.copy].into_iter().flatten().unzip();
    let fds = [stdin, stdout.fd, stderr.fd];
    Ok(Plumbing { fds, flows, drains, stderr: stderr_tail, searched, readable })
}

/// Returns the content of a stream for readers; `None` if the stream does not pass through the agent.
fn readable(
    route: Route<&File>,
    tail: Option<&SharedTail>,
    file: Option<&LogOfStream>,
) -> Option<Content> {
    match route {
        Route::File(_) | Route::Lines(Some(_)) => {
            file.map(|log| Content::File(OutputFile::new(log.path.clone(), log.begin)))
        }
        Route::Lines(None) | Route::Console => tail.cloned().map(Content::Tail),
        Route::Inherited | Route::Null => None,
    }
}

impl WorkerFiles {
    fn log(&self, logs: &LogFolder, stream: Stream) -> LogFile<&File> {
        let file = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        match (logs, file) {
            (LogFolder::Nowhere, _) => LogFile::Disabled,
            (LogFolder::Kept(_) | LogFolder::Temporary { .. }, Some(log)) => {
                LogFile::Open(&log.file)
            }
            (LogFolder::Kept(_) | LogFolder::Temporary { .. }, None) => match &self.folder {
                Some(_) => LogFile::NoFile,
                None => LogFile::NoFolder,
            },
        }
    }
}

/// Opens the destinations of one worker's streams.
struct Connector<'a> {
    console: &'a Console,
    /// The prefix of the worker's lines.
    prefix: &'a [u8],
    /// The filters for lines of stdout and of stderr.
    choices: &'a [Option<Choice>; 2],
    outputs: &'a Arc<Outputs>,
}

/// A connected stream.
struct Connected {
    /// The worker's descriptor.
    fd: OwnedFd,
    /// The copying of the stream, unless the worker writes to its destination directly.
    copy: Option<(Drain, (FlowOrder, Vec<OwnedFd>))>,
}

impl Connector<'_> {
    fn connect(
        &self,
        stream: Stream,
        route: Route<&File>,
        tail: Option<SharedTail>,
    ) -> io::Result<Connected> {
        let destination = match route {
            Route::Inherited => return Ok(Connected { fd: own_stream(stream)?, copy: None }),
            Route::Null => {
                let null = OpenOptions::new().write(true).open("/dev/null")?;
                return Ok(Connected { fd: null.into(), copy: None });
            }
            Route::Console => StreamDestination::Console(own_stream(stream)?),
            Route::File(file) => StreamDestination::File(file.try_clone()?.into()),
            Route::Lines(file) => self.lines(stream, file)?,
        };
        let capture =
            capture::start(self.console.clone(), destination, tail, Arc::clone(self.outputs))?;
        Ok(Connected { fd: capture.fd, copy: Some((capture.drain, capture.handed_over)) })
    }

    fn lines(&self, stream: Stream, file: Option<&File>) -> io::Result<StreamDestination> {
        let [stdout, stderr] = self.choices;
        let choice = match stream {
            Stream::Stdout => stdout.clone(),
            Stream::Stderr => stderr.clone(),
        };
        Ok(StreamDestination::Lines {
            console: own_stream(stream)?,
            stream,
            prefix: self.prefix.to_vec(),
            choice,
            file: file.map(|file| file.try_clone().map(OwnedFd::from)).transpose()?,
        })
    }
}

/// Returns a descriptor of the agent's own stream.
fn own_stream(stream: Stream) -> io::Result<OwnedFd> {
    match stream {
        Stream::Stdout => io::stdout().as_fd().try_clone_to_owned(),
        Stream::Stderr => io::stderr().as_fd().try_clone_to_owned(),
    }
}
