//! Looks at the workers of a node that make no progress, and describes them in a [`Digest`].
//!
//! 1. The kernel's view of all workers is read first, because the questions that follow wake threads of a worker.
//! 2. torch's worker server is asked for stacks and for records of collectives, where it runs. Other stacks come from
//!    py-spy, which does not stop the worker: a stop could outlast a look at a worker that waits for a disk.
//! 3. What is not known in time is left out.
//! 4. After the digest, the whole stacks and records go to `stack.txt` and `records.json` in the log folders.
//!
//! Lines of Python are content. If they must not leave the node, the digest has only the kind of activity.

pub(crate) mod files;
pub(crate) mod frames;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub(crate) mod kernel;
mod records;
mod store_clients;
#[cfg(test)]
mod tests;
mod worker_server;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    mem,
    path::{self, PathBuf},
};

use ragent_base::output::logs::WorkerFolder;
use ragent_core::agent::LookOrder;
use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{Activity, DIGEST_WORKERS_MAX, Digest, GroupLook, LookPart, WorkerLook},
};
use tokio::{join, task::JoinSet, time::timeout};
use tracing::{debug, info};

use self::{
    files::{Content, LookFiles},
    frames::Stack,
    kernel::{KernelView, within},
    records::Records,
};
use super::health::stacks::{self, Spied};
use crate::limits;

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
#[derive(Clone, Debug, Default)]
pub(crate) struct LookedAt {
    pub(crate) pid: u32,
    /// The folder for its stack and records, if files are kept.
    pub(crate) folder: Option<WorkerFolder>,
    /// The files in this folder.
    pub(crate) files: LookFiles,
    /// The socket of its torch worker server, if it was given one.
    pub(crate) worker_server: Option<PathBuf>,
}

/// Looks at all workers at once, in a limited time. Returns also the content for the files of the workers.
pub(crate) async fn look(request: LookRequest) -> (Digest, Vec<Content>) {
    let LookRequest { order, first_rank, world_size, store_port, workers, py_spy, facts } = request;
    info!(round = %order.round, number = order.number, part = ?order.part, "looking at the workers");
    let logs = workers.values().find_map(|worker| worker.folder.as_ref()?.of_all_workers());
    // People read the path on another machine.
    let logs =
        logs.and_then(|folder| path::absolute(folder).ok()?.into_os_string().into_string().ok());
    let pids: BTreeMap<_, _> = workers.iter().map(|(rank, worker)| (*rank, worker.pid)).collect();
    let views = views(&pids).await;
    let connected = within(move || store_clients::connected(&pids, store_port));
    let (connected, mut shown) = join!(connected, shown(order, &workers, &views, py_spy));
    let rank_of = |local_rank: LocalRank| GlobalRank(first_rank.0.saturating_add(local_rank.0));
    let records = shown
        .iter_mut()
        .filter_map(|(local_rank, shown)| Some((rank_of(*local_rank), shown.records.take()?)));
    let Groups { groups, is_cut } = records::groups(&records.collect(), world_size);
    let contents = workers.iter().filter_map(|(local_rank, worker)| {
        let (folder, files) = (worker.folder.clone()?, worker.files.clone());
        let shown = shown.get_mut(local_rank)?;
        let (stack, records) = (mem::take(&mut shown.text), mem::take(&mut shown.whole_records));
        Some(Content { folder, files, stack, records })
    });
    let contents = contents.collect();
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
    let (looks, is_any_left_out) = most_unusual(looks.collect());
    let digest = Digest {
        round: order.round,
        look: order.number,
        part: order.part,
        workers: looks,
        groups,
        facts,
        logs,
        is_cut: is_cut || is_any_left_out,
    };
    (digest, contents)
}

/// Returns true if a signal has stopped the worker.
pub(crate) async fn is_stopped(worker: u32) -> bool {
    within(move || KernelView::of_worker(worker).state == Some('T')).await
}

/// Sorts workers, the unusual ones first, and leaves out the last ones if there are too many for a digest. Returns true then.
fn most_unusual(mut looks: Vec<WorkerLook>) -> (Vec<WorkerLook>, bool) {
    looks.sort_by_key(|look| {
        let is_stopped = matches!(look.state, Some('T' | 't'));
        let is_other = look.activity == Some(Activity::Other);
        let has_no_store = look.has_reached_store == Some(false);
        Reverse((is_stopped, has_no_store, look.state == Some('D'), is_other))
    });
    let is_cut = looks.len() > DIGEST_WORKERS_MAX;
    looks.truncate(DIGEST_WORKERS_MAX);
    (looks, is_cut)
}

async fn views(workers: &BTreeMap<LocalRank, u32>) -> BTreeMap<LocalRank, KernelView> {
    let mut tasks = JoinSet::new();
    for (&local_rank, &pid) in workers {
        // A reading of one process may hang.
        tasks.spawn(async move { (local_rank, within(move || KernelView::of_worker(pid)).await) });
    }
    tasks.join_all().await.into_iter().collect()
}

/// Groups of ranks for a digest.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Groups {
    pub(crate) groups: Vec<GroupLook>,
    /// True if something was left out because there was too much of it.
    pub(crate) is_cut: bool,
}

/// The stack and the collectives of a worker.
#[derive(Debug, Default)]
struct Shown {
    stack: Option<Stack>,
    records: Option<Records>,
    /// All stacks and the kernel's view, for people.
    text: String,
    whole_records: Vec<Vec<u8>>,
}

/// Takes the stacks and records of all workers.
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
    let LookedAt { pid, folder, worker_server, .. } = worker;
    let mut shown = Shown::default();
    if folder.is_some() {
        let part = match order.part {
            LookPart::First => 1,
            LookPart::Second => 2,
        };
        shown.text = format!("look {}, part {part}\n", order.number);
        shown.text += &stacks::kernel_view(pid).await;
    }
    // A process that was stopped answers nothing.
    if let Some(socket) = worker_server.filter(|_| !view.is_stopped()) {
        let answers = worker_server::ask(&socket).await;
        (shown.records, shown.whole_records) = (answers.records, answers.whole_records);
        if let Some((text, stack)) = answers.stack {
            shown.stack = Some(stack);
            shown.text += &(text + "\n");
        }
    }
    if let (None, Some(py_spy)) = (&shown.stack, py_spy) {
        let dump = stacks::spy(&py_spy, view.pid, Spied::Untouched);
        let dump = timeout(limits::LOOK_SPY_TIMEOUT, dump).await;
        match dump {
            Ok(Ok(dump)) => {
                shown.text += &(dump.text + "\n");
                shown.stack = dump.stack;
            }
            Ok(Err(error)) => debug!(pid, %error, "py-spy failed to dump the stack of a worker"),
            Err(_) => debug!(pid, "py-spy has not dumped the stack of a worker in time"),
        }
    }
    shown
}
