//! Models the transfers of blocks and ranges between agents: delays, connections that are cut, and content that arrives torn.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ragent_core::memory::{
    BlockHeader, BlockRange, Buffer, Decline, Input, PartId, TransferEnd, TransferId,
};
use ragent_rendezvous::ids::{LocalRank, NodeId};

use super::{
    super::{Bug, Event, World},
    Memory, MemoryEvent, node_at,
    workers::{Content, sum_of},
};

/// A transfer of a block, or of a range.
#[derive(Debug)]
pub(super) struct Flight {
    /// The node that has begun it.
    here: (NodeId, TransferId),
    /// The other node, and the number there once it knows of the transfer.
    there: (NodeId, Option<TransferId>),
    kind: Kind,
    header: Option<BlockHeader>,
    /// The buffer with the content.
    from: Option<Buffer>,
    /// The buffer that receives.
    to: Option<Buffer>,
}

#[derive(Clone, Debug)]
enum Kind {
    Copy,
    Fetch(PartId, LocalRank),
    Ranges(Ranges),
}

/// The ranges that a node fetches for a worker. Each of them is a flight of its own.
#[derive(Clone, Debug)]
struct Ranges {
    part: PartId,
    /// The holders that are not asked yet.
    sources: VecDeque<String>,
    wanted: Vec<BlockRange>,
    /// What the present holder has sent.
    arrived: Vec<Option<Content>>,
}

/// The next stage of a transfer.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) enum Stage {
    /// The other node learns of it.
    Offered,
    /// The node that fetches receives the header.
    Answered,
    /// The content has arrived.
    Arrived,
    /// The connection breaks, or there is none.
    Broken,
}

/// The time after which a connection attempt is given up.
const CONNECTING: Duration = Duration::from_millis(1_800);
/// The time after which a transfer without a byte is given up.
const SILENCE: Duration = Duration::from_secs(10);

impl Flight {
    /// Returns the nodes that send and receive.
    fn ends(&self) -> (&NodeId, &NodeId) {
        match self.kind {
            Kind::Copy => (&self.here.0, &self.there.0),
            Kind::Fetch(..) | Kind::Ranges(_) => (&self.there.0, &self.here.0),
        }
    }

    /// Begins with a range at the next holder.
    fn of_ranges(here: (NodeId, TransferId), mut ranges: Ranges) -> Option<Self> {
        let there = node_at(&ranges.sources.pop_front()?)?;
        ranges.arrived.clear();
        let kind = Kind::Ranges(ranges);
        Some(Self { here, there: (there, None), kind, header: None, from: None, to: None })
    }

    /// Returns the flight that follows: the next range, or the first one from the next holder.
    fn next(&self, end: &TransferEnd) -> Option<Self> {
        let Kind::Ranges(ranges) = &self.kind else { return None };
        if *end != TransferEnd::Done {
            return Self::of_ranges(self.here.clone(), ranges.clone());
        }
        let there = (self.there.0.clone(), None);
        (ranges.arrived.len() < ranges.wanted.len()).then(|| Self {
            here: self.here.clone(),
            there,
            kind: self.kind.clone(),
            header: None,
            from: None,
            to: None,
        })
    }
}

impl Memory {
    /// Returns the time that the content of a transfer takes.
    fn time_of(&mut self, flight: u64) -> Duration {
        let host = |id: &NodeId| self.drivers.get(id).map_or(0, |driver| driver.host);
        let pair = self.flights.get(&flight).map(|flight| {
            let (sender, receiver) = flight.ends();
            (host(sender), host(receiver))
        });
        match pair.and_then(|pair| self.hosts.slow.get(&pair)).copied() {
            Some(longest) => self.random.millis(longest / 2, longest),
            None => self.random.millis(5, 250),
        }
    }
}

impl World {
    pub(super) fn begin_copy(
        &mut self,
        id: &NodeId,
        transfer: TransferId,
        to: &str,
        header: BlockHeader,
        buffer: Buffer,
    ) {
        let of_round = self.memory.as_ref().and_then(|m| m.drivers.get(id)?.sockets);
        if self.bug == Bug::RestoredNotCopied && of_round != Some(header.part.checkpoint.round) {
            let end = TransferEnd::Done;
            return self.tell_keeper(id, Duration::ZERO, Input::Ended { transfer, end });
        }
        let there = node_at(to).unwrap_or_else(|| NodeId::new("none"));
        let flight = Flight {
            here: (id.clone(), transfer),
            there: (there, None),
            kind: Kind::Copy,
            header: Some(header),
            from: Some(buffer),
            to: None,
        };
        self.begin_flight(flight);
    }

