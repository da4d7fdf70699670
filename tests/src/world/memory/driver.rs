//! Models the driver of an agent: its memory files, the sockets of its workers, and checksums.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ragent_core::memory::{Ask, Buffer, Effect, Input, Sum, TransferId};
use ragent_rendezvous::ids::{LocalRank, NodeId, RoundId};

use super::{
    super::{Bug, Event, World, node::AgentInput},
    MemoryEvent,
    workers::{Content, sum_of},
};

/// What the driver of an agent holds.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) host: usize,
    pub(super) capacity: u64,
    pub(super) buffers: BTreeMap<u64, File>,
    /// The round of the sockets.
    pub(super) sockets: Option<RoundId>,
    pub(super) is_watching: bool,
    pub(super) next_foreign: u64,
    /// The time until which other processes use the memory.
    pub(super) short_until: Option<Instant>,
    /// The flight of each transfer of this node.
    pub(super) transfers: BTreeMap<TransferId, u64>,
    /// The ranges that have arrived for workers.
    pub(super) ranges: BTreeMap<TransferId, Vec<Option<Content>>>,
}

/// A memory file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) size: u64,
    pub(super) content: Option<Content>,
    /// The number of transfers and checksums that use it.
    pub(super) users: u32,
    /// The first checksum of the content.
    sum: Option<Sum>,
    /// True if another one was computed, and the last one was the same.
    pub(super) is_checked: bool,
}

impl Driver {
    pub(super) fn new(host: usize, capacity: u64) -> Self {
        Self {
            host,
            capacity,
            buffers: BTreeMap::new(),
            sockets: None,
            is_watching: false,
            next_foreign: 0,
            short_until: None,
            transfers: BTreeMap::new(),
            ranges: BTreeMap::new(),
        }
    }

    pub(super) fn content(&self, buffer: Buffer) -> Option<&Content> {
        self.buffers.get(&buffer.id)?.content.as_ref()
    }

    pub(super) fn put(&mut self, buffer: Buffer, content: Option<Content>) {
        let users = self.buffers.get(&buffer.id).map_or(0, |file| file.users);
        let file = File { size: buffer.size, content, users, sum: None, is_checked: false };
        self.buffers.insert(buffer.id, file);
    }

    /// Notes a checksum of the content.
    pub(super) fn note_sum(&mut self, buffer: Buffer, sum: Sum) {
        if let Some(file) = self.buffers.get_mut(&buffer.id) {
            file.is_checked = file.sum == Some(sum);
            file.sum.get_or_insert(sum);
        }
    }

    pub(super) fn change_users(&mut self, buffer: Buffer, by: i32) {
        if let Some(file) = self.buffers.get_mut(&buffer.id) {
            file.users = file.users.saturating_add_signed(by);
        }
    }
}

impl World {
    /// Carries out what the machine of an agent has decided.
    pub(in crate::world) fn carry_out_of_memory(&mut self, id: &NodeId, effect: Effect) {
        let now = self.now;
        let Some(memory) = &mut self.memory else { return };
        let Some(driver) = memory.drivers.get_mut(id) else { return };
        match effect {
            Effect::OpenSockets { round, .. } => driver.sockets = Some(round),
            Effect::CloseSockets => driver.sockets = None,
            Effect::Answer { worker, answer } => self.answer_worker(id, worker, answer),
            Effect::Sum { buffer, bytes } if self.bug == Bug::BlockUnchecked => {
                self.skip_sum(id, buffer, bytes);
            }
            Effect::Sum { buffer, bytes } => {
                driver.change_users(buffer, 1);
                let takes = memory.random.millis(1, 60);
                let event = MemoryEvent::Sum(id.clone(), buffer, bytes);
                self.schedule(takes, Event::Memory(event));
            }
            Effect::Copy { transfer, to, header, buffer } => {
                self.begin_copy(id, transfer, &to, header, buffer);
            }
            Effect::Fetch { transfer, from, part, local_rank } => {
                self.begin_fetch(id, transfer, &from, part, local_rank);
            }
            Effect::FetchRanges { transfer, sources, part, ranges } => {
                self.begin_ranges(id, transfer, sources, part, ranges);
            }
            Effect::Receive { transfer, buffer } => self.receive(id, transfer, buffer),
            Effect::Serve { transfer, header, buffer } => self.serve(id, transfer, header, buffer),
            Effect::ServeRange { transfer, buffer, .. } => self.serve_range(id, transfer, buffer),
            Effect::Decline { transfer, why } => self.decline(id, transfer, why),
            Effect::Abort(transfer) => self.abort(id, transfer),
            Effect::Drop(buffer) => {
                let dropped = driver.buffers.remove(&buffer.id);
                let is_used = dropped.is_some_and(|file| file.users > 0);
                if is_used {
                    self.breaks_memory(|| format!("rule z: {id} closes {buffer:?}, which is used"));
                }
            }
            // Simulated nodes have no standbys.
            Effect::LeaveToStandbys(_) => {}
            Effect::WatchMemory(watches) => {
                let was = std::mem::replace(&mut driver.is_watching, watches);
                if watches && !was {
                    let event = MemoryEvent::Watch(id.clone());
                    self.schedule_at(now + Duration::from_secs(1), Event::Memory(event));
                }
            }
        }
    }

