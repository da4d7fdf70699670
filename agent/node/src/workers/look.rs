//! Looks at the workers of a node that make no progress, and describes them in a [`Digest`].
//!
//! 1. The kernel's view of all workers is read first, because the tools that follow stop a worker for a moment.
//! 2. torch's worker server is asked for stacks and for records of collectives, where it runs. Other stacks come from
//!    py-spy. What is whole goes to `stack.txt` and `records.json` in the log folders.
//! 3. One node of the job also asks NCCL, which takes longer. So it sends a second digest.
//! 4. What is not known in time is left out.
//!
//! Lines of Python are content. If they must not leave the node, the digest has only the kind of activity.

pub(crate) mod frames;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod kernel;
pub(crate) mod ras;
mod records;
mod store_clients;
#[cfg(test)]
mod tests;
mod worker_server;

use std::{cmp::Reverse, collections::BTreeMap, fs, path::PathBuf};

use ragent_base::{output::logs::WorkerFolder, spec::Endpoint, sys::host::ThisHost};
use ragent_core::agent::LookOrder;
use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{Activity, DIGEST_WORKERS_MAX, Digest, GroupLook, LookPart, WorkerLook},
};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tracing::{debug, info, warn};

use self::{frames::Stack, kernel::KernelView, ras::answer::OwnWorkers, records::Records};
use super::health::stacks::{self, Spied};
use crate::workers::limits;

/// The workers to look at.
#[derive(Clone, Debug)]
pub(crate) struct LookRequest {
    pub(crate) order: LookOrder,
    /// The rank of the first worker of this node.
    pub(crate) first_rank: GlobalRank,
    /// The number of all workers of the job.
    pub(crate) world_size: u32,
    /// The port of the round's store.
    pub(crate) store_port: u16,
    /// The running workers.
    pub(crate) workers: BTreeMap<LocalRank, LookedAt>,
    /// py-spy, if it is installed.
    pub(crate) py_spy: Option<PathBuf>,
    /// What the hardware of this node has reported, as lines.
    pub(crate) facts: Vec<String>,
}

/// A worker to look at.
#[derive(Clone, Debug)]
pub(crate) struct LookedAt {
    pub(crate) pid: u32,
    /// The folder for its stack and records, if files are kept.
    pub(crate) folder: Option<WorkerFolder>,
    /// The socket of its torch worker server, if it was given one.
    pub(crate) worker_server: Option<PathBuf>,
}

/// Looks at all workers at once, in a limited time.
pub(crate) async fn look(request: LookRequest) -> Digest {
    let LookRequest { order, first_rank, world_size, store_port, workers, py_spy, facts } = request;
    info!(round = %order.round, number = order.number, part = ?order.part, "looking at the workers");
    let pids: BTreeMap<_, _> = workers.iter().map(|(rank, worker)| (*rank, worker.pid)).collect();
    let views = views(&pids).await;
    let connected = within(move || store_clients::connected(&pids, store_port)).await;
    let mut shown = shown(order, &workers, &views, py_spy).await;
    let rank_of = |local_rank: LocalRank| GlobalRank(first_rank.0.saturating_add(local_rank.0));
    let records = shown
        .iter_mut()
        .filter_map(|(local_rank, shown)| Some((rank_of(*local_rank), shown.records.take()?)));
    let groups = records::groups(&records.collect(), world_size);
    let looks = workers.keys().map(|local_rank| {
        let view = views.get(local_rank).cloned().unwrap_or_default();
        let stack = shown.remove(local_rank).and_then(|shown| shown.stack);
        let line = stack.as_ref().and_then(Stack::line).filter(|_| order.shows_lines);
        WorkerLook {
            rank: rank_of(*local_rank),
            activity: stack.as_ref().map(Stack::activity),
            state: view.state,
            has_reached_store: connected.get(local_rank).copied(),
            line,
            waits_in: view.waits_in,
        }
    });
    Digest {
        round: order.round,
        look: order.number,
        part: order.part,
        workers: most_unusual(looks.collect()),
        groups,
        facts,
    }
}

/// Asks NCCL for the collectives of all ranks, at this address. Returns `None` without an answer for this job.
pub(crate) async fn ask_nccl(request: LookRequest, address: Endpoint) -> Option<Vec<GroupLook>> {
    let LookRequest { first_rank, world_size, workers, .. } = request;
    let processes = move || {
        let ranks = workers.iter().flat_map(|(local_rank, worker)| {
            let rank = GlobalRank(first_rank.0.saturating_add(local_rank.0));
            [(worker.pid, rank), (kernel::interpreter(worker.pid), rank)]
        });
        (ranks.collect(), ThisHost.addresses())
    };
    let (pids, addresses) = within(processes).await;
    ras::ask(&address, OwnWorkers { pids, addresses, world_size }).await
}

