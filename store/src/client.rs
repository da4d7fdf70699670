//! Asks a store, one request at a time.
//!
//! For tools and tests, and for those who want from Rust what `torch.distributed.TCPStore` gives
//! to Python. Keys are sent as they are: the `/` that torch puts in front of every key is the
//! caller's to add.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::limits::{ANSWER_LEN_MAX, READ_LEN};
use crate::wire::{GREETING, LimitError, NOT_READY, Query, READY, STOP_WAITING, WAIT_CANCELED};

/// A connection to a store.
///
/// The answers have no names, so they must be read in the order of the requests. A method that is
/// dropped before it is done leaves an answer behind: from then on every method returns
/// [`RequestError::Interrupted`]. To give up waiting, use the time limit of [`wait`](Self::wait).
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    received: BytesMut,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Idle,
    /// A request is out; also for good, if it was dropped or failed.
    Busy,
}

/// A store cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No connection, for a reason that the operating system gives.
    #[error("failed to connect to `{addr}`")]
    Connect {
        /// Where to.
        addr: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something is connected, but it does not behave like a store.
    #[error("what listens on `{addr}` is no store")]
    Greeting {
        /// Where.
        addr: SocketAddr,
        /// What went wrong.
        #[source]
        source: RequestError,
    },
    /// It took too long.
    #[error("`{addr}` did not answer within {limit:?}")]
    TimedOut {
        /// Who did not.
        addr: SocketAddr,
        /// The time it was given.
        limit: Duration,
    },
}

/// A request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The store closed the connection, as it does when a request breaks a rule.
    #[error("the store closed the connection")]
    Closed,
    /// An earlier request failed or was dropped, so answers can no longer be told apart.
    #[error("an earlier request was interrupted")]
    Interrupted,
    /// The connection broke.
    #[error("the connection to the store broke")]
    Io(#[from] io::Error),
    /// The store would refuse the request; it was not sent.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The answer is none that a store gives.
    #[error("the store gave an impossible answer")]
    Protocol,
}

/// A wait has not come true.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// It could not be asked for.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It did not come true in time, and was given up.
    #[error("it was not over within {0:?}")]
    TimedOut(Duration),
}

impl Client {
    /// Connects to the store at `addr` and greets it, all within `limit`.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError`] if no store answers in time.
    pub async fn connect(addr: SocketAddr, limit: Duration) -> Result<Self, ConnectError> {
        timeout(limit, async {
            let connect = TcpStream::connect(addr).await.and_then(|stream| {
                stream.set_nodelay(true)?;
                Ok(stream)
            });
            let stream = connect.map_err(|source| ConnectError::Connect { addr, source })?;
            let mut client = Self {
                stream,
                received: BytesMut::new(),
                phase: Phase::Idle,
            };
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
        if self.ping(nonce).await? == nonce {
            Ok(())
        } else {
            Err(RequestError::Protocol)
        }
    }

    /// Sends `nonce` and returns what comes back, which a store does not change.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn ping(&mut self, nonce: u32) -> Result<u32, RequestError> {
        self.ask(Query::Ping { nonce }, async |client| {
            Ok(client.take(4).await?.get_u32_le())
        })
        .await
    }

    /// Stores `value` under `key`. There is no answer; a refusal shows at the next request.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub async fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), RequestError> {
        self.tell(Query::Set { key, value }).await
    }

