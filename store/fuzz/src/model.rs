//! A model of the store in its simplest form: each wait is in one list, which is searched each
//! time, and the memory held is computed from scratch for each query.
//!
//! For each client it tracks the bytes that it sent and the answers that it is to receive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use ragent_store::limits::{
    APPENDED_LEN_MAX, AWAITED_OVERHEAD, ENTRY_OVERHEAD, SHARED_VALUE_LEN_MIN,
};
use ragent_store::wire::{Decoder, GREETING, Query};

use super::script::CLIENTS;

pub(crate) struct Model {
    memory_max: usize,
    entries: BTreeMap<Vec<u8>, Value>,
    queues: BTreeMap<Vec<u8>, VecDeque<Rc<Vec<u8>>>>,
    /// In order of arrival.
    waits: Vec<(usize, Awaited)>,
    woken: Vec<usize>,
    clients: [Client; CLIENTS],
    /// The key whose value was just extended; the model cannot know the spare capacity of the
    /// value.
    extended: Option<Vec<u8>>,
}

/// A value. A reader may still hold it after another client has replaced it.
#[derive(Clone, Debug)]
struct Value {
    bytes: Rc<Vec<u8>>,
    room: usize,
}

#[derive(Debug, PartialEq)]
enum Awaited {
    Names(BTreeSet<Vec<u8>>),
    Barrier(Vec<u8>),
}

#[derive(Default)]
struct Client {
    greeted: usize,
    unread: Vec<u8>,
    expected: VecDeque<Answer>,
    received: Vec<u8>,
    broken: bool,
}

/// A part of an answer.
enum Answer {
    Bytes(Rc<Vec<u8>>),
    /// A value that is shared with the store.
    Shared(Value),
    /// A list of all keys, in any order.
    Keys(BTreeSet<Vec<u8>>),
}

/// The least room of an extended value.
const EXTENDED_ROOM_MIN: usize = 8;

/// The result of the next request of a client.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Broken,
    NeedMore,
    Taken,
}

/// A rule was broken.
#[derive(Debug)]
struct Broken;

impl Model {
    pub(crate) fn new(memory_max: usize) -> Self {
        Self {
            memory_max,
            entries: BTreeMap::new(),
            queues: BTreeMap::new(),
            waits: Vec::new(),
            woken: Vec::new(),
            clients: Default::default(),
            extended: None,
        }
    }

    /// Records bytes that `client` sent.
    pub(crate) fn sent(&mut self, client: usize, bytes: &[u8]) {
        self.clients[client].unread.extend_from_slice(bytes);
    }

    /// Records bytes that `client` received, and checks all whole parts.
    pub(crate) fn received(&mut self, client: usize, bytes: &[u8]) {
        let client = &mut self.clients[client];
        client.received.extend_from_slice(bytes);
        let mut rest = &client.received[..];
        while let Some(answer) = client.expected.front() {
            let Some((part, after)) = rest.split_at_checked(answer.len()) else { break };
            answer.check(part);
            rest = after;
            client.expected.pop_front();
        }
        assert!(rest.is_empty() || !client.expected.is_empty(), "received {rest:?} unasked");
        client.received = rest.to_vec();
    }

    /// Returns the number of bytes that `client` has yet to receive.
    pub(crate) fn expected_len(&self, client: usize) -> usize {
        let Client { expected, received, .. } = &self.clients[client];
        expected.iter().map(Answer::len).sum::<usize>() - received.len()
    }

    /// Removes `client`; another takes its place.
    pub(crate) fn leave(&mut self, client: usize) {
        self.forget(client);
        self.clients[client] = Client::default();
    }

    /// Returns true if `client` is in the middle of a request, or has not completed its greeting.
    pub(crate) fn is_amid(&self, client: usize) -> bool {
        let Client { greeted, unread, .. } = &self.clients[client];
        *greeted < GREETING.len() || !unread.is_empty()
    }

    /// Executes at most one request of the bytes that `client` sent.
    pub(crate) fn step(&mut self, client: usize) -> Outcome {
        let unread = std::mem::take(&mut self.clients[client].unread);
        let mut rest = &unread[..];
        let outcome = self.take_one(client, &mut rest);
        self.clients[client].unread = rest.to_vec();
        for woken in std::mem::take(&mut self.woken) {
            self.answer(woken, vec![0]);
        }
        match outcome {
            Ok(outcome) => outcome,
            Err(Broken) => {
                self.forget(client);
                self.clients[client].broken = true;
                Outcome::Broken
            }
        }
    }