/// Returns true if a signal has stopped the worker.
pub(crate) async fn is_stopped(worker: u32) -> bool {
    within(move || KernelView::of_worker(worker).state == Some('T')).await
}

/// Sorts workers, the unusual ones first, and leaves out the last ones if there are too many for a digest.
fn most_unusual(mut looks: Vec<WorkerLook>) -> Vec<WorkerLook> {
    looks.sort_by_key(|look| {
        let is_stopped = matches!(look.state, Some('T' | 't'));
        let is_other = look.activity == Some(Activity::Other);
        let has_no_store = look.has_reached_store == Some(false);
        Reverse((is_stopped, has_no_store, look.state == Some('D'), is_other))
    });
    looks.truncate(DIGEST_WORKERS_MAX);
    looks
}

/// Runs work that reads `/proc`. If it is not complete in time, nothing is known.
async fn within<T: Default + Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> T {
    let read = timeout(limits::KERNEL_VIEW_TIMEOUT, spawn_blocking(read)).await;
    read.ok().and_then(Result::ok).unwrap_or_default()
}

async fn views(workers: &BTreeMap<LocalRank, u32>) -> BTreeMap<LocalRank, KernelView> {
    let mut tasks = JoinSet::new();
    for (&local_rank, &pid) in workers {
        // A reading of one process may hang.
        tasks.spawn(async move { (local_rank, within(move || KernelView::of_worker(pid)).await) });
    }
    tasks.join_all().await.into_iter().collect()
}

/// The stack and the collectives of a worker.
#[derive(Debug, Default)]
struct Shown {
    stack: Option<Stack>,
    records: Option<Records>,
}

/// Takes the stacks and records of all workers, and writes them to their files.
async fn shown(
    order: LookOrder,
    workers: &BTreeMap<LocalRank, LookedAt>,
    views: &BTreeMap<LocalRank, KernelView>,
    py_spy: Option<PathBuf>,
) -> BTreeMap<LocalRank, Shown> {
    let mut tasks = JoinSet::new();
    for (&local_rank, worker) in workers {
        let (worker, py_spy) = (worker.clone(), py_spy.clone());
        let view = views.get(&local_rank).cloned().unwrap_or_default();
        tasks.spawn(async move { (local_rank, shown_by(order, worker, view, py_spy).await) });
    }
    tasks.join_all().await.into_iter().collect()
}

async fn shown_by(
    order: LookOrder,
    worker: LookedAt,
    view: KernelView,
    py_spy: Option<PathBuf>,
) -> Shown {
    let LookedAt { pid, folder, worker_server } = worker;
    let file = folder.as_ref().map(WorkerFolder::stack_file);
    if let Some(file) = &file {
        let part = match order.part {
            LookPart::First => 1,
            LookPart::Second => 2,
        };
        let title = format!("look {}, part {part}\n", order.number);
        stacks::append(file.clone(), title).await;
        stacks::write_kernel_view(file.clone(), pid).await;
    }
    let mut shown = Shown::default();
    // A process that was stopped answers nothing.
    if let Some(socket) = worker_server.filter(|_| !view.is_stopped()) {
        let answers = worker_server::ask(&socket).await;
        shown.records = answers.records;
        if let Some(folder) = &folder {
            keep_records(folder.records_file(), answers.whole_records).await;
        }
        if let Some((text, stack)) = answers.stack {
            shown.stack = Some(stack);
            append(file.clone(), text).await;
        }
    }
    if let (None, Some(py_spy)) = (&shown.stack, py_spy) {
        let spied = if view.is_stopped() { Spied::Stopped } else { Spied::Paused };
        let dump = timeout(limits::LOOK_SPY_TIMEOUT, stacks::spy(&py_spy, view.pid, spied)).await;
        match dump {
            Ok(Ok(dump)) => {
                append(file, dump.text).await;
                shown.stack = dump.stack;
            }
            Ok(Err(error)) => debug!(pid, %error, "py-spy failed to dump the stack of a worker"),
            Err(_) => debug!(pid, "py-spy has not dumped the stack of a worker in time"),
        }
    }
    shown
}

async fn append(file: Option<PathBuf>, text: String) {
    if let Some(file) = file {
        stacks::append(file, text + "\n").await;
    }
}

/// Replaces the file with torch's records: an array of the answers of its handlers.
async fn keep_records(file: PathBuf, records: Vec<Vec<u8>>) {
    if records.is_empty() {
        return;
    }
    let content = [b"[".as_slice(), &records.join(&b','), b"]\n"].concat();
    let copy = file.clone();
    let written = spawn_blocking(move || fs::write(copy, content)).await;
    if let Ok(Err(error)) = written {
        warn!(path = %file.display(), %error, "failed to write the records of a worker");
    }
}