    pub(super) fn begin_fetch(
        &mut self,
        id: &NodeId,
        transfer: TransferId,
        from: &str,
        part: PartId,
        local_rank: LocalRank,
    ) {
        let there = node_at(from).unwrap_or_else(|| NodeId::new("none"));
        let flight = Flight {
            here: (id.clone(), transfer),
            there: (there, None),
            kind: Kind::Fetch(part, local_rank),
            header: None,
            from: None,
            to: None,
        };
        self.begin_flight(flight);
    }

    pub(super) fn begin_ranges(
        &mut self,
        id: &NodeId,
        transfer: TransferId,
        sources: Vec<String>,
        part: PartId,
        wanted: Vec<BlockRange>,
    ) {
        let ranges = Ranges { part, sources: sources.into(), wanted, arrived: Vec::new() };
        if let Some(flight) = Flight::of_ranges((id.clone(), transfer), ranges) {
            self.begin_flight(flight);
        }
    }

    fn begin_flight(&mut self, flight: Flight) {
        if self.memory.as_ref().is_some_and(|memory| !memory.hosts.has_secret) {
            return self.breaks_memory(|| format!("rule ac: {flight:?} without a secret"));
        }
        let is_open = self.is_open(&flight.here.0, &flight.there.0);
        let Some(memory) = &mut self.memory else { return };
        memory.flights_begun += 1;
        let number = memory.flights_begun;
        if let Some(driver) = memory.drivers.get_mut(&flight.here.0) {
            driver.transfers.insert(flight.here.1, number);
            flight.from.into_iter().for_each(|buffer| driver.change_users(buffer, 1));
        }
        memory.flights.insert(number, flight);
        let (delay, stage) = match is_open {
            true => (memory.random.millis(0, 5), Stage::Offered),
            false => (CONNECTING, Stage::Broken),
        };
        self.schedule(delay, Event::Memory(MemoryEvent::Flight(number, stage)));
    }

    /// Returns true if one agent reaches another one.
    fn is_open(&self, from: &NodeId, to: &NodeId) -> bool {
        let Some(memory) = &self.memory else { return false };
        let host = |id: &NodeId| memory.drivers.get(id).map(|driver| driver.host);
        let (Some(one), Some(other)) = (host(from), host(to)) else { return false };
        let is_cut = |pair: (usize, usize)| self.cuts.get(&pair).is_some_and(|t| self.now < *t);
        let is_suspended = |host: usize| self.hosts[host].is_suspended(self.now);
        self.processes.contains_key(from)
            && self.processes.contains_key(to)
            && !is_cut((one, other))
            && !is_cut((other, one))
            && !is_suspended(one)
            && !is_suspended(other)
            && !memory.hosts.walls.contains(&(one, other))
    }

    /// Continues a transfer.
    pub(super) fn fly(&mut self, number: u64, stage: Stage) {
        let Some(memory) = &self.memory else { return };
        let Some(flight) = memory.flights.get(&number) else { return };
        let (here, there) = (flight.here.clone(), flight.there.clone());
        if !matches!(stage, Stage::Broken) && !self.is_open(&here.0, &there.0) {
            let event = MemoryEvent::Flight(number, Stage::Broken);
            let delay = match self.processes.contains_key(&there.0) {
                true => SILENCE,
                false => Duration::from_millis(5),
            };
            return self.schedule(delay, Event::Memory(event));
        }
        match stage {
            Stage::Offered => self.offer(number),
            Stage::Answered => {
                let Some(memory) = &self.memory else { return };
                let header = memory.flights.get(&number).and_then(|flight| flight.header);
                let left = memory.drivers.get(&here.0).map(|driver| driver.left());
                let (Some(header), Some(left)) = (header, left) else { return };
                let incoming = Input::Incoming { transfer: here.1, header, left };
                self.tell_keeper(&here.0, Duration::ZERO, incoming);
            }
            Stage::Arrived => self.arrive(number),
            Stage::Broken => {
                self.note_memory_failure(self.now);
                let end = TransferEnd::Failed("no connection".to_owned());
                self.end_flight(number, &end);
            }
        }
    }

