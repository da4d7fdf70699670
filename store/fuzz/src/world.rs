//! Sessions on an engine, run as by the server, compared with the model.

use std::io::IoSlice;

use ragent_store::Engine;
use ragent_store::engine::ClientId;
use ragent_store::limits::{OUTPUT_PAUSE_LEN, STORE_MEMORY_MAX};
use ragent_store::output::SendBuffer;
use ragent_store::session::{Session, SessionStep};
use ragent_store::wire::{GREETING, Query, STOP_WAITING};

use super::model::{Model, Outcome};
use super::script::{CLIENTS, Deed, Script};

/// Runs the script `input` with clients that send whole requests only.
pub fn engine(input: &[u8]) {
    run(input, Script::next_whole, true);
}

/// Runs the script `input`.
pub fn session(input: &[u8]) {
    run(input, Script::next_any, false);
}

fn run<'a>(input: &'a [u8], next: fn(&mut Script<'a>) -> Option<(usize, Deed<'a>)>, greeted: bool) {
    let mut script = Script::new(input);
    let memory_max = MEMORY_MAXES[usize::from(script.byte()) % MEMORY_MAXES.len()];
    let mut world = World::new(memory_max);
    for client in 0..CLIENTS {
        world.enter(client, greeted);
    }
    while let Some((client, deed)) = next(&mut script) {
        world.act(client, deed);
    }
    world.end();
}

/// Limits from a few entries to more than these scripts ever store.
const MEMORY_MAXES: &[usize] = &[STORE_MEMORY_MAX, 2000, 20_000, 100_000];

struct World {
    engine: Engine,
    memory_max: usize,
    peers: [Option<Peer>; CLIENTS],
    model: Model,
    entered: u64,
}

struct Peer {
    id: ClientId,
    session: Session,
    output: SendBuffer,
    unread: Vec<u8>,
    /// The rest of a request, sent before the next bytes.
    pending: Vec<u8>,
}

impl World {
    fn new(memory_max: usize) -> Self {
        Self {
            engine: Engine::with_memory_max(memory_max),
            memory_max,
            peers: Default::default(),
            model: Model::new(memory_max),
            entered: 0,
        }
    }

    fn act(&mut self, client: usize, deed: Deed<'_>) {
        match deed {
            Deed::Ask(query) => self.send(client, &encode(&query)),
            Deed::Begin(query, len) => {
                let request = encode(&query);
                let (head, tail) = request.split_at(len.min(request.len()));
                self.send(client, head);
                if let Some(peer) = &mut self.peers[client] {
                    peer.pending = tail.to_vec();
                }
            }
            Deed::Send(bytes) => self.send(client, bytes),
            Deed::Read(len) => self.read(client, len),
            Deed::Leave { greeted } => {
                self.leave(client);
                self.enter(client, greeted);
            }
        }
        self.check();
    }

    fn enter(&mut self, client: usize, greeted: bool) {
        self.entered += 1;
        let id = ClientId(self.entered * CLIENTS as u64 + client as u64);
        self.peers[client] = Some(Peer {
            id,
            session: Session::new(id),
            output: SendBuffer::default(),
            unread: Vec::new(),
            pending: Vec::new(),
        });
        if greeted {
            self.send(client, &GREETING);
        }
    }

    fn leave(&mut self, client: usize) {
        self.model.leave(client);
        if let Some(peer) = self.peers[client].take() {
            self.engine.cancel_wait(peer.id);
            drop(peer.output);
            self.engine.released_all();
        }
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        let Some(peer) = &mut self.peers[client] else { return };
        let bytes = [&std::mem::take(&mut peer.pending), bytes].concat();
        peer.unread.extend_from_slice(&bytes);
        self.model.sent(client, &bytes);
        while self.step(client) {}
    }

    /// Executes one request of `client` on both; returns true if there was one.
    fn step(&mut self, client: usize) -> bool {
        let Some(peer) = &mut self.peers[client] else { return false };
        if OUTPUT_PAUSE_LEN <= peer.output.len() {
            self.read(client, usize::MAX);
            return true;
        }
        let mut rest = &peer.unread[..];
        let step = peer.session.step(&mut self.engine, &mut rest, &mut peer.output);
        peer.unread = rest.to_vec();
        while let Some(woken) = self.engine.poll_woken() {
            let peer = self.peers[woken.0 as usize % CLIENTS].as_mut();
            let peer = peer.filter(|peer| peer.id == woken).expect("who left is not woken");
            peer.output.put_u8(STOP_WAITING);
        }
        let outcome = self.model.step(client);
        match &step {
            Ok(SessionStep::Taken) => assert_eq!(outcome, Outcome::Taken),
            Ok(SessionStep::NeedMore) => assert_eq!(outcome, Outcome::NeedMore),
            Err(violation) => assert_eq!(outcome, Outcome::Broken, "{violation}"),
        }
        if self.model.has_extended() {
            self.engine.released_all();
            self.model.learn_room(self.engine.memory_used());
        }
        if step.is_err() {
            self.leave(client);
        }
        self.check();
        step == Ok(SessionStep::Taken)
    }

    fn read(&mut self, client: usize, len: usize) {
        let Some(peer) = &mut self.peers[client] else { return };
        let mut left = len;
        while left > 0 && !peer.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let used = peer.output.next(&mut slices);
            let mut bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.to_vec()).collect();
            bytes.truncate(left);
            left -= bytes.len();
            self.model.received(client, &bytes);
            peer.output.advance(bytes.len());
            if peer.output.take_released() {
                self.engine.released();
            }
        }
    }

    /// Checks that both hold the same, as far as that is cheap.
    fn check(&self) {
        let used = self.engine.memory_used();
        assert!(used <= self.memory_max, "{used} bytes are more than {}", self.memory_max);
        let needed = self.model.used();
        assert!(needed <= used, "{used} bytes are less than the {needed} that are held");
        for (client, peer) in self.peers.iter().enumerate() {
            if let Some(Peer { output, .. }) = peer {
                assert_eq!(output.len(), self.model.expected_len(client));
            }
        }
    }

    /// Checks that both hold the same, and nothing once all clients have left and all keys are
    /// deleted.
    fn end(mut self) {
        self.engine.released_all();
        assert_eq!(self.engine.memory_used(), self.model.used());
        for client in 0..CLIENTS {
            self.read(client, usize::MAX);
            self.leave(client);
        }
        assert_eq!(self.engine.memory_used(), self.model.used());
        assert_eq!(self.engine.num_keys(), self.model.keys().len());
        for key in self.model.keys() {
            assert_eq!(self.engine.get(&key).map(|value| &value[..]), self.model.value(&key));
            assert!(self.engine.delete_key(&key));
        }
        for (queue, len) in self.model.queues() {
            assert_eq!(self.engine.queue_len(&queue), len);
            for _ in 0..len {
                assert!(self.engine.queue_pop(&queue).is_some());
            }
        }
        assert_eq!((self.engine.num_keys(), self.engine.memory_used()), (0, 0));
    }
}

pub(crate) fn encode(query: &Query<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    query.encode(&mut bytes).expect("a request within limits");
    bytes
}
