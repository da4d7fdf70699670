//! Finds the requests in a stream of bytes.
//!
//! Two passes: the first follows the length words and keeps its position, so a request costs the
//! same whether it arrives byte by byte or at once; the second, over a whole request, parses it. A
//! request that the first pass has measured cannot fail in the second.

use super::encode::{self, LimitError};
use super::layout::Field;
use super::{Query, QueryType};

/// Takes queries off the front of a growing buffer.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The end of the measured part; beyond the buffer while a value is arriving.
    end: usize,
    progress: Progress,
}

/// The part of a request that is still to be measured.
#[derive(Clone, Copy, Debug, Default)]
enum Progress {
    /// The code, and thus everything.
    #[default]
    Code,
    /// `next`, and all repeated fields `repeat` times more once `next` is empty.
    Fields { kind: QueryType, next: &'static [Field], repeat: usize },
}

/// No query begins with the bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// A length or a count beyond its limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A code without a query.
    #[error("{0} is not the code of a query")]
    UnknownCode(u8),
}

impl Decoder {
    /// Takes one query off the front of `buf`, or returns `None` if it has not arrived whole.
    ///
    /// In that case, call again with the same bytes followed by more.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError`] if no query begins with `buf`. The end of the request is unknown
    /// then, so the stream has to be closed.
    pub fn decode<'a>(&mut self, buf: &mut &'a [u8]) -> Result<Option<Query<'a>>, DecodeError> {
        let Some(kind) = self.measure(buf)? else { return Ok(None) };
        let Some((request, rest)) = buf.split_at_checked(self.end) else { return Ok(None) };
        let Some(query) = Fields { rest: &request[1..] }.query(kind) else {
            debug_assert!(false, "a measured request is whole");
            return Ok(None);
        };
        *buf = rest;
        *self = Self::default();
        Ok(Some(query))
    }

    /// Follows the length words in `buf`; returns the type of the query once all have been read.
    fn measure(&mut self, buf: &[u8]) -> Result<Option<QueryType>, DecodeError> {
        loop {
            self.progress = match self.progress {
                Progress::Code => {
                    let Some(&code) = buf.first() else { return Ok(None) };
                    let kind = QueryType::from_code(code).ok_or(DecodeError::UnknownCode(code))?;
                    self.end = 1;
                    Progress::Fields { kind, next: kind.fields(), repeat: 0 }
                }
                Progress::Fields { kind, next: [], repeat: 0 } => return Ok(Some(kind)),
                Progress::Fields { kind, next: [], repeat } => {
                    // Only the fields after the count, which is the first, are repeated.
                    Progress::Fields { kind, next: &kind.fields()[1..], repeat: repeat - 1 }
                }
                Progress::Fields { kind, next: [Field::Count, ..], .. } => {
                    let Some(count) = self.word(buf) else { return Ok(None) };
                    let repeat = encode::keys(count)?;
                    self.skip(8)?;
                    Progress::Fields { kind, next: &[], repeat }
                }
                Progress::Fields { kind, next: [field, next @ ..], repeat } => {
                    let Some(len) = self.field_len(*field, buf)? else { return Ok(None) };
                    self.skip(len)?;
                    Progress::Fields { kind, next, repeat }
                }
            };
        }
    }

    fn field_len(&self, field: Field, buf: &[u8]) -> Result<Option<usize>, LimitError> {
        let limit = match field {
            Field::Fixed(len) => return Ok(Some(len)),
            Field::Count | Field::Key => encode::key_len,
            Field::Value => encode::value_len,
        };
        self.word(buf).map(|len| Ok(8 + limit(len)?)).transpose()
    }

    fn word(&self, buf: &[u8]) -> Option<u64> {
        buf.get(self.end..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }

    fn skip(&mut self, len: usize) -> Result<(), LimitError> {
        self.end += len;
        encode::request_len(self.end)
    }
}

/// The fields of a whole request. `None` would mean that the request was incomplete.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn query(mut self, kind: QueryType) -> Option<Query<'a>> {
        Some(match kind {
            QueryType::Validate => Query::Validate { magic: self.u32()? },
            QueryType::Set => Query::Set { key: self.string()?, value: self.string()? },
            QueryType::CompareSet => Query::CompareSet {
                key: self.string()?,
                expected: self.string()?,
                desired: self.string()?,
            },
            QueryType::Get => Query::Get { key: self.string()? },
            QueryType::Add => Query::Add { key: self.string()?, delta: self.i64()? },
            QueryType::Check => Query::Check { keys: self.list(Self::string)? },
            QueryType::Wait => Query::Wait { keys: self.list(Self::string)? },
            QueryType::GetNumKeys => Query::GetNumKeys,
            QueryType::DeleteKey => Query::DeleteKey { key: self.string()? },
            QueryType::Append => Query::Append { key: self.string()?, value: self.string()? },
            QueryType::MultiGet => Query::MultiGet { keys: self.list(Self::string)? },
            QueryType::MultiSet => Query::MultiSet { pairs: self.list(Self::pair)? },
            QueryType::CancelWait => Query::CancelWait,
            QueryType::Ping => Query::Ping { nonce: self.u32()? },
            QueryType::QueuePush => {
                Query::QueuePush { queue: self.string()?, value: self.string()? }
            }
            QueryType::QueuePop => Query::QueuePop { queue: self.string()? },
            QueryType::QueueLen => Query::QueueLen { queue: self.string()? },
            QueryType::ListKeys => Query::ListKeys,
            QueryType::Barrier => Query::Barrier { key: self.string()?, world_size: self.i64()? },
        })
    }

    fn list<T>(&mut self, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.u64()?).ok()?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn pair(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        Some((self.string()?, self.string()?))
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u64()?).ok()?;
        self.rest.split_off(..len)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.chunk().map(i64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*chunk)
    }
}

#[cfg(test)]
mod tests;