    /// Passes an event to the machine of an agent.
    pub(super) fn tell_keeper(&mut self, id: &NodeId, delay: Duration, input: Input) {
        self.wake_agent(id, delay, AgentInput::Memory(Box::new(input)));
    }

    /// Passes the request of a worker to the machine, if its socket is open.
    pub(super) fn ask(&mut self, id: &NodeId, round: RoundId, worker: LocalRank, ask: Ask) {
        let is_bug = self.bug == Bug::OldSocket;
        let Some(memory) = &mut self.memory else { return };
        let Some(driver) = memory.drivers.get(id) else { return };
        let Some(of_socket) = driver.sockets else { return };
        if of_socket != round && !is_bug {
            return;
        }
        let left = driver.left();
        let takes = memory.random.millis(0, 2);
        self.tell_keeper(id, takes, Input::Asked { round: of_socket, worker, ask, left });
    }

    /// Closes the socket of a worker that has ended.
    pub(in crate::world) fn close_worker_socket(
        &mut self,
        id: &NodeId,
        round: RoundId,
        worker: LocalRank,
    ) {
        let Some(memory) = &mut self.memory else { return };
        let is_new = memory.forget_worker(id, round, worker, self.bug);
        let is_open = memory.drivers.get(id).is_some_and(|driver| driver.sockets == Some(round));
        if is_new && is_open {
            self.tell_keeper(id, Duration::ZERO, Input::WorkerGone { round, worker });
        }
    }

    /// Closes the sockets of all workers of a node.
    pub(in crate::world) fn close_worker_sockets(&mut self, id: &NodeId, round: RoundId) {
        let size = self.descriptions.get(id).map_or(0, |node| node.local_world_size.get());
        for worker in (0..size).map(LocalRank) {
            self.close_worker_socket(id, round, worker);
        }
    }

    /// Reports a checksum.
    pub(super) fn sum(&mut self, id: &NodeId, buffer: Buffer, bytes: u64) {
        let Some(memory) = &mut self.memory else { return };
        let Some(driver) = memory.drivers.get_mut(id) else { return };
        driver.change_users(buffer, -1);
        let sum = sum_of(driver.content(buffer), bytes);
        driver.note_sum(buffer, sum);
        self.tell_keeper(id, Duration::ZERO, Input::Summed { buffer, sum: Ok(sum) });
    }

    /// Reports the memory of a node each second.
    pub(super) fn watch_memory_of(&mut self, id: &NodeId) {
        let now = self.now;
        let Some(memory) = &mut self.memory else { return };
        let Some(driver) = memory.drivers.get_mut(id).filter(|driver| driver.is_watching) else {
            return;
        };
        driver.short_until.take_if(|until| *until <= now);
        let left = driver.left();
        self.schedule(Duration::from_secs(1), Event::Memory(MemoryEvent::Watch(id.clone())));
        self.tell_keeper(id, Duration::ZERO, Input::Left(left));
    }
}