    fn take_one(&mut self, client: usize, rest: &mut &[u8]) -> Result<Outcome, Broken> {
        if rest.is_empty() {
            return Ok(Outcome::NeedMore);
        }
        let Client { greeted, .. } = &mut self.clients[client];
        if *greeted < GREETING.len() {
            let expected = &GREETING[*greeted..];
            let n = expected.len().min(rest.len());
            let bytes = rest.split_off(..n).unwrap_or_default();
            *greeted += n;
            return if bytes == &expected[..n] { Ok(Outcome::Taken) } else { Err(Broken) };
        }
        let Some(query) = Decoder::default().decode(rest).map_err(|_| Broken)? else {
            return Ok(Outcome::NeedMore);
        };
        self.execute(client, &query)?;
        Ok(Outcome::Taken)
    }

    fn execute(&mut self, client: usize, query: &Query<'_>) -> Result<(), Broken> {
        match query {
            Query::Validate { .. } => return Err(Broken),
            Query::Set { key, value } => self.set(key, value)?,
            Query::CompareSet { key, expected, desired } => {
                match self.entries.get(*key) {
                    Some(value) if value.bytes[..] != **expected => {}
                    None if !expected.is_empty() => {
                        self.answer(client, string(expected));
                        return Ok(());
                    }
                    Some(_) | None => self.set(key, desired)?,
                }
                self.answer_found(client, key);
            }
            Query::Get { key } => self.answer_found(client, key),
            Query::Add { key, delta } => {
                let sum = self.number(key)?.wrapping_add(*delta);
                self.set(key, sum.to_string().as_bytes())?;
                self.answer(client, sum.to_le_bytes().to_vec());
            }
            Query::Check { keys } => {
                let all = keys.iter().all(|key| self.is_present(key));
                self.answer(client, vec![u8::from(!all)]);
            }
            Query::Wait { keys } => self.wait(client, keys)?,
            Query::GetNumKeys => self.answer(client, word(self.entries.len())),
            Query::DeleteKey { key } => {
                let removed = self.entries.remove(*key).is_some();
                self.answer(client, word(removed.into()));
            }
            Query::Append { key, value } => self.append(key, value)?,
            Query::MultiGet { keys } => keys.iter().for_each(|key| self.answer_found(client, key)),
            Query::MultiSet { pairs } => {
                pairs.iter().try_for_each(|(key, value)| self.set(key, value))?;
            }
            Query::CancelWait => {
                self.forget(client);
                self.answer(client, vec![1]);
            }
            Query::Ping { nonce } => self.answer(client, nonce.to_le_bytes().to_vec()),
            Query::QueuePush { queue, value } => self.push(queue, value)?,
            Query::QueuePop { queue } => self.pop(client, queue),
            Query::QueueLen { queue } => {
                let len = self.queues.get(*queue).map_or(0, VecDeque::len);
                self.answer(client, word(len));
            }
            Query::ListKeys => {
                let keys = self.entries.keys().cloned().collect();
                self.clients[client].expected.push_back(Answer::Keys(keys));
            }
            Query::Barrier { key, world_size } => self.barrier(client, key, *world_size)?,
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Broken> {
        self.allow(self.growth(key, value))?;
        self.store(key, value);
        self.stored(key);
        Ok(())
    }

    /// Returns the bytes by which the store grows if `value` is stored under `key`.
    fn growth(&self, key: &[u8], value: &[u8]) -> usize {
        match self.entries.get(key) {
            Some(old) if self.is_read(old) => value.len(),
            Some(old) => value.len().saturating_sub(old.room),
            None => key.len() + ENTRY_OVERHEAD + value.len(),
        }
    }

    fn store(&mut self, key: &[u8], value: &[u8]) {
        let value = Value { bytes: Rc::new(value.to_vec()), room: value.len() };
        self.entries.insert(key.to_vec(), value);
    }

    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<(), Broken> {
        let Some(value) = self.entries.get(key) else { return self.set(key, tail) };
        let bytes = [&value.bytes[..], tail].concat();
        if APPENDED_LEN_MAX < bytes.len() {
            return Err(Broken);
        }
        self.allow(EXTENDED_ROOM_MIN.max(2 * bytes.len()))?;
        self.entries.insert(key.to_vec(), Value { bytes: Rc::new(bytes), room: 0 });
        self.extended = Some(key.to_vec());
        self.stored(key);
        Ok(())
    }

    fn push(&mut self, queue: &[u8], value: &[u8]) -> Result<(), Broken> {
        self.allow(value.len() + ENTRY_OVERHEAD + queue.len() + ENTRY_OVERHEAD)?;
        self.queues.entry(queue.to_vec()).or_default().push_back(Rc::new(value.to_vec()));
        for (_, awaited) in &mut self.waits {
            if let Awaited::Names(names) = awaited
                && names.remove(queue)
                && names.is_empty()
            {
                break;
            }
        }
        self.release(&Awaited::Names(BTreeSet::new()));
        Ok(())
    }

    fn pop(&mut self, client: usize, queue: &[u8]) {
        let len = self.queues.get(queue).map_or(0, VecDeque::len);
        self.answer(client, word(len));
        if let Some(value) = self.queues.get_mut(queue).and_then(VecDeque::pop_front) {
            self.answer(client, string(&value));
        }
        self.queues.retain(|_, values| !values.is_empty());
    }

    fn wait(&mut self, client: usize, keys: &[&[u8]]) -> Result<(), Broken> {
        self.forget(client);
        let missing: BTreeSet<Vec<u8>> =
            keys.iter().filter(|key| !self.is_present(key)).map(|key| key.to_vec()).collect();
        if missing.is_empty() {
            self.answer(client, vec![0]);
            return Ok(());
        }
        self.allow(missing.iter().map(|name| awaited_cost(name)).sum())?;
        self.waits.push((client, Awaited::Names(missing)));
        Ok(())
    }

    fn barrier(&mut self, client: usize, key: &[u8], world_size: i64) -> Result<(), Broken> {
        self.forget(client);
        let arrived = self.number(key)?.wrapping_add(1);
        let complete = world_size <= arrived;
        let count = arrived.to_string();
        let waits = if complete { 0 } else { awaited_cost(key) };
        self.allow(self.growth(key, count.as_bytes()) + waits)?;
        self.store(key, count.as_bytes());
        if complete {
            self.answer(client, vec![0]);
            self.stored(key);
            self.release(&Awaited::Barrier(key.to_vec()));
        } else {
            self.waits.push((client, Awaited::Barrier(key.to_vec())));
        }
        Ok(())
    }

    fn stored(&mut self, key: &[u8]) {
        for (_, awaited) in &mut self.waits {
            if let Awaited::Names(names) = awaited {
                names.remove(key);
            }
        }
        self.release(&Awaited::Names(BTreeSet::new()));
    }

    fn release(&mut self, over: &Awaited) {
        let released = self.waits.extract_if(.., |(_, awaited)| awaited == over);
        self.woken.extend(released.map(|(client, _)| client));
    }

    fn forget(&mut self, client: usize) {
        self.waits.retain(|(other, _)| *other != client);
    }

    fn is_present(&self, name: &[u8]) -> bool {
        self.entries.contains_key(name) || self.queues.contains_key(name)
    }

    fn number(&self, key: &[u8]) -> Result<i64, Broken> {
        let Some(value) = self.entries.get(key) else { return Ok(0) };
        let text = value.bytes.trim_ascii_start();
        let text = text.strip_prefix(b"\x0b").unwrap_or(text);
        let (sign, digits) = match text {
            [b'-', digits @ ..] => (-1, digits),
            [b'+', digits @ ..] | digits => (1, digits),
        };
        let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
        let digits = str::from_utf8(&digits[..end]).map_err(|_| Broken)?;
        let number: i128 = digits.parse().map_err(|_| Broken)?;
        i64::try_from(sign * number).map_err(|_| Broken)
    }

    fn answer(&mut self, client: usize, bytes: Vec<u8>) {
        let client = &mut self.clients[client];
        if !client.broken {
            client.expected.push_back(Answer::Bytes(Rc::new(bytes)));
        }
    }

    fn answer_found(&mut self, client: usize, key: &[u8]) {
        let Some(value) = self.entries.get(key).cloned() else {
            return self.answer(client, word(0));
        };
        self.answer(client, word(value.bytes.len()));
        let shared = SHARED_VALUE_LEN_MIN <= value.bytes.len();
        let answer = if shared { Answer::Shared(value) } else { Answer::Bytes(value.bytes) };
        self.clients[client].expected.push_back(answer);
    }

    fn allow(&self, len: usize) -> Result<(), Broken> {
        if self.memory_max < self.used() + len { Err(Broken) } else { Ok(()) }
    }

    /// Returns the bytes that the store holds, including replaced values that readers still hold.
    pub(crate) fn used(&self) -> usize {
        let entries =
            self.entries.iter().map(|(key, value)| key.len() + ENTRY_OVERHEAD + value.room);
        let queues = self.queues.iter().map(|(key, values)| {
            let values = values.iter().map(|value| value.len() + ENTRY_OVERHEAD);
            key.len() + ENTRY_OVERHEAD + values.sum::<usize>()
        });
        let waits = self.waits.iter().map(|(_, awaited)| match awaited {
            Awaited::Names(names) => names.iter().map(|name| awaited_cost(name)).sum(),
            Awaited::Barrier(key) => awaited_cost(key),
        });
        let replaced: BTreeMap<_, usize> = self
            .being_read()
            .filter(|value| !self.entries.values().any(|stored| is_same(stored, value)))
            .map(|value| (Rc::as_ptr(&value.bytes), value.room))
            .collect();
        entries.chain(queues).chain(waits).chain(replaced.into_values()).sum()
    }

    fn is_read(&self, value: &Value) -> bool {
        self.being_read().any(|read| is_same(read, value))
    }

    fn being_read(&self) -> impl Iterator<Item = &Value> {
        self.clients.iter().flat_map(|client| &client.expected).filter_map(|answer| match answer {
            Answer::Shared(value) => Some(value),
            Answer::Bytes(_) | Answer::Keys(_) => None,
        })
    }

    /// Returns true if a value was just extended; [`Self::learn_room`] then sets its room.
    pub(crate) fn has_extended(&self) -> bool {
        self.extended.is_some()
    }

    /// Sets the room of an extended value from the bytes that the store holds.
    pub(crate) fn learn_room(&mut self, used: usize) {
        let without = self.used();
        if let Some(value) = self.extended.take().and_then(|key| self.entries.get_mut(&key)) {
            let (len, room) = (value.bytes.len(), used - without);
            let most = EXTENDED_ROOM_MIN.max(2 * len);
            assert!((len..=most).contains(&room), "{len} bytes occupy {room}");
            value.room = room;
        }
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.entries.keys().cloned().collect()
    }

    pub(crate) fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key).map(|value| &value.bytes[..])
    }

