//! Interprets an input as a script of clients' actions.
//!
//! Keys and values come from short tables, so that clients use the same keys and the interesting
//! lengths are found at once.

use ragent_store::limits::{KEY_LEN_MAX, SHARED_VALUE_LEN_MIN};
use ragent_store::wire::{Query, QueryType};

/// The number of clients.
pub(crate) const CLIENTS: usize = 4;

pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

/// The next action of a client.
#[derive(Debug)]
pub(crate) enum Deed<'a> {
    /// Sends a request.
    Ask(Query<'static>),
    /// Sends this many bytes of a request, and the rest before its next bytes.
    Begin(Query<'static>, usize),
    /// Sends arbitrary bytes.
    Send(&'a [u8]),
    /// Reads this many bytes of its answers.
    Read(usize),
    /// Disconnects; another client takes its place, and sends `VALIDATE` if `greeted`.
    Leave { greeted: bool },
}

impl<'a> Script<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// Returns the next byte, or 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        self.rest.split_off_first().copied().unwrap_or(0)
    }

    /// Returns the next action, and its client; all requests are whole.
    pub(crate) fn next_whole(&mut self) -> Option<(usize, Deed<'a>)> {
        let (client, deed) = self.first()?;
        Some(match deed {
            14 => (client, Deed::Read(256 * usize::from(self.byte()))),
            15 => (client, Deed::Leave { greeted: true }),
            _ => (client, Deed::Ask(self.query())),
        })
    }

    /// Returns the next action of any kind, and its client.
    pub(crate) fn next_any(&mut self) -> Option<(usize, Deed<'a>)> {
        let (client, deed) = self.first()?;
        let deed = match deed {
            0..9 => Deed::Ask(self.query()),
            9 => Deed::Begin(self.query(), usize::from(self.byte())),
            10..12 => {
                let len = usize::from(self.byte());
                Deed::Send(self.rest.split_off(..len.min(self.rest.len())).unwrap_or_default())
            }
            12 => Deed::Read(usize::from(self.byte())),
            13 => Deed::Read(256 * usize::from(self.byte())),
            _ => Deed::Leave { greeted: deed == 14 },
        };
        Some((client, deed))
    }

    fn first(&mut self) -> Option<(usize, u8)> {
        let byte = *self.rest.split_off_first()?;
        Some((usize::from(byte >> 4) % CLIENTS, byte & 15))
    }

    fn query(&mut self) -> Query<'static> {
        let kind = QueryType::ALL[usize::from(self.byte()) % QueryType::ALL.len()];
        match kind {
            // Not `VALIDATE`: a second one would end the connection.
            QueryType::Validate | QueryType::Ping => Query::Ping { nonce: self.byte().into() },
            QueryType::Set => Query::Set { key: self.key(), value: self.value() },
            QueryType::CompareSet => {
                Query::CompareSet { key: self.key(), expected: self.value(), desired: self.value() }
            }
            QueryType::Get => Query::Get { key: self.key() },
            QueryType::Add => Query::Add { key: self.key(), delta: self.number() },
            QueryType::Check => Query::Check { keys: self.list(Self::key) },
            QueryType::Wait => Query::Wait { keys: self.list(Self::key) },
            QueryType::GetNumKeys => Query::GetNumKeys,
            QueryType::DeleteKey => Query::DeleteKey { key: self.key() },
            QueryType::Append => Query::Append { key: self.key(), value: self.value() },
            QueryType::MultiGet => Query::MultiGet { keys: self.list(Self::key) },
            QueryType::MultiSet => {
                Query::MultiSet { pairs: self.list(|script| (script.key(), script.value())) }
            }
            QueryType::CancelWait => Query::CancelWait,
            QueryType::QueuePush => Query::QueuePush { queue: self.key(), value: self.value() },
            QueryType::QueuePop => Query::QueuePop { queue: self.key() },
            QueryType::QueueLen => Query::QueueLen { queue: self.key() },
            QueryType::ListKeys => Query::ListKeys,
            QueryType::Barrier => Query::Barrier { key: self.key(), world_size: self.number() },
        }
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.byte() % 6).map(|_| item(self)).collect()
    }

    fn key(&mut self) -> &'static [u8] {
        pick(KEYS, self.byte())
    }

    fn value(&mut self) -> &'static [u8] {
        pick(VALUES, self.byte())
    }

    fn number(&mut self) -> i64 {
        pick(NUMBERS, self.byte())
    }
}

fn pick<T: Copy>(table: &[T], byte: u8) -> T {
    table[usize::from(byte) % table.len()]
}

const KEYS: &[&[u8]] =
    &[b"a", b"b", b"c", b"init/", b"", b"/default_pg/0//cpu//0/1", &[b'k'; KEY_LEN_MAX]];

const VALUES: &[&[u8]] = &[
    b"1",
    b"",
    b"7",
    b"-3",
    b" 12abc",
    b"hello",
    b"9223372036854775807",
    &[b'x'; 100],
    &[b'y'; 1500],
    &[b's'; SHARED_VALUE_LEN_MIN - 1],
    &[b'S'; SHARED_VALUE_LEN_MIN],
    &[b'T'; SHARED_VALUE_LEN_MIN + 1000],
];

const NUMBERS: &[i64] = &[1, 2, 3, 4, 0, -1, i64::MAX, i64::MIN];
