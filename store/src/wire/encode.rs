//! Encodes queries, for the client.

use super::Query;
use crate::limits::{KEY_LEN_MAX, KEYS_MAX, REQUEST_LEN_MAX, VALUE_LEN_MAX};

impl Query<'_> {
    /// Appends the request to `out`.
    ///
    /// # Errors
    ///
    /// Returns [`LimitError`], and leaves `out` unchanged, if a server would refuse the request.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), LimitError> {
        let start = out.len();
        let result = self.encode_fields(out).and_then(|()| request_len(out.len() - start));
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn encode_fields(&self, out: &mut Vec<u8>) -> Result<(), LimitError> {
        out.push(self.kind().code());
        match self {
            Self::GetNumKeys | Self::CancelWait | Self::ListKeys => {}
            Self::Validate { magic: word } | Self::Ping { nonce: word } => {
                out.extend_from_slice(&word.to_le_bytes());
            }
            Self::Get { key }
            | Self::DeleteKey { key }
            | Self::QueuePop { queue: key }
            | Self::QueueLen { queue: key } => put_key(out, key)?,
            Self::Set { key, value }
            | Self::Append { key, value }
            | Self::QueuePush { queue: key, value } => put_pair(out, key, value)?,
            Self::CompareSet { key, expected, desired } => {
                put_pair(out, key, expected)?;
                put_value(out, desired)?;
            }
            Self::Add { key, delta: number } | Self::Barrier { key, world_size: number } => {
                put_key(out, key)?;
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Check { keys } | Self::Wait { keys } | Self::MultiGet { keys } => {
                put_count(out, keys.len())?;
                keys.iter().try_for_each(|key| put_key(out, key))?;
            }
            Self::MultiSet { pairs } => {
                put_count(out, pairs.len())?;
                pairs.iter().try_for_each(|(key, value)| put_pair(out, key, value))?;
            }
        }
        Ok(())
    }
}

/// A request is larger than a store accepts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LimitError {
    /// A key or queue name of this many bytes.
    #[error("a key of {0} bytes is longer than {KEY_LEN_MAX}")]
    KeyTooLong(u64),
    /// A request of at least this many bytes.
    #[error("a request of {0} bytes is longer than {REQUEST_LEN_MAX}")]
    RequestTooLong(u64),
    /// A list of this many keys.
    #[error("a list of {0} keys is longer than {KEYS_MAX}")]
    TooManyKeys(u64),
    /// A value of this many bytes.
    #[error("a value of {0} bytes is longer than {VALUE_LEN_MAX}")]
    ValueTooLong(u64),
}

/// Returns `len` as the length of a key, if it is within the limit.
pub(super) fn key_len(len: u64) -> Result<usize, LimitError> {
    at_most(len, KEY_LEN_MAX, LimitError::KeyTooLong)
}

/// Returns `len` as the length of a value, if it is within the limit.
pub(super) fn value_len(len: u64) -> Result<usize, LimitError> {
    at_most(len, VALUE_LEN_MAX, LimitError::ValueTooLong)
}

/// Returns `count` as a number of keys, if it is within the limit.
pub(super) fn keys(count: u64) -> Result<usize, LimitError> {
    at_most(count, KEYS_MAX, LimitError::TooManyKeys)
}

/// Checks the length of a request, or of its known part.
pub(super) fn request_len(len: usize) -> Result<(), LimitError> {
    at_most(len as u64, REQUEST_LEN_MAX, LimitError::RequestTooLong).map(drop)
}

fn at_most(n: u64, max: usize, error: fn(u64) -> LimitError) -> Result<usize, LimitError> {
    usize::try_from(n).ok().filter(|n| *n <= max).ok_or_else(|| error(n))
}

fn put_count(out: &mut Vec<u8>, count: usize) -> Result<(), LimitError> {
    keys(count as u64)?;
    out.extend_from_slice(&(count as u64).to_le_bytes());
    Ok(())
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) -> Result<(), LimitError> {
    key_len(key.len() as u64)?;
    put_string(out, key);
    Ok(())
}

fn put_value(out: &mut Vec<u8>, value: &[u8]) -> Result<(), LimitError> {
    value_len(value.len() as u64)?;
    put_string(out, value);
    Ok(())
}

fn put_pair(out: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Result<(), LimitError> {
    put_key(out, key)?;
    put_value(out, value)
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
