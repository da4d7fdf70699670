//! Looks at workers that make no progress, and kills a worker that counts as hung.

use std::sync::Arc;

use ragent_base::sys::clock;
use ragent_core::{agent::LookOrder, hang::Hang, named_hang::NamedHang};
use ragent_rendezvous::{
    ids::LocalRank,
    message::{FACTS_MAX, Hung},
};
use tracing::warn;

use super::{Done, HungBy, WorkersDriver};
use crate::look::{LookRequest, LookedAt, files, is_stopped, look};

impl WorkersDriver {
    /// Starts to look at the workers, which make no progress.
    pub(super) fn look_for(&mut self, order: LookOrder) {
        let Some(group) = self.group.as_ref().filter(|group| group.admission.round == order.round)
        else {
            return;
        };
        let running = group.running();
        for local_rank in running.keys() {
            self.look_files.entry(*local_rank).or_default();
        }
        let look_files = &self.look_files;
        let worker = |(local_rank, pid): (LocalRank, u32)| {
            let folder = group.workers.get(&local_rank).and_then(|worker| worker.folder.clone());
            let sockets = self.worker_reports.as_ref();
            let sockets = sockets.filter(|_| self.spec.job.observation.worker_server);
            let worker_server = sockets.map(|sockets| sockets.worker_server(local_rank));
            let files = look_files.get(&local_rank).cloned().unwrap_or_default();
            (local_rank, LookedAt { pid, folder, files, worker_server })
        };
        let mut request = LookRequest {
            order,
            first_rank: group.admission.first_global_rank,
            world_size: group.admission.world_size,
            store_port: group.admission.master_port,
            workers: running.into_iter().map(worker).collect(),
            py_spy: self.spec.job.py_spy.clone(),
            facts: Vec::new(),
        };
        let (background, round) = (self.background.clone(), order.round);
        let (reading, measures) = (self.hardware.start_reading(), Arc::clone(&self.spec.measures));
        tokio::spawn(async move {
            if let Some(reading) = reading {
                reading.ended().await;
            }
            request.facts = measures.hardware().lines_of_round(clock::now());
            request.facts.truncate(FACTS_MAX);
            let (digest, contents) = look(request).await;
            // The loop may have ended.
            let _ = background.send((round, Done::Digest(digest))).await;
            files::write(contents);
        });
    }

    /// Takes the stacks before a worker of this node that counts as hung is killed, or watches whether it stays stopped.
    pub(super) fn handle_hung(&mut self, hung: Option<Hung>) {
        let size = self.spec.job.local_world_size.get();
        let Some(group) = &mut self.group else { return };
        let first = group.admission.first_global_rank;
        let of_node =
            hung.filter(|hung| (first.0..first.0.saturating_add(size)).contains(&hung.rank.0));
        let if_stopped = of_node.is_some_and(|hung| hung.if_stopped);
        if let Some(Hung { rank, .. }) = of_node.filter(|_| if_stopped) {
            warn!(%rank, "a signal has stopped a worker, and the others wait for it; it is killed if it stays stopped");
        }
        let hang = of_node
            .map(|Hung { rank, time, .. }| Hang { local_rank: LocalRank(rank.0 - first.0), time });
        let hang = group.named_hang.handle_named(clock::now(), hang, if_stopped);
        self.take_stacks(hang, HungBy::Coordinator);
    }

    /// Starts to read the state of the watched worker.
    pub(super) fn read_state(&mut self) {
        let Some(group) = &mut self.group else { return };
        let Some(local_rank) = group.named_hang.watched() else { return };
        let (round, pid) = (group.admission.round, group.running().get(&local_rank).copied());
        let Some(pid) = pid else {
            group.named_hang = NamedHang::default();
            return;
        };
        group.is_reading_state = true;
        let state = async move { Done::State(local_rank, is_stopped(pid).await) };
        self.in_background(round, state);
    }
}
