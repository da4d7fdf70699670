//! The connections of one store, and the engine that they share.
//!
//! A connection has a turn when the kernel reports an event for it. It writes the rest of earlier
//! answers, reads once, executes all whole requests of that read and answers them by one write. All
//! connections share the buffers of a turn, so an idle one needs only a socket and a few words;
//! only work that cannot be completed at once gets a buffer of its own. While a peer leaves too
//! much of its answers unread, nothing more is read from it, nor executed.
//!
//! Events are edge-triggered. If a turn leaves work that no event will announce, the connection is
//! put in line for another turn.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::time::Instant;

use mio::net::TcpStream;
use slab::Slab;

use super::connection::{Backlog, Connection, End, Readiness, Sent, is_paused};
use crate::engine::{ClientId, Engine};
use crate::limits::{
    BUFFER_LEN_FREE, BUFFERS_LEN_MAX, CONNECTIONS_MAX, GREETING_TIMEOUT, READ_LEN, STORE_MEMORY_MAX,
};
use crate::output::SendBuffer;
use crate::session::{SessionStep, Violation};
use crate::wire::STOP_WAITING;

/// The clients of a store.
///
/// Invariant: `output` is empty between two turns; a connection is in `ready`, once, if its
/// `is_queued` is true; `silent` contains the connections that have not sent `VALIDATE`; `buffered`
/// is the sum of the `buffered` of all backlogs.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) engine: Engine,
    connections: Slab<Connection>,
    /// The buffer for the first read of a turn.
    scratch: Box<[u8]>,
    /// The answers to the connection that has its turn.
    output: SendBuffer,
    ready: VecDeque<usize>,
    /// The deadlines of silent connections. Names grow, and so do their deadlines.
    silent: BTreeMap<ClientId, Instant>,
    pub(super) buffered: usize,
    buffered_max: usize,
    entered: u64,
    /// The requests that were executed since the last call of [`Self::take_requests`].
    requests: u64,
}

/// The next turn of a connection: again, or at its next event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Next {
    Again,
    Event,
}

impl Default for Clients {
    fn default() -> Self {
        Self::with_memory_max(STORE_MEMORY_MAX + BUFFERS_LEN_MAX)
    }
}

impl Clients {
    /// Returns an empty set of clients that may use at most `memory_max` bytes in all.
    pub(super) fn with_memory_max(memory_max: usize) -> Self {
        let buffered_max = BUFFERS_LEN_MAX.min(memory_max / 4);
        Self {
            engine: Engine::with_memory_max(STORE_MEMORY_MAX.min(memory_max - buffered_max)),
            connections: Slab::new(),
            scratch: vec![0; READ_LEN].into(),
            output: SendBuffer::default(),
            ready: VecDeque::new(),
            silent: BTreeMap::new(),
            buffered: 0,
            buffered_max,
            entered: 0,
            requests: 0,
        }
    }

    /// Returns the number of clients.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of requests that were executed since the last call.
    pub(super) fn take_requests(&mut self) -> u64 {
        mem::take(&mut self.requests)
    }

    /// Returns the slot that the next connection gets.
    pub(super) fn next_slot(&self) -> usize {
        self.connections.vacant_key()
    }

    /// Adds the connection of `peer`, which was accepted at `now`.
    pub(super) fn enter(&mut self, now: Instant, stream: TcpStream, peer: SocketAddr) {
        let slot = self.connections.vacant_entry();
        self.entered += 1;
        let client = ClientId(self.entered << SLOT_BITS | slot.key() as u64);
        slot.insert(Connection::new(stream, peer, client));
        self.silent.insert(client, now + GREETING_TIMEOUT);
    }

