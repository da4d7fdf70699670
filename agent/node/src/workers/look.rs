//! Looks at the workers of a node that make no progress, and describes them in a [`Digest`].
//!
//! 1. The kernel's view of all workers is read first, because the tools that follow stop a worker for a moment.
//! 2. All stacks are taken at once. What is whole goes to `stack.txt` in the log folders.
//! 3. What is not known in time is left out.
//!
//! Lines of Python are content. If they must not leave the node, the digest has only the kind of activity.

pub(crate) mod frames;
mod kernel;
mod store_clients;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, collections::BTreeMap, path::PathBuf};

use ragent_core::agent::LookOrder;
use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{Activity, DIGEST_WORKERS_MAX, Digest, LookPart, WorkerLook},
};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tracing::{debug, info};

use self::{frames::Stack, kernel::KernelView};
use super::health::stacks::{self, Spied};
use crate::workers::limits;

/// The workers to look at.
#[derive(Clone, Debug)]
pub(crate) struct LookRequest {
    pub(crate) order: LookOrder,
    /// The rank of the first worker of this node.
    pub(crate) first_rank: GlobalRank,
    /// The port of the round's store.
    pub(crate) store_port: u16,
    /// The running workers.
    pub(crate) workers: BTreeMap<LocalRank, LookedAt>,
    /// py-spy, if it is installed.
    pub(crate) py_spy: Option<PathBuf>,
}

/// A worker to look at.
#[derive(Clone, Debug)]
pub(crate) struct LookedAt {
    pub(crate) pid: u32,
    /// The file for its stack, if files are kept.
    pub(crate) stack_file: Option<PathBuf>,
}

/// Looks at all workers at once, in a limited time.
pub(crate) async fn look(request: LookRequest) -> Digest {
    let LookRequest { order, first_rank, store_port, workers, py_spy } = request;
    info!(round = %order.round, number = order.number, part = ?order.part, "looking at the workers");
    let pids: BTreeMap<_, _> = workers.iter().map(|(rank, worker)| (*rank, worker.pid)).collect();
    let views = views(&pids).await;
    let connected = within(move || store_clients::connected(&pids, store_port)).await;
    let mut stacks = stacks(order, &workers, &views, py_spy).await;
    let looks = workers.keys().map(|local_rank| {
        let view = views.get(local_rank).cloned().unwrap_or_default();
        let stack = stacks.remove(local_rank);
        let line = stack.as_ref().and_then(Stack::line).filter(|_| order.shows_lines);
        WorkerLook {
            rank: GlobalRank(first_rank.0.saturating_add(local_rank.0)),
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
        groups: Vec::new(),
        facts: Vec::new(),
    }
}

/// Sorts workers, those that differ from usual ones first, and leaves out those that a digest has no room for.
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

/// Takes the stacks of all workers, and writes them to their files.
async fn stacks(
    order: LookOrder,
    workers: &BTreeMap<LocalRank, LookedAt>,
    views: &BTreeMap<LocalRank, KernelView>,
    py_spy: Option<PathBuf>,
) -> BTreeMap<LocalRank, Stack> {
    let mut tasks = JoinSet::new();
    for (&local_rank, worker) in workers {
        let (worker, py_spy) = (worker.clone(), py_spy.clone());
        let view = views.get(&local_rank).cloned().unwrap_or_default();
        tasks.spawn(async move {
            let stack =
                timeout(limits::LOOK_STACK_TIMEOUT, stack(order, worker, view, py_spy)).await;
            if stack.is_err() {
                debug!(%local_rank, "the stack of a worker was not complete in time");
            }
            (local_rank, stack.ok().flatten())
        });
    }
    let stacks = tasks.join_all().await.into_iter();
    stacks.filter_map(|(local_rank, stack)| Some((local_rank, stack?))).collect()
}

async fn stack(
    order: LookOrder,
    worker: LookedAt,
    view: KernelView,
    py_spy: Option<PathBuf>,
) -> Option<Stack> {
    let LookedAt { pid, stack_file } = worker;
    if let Some(file) = &stack_file {
        let part = match order.part {
            LookPart::First => 1,
            LookPart::Second => 2,
        };
        let title = format!("look {}, part {part}\n", order.number);
        stacks::append(file.clone(), title).await;
        stacks::write_kernel_view(file.clone(), pid).await;
    }
    let spied = if view.is_stopped() { Spied::Stopped } else { Spied::Paused };
    match stacks::spy(&py_spy?, view.pid, spied).await {
        Ok(dump) => {
            if let Some(file) = stack_file {
                stacks::append(file, dump.text).await;
            }
            dump.stack
        }
        Err(error) => {
            debug!(pid, %error, "py-spy failed to dump the stack of a worker");
            None
        }
    }
}
