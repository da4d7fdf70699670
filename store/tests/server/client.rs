//! A client of a store that sends one request at a time.
//!
//! Keys are sent unchanged: torch would put a `/` in front of every key.

mod error;
mod exchange;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use ragent_store::wire::{GREETING, NOT_READY, Query, READY};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) use self::error::{ConnectError, RequestError, WaitError};

/// A connection to a store.
///
/// Answers carry no names, so they must be read in the order of the requests. If the future of a
/// method is dropped before it completes, its answer remains unread, and every later method returns
/// [`RequestError::Interrupted`]. To limit a wait, use the time limit of [`wait`](Self::wait).
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    received: BytesMut,
    phase: ClientPhase,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ClientPhase {
    Idle,
    /// A request was sent; permanent if that request was dropped or failed.
    Busy,
}

impl Client {
    /// Connects to the store at `addr` and sends `VALIDATE` and a `PING`, all within `limit`.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if no store answers in time.
    pub(crate) async fn connect(addr: SocketAddr, limit: Duration) -> Result<Self, ConnectError> {
        timeout(limit, async {
            let connect = TcpStream::connect(addr).await.and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(stream)
            });
            let stream = connect.map_err(|source| ConnectError::Connect { addr, source })?;
            let mut client = Self { stream, received: BytesMut::new(), phase: ClientPhase::Idle };
            match client.greet().await {
                Ok(()) => Ok(client),
                Err(source) => Err(ConnectError::Greeting { addr, source }),
            }
        })
        .await
        .unwrap_or(Err(ConnectError::TimedOut { addr, limit }))
    }

    async fn greet(&mut self) -> Result<(), RequestError> {
        // In one write: upstream refuses a VALIDATE in two pieces.
        self.stream.write_all(&GREETING).await?;
        let nonce = std::process::id();
        if self.ping(nonce).await? == nonce { Ok(()) } else { Err(RequestError::Protocol) }
    }

    /// Sends `nonce` and returns the answer, which a store leaves unchanged.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn ping(&mut self, nonce: u32) -> Result<u32, RequestError> {
        self.ask(Query::Ping { nonce }, async |client| Ok(client.take(4).await?.get_u32_le())).await
    }

    /// Stores `value` under `key`. There is no answer; a refusal shows at the next request.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub(crate) async fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), RequestError> {
        self.execute(Query::Set { key, value }).await
    }

    /// Returns the value under `key`, empty if there is none; call [`wait`](Self::wait) first.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Bytes, RequestError> {
        self.ask(Query::Get { key }, Self::take_value).await
    }

    /// Adds `delta` to the number under `key`, zero if there is none, and returns the sum.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::Closed`] if the value is not a number.
    pub(crate) async fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, RequestError> {
        self.ask(Query::Add { key, delta }, Self::take_i64).await
    }

    /// Stores `desired` if the value is `expected`; returns the value afterwards.
    ///
    /// If there is none and one is expected, it returns `expected` and stores nothing.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Bytes, RequestError> {
        self.ask(Query::CompareSet { key, expected, desired }, Self::take_value).await
    }

    /// Returns true if all of `keys` are present, as keys or as queues that are not empty.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn check(&mut self, keys: &[&[u8]]) -> Result<bool, RequestError> {
        let answer = self.ask(Query::Check { keys: keys.to_vec() }, Self::take_u8).await?;
        match answer {
            READY => Ok(true),
            NOT_READY => Ok(false),
            _ => Err(self.confused()),
        }
    }

    /// Waits until each of `keys` has been present, for `limit` at most.
    ///
    /// # Errors
    ///
    /// Returns [`WaitError::TimedOut`] if it took longer; the client remains usable.
    pub(crate) async fn wait(&mut self, keys: &[&[u8]], limit: Duration) -> Result<(), WaitError> {
        self.await_released(Query::Wait { keys: keys.to_vec() }, limit).await
    }

    /// Counts an arrival under `key` and waits until `world_size` have arrived, for `limit` at
    /// most. The arrival remains counted.
    ///
    /// # Errors
    ///
    /// Returns [`WaitError::TimedOut`] if it took longer; the client remains usable.
    pub(crate) async fn barrier(
        &mut self,
        key: &[u8],
        world_size: i64,
        limit: Duration,
    ) -> Result<(), WaitError> {
        self.await_released(Query::Barrier { key, world_size }, limit).await
    }

    /// Removes `key` and returns true if it was present.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn delete_key(&mut self, key: &[u8]) -> Result<bool, RequestError> {
        Ok(self.ask(Query::DeleteKey { key }, Self::take_i64).await? > 0)
    }

    /// Appends `value` to the value under `key`. There is no answer.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub(crate) async fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), RequestError> {
        self.execute(Query::Append { key, value }).await
    }

    /// Returns the value of each of `keys`, empty for a key that is absent.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn multi_get(&mut self, keys: &[&[u8]]) -> Result<Vec<Bytes>, RequestError> {
        self.ask(Query::MultiGet { keys: keys.to_vec() }, async |client| {
            client.take_values(keys.len()).await
        })
        .await
    }

    /// Stores all `pairs`, in order. There is no answer.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub(crate) async fn multi_set(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<(), RequestError> {
        self.execute(Query::MultiSet { pairs: pairs.to_vec() }).await
    }

    /// Returns the number of keys.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn num_keys(&mut self) -> Result<usize, RequestError> {
        self.ask(Query::GetNumKeys, Self::take_len).await
    }

    /// Returns all keys, in any order.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn list_keys(&mut self) -> Result<Vec<Bytes>, RequestError> {
        self.ask(Query::ListKeys, async |client| {
            let count = client.take_len().await?;
            client.take_values(count).await
        })
        .await
    }

    /// Appends `value` to `queue`. There is no answer.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub(crate) async fn queue_push(
        &mut self,
        queue: &[u8],
        value: &[u8],
    ) -> Result<(), RequestError> {
        self.execute(Query::QueuePush { queue, value }).await
    }

    /// Removes and returns the first value of `queue`, if there is one.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn queue_pop(&mut self, queue: &[u8]) -> Result<Option<Bytes>, RequestError> {
        self.ask(Query::QueuePop { queue }, async |client| match client.take_len().await? {
            0 => Ok(None),
            _ => client.take_value().await.map(Some),
        })
        .await
    }

    /// Returns the number of values in `queue`.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub(crate) async fn queue_len(&mut self, queue: &[u8]) -> Result<usize, RequestError> {
        self.ask(Query::QueueLen { queue }, Self::take_len).await
    }
}