    /// Returns the deadline at which the next silent client is to be closed.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.silent.first_key_value().map(|(_, deadline)| *deadline)
    }

    /// Closes clients that were silent for too long.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(first) = self.silent.first_entry().filter(|first| *first.get() <= now) {
            let (client, _) = first.remove_entry();
            self.leave(slot_of(client), End::Silent);
        }
    }

    /// Closes the clients that have been silent longest until at most `most` are silent.
    pub(super) fn make_room(&mut self, most: usize) {
        while most < self.silent.len()
            && let Some((client, _)) = self.silent.pop_first()
        {
            self.leave(slot_of(client), End::MadeRoom);
        }
    }

    /// Returns true if there is work without an event.
    pub(super) fn is_busy(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Gives a turn to each connection that is in line now.
    pub(super) fn run_ready(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else { return };
            // A connection that left may still be in line, and another may have its slot.
            if let Some(connection) = self.connections.get_mut(slot)
                && mem::take(&mut connection.is_queued)
            {
                self.serve(slot);
            }
        }
    }

    /// Handles an event of the connection in `slot`.
    pub(super) fn handle_readiness(&mut self, slot: usize, readiness: Readiness) {
        if let Some(connection) = self.connections.get_mut(slot)
            && connection.handle_readiness(readiness)
        {
            self.serve(slot);
        }
    }

    /// Gives the connection in `slot` a turn.
    fn serve(&mut self, slot: usize) {
        match self.turn(slot) {
            Ok(Next::Event) => {}
            Ok(Next::Again) => self.enqueue(slot),
            Err(end) => return self.leave(slot, end),
        }
        if let Some(connection) = self.connections.get_mut(slot)
            && !connection.greeted
            && connection.session.is_open()
        {
            connection.greeted = true;
            self.silent.remove(&connection.client);
        }
    }

    fn turn(&mut self, slot: usize) -> Result<Next, End> {
        let Some(connection) = self.connections.get_mut(slot) else { return Ok(Next::Event) };
        let Some(mut backlog) = connection.backlog.take() else {
            return self.turn_without_backlog(slot);
        };
        mem::swap(&mut self.output, &mut backlog.output);
        let result = self.turn_with_backlog(slot, &mut backlog);
        mem::swap(&mut self.output, &mut backlog.output);
        self.keep(slot, backlog, result)
    }

    /// Runs the turn of a connection without a backlog.
    fn turn_without_backlog(&mut self, slot: usize) -> Result<Next, End> {
        let mut scratch = mem::take(&mut self.scratch);
        let result = self.read_without_backlog(slot, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn read_without_backlog(&mut self, slot: usize, scratch: &mut [u8]) -> Result<Next, End> {
        let Some(connection) = self.connections.get_mut(slot) else { return Ok(Next::Event) };
        let Some(mut input) = connection.read(scratch)? else { return Ok(Next::Event) };
        let executed = self.execute(slot, &mut input);
        let sent = self.write(slot);
        if let (Ok(false), Ok(Sent::All), true) = (&executed, &sent, input.is_empty()) {
            return Ok(self.next(slot));
        }
        let mut backlog = Box::new(Backlog {
            output: mem::take(&mut self.output),
            unread: input.to_vec(),
            ..Backlog::default()
        });
        let result = executed.map_err(End::from).and_then(|held_up| {
            backlog.held_up = held_up;
            sent
        });
        self.keep(slot, backlog, result)
    }

    /// Runs the turn of a connection with a backlog, whose output is in `self`.
    fn turn_with_backlog(&mut self, slot: usize, backlog: &mut Backlog) -> Result<Sent, End> {
        let sent = self.write(slot)?;
        if is_paused(&self.output) {
            return Ok(sent);
        }
        if !backlog.held_up {
            let Some(connection) = self.connections.get_mut(slot).filter(|c| c.readable) else {
                return Ok(sent);
            };
            if !connection.read_on(&mut backlog.unread)? {
                return Ok(sent);
            }
        }
        let unread = mem::take(&mut backlog.unread);
        let mut input = &unread[..];
        let executed = self.execute(slot, &mut input);
        let used = unread.len() - input.len();
        backlog.unread = unread;
        backlog.consume(used);
        let sent = self.write(slot);
        backlog.held_up = executed?;
        sent
    }

    /// Stores the remaining work, and returns the next turn that it needs.
    fn keep(
        &mut self,
        slot: usize,
        mut backlog: Box<Backlog>,
        result: Result<Sent, End>,
    ) -> Result<Next, End> {
        let before = backlog.buffered;
        backlog.buffered = backlog.occupied();
        let accounted = self.rebuffer(before, backlog.buffered);
        let idle = backlog.output.is_empty() && backlog.unread.is_empty();
        let can_go_on = !is_paused(&backlog.output);
        let held_up = backlog.held_up;
        if let Some(connection) = self.connections.get_mut(slot) {
            // Also before the end, which subtracts the bytes accounted for here.
            connection.backlog = Some(backlog).filter(|_| !idle);
        }
        let sent = result?;
        accounted?;
        let next = self.next(slot);
        Ok(match sent {
            Sent::Some => Next::Again,
            Sent::All | Sent::UntilFull if can_go_on && held_up => Next::Again,
            Sent::All | Sent::UntilFull if can_go_on => next,
            Sent::All | Sent::UntilFull => Next::Event,
        })
    }

    fn next(&self, slot: usize) -> Next {
        match self.connections.get(slot) {
            Some(connection) if connection.readable => Next::Again,
            Some(_) | None => Next::Event,
        }
    }

    /// Sends the output to the connection in `slot`, in one write.
    fn write(&mut self, slot: usize) -> Result<Sent, End> {
        let Some(connection) = self.connections.get_mut(slot) else { return Ok(Sent::All) };
        let sent = connection.write(&mut self.output);
        if self.output.take_released() {
            self.engine.released();
        }
        sent
    }

    /// Executes the whole requests of `input` for the connection in `slot`, and leaves the rest;
    /// returns true if the rest may begin with a whole request.
    fn execute(&mut self, slot: usize, input: &mut &[u8]) -> Result<bool, Violation> {
        while !is_paused(&self.output) {
            let Some(connection) = self.connections.get_mut(slot) else { return Ok(false) };
            let step = connection.session.step(&mut self.engine, input, &mut self.output);
            // Also after a broken rule: the part of the request before it may have released
            // clients.
            self.answer_woken(slot);
            if step? == SessionStep::NeedMore {
                return Ok(false);
            }
            self.requests += 1;
        }
        Ok(!input.is_empty())
    }

    /// Answers the clients whose wait has ended, while the connection in `slot` has its turn.
    ///
    /// At once, if the socket takes it: one request may release thousands. Otherwise it is sent in
    /// their next turn, which also handles the error, if there is one.
    fn answer_woken(&mut self, slot: usize) {
        while let Some(client) = self.engine.poll_woken() {
            let woken = slot_of(client);
            if woken == slot {
                self.output.put_u8(STOP_WAITING);
                continue;
            }
            let Some(connection) = self.connections.get_mut(woken) else {
                debug_assert!(false, "a client that leaves does not wait");
                continue;
            };
            if !connection.write_byte(STOP_WAITING) {
                connection.backlog.get_or_insert_default().output.put_u8(STOP_WAITING);
                self.enqueue(woken);
            }
        }
    }

    fn enqueue(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot)
            && !mem::replace(&mut connection.is_queued, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Closes the connection in `slot`, which ended.
    fn leave(&mut self, slot: usize, end: End) {
        let Some(mut connection) = self.connections.try_remove(slot) else { return };
        self.silent.remove(&connection.client);
        if let Some(mut backlog) = connection.backlog.take() {
            // A peer that broke a rule or hung up gets one attempt only.
            let _ = connection.write(&mut backlog.output);
            self.buffered -= backlog.buffered;
            drop(backlog);
            // Only a backlog holds values of the store.
            self.engine.released_all();
        }
        self.engine.cancel_wait(connection.client);
        end.log(connection.peer);
    }

    /// Updates the sum for a connection that had `before` bytes buffered and has `now`.
    fn rebuffer(&mut self, before: usize, now: usize) -> Result<(), Violation> {
        self.buffered = self.buffered - before + now;
        // Connections that shrink or hold little are not closed.
        let full = self.buffered_max < self.buffered && before < now && BUFFER_LEN_FREE < now;
        if full { Err(Violation::BuffersFull) } else { Ok(()) }
    }
}

/// Returns the slot of a client, the lower part of its name; the upper part is never used again.
fn slot_of(client: ClientId) -> usize {
    (client.0 & ((1 << SLOT_BITS) - 1)) as usize
}

/// The bits of a slot in the name of a client, and in a token of the poll.
pub(super) const SLOT_BITS: u32 = 17;
const _: () = assert!(CONNECTIONS_MAX < 1 << SLOT_BITS, "every slot fits into a name");

#[cfg(test)]
mod tests;
