//! Prints the output of all workers of a job, the same line of many ranks only once: `ragent logs`.
//!
//! 1. `nodes` chooses the nodes by the state of the job. With `--follow`, each new state may add some.
//! 2. `reader` reads the output of one node, from its agent.
//! 3. `assembly` joins tracebacks, `collapse` joins the same line of several ranks, and `printer` prints.

mod assembly;
mod collapse;
mod nodes;
mod printer;
mod reader;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind, IsTerminal, Write},
    ops::ControlFlow,
    pin::pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use ragent_base::{
    report::fold,
    secret::Credentials,
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::{
    client::{JobPage, StateStream},
    pages::logs::{LogsMessage, LogsRequest, NEWEST_LINES},
};
use ragent_options::{
    cli::LogsArgs,
    spec::{Argument, LinePattern},
};
use ragent_proto::printable;
use ragent_rendezvous::{ids::NodeId, snapshot::Snapshot};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
};

use self::{
    nodes::{ReadNode, Wanted},
    printer::{Form, Printer},
    reader::{FromNode, read_node},
};
use super::{
    asked_job::asked_job,
    error::{LaunchError, system},
    find_coordinator::{FoundJob, find_coordinator},
    follow::{self, Reader, follow, go_on_if},
    runtime, stacks,
};

/// The lines of each stream with which `--follow` begins, as with `tail`.
const FOLLOWED_FROM: usize = 10;

/// The messages of nodes that wait to be printed.
const QUEUE: usize = 16;

/// The time that nodes have to send their last output when the job has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// The time after which `--follow` prints what it cannot read.
const NOTES_AFTER: Duration = Duration::from_secs(1);

