//! Executes the bytes of one connection on the engine, and encodes the replies.
//!
//! ```text
//! Greeting ── VALIDATE ──▶ Open ── broken rule ──▶ the connection is closed
//! ```
//!
//! Until a complete and correct `VALIDATE` has arrived, in any number of pieces, nothing else is
//! accepted, and a wrong byte is refused when it arrives. The original server is laxer in some
//! cases and, for a `VALIDATE` in pieces, stricter; no client depends on either.

use crate::engine::{AddError, AppendError, ClientId, CompareSet, Engine, StoreFull, Wait};
use crate::limits::{ANSWER_LEN_MAX, BUFFERS_LEN_MAX};
use crate::output::SendBuffer;
use crate::wire::{
    DecodeError, Decoder, GREETING, NOT_READY, Query, READY, STOP_WAITING, WAIT_CANCELED,
};

#[cfg(test)]
mod tests;

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Session {
    client: ClientId,
    phase: SessionPhase,
}

#[derive(Debug)]
enum SessionPhase {
    /// Number of bytes of the greeting that have arrived.
    Greeting(usize),
    Open(Decoder),
}

/// The result of [`Session::step`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SessionStep {
    /// Part of the input was used. Drain the engine's woken clients, then step again.
    Taken,
    /// The input does not contain a whole request.
    NeedMore,
}

/// The rule that a client broke. The protocol has no message for it: the connection is closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Violation {
    /// An `ADD` or `BARRIER` of a value that cannot be counted.
    #[error(transparent)]
    Add(#[from] AddError),
    /// An answer of this many bytes, too many.
    #[error("an answer of {0} bytes is longer than {ANSWER_LEN_MAX}")]
    AnswerTooLong(usize),
    /// An `APPEND` that cannot be done.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// More unfinished requests and unsent answers than a server buffers for all connections.
    #[error("all connections together hold more than {BUFFERS_LEN_MAX} bytes")]
    BuffersFull,
    /// Bytes that are not a request.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A value that does not fit.
    #[error(transparent)]
    Full(#[from] StoreFull),
    /// A second `VALIDATE`.
    #[error("VALIDATE was received a second time")]
    SecondValidate,
    /// The first bytes of an old release of torch.
    #[error(
        "this is a client of torch 2.1 or older, which does not begin with VALIDATE; 2.2 or newer \
         is needed"
    )]
    TorchTooOld,
    /// Other first bytes.
    #[error("the first bytes are not VALIDATE: not a store client, or one of torch 2.1 or older")]
    Unvalidated,
}

impl Session {
    /// Returns the session of a connection from which nothing was read yet.
    pub fn new(client: ClientId) -> Self {
        Self { client, phase: SessionPhase::Greeting(0) }
    }

    /// Returns true if the client has sent `VALIDATE`.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, SessionPhase::Open(_))
    }

    /// Takes at most one request off the front of `input`, executes it on `engine` and adds its
    /// answer to `output`.
    ///
    /// On [`SessionStep::NeedMore`], call again with the remaining input, extended by more bytes.
    ///
    /// # Errors
    ///
    /// Returns the [`Violation`] if the connection has to be closed.
    pub fn step(
        &mut self,
        engine: &mut Engine,
        input: &mut &[u8],
        output: &mut SendBuffer,
    ) -> Result<SessionStep, Violation> {
        let decoder = match &mut self.phase {
            SessionPhase::Greeting(_) if input.is_empty() => return Ok(SessionStep::NeedMore),
            SessionPhase::Greeting(seen) => {
                *seen = greet(*seen, input)?;
                if *seen == GREETING.len() {
                    self.phase = SessionPhase::Open(Decoder::default());
                }
                return Ok(SessionStep::Taken);
            }
            SessionPhase::Open(decoder) => decoder,
        };
        let Some(query) = decoder.decode(input)? else { return Ok(SessionStep::NeedMore) };
        execute(self.client, query, engine, output)?;
        Ok(SessionStep::Taken)
    }
}

