//! Looks at workers that make no progress, and kills a worker that counts as hung.

use std::sync::Arc;

use ragent_base::{
    spec::{Endpoint, RasAddress},
    sys::clock,
};
use ragent_core::{agent::LookOrder, hang::Hang, stopped_watch::StoppedWatch};
use ragent_rendezvous::{
    ids::{JobUid, LocalRank},
    message::{DIGEST_GROUPS_MAX, FACTS_MAX, Hung},
};
use tokio::time::timeout;
use tracing::warn;

use super::{Done, WorkersDriver};
use crate::workers::limits;
use crate::workers::look::{LookRequest, LookedAt, ask_nccl, is_stopped, look, ras};

impl WorkersDriver {
    /// Starts to look at the workers, which make no progress.
    pub(super) fn look_for(&mut self, order: LookOrder) {
        let Some(group) = self.group.as_ref().filter(|group| group.admission.round == order.round)
        else {
            return;
        };
        let worker = |(local_rank, pid): (LocalRank, u32)| {
            let folder = group.workers.get(&local_rank).and_then(|worker| worker.folder.clone());
            let sockets = self.worker_reports.as_ref();
            let sockets = sockets.filter(|_| self.spec.observation.worker_server);
            let worker_server = sockets.map(|sockets| sockets.worker_server(local_rank));
            (local_rank, LookedAt { pid, folder, worker_server })
        };
        let mut request = LookRequest {
            order,
            first_rank: group.admission.first_global_rank,
            world_size: group.admission.world_size,
            store_port: group.admission.master_port,
            workers: group.running().into_iter().map(worker).collect(),
            py_spy: self.spec.py_spy.clone(),
            facts: Vec::new(),
        };
        let nccl = self.nccl_address(&group.job_uid).filter(|_| order.asks_nccl);
        let (background, round) = (self.background.clone(), order.round);
        let (reading, measures) = (self.hardware.start_reading(), Arc::clone(&self.spec.measures));
        tokio::spawn(async move {
            let asked = nccl.map(|address| tokio::spawn(ask_nccl(request.clone(), address)));
            if let Some(reading) = reading {
                // A driver that does not answer is not waited for.
                let _ = timeout(limits::HARDWARE_TIMEOUT, reading).await;
            }
            request.facts = measures.hardware().lines(clock::now());
            request.facts.truncate(FACTS_MAX);
            let mut digest = look(request).await;
            // The loop may have ended.
            let _ = background.send((round, Done::Digest(digest.clone()))).await;
            if let Some(asked) = asked
                && let Ok(Some(groups)) = asked.await
            {
                digest.groups.splice(0..0, groups);
                digest.groups.truncate(DIGEST_GROUPS_MAX);
                let _ = background.send((round, Done::Digest(digest))).await;
            }
        });
    }

    /// Returns the address at which NCCL answers for the workers of this node.
    fn nccl_address(&self, job: &JobUid) -> Option<Endpoint> {
        match &self.spec.observation.ras {
            RasAddress::OfJob => {
                Some(Endpoint { host: "localhost".to_owned(), port: ras::port_of(job) })
            }
            RasAddress::Given(address) => address.clone(),
        }
    }

    /// Kills a worker of this node that counts as hung, or watches whether it stays stopped.
    pub(super) fn handle_hung(&mut self, hung: Option<Hung>) {
        let size = self.spec.environment.local_world_size;
        let Some(group) = &mut self.group else { return };
        group.stopped_watch = None;
        let Some(Hung { rank, time, if_stopped }) = hung else { return };
        let local_rank = rank.0.checked_sub(group.admission.first_global_rank.0);
        let Some(local_rank) = local_rank.filter(|rank| *rank < size).map(LocalRank) else {
            return;
        };
        if if_stopped {
            warn!(%rank, "a signal has stopped a worker, and the others wait for it; it is killed if it stays stopped");
            group.stopped_watch = Some(StoppedWatch::new(clock::now(), local_rank, time));
        } else {
            self.take_stacks(Some(Hang { local_rank, time }));
        }
    }

    /// Starts to read the state of the watched worker.
    pub(super) fn read_state(&mut self) {
        let Some(group) = &mut self.group else { return };
        let Some(local_rank) = group.stopped_watch.as_ref().map(StoppedWatch::local_rank) else {
            return;
        };
        let (round, pid) = (group.admission.round, group.running().get(&local_rank).copied());
        let Some(pid) = pid else {
            group.stopped_watch = None;
            return;
        };
        group.is_reading_state = true;
        let state = async move { Done::State(local_rank, is_stopped(pid).await) };
        self.in_background(round, state);
    }
}