/// Prints the output of the workers of a job.
///
/// # Errors
///
/// Returns [`LaunchError`] if an argument is invalid, the job is unknown, or no output can be read.
pub fn print(args: &LogsArgs) -> Result<ExitCode, LaunchError> {
    let ranks = args.ranks.as_deref().map(stacks::ranks).transpose()?;
    let wanted = Wanted::read(ranks, args.host.as_deref())?;
    let pattern =
        args.grep.as_deref().map(|text| LinePattern::read(&Argument::new("--grep", text)));
    let form = Form {
        is_raw: args.raw,
        is_json: args.json,
        follows: args.follow,
        is_terminal: io::stdout().is_terminal(),
    };
    let printer = Printer::new(form, pattern.transpose()?);
    let (job, credentials) = asked_job(&args.asked)?;
    runtime::block_on(async {
        let found = find_coordinator(job.clone(), &credentials).await?;
        let (to, states) = watch::channel(found.snapshot.clone());
        let mut reading = Reading::new(wanted, printer, found.credentials.clone());
        if args.follow {
            let mut watcher = StateWatcher(to);
            let following = follow(&job, &credentials, found, &mut watcher);
            reading.run(following, states).await
        } else {
            reading.run(std::future::pending(), states).await
        }
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Passes on each state of the job.
struct StateWatcher(watch::Sender<Snapshot>);

impl Reader for StateWatcher {
    type Stream = StateStream;
    const PATIENCE: Option<Duration> = Some(follow::PATIENCE);

    fn page(&mut self, _at: &FoundJob) -> JobPage {
        JobPage::States
    }

    async fn receive(&mut self, snapshot: Box<Snapshot>) -> Result<ControlFlow<()>, LaunchError> {
        let is_over = snapshot.outcome.is_some();
        self.0.send_replace(*snapshot);
        Ok(go_on_if(!is_over))
    }
}

/// A node that is read, or was.
struct Node {
    host: Arc<str>,
    task: AbortHandle,
    has_ended: bool,
    /// True if its connection is opened again.
    is_broken: bool,
    /// True if it has sent something.
    was_read: bool,
    /// The number of streams that are read.
    streams: usize,
    /// The numbers of workers whose stdout and stderr cannot be read.
    unread: [usize; 2],
    /// The reason why it, or a stream of it, is not read.
    error: Option<String>,
}

/// The reading of all nodes.
struct Reading {
    wanted: Wanted,
    printer: Printer,
    credentials: Credentials,
    nodes: BTreeMap<NodeId, Node>,
    tasks: JoinSet<()>,
    /// The reasons why nodes are not read, by the newest state.
    notes: Vec<String>,
    /// The notes that were printed.
    noted: Vec<String>,
    /// The reasons why connections broke or could not be opened, each with the hosts, until that is printed.
    broken: BTreeMap<String, BTreeSet<Arc<str>>>,
    /// True if a note was printed.
    has_noted: bool,
    /// True if the job has ended, or is no longer followed.
    is_over: bool,
    /// True if a line was received.
    has_read: bool,
    /// True if there may be new notes.
    has_news: bool,
}

impl Reading {
    fn new(wanted: Wanted, printer: Printer, credentials: Credentials) -> Self {
        Self {
            wanted,
            printer,
            credentials,
            nodes: BTreeMap::new(),
            tasks: JoinSet::new(),
            notes: Vec::new(),
            noted: Vec::new(),
            broken: BTreeMap::new(),
            has_noted: false,
            is_over: false,
            has_read: false,
            has_news: true,
        }
    }

    /// Prints output until all nodes were read, or the job has ended.
    async fn run(
        &mut self,
        following: impl Future<Output = Result<(), LaunchError>>,
        mut states: watch::Receiver<Snapshot>,
    ) -> Result<(), LaunchError> {
        let mut following = pin!(following);
        let follows = self.printer.follows();
        let (to, mut received) = mpsc::channel(QUEUE);
        let snapshot = states.borrow_and_update().clone();
        self.update(&snapshot, &to, if follows { FOLLOWED_FROM } else { NEWEST_LINES });
        let mut notes_at = None;
        // The time at which the command ends, and its result.
        let mut last: Option<Instant> = None;
        let mut result = Ok(());
        loop {
            self.printer.handle_time(clock::now());
            if self.flush()?.is_break() {
                return Ok(());
            }
            if follows && std::mem::take(&mut self.has_news) {
                notes_at.get_or_insert_with(|| clock::now() + NOTES_AFTER);
            }
            let all_have_ended = self.nodes.values().all(|node| node.has_ended);
            if all_have_ended && (!follows || last.is_some()) {
                break;
            }
            tokio::select! {
                biased;
                // Tasks that have ended make room.
                Some(_) = self.tasks.join_next() => {}
                Some(from) = received.recv() => self.handle(from),
                Ok(()) = states.changed(), if last.is_none() => {
                    let snapshot = states.borrow_and_update().clone();
                    self.update(&snapshot, &to, NEWEST_LINES);
                }
                followed = &mut following, if last.is_none() => {
                    result = followed;
                    self.is_over = true;
                    last = Some(clock::now() + LAST_OUTPUT);
                }
                () = clock::until(self.printer.due()) => {}
                () = clock::until(notes_at) => {
                    notes_at = None;
                    self.print_notes()?;
                }
                () = clock::until(last) => break,
            }
        }
        self.printer.finish(clock::now());
        if self.flush()?.is_break() {
            return Ok(());
        }
        self.print_notes()?;
        result?;
        let has_read = self.has_read || self.nodes.values().any(|node| node.streams > 0);
        if has_read { Ok(()) } else { Err(self.nothing_read(&states.borrow())) }
    }

    /// Reads the nodes that are new in this state of the job, from their newest lines on.
    fn update(&mut self, snapshot: &Snapshot, to: &mpsc::Sender<FromNode>, newest: usize) {
        let here = ThisHost.addresses();
        let is_here = |ip| here.contains(&ip);
        let chosen = self.wanted.choose(snapshot, self.credentials.is_secured(), is_here);
        self.has_news |= self.notes != chosen.notes;
        self.notes = chosen.notes;
        // A node that is gone is not asked again. What it has sent before is printed.
        self.nodes.retain(|id, node| {
            let is_known = snapshot.nodes.iter().any(|known| known.node_id == *id);
            if !is_known && node.is_broken {
                node.task.abort();
            }
            is_known || !(node.has_ended || node.is_broken)
        });
        for ReadNode { id, host, address } in chosen.nodes {
            if self.nodes.contains_key(&id) {
                continue;
            }
            if self.tasks.len() >= nodes::NODES_MAX {
                let why = "not read: other nodes are read already (name it with --host)";
                self.notes.push(format!("{host}: {why}"));
                continue;
            }
            let follow = self.printer.follows();
            let ranks = self.wanted.ranks.clone();
            let request = LogsRequest { ranks, follow, newest, seen: None };
            let node = ReadNode { id: id.clone(), host: host.clone(), address };
            let read = read_node(node, self.credentials.clone(), request, to.clone());
            let node = Node {
                host: host.into(),
                task: self.tasks.spawn(read),
                has_ended: false,
                is_broken: false,
                was_read: false,
                streams: 0,
                unread: [0; 2],
                error: None,
            };
            self.nodes.insert(id, node);
        }
    }

    fn handle(&mut self, from: FromNode) {
        match from {
            FromNode::Messages(id, messages) => {
                let Some(node) = self.nodes.get_mut(&id) else { return };
                (node.is_broken, node.was_read) = (false, true);
                for message in messages {
                    match message {
                        LogsMessage::Node { streams, unread, .. } => {
                            self.has_news |= node.unread != unread;
                            (node.streams, node.unread) = (streams, unread);
                        }
                        LogsMessage::Failed { rank, is_stderr, error } => {
                            let stream = if is_stderr { "stderr" } else { "stdout" };
                            node.error = Some(format!("{stream} of rank {rank}: {error}"));
                            node.streams = node.streams.saturating_sub(1);
                            self.has_news = true;
                        }
                        LogsMessage::End => {}
                        LogsMessage::Output { .. } => {
                            self.has_read = true;
                            self.printer.handle(clock::now(), &node.host, message);
                        }
                    }
                }
            }
            // The agents of a job that is over end as well.
            FromNode::Broken(id, _) if self.is_over => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.task.abort();
                    node.has_ended = true;
                }
            }
            FromNode::Broken(id, error) => {
                if let Some(node) = self.nodes.get_mut(&id)
                    && !std::mem::replace(&mut node.is_broken, true)
                {
                    let why = match node.was_read {
                        true => {
                            format!(
                                "the connection broke, trying again; lines may be missing: {error}"
                            )
                        }
                        false => format!("not read yet, trying again: {error}"),
                    };
                    self.broken.entry(why).or_default().insert(Arc::clone(&node.host));
                    if node.was_read {
                        self.printer.handle_gap(&node.host);
                    }
                    self.has_news = true;
                }
            }
            FromNode::Ended(id, error) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.has_ended = true;
                    self.has_news |= error.is_some();
                    node.error = error.or_else(|| node.error.take());
                }
            }
        }
    }

    /// Prints the text. Returns `Break` if its reader has ended.
    fn flush(&mut self) -> Result<ControlFlow<()>, LaunchError> {
        let text = std::mem::take(&mut self.printer.text);
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            Err(error) => Err(system("print the output of the workers")(error)),
        }
    }

    /// Returns the nodes and streams that are not read, each with the reason.
    fn notes(&self) -> Vec<String> {
        let mut hosts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for node in self.nodes.values() {
            let unread = match node.unread {
                [0, 0] => None,
                [_, 0] => Some("stdout"),
                [0, _] => Some("stderr"),
                [_, _] => Some("stdout and stderr"),
            };
            let unread = unread.map(|streams| {
                format!("{streams} not read: it does not pass through the agent (start with -r 3 or -t 3)")
            });
            let error = node.error.as_ref().map(|error| format!("not read: {error}"));
            for why in unread.into_iter().chain(error) {
                hosts.entry(why).or_default().push(&node.host);
            }
        }
        let of_nodes =
            hosts.into_iter().map(|(why, hosts)| format!("{}: {why}", fold::names(hosts)));
        of_nodes.chain(self.notes.iter().cloned()).collect()
    }

    /// Prints new notes to stderr.
    fn print_notes(&mut self) -> Result<(), LaunchError> {
        let notes = self.notes();
        let new = notes.iter().filter(|note| !self.noted.contains(note)).cloned();
        let broken = std::mem::take(&mut self.broken).into_iter().map(|(why, hosts)| {
            let hosts = fold::names(hosts.iter().map(AsRef::as_ref));
            format!("{hosts}: {why}")
        });
        let text: String = broken.chain(new).map(|note| printable(&note) + "\n").collect();
        self.noted = notes;
        self.has_noted |= !text.is_empty();
        io::stderr().lock().write_all(text.as_bytes()).map_err(system("print to stderr"))
    }

    fn nothing_read(&self, snapshot: &Snapshot) -> LaunchError {
        let why = if self.has_noted {
            "the lines above have the reasons"
        } else if snapshot.round.0 == 0 || !self.nodes.is_empty() {
            "no worker was started yet"
        } else {
            "no such rank or host is in the newest round (`ragent status` shows its members)"
        };
        let report = format!("error: failed to read the output of the workers: {why}");
        LaunchError::Command { code: 1, report }
    }
}