    fn offer(&mut self, number: u64) {
        let Some(memory) = &mut self.memory else { return };
        let Some(flight) = memory.flights.get_mut(&number) else { return };
        let there = flight.there.0.clone();
        let Some(driver) = memory.drivers.get_mut(&there) else { return };
        driver.next_foreign += 1;
        let transfer = TransferId { is_foreign: true, number: driver.next_foreign };
        flight.there.1 = Some(transfer);
        driver.transfers.insert(transfer, number);
        let left = driver.left();
        let input = match (&flight.kind, flight.header) {
            (Kind::Copy, Some(header)) => Input::Incoming { transfer, header, left },
            (Kind::Copy, None) => return,
            (Kind::Fetch(part, local_rank), _) => {
                Input::Wanted { transfer, part: *part, local_rank: *local_rank }
            }
            (Kind::Ranges(ranges), _) => match ranges.wanted.get(ranges.arrived.len()) {
                Some(range) => Input::WantedRange { transfer, part: ranges.part, range: *range },
                None => return,
            },
        };
        self.tell_keeper(&there, Duration::ZERO, input);
    }

    fn flight_of(&self, id: &NodeId, transfer: TransferId) -> Option<u64> {
        self.memory.as_ref()?.drivers.get(id)?.transfers.get(&transfer).copied()
    }

    /// Lets the content arrive in a buffer.
    pub(super) fn receive(&mut self, id: &NodeId, transfer: TransferId, buffer: Buffer) {
        let Some(number) = self.flight_of(id, transfer) else { return };
        let Some(memory) = &mut self.memory else { return };
        let Some(driver) = memory.drivers.get_mut(id) else { return };
        let is_used = driver.buffers.get(&buffer.id).is_some_and(|file| file.users > 0);
        driver.put(buffer, Some(Content::Partial));
        driver.change_users(buffer, 1);
        let Some(flight) = memory.flights.get_mut(&number) else { return };
        flight.to = Some(buffer);
        let takes = memory.time_of(number);
        self.schedule(takes, Event::Memory(MemoryEvent::Flight(number, Stage::Arrived)));
        if is_used {
            self.breaks_memory(|| format!("rule z: {id} receives into {buffer:?}, which is used"));
        }
    }

    /// Sends a block that another agent wants.
    pub(super) fn serve(
        &mut self,
        id: &NodeId,
        transfer: TransferId,
        header: BlockHeader,
        buffer: Buffer,
    ) {
        let Some(number) = self.flight_of(id, transfer) else { return };
        let Some(memory) = &mut self.memory else { return };
        if let Some(driver) = memory.drivers.get_mut(id) {
            driver.change_users(buffer, 1);
        }
        let Some(flight) = memory.flights.get_mut(&number) else { return };
        (flight.header, flight.from) = (Some(header), Some(buffer));
        let takes = memory.random.millis(0, 5);
        self.schedule(takes, Event::Memory(MemoryEvent::Flight(number, Stage::Answered)));
    }

    /// Sends a range that another agent wants.
    pub(super) fn serve_range(&mut self, id: &NodeId, transfer: TransferId, buffer: Buffer) {
        let Some(number) = self.flight_of(id, transfer) else { return };
        let Some(memory) = &mut self.memory else { return };
        let Some(driver) = memory.drivers.get_mut(id) else { return };
        let is_checked = driver.buffers.get(&buffer.id).is_some_and(|file| file.is_checked);
        driver.change_users(buffer, 1);
        let Some(flight) = memory.flights.get_mut(&number) else { return };
        flight.from = Some(buffer);
        let takes = memory.time_of(number);
        self.schedule(takes, Event::Memory(MemoryEvent::Flight(number, Stage::Arrived)));
        if !is_checked {
            self.breaks_memory(|| format!("rule w: {id} sends a range of {buffer:?} unchecked"));
        }
    }

    pub(super) fn decline(&mut self, id: &NodeId, transfer: TransferId, why: Decline) {
        if let Some(number) = self.flight_of(id, transfer) {
            self.end_flight(number, &TransferEnd::Declined(why));
        }
    }

    pub(super) fn abort(&mut self, id: &NodeId, transfer: TransferId) {
        let driver = self.memory.as_mut().and_then(|memory| memory.drivers.get_mut(id));
        let Some(driver) = driver else { return };
        driver.ranges.remove(&transfer);
        if let Some(number) = driver.transfers.remove(&transfer) {
            self.end_flight(
                number,
                &TransferEnd::Failed("the other agent has ended it".to_owned()),
            );
        }
    }

