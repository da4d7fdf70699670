//! Connects the streams of workers to their destinations: pipes, files, the agent's own streams.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::Arc,
};

use ragent_rendezvous::{ids::LocalRank, message::Admission};
use tracing::warn;

use super::spec::SupervisorSpec;
use crate::{
    output::{
        capture::{self, Drain},
        flow::{Destination, FlowOrder},
        lines::Choice,
        logs::{LogFolder, WorkerFolder},
        tail::SharedTail,
    },
    spec::{Output, PrefixValues, Sink, Stream},
};

/// The last lines of a worker's stderr.
#[derive(Default)]
pub(super) enum StderrTail {
    /// Not available: it goes to a terminal, or is discarded.
    #[default]
    NotCaptured,
    Captured(SharedTail),
}

/// The files that are opened before the workers of a round start, as a disk may be slow.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) workers: BTreeMap<LocalRank, WorkerFiles>,
    /// The files for selected lines of all workers: of stdout, of stderr.
    pub(super) chosen: [Option<Arc<File>>; 2],
}

/// The files of one worker.
#[derive(Debug, Default)]
pub(super) struct WorkerFiles {
    pub(super) folder: Option<WorkerFolder>,
    stdout: Option<Arc<File>>,
    stderr: Option<Arc<File>>,
}

/// Opens the output files for the workers of a round. A file that cannot be opened is logged and
/// left out: a worker must not fail because its log cannot be written.
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
            let wanted = matches!(output.sink(local_rank, stream), Sink::File | Sink::Tee);
            let folder = folder.as_ref().filter(|_| wanted)?;
            let file = folder.open(stream).map_err(|error| errors.insert(error.to_string()));
            file.ok().map(Arc::new)
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

/// The form in which a copied stream is shown on the console.
#[derive(Clone, Copy, Debug)]
enum Shown {
    /// Not shown.
    Nothing,
    /// Unchanged.
    Bytes,
    /// Line by line.
    Lines,
}

/// A worker's connected streams.
pub(super) struct Plumbing {
    pub(super) fds: [OwnedFd; 3],
    /// The copied streams, for the keeper, each with its descriptors.
    pub(super) flows: Vec<(FlowOrder, Vec<OwnedFd>)>,
    pub(super) drains: Vec<Drain>,
    pub(super) stderr: StderrTail,
}

/// Connects a worker's streams to their destinations.
///
/// # Errors
///
/// Returns the system's refusal of a pipe.
pub(super) fn plumb(
    spec: &SupervisorSpec,
    admission: &Admission,
    choices: &[Option<Choice>; 2],
    local_rank: LocalRank,
    files: &WorkerFiles,
) -> io::Result<Plumbing> {
    let (mut drains, mut flows) = (Vec::new(), Vec::new());
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let prefix = spec.output.prefix(PrefixValues {
        role: &spec.environment.role,
        local_rank,
        global_rank: admission.first_global_rank.0.saturating_add(local_rank.0),
        host_name: &spec.host_name,
    });
    let mut captured = |stream, shown, file: Option<&Arc<File>>, tail| {
        let file = file.map(|file| file.as_fd().try_clone_to_owned()).transpose()?;
        let console = match stream {
            Stream::Stdout => io::stdout().as_fd().try_clone_to_owned()?,
            Stream::Stderr => io::stderr().as_fd().try_clone_to_owned()?,
        };
        let destination = match (shown, file) {
            (Shown::Nothing, Some(file)) => Destination::File(file),
            (Shown::Nothing | Shown::Bytes, _) => Destination::Console(console),
            (Shown::Lines, file) => {
                let [stdout, stderr] = choices;
                let choice = match stream {
                    Stream::Stdout => stdout.clone(),
                    Stream::Stderr => stderr.clone(),
                };
                let (staged, prefix) = (spec.console.staged(stream), prefix.as_bytes().to_vec());
                Destination::Lines { console, staged, prefix, choice, file }
            }
        };
        let capture = capture::start(spec.console.clone(), destination, tail)?;
        drains.push(capture.drain);
        flows.push(capture.handed_over);
        io::Result::Ok(capture.fd)
    };
    let null = || OpenOptions::new().write(true).open("/dev/null").map(OwnedFd::from);
    let sink = |stream, file: &Option<Arc<File>>| match spec.output.sink(local_rank, stream) {
        Sink::Lines => Sink::Lines,
        // As in torchrun.
        _ if matches!(*spec.logs, LogFolder::Nowhere) => Sink::Console,
        // Without a file, output goes to the console.
        Sink::File if file.is_none() => Sink::Console,
        Sink::Tee if files.folder.is_none() => Sink::Console,
        sink => sink,
    };
    let stdout = match sink(Stream::Stdout, &files.stdout) {
        Sink::File => captured(Stream::Stdout, Shown::Nothing, files.stdout.as_ref(), None)?,
        Sink::Tee | Sink::Lines => {
            captured(Stream::Stdout, Shown::Lines, files.stdout.as_ref(), None)?
        }
        Sink::Null => null()?,
        Sink::Console => io::stdout().as_fd().try_clone_to_owned()?,
    };
    let tail = SharedTail::default();
    let shown = match sink(Stream::Stderr, &files.stderr) {
        Sink::File => Some(Shown::Nothing),
        Sink::Tee | Sink::Lines => Some(Shown::Lines),
        Sink::Console if !io::stderr().is_terminal() => Some(Shown::Bytes),
        Sink::Null | Sink::Console => None,
    };
    let (stderr, stderr_tail) = match shown {
        Some(shown) => {
            let fd = captured(Stream::Stderr, shown, files.stderr.as_ref(), Some(tail.clone()))?;
            (fd, StderrTail::Captured(tail))
        }
        None if sink(Stream::Stderr, &files.stderr) == Sink::Null => {
            (null()?, StderrTail::NotCaptured)
        }
        None => (io::stderr().as_fd().try_clone_to_owned()?, StderrTail::NotCaptured),
    };
    Ok(Plumbing { fds: [stdin, stdout, stderr], flows, drains, stderr: stderr_tail })
}
