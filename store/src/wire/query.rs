//! The requests of a client.

use super::QueryType;

/// A request whose keys and values are borrowed from the buffer that it arrived in.
///
/// Keys and values are arbitrary bytes, and may be empty. "No answer" means that the next request
/// may follow at once.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of the protocol")]
pub enum Query<'a> {
    /// Begins the connection. No answer.
    Validate { magic: u32 },
    /// Stores a value and releases the clients that wait for the key. No answer.
    Set { key: &'a [u8], value: &'a [u8] },
    /// Stores `desired` if the value is `expected`; an absent key counts as an empty one.
    /// Answer: the value afterwards.
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: &'a [u8] },
    /// Answer: the value, empty if the key is absent.
    Get { key: &'a [u8] },
    /// Adds to the decimal number under the key. Answer: the sum.
    Add { key: &'a [u8], delta: i64 },
    /// Answer: one byte that is 0 if all are present.
    Check { keys: Vec<&'a [u8]> },
    /// Answer: one byte, once every key has been present.
    Wait { keys: Vec<&'a [u8]> },
    /// Answer: the number of keys.
    GetNumKeys,
    /// Answer: the number of keys that were removed, 0 or 1.
    DeleteKey { key: &'a [u8] },
    /// Extends or creates a value and releases the clients that wait for the key. No answer.
    Append { key: &'a [u8], value: &'a [u8] },
    /// Answer: the values, each empty if its key is absent.
    MultiGet { keys: Vec<&'a [u8]> },
    /// Stores all pairs, in order. No answer.
    MultiSet { pairs: Vec<(&'a [u8], &'a [u8])> },
    /// Cancels the pending `WAIT` or `BARRIER`. Answer: one byte, also if there is none.
    CancelWait,
    /// Answer: the nonce.
    Ping { nonce: u32 },
    /// Appends a value to a queue and releases one client that waits for it. No answer.
    QueuePush { queue: &'a [u8], value: &'a [u8] },
    /// Removes the first value of a queue. Answer: the length before, and the value if there is
    /// one.
    QueuePop { queue: &'a [u8] },
    /// Answer: the length.
    QueueLen { queue: &'a [u8] },
    /// Answer: all keys, in any order.
    ListKeys,
    /// Counts an arrival under the key. Answer: one byte, once `world_size` have arrived.
    Barrier { key: &'a [u8], world_size: i64 },
}

impl Query<'_> {
    /// Returns the type of this query.
    pub fn kind(&self) -> QueryType {
        match self {
            Self::Validate { .. } => QueryType::Validate,
            Self::Set { .. } => QueryType::Set,
            Self::CompareSet { .. } => QueryType::CompareSet,
            Self::Get { .. } => QueryType::Get,
            Self::Add { .. } => QueryType::Add,
            Self::Check { .. } => QueryType::Check,
            Self::Wait { .. } => QueryType::Wait,
            Self::GetNumKeys => QueryType::GetNumKeys,
            Self::DeleteKey { .. } => QueryType::DeleteKey,
            Self::Append { .. } => QueryType::Append,
            Self::MultiGet { .. } => QueryType::MultiGet,
            Self::MultiSet { .. } => QueryType::MultiSet,
            Self::CancelWait => QueryType::CancelWait,
            Self::Ping { .. } => QueryType::Ping,
            Self::QueuePush { .. } => QueryType::QueuePush,
            Self::QueuePop { .. } => QueryType::QueuePop,
            Self::QueueLen { .. } => QueryType::QueueLen,
            Self::ListKeys => QueryType::ListKeys,
            Self::Barrier { .. } => QueryType::Barrier,
        }
    }
}