    /// Lets a range arrive.
    fn arrive_range(&mut self, number: u64) {
        let is_faulty = matches!(self.stage, super::Stage::Faulty);
        let Some(memory) = &mut self.memory else { return };
        let Some(flight) = memory.flights.get_mut(&number) else { return };
        let (Kind::Ranges(ranges), Some(from)) = (&mut flight.kind, flight.from) else { return };
        if is_faulty && memory.random.chance(2) {
            memory.faults.changed.insert(ranges.part.checkpoint);
            return self.end_flight(number, &TransferEnd::WrongSum);
        }
        let sender = memory.drivers.get(&flight.there.0);
        ranges.arrived.push(sender.and_then(|driver| driver.content(from)).cloned());
        if ranges.arrived.len() == ranges.wanted.len()
            && let Some(driver) = memory.drivers.get_mut(&flight.here.0)
        {
            driver.ranges.insert(flight.here.1, ranges.arrived.clone());
        }
        self.end_flight(number, &TransferEnd::Done);
    }

    fn arrive(&mut self, number: u64) {
        let is_bug = self.bug == Bug::TornIsDone;
        let is_faulty = matches!(self.stage, super::Stage::Faulty);
        let Some(memory) = &mut self.memory else { return };
        let Some(flight) = memory.flights.get(&number) else { return };
        if matches!(flight.kind, Kind::Ranges(_)) {
            return self.arrive_range(number);
        }
        let (Some(header), Some(from), Some(to)) = (flight.header, flight.from, flight.to) else {
            return;
        };
        let (sender, receiver) = flight.ends();
        let (sender, receiver) = (sender.clone(), receiver.clone());
        let is_fetch = matches!(flight.kind, Kind::Fetch(..));
        let sent = memory.drivers.get(&sender).and_then(|driver| driver.content(from)).cloned();
        let is_torn = is_faulty && memory.random.chance(if is_bug { 20 } else { 2 });
        let mut content = sent;
        if is_torn {
            content = Some(Content::Partial);
            memory.faults.changed.insert(header.part.checkpoint);
        }
        let is_right = sum_of(content.as_ref(), header.bytes) == header.sum;
        if let Some(driver) = memory.drivers.get_mut(&receiver) {
            driver.put(to, content);
            driver.note_sum(to, header.sum);
        }
        match is_fetch {
            true => memory.totals.fetched += u64::from(is_right),
            false => memory.totals.copied += u64::from(is_right),
        }
        let end = if is_right || is_bug { TransferEnd::Done } else { TransferEnd::WrongSum };
        self.end_flight(number, &end);
    }

    /// Ends a transfer on both nodes. Other ranges, or other holders of them, may follow.
    fn end_flight(&mut self, number: u64, end: &TransferEnd) {
        let Some(memory) = &mut self.memory else { return };
        let Some(flight) = memory.flights.remove(&number) else { return };
        let begun = memory.drivers.get(&flight.here.0).map(|driver| &driver.transfers);
        let is_wanted = begun.is_some_and(|begun| begun.contains_key(&flight.here.1));
        let next = flight.next(end).filter(|_| is_wanted);
        let (sender, receiver) = flight.ends();
        for (node, buffer) in [(sender, flight.from), (receiver, flight.to)] {
            if let (Some(driver), Some(buffer)) = (memory.drivers.get_mut(node), buffer) {
                driver.change_users(buffer, -1);
            }
        }
        let here = (flight.here.0, Some(flight.here.1).filter(|_| next.is_none()));
        for (id, transfer) in [here, flight.there] {
            let Some(transfer) = transfer else { continue };
            let Some(memory) = &mut self.memory else { return };
            if let Some(driver) = memory.drivers.get_mut(&id) {
                driver.transfers.remove(&transfer);
            }
            let takes = memory.random.millis(0, 5);
            self.tell_keeper(&id, takes, Input::Ended { transfer, end: end.clone() });
        }
        next.into_iter().for_each(|next| self.begin_flight(next));
    }

    /// Ends the transfers of a process that is gone.
    pub(in crate::world) fn lose_memory(&mut self, id: &NodeId) {
        self.note_memory_failure(self.now);
        let Some(memory) = &mut self.memory else { return };
        memory.drivers.remove(id);
        let is_its = |flight: &Flight| flight.here.0 == *id || flight.there.0 == *id;
        let of_it: Vec<u64> =
            memory.flights.iter().filter(|(_, f)| is_its(f)).map(|(number, _)| *number).collect();
        for number in of_it {
            self.end_flight(number, &TransferEnd::Failed("the connection was closed".to_owned()));
        }
    }

    /// Notes that transfers may fail.
    pub(in crate::world) fn note_memory_failure(&mut self, until: Instant) {
        if let Some(memory) = &mut self.memory {
            memory.faults.failed = memory.faults.failed.max(Some(until));
        }
    }
}