    pub(crate) fn queues(&self) -> Vec<(Vec<u8>, usize)> {
        self.queues.iter().map(|(key, values)| (key.clone(), values.len())).collect()
    }
}

impl Answer {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(value) => value.bytes.len(),
            Self::Keys(keys) => 8 + keys.iter().map(|key| 8 + key.len()).sum::<usize>(),
        }
    }

    fn check(&self, received: &[u8]) {
        match self {
            Self::Bytes(bytes) | Self::Shared(Value { bytes, .. }) => {
                assert!(received == &bytes[..], "{received:?} is not {bytes:?}");
            }
            Self::Keys(keys) => {
                let mut rest = received;
                assert_eq!(length(&mut rest), keys.len());
                let mut listed = BTreeSet::new();
                while !rest.is_empty() {
                    let len = length(&mut rest);
                    listed.insert(rest.split_off(..len).expect("a whole key").to_vec());
                }
                assert_eq!(&listed, keys);
            }
        }
    }
}

fn is_same(a: &Value, b: &Value) -> bool {
    Rc::ptr_eq(&a.bytes, &b.bytes)
}

fn awaited_cost(name: &[u8]) -> usize {
    name.len() + AWAITED_OVERHEAD
}

fn word(n: usize) -> Vec<u8> {
    (n as u64).to_le_bytes().to_vec()
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&word(bytes.len()), bytes].concat()
}

fn length(bytes: &mut &[u8]) -> usize {
    let (word, rest) = bytes.split_first_chunk().expect("a length");
    *bytes = rest;
    u64::from_le_bytes(*word) as usize
}
