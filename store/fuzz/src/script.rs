//! Reads an input as a script of what clients do.
//!
//! Keys and values come from short tables, so that clients meet at the same keys and the interesting
//! lengths are found at once.

use ragent_store::limits::{KEY_LEN_MAX, SHARED_VALUE_LEN_MIN};
use ragent_store::wire::{Query, QueryType};

/// How many clients take part.
pub(crate) const CLIENTS: usize = 4;

pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

/// What one client does next.
#[derive(Debug)]
pub(crate) enum Deed<'a> {
    /// Sends a request.
    Ask(Query<'static>),
    /// Sends so many bytes of a request, and the others before whatever it sends next.
    Begin(Query<'static>, usize),
    /// Sends any bytes.
    Say(&'a [u8]),
    /// Reads so many bytes of its answers.
    Read(usize),
    /// Hangs up; another comes, and says `VALIDATE`, or nothing yet.
    Leave { greeted: bool },
}

impl<'a> Script<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// The next byte; 0 once there is none.
    pub(crate) fn byte(&mut self) -> u8 {
        self.rest.split_off_first().copied().unwrap_or(0)
    }

    /// The next deed, of whole requests only, and whose it is.
    pub(crate) fn next_whole(&mut self) -> Option<(usize, Deed<'a>)> {
        let (client, deed) = self.first()?;
        Some(match deed {
            14 => (client, Deed::Read(256 * usize::from(self.byte()))),
            15 => (client, Deed::Leave { greeted: true }),
            _ => (client, Deed::Ask(self.query())),
        })
    }

    /// The next deed, whatever it is, and whose.
    pub(crate) fn next_any(&mut self) -> Option<(usize, Deed<'a>)> {
        let (client, deed) = self.first()?;
        let deed = match deed {
            0..9 => Deed::Ask(self.query()),
            9 => Deed::Begin(self.query(), usize::from(self.byte())),
            10..12 => {
                let len = usize::from(self.byte());
                Deed::Say(self.rest.split_off(..len.min(self.rest.len())).unwrap_or_default())
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
            // Once is enough: it ends the connection.
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