/// Takes the next part of the greeting off `input`, after `seen` bytes of it that came before.
fn greet(seen: usize, input: &mut &[u8]) -> Result<usize, Violation> {
    let expected = &GREETING[seen..];
    let (head, rest) = input.split_at(expected.len().min(input.len()));
    if !expected.starts_with(head) {
        let old = seen == 0 && head.iter().zip(OLD_GREETING).all(|(byte, old)| byte == old);
        return Err(if old { Violation::TorchTooOld } else { Violation::Unvalidated });
    }
    *input = rest;
    Ok(seen + head.len())
}

fn execute(
    client: ClientId,
    query: Query<'_>,
    engine: &mut Engine,
    output: &mut SendBuffer,
) -> Result<(), Violation> {
    match query {
        Query::Validate { .. } => return Err(Violation::SecondValidate),
        Query::Set { key, value } => engine.set(key, value)?,
        Query::CompareSet { key, expected, desired } => {
            match engine.compare_set(key, expected, desired)? {
                CompareSet::Differs(value) | CompareSet::Stored(value) => output.put_value(value),
                // The key is absent and nothing was stored, but this is what upstream answers.
                CompareSet::Missing => output.put_string(expected),
            }
        }
        Query::Get { key } => put_found(engine, key, output),
        Query::Add { key, delta } => output.put_i64(engine.add(key, delta)?),
        Query::Check { keys } => output.put_u8(if engine.check(&keys) { READY } else { NOT_READY }),
        Query::Wait { keys } => put_wait(engine.wait(client, &keys)?, output),
        Query::GetNumKeys => output.put_len(engine.num_keys()),
        Query::DeleteKey { key } => output.put_len(engine.delete_key(key).into()),
        Query::Append { key, value } => engine.append(key, value)?,
        Query::MultiGet { keys } => multi_get(engine, &keys, output)?,
        Query::MultiSet { pairs } => {
            pairs.iter().try_for_each(|(key, value)| engine.set(key, value))?;
        }
        Query::CancelWait => {
            engine.cancel_wait(client);
            output.put_u8(WAIT_CANCELED);
        }
        Query::Ping { nonce } => output.put_u32(nonce),
        Query::QueuePush { queue, value } => engine.queue_push(queue, value)?,
        Query::QueuePop { queue } => match engine.queue_pop(queue) {
            Some((len, value)) => {
                output.put_len(len);
                output.put_own_value(value);
            }
            None => output.put_len(0),
        },
        Query::QueueLen { queue } => output.put_len(engine.queue_len(queue)),
        Query::ListKeys => list_keys(engine, output)?,
        Query::Barrier { key, world_size } => {
            put_wait(engine.barrier(client, key, world_size)?, output);
        }
    }
    Ok(())
}

fn multi_get(engine: &Engine, keys: &[&[u8]], output: &mut SendBuffer) -> Result<(), Violation> {
    let values_len = keys.iter().map(|key| engine.get(key).map_or(0, |value| value.len())).sum();
    check_answer_len(keys.len(), values_len)?;
    for key in keys {
        put_found(engine, key, output);
    }
    Ok(())
}

fn list_keys(engine: &Engine, output: &mut SendBuffer) -> Result<(), Violation> {
    // Does not look at each key, so that a request whose answer is too long costs little.
    check_answer_len(engine.num_keys(), engine.keys_len())?;
    output.put_len(engine.num_keys());
    for key in engine.list_keys() {
        output.put_string(key);
    }
    Ok(())
}

/// Checks the length of an answer with `strings` strings of `bytes` bytes in all.
fn check_answer_len(strings: usize, bytes: usize) -> Result<(), Violation> {
    let len = 8 * strings + bytes;
    if ANSWER_LEN_MAX < len { Err(Violation::AnswerTooLong(len)) } else { Ok(()) }
}

fn put_found(engine: &Engine, key: &[u8], output: &mut SendBuffer) {
    match engine.get(key) {
        Some(value) => output.put_value(value),
        None => output.put_len(0),
    }
}

fn put_wait(wait: Wait, output: &mut SendBuffer) {
    match wait {
        Wait::Ready => output.put_u8(STOP_WAITING),
        Wait::Parked => {}
    }
}

/// The first bytes of torch 1.13 to 2.1 where an agent hosts the store: `ADD`, then code 3, of
/// `init/`.
const OLD_GREETING: &[u8] = b"\x03\x05\0\0\0\0\0\0\0init/";