    /// Returns the value under `key`, empty if there is none: [`wait`](Self::wait) first.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn get(&mut self, key: &[u8]) -> Result<Bytes, RequestError> {
        self.ask(Query::Get { key }, Self::take_value).await
    }

    /// Adds `delta` to the number under `key`, zero if there is none, and returns the sum.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::Closed`] if the value is not a number.
    pub async fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, RequestError> {
        self.ask(Query::Add { key, delta }, Self::take_i64).await
    }

    /// Stores `desired` if the value is `expected`; returns the value afterwards.
    ///
    /// If there is none and one is expected, it returns `expected` and stores nothing.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Bytes, RequestError> {
        self.ask(
            Query::CompareSet {
                key,
                expected,
                desired,
            },
            Self::take_value,
        )
        .await
    }

    /// Tells whether all of `keys` are present, as keys or as queues that are not empty.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn check(&mut self, keys: &[&[u8]]) -> Result<bool, RequestError> {
        let answer = self
            .ask(
                Query::Check {
                    keys: keys.to_vec(),
                },
                Self::take_u8,
            )
            .await?;
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
    pub async fn wait(&mut self, keys: &[&[u8]], limit: Duration) -> Result<(), WaitError> {
        self.await_released(
            Query::Wait {
                keys: keys.to_vec(),
            },
            limit,
        )
        .await
    }

    /// Counts an arrival under `key` and waits until `world_size` have arrived, for `limit` at
    /// most. The arrival remains counted.
    ///
    /// # Errors
    ///
    /// Returns [`WaitError::TimedOut`] if it took longer; the client remains usable.
    pub async fn barrier(
        &mut self,
        key: &[u8],
        world_size: i64,
        limit: Duration,
    ) -> Result<(), WaitError> {
        self.await_released(Query::Barrier { key, world_size }, limit)
            .await
    }

    /// Removes `key` and tells whether it was there.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn delete_key(&mut self, key: &[u8]) -> Result<bool, RequestError> {
        Ok(self.ask(Query::DeleteKey { key }, Self::take_i64).await? > 0)
    }

    /// Puts `value` behind what is under `key`. There is no answer.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub async fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), RequestError> {
        self.tell(Query::Append { key, value }).await
    }

    /// Returns the value of each of `keys`, empty where there is none.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn multi_get(&mut self, keys: &[&[u8]]) -> Result<Vec<Bytes>, RequestError> {
        self.ask(
            Query::MultiGet {
                keys: keys.to_vec(),
            },
            async |client| client.take_values(keys.len()).await,
        )
        .await
    }

    /// Stores all `pairs`, in order. There is no answer.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub async fn multi_set(&mut self, pairs: &[(&[u8], &[u8])]) -> Result<(), RequestError> {
        self.tell(Query::MultiSet {
            pairs: pairs.to_vec(),
        })
        .await
    }

    /// Returns how many keys there are.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn num_keys(&mut self) -> Result<usize, RequestError> {
        self.ask(Query::GetNumKeys, Self::take_len).await
    }

    /// Returns all keys, in no order.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn list_keys(&mut self) -> Result<Vec<Bytes>, RequestError> {
        self.ask(Query::ListKeys, async |client| {
            let count = client.take_len().await?;
            client.take_values(count).await
        })
        .await
    }

    /// Puts `value` at the end of `queue`. There is no answer.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if it cannot be sent.
    pub async fn queue_push(&mut self, queue: &[u8], value: &[u8]) -> Result<(), RequestError> {
        self.tell(Query::QueuePush { queue, value }).await
    }

    /// Takes the first value off `queue`, if there is one.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn queue_pop(&mut self, queue: &[u8]) -> Result<Option<Bytes>, RequestError> {
        self.ask(Query::QueuePop { queue }, async |client| {
            match client.take_len().await? {
                0 => Ok(None),
                _ => client.take_value().await.map(Some),
            }
        })
        .await
    }

    /// Returns how many values are in `queue`.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError`] if there is no answer.
    pub async fn queue_len(&mut self, queue: &[u8]) -> Result<usize, RequestError> {
        self.ask(Query::QueueLen { queue }, Self::take_len).await
    }

    async fn tell(&mut self, query: Query<'_>) -> Result<(), RequestError> {
        self.ask(query, async |_| Ok(())).await
    }

    /// Sends `query` and reads its answer with `answer`.
    async fn ask<T>(
        &mut self,
        query: Query<'_>,
        answer: impl AsyncFnOnce(&mut Self) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        self.send(query).await?;
        let answer = answer(self).await?;
        self.phase = Phase::Idle;
        Ok(answer)
    }

    async fn send(&mut self, query: Query<'_>) -> Result<(), RequestError> {
        if self.phase == Phase::Busy {
            return Err(RequestError::Interrupted);
        }
        let mut request = Vec::new();
        query.encode(&mut request)?;
        self.phase = Phase::Busy;
        self.stream.write_all(&request).await?;
        Ok(())
    }

    /// Sends `query` and waits for its one byte, or takes it back.
    async fn await_released(&mut self, query: Query<'_>, limit: Duration) -> Result<(), WaitError> {
        self.send(query).await?;
        let released = match timeout(limit, self.take_u8()).await {
            Ok(answer) => answer? == STOP_WAITING,
            Err(_) => return self.cancel_wait(limit).await,
        };
        if !released {
            return Err(self.confused().into());
        }
        self.phase = Phase::Idle;
        Ok(())
    }

    async fn cancel_wait(&mut self, limit: Duration) -> Result<(), WaitError> {
        let request = [Query::CancelWait.kind().code()];
        self.stream
            .write_all(&request)
            .await
            .map_err(RequestError::from)?;
        let first = self.take_u8().await?;
        let result = match first {
            WAIT_CANCELED => Err(WaitError::TimedOut(limit)),
            // It came true just before the cancellation arrived there, which is answered too.
            STOP_WAITING if self.take_u8().await? == WAIT_CANCELED => Ok(()),
            _ => return Err(self.confused().into()),
        };
        self.phase = Phase::Idle;
        result
    }

    /// Gives up on a peer that does not speak the protocol.
    fn confused(&mut self) -> RequestError {
        self.phase = Phase::Busy;
        RequestError::Protocol
    }

    async fn take_values(&mut self, count: usize) -> Result<Vec<Bytes>, RequestError> {
        // Not reserved: the count is the peer's word.
        let mut values = Vec::new();
        let mut room = ANSWER_LEN_MAX;
        for _ in 0..count {
            let value = self.take_value().await?;
            room = room
                .checked_sub(8 + value.len())
                .ok_or(RequestError::Protocol)?;
            values.push(value);
        }
        Ok(values)
    }

    async fn take_value(&mut self) -> Result<Bytes, RequestError> {
        let len = self.take_len().await?;
        self.take(len).await
    }

    /// Takes a length or a count. No answer has so many items that they could not be its bytes.
    async fn take_len(&mut self) -> Result<usize, RequestError> {
        let len = usize::try_from(self.take_i64().await?).map_err(|_| RequestError::Protocol)?;
        if len > ANSWER_LEN_MAX {
            Err(RequestError::Protocol)
        } else {
            Ok(len)
        }
    }

    async fn take_i64(&mut self) -> Result<i64, RequestError> {
        Ok(self.take(8).await?.get_i64_le())
    }

    async fn take_u8(&mut self) -> Result<u8, RequestError> {
        Ok(self.take(1).await?.get_u8())
    }

    /// Takes `len` bytes of answers, as soon as they are here.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: what was received stays for the next call.
    async fn take(&mut self, len: usize) -> Result<Bytes, RequestError> {
        while self.received.len() < len {
            self.received.reserve(READ_LEN);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(RequestError::Closed);
            }
        }
        Ok(self.received.split_to(len).freeze())
    }
}
