//! The exchange of a request and its answer.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use ragent_store::limits::{ANSWER_LEN_MAX, READ_LEN};
use ragent_store::wire::{Query, STOP_WAITING, WAIT_CANCELED};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Client, ClientPhase, RequestError, WaitError};

impl Client {
    pub(super) async fn execute(&mut self, query: Query<'_>) -> Result<(), RequestError> {
        self.ask(query, async |_| Ok(())).await
    }

    /// Sends `query` and reads its answer with `answer`.
    pub(super) async fn ask<T>(
        &mut self,
        query: Query<'_>,
        answer: impl AsyncFnOnce(&mut Self) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        self.send(query).await?;
        let answer = answer(self).await?;
        self.phase = ClientPhase::Idle;
        Ok(answer)
    }

    async fn send(&mut self, query: Query<'_>) -> Result<(), RequestError> {
        if self.phase == ClientPhase::Busy {
            return Err(RequestError::Interrupted);
        }
        let mut request = Vec::new();
        query.encode(&mut request)?;
        self.phase = ClientPhase::Busy;
        self.stream.write_all(&request).await?;
        Ok(())
    }

    /// Sends `query` and waits for its answer of one byte, or cancels it.
    pub(super) async fn await_released(
        &mut self,
        query: Query<'_>,
        limit: Duration,
    ) -> Result<(), WaitError> {
        self.send(query).await?;
        let released = match timeout(limit, self.take_u8()).await {
            Ok(answer) => answer? == STOP_WAITING,
            Err(_) => return self.cancel_wait(limit).await,
        };
        if !released {
            return Err(self.confused().into());
        }
        self.phase = ClientPhase::Idle;
        Ok(())
    }

    async fn cancel_wait(&mut self, limit: Duration) -> Result<(), WaitError> {
        let request = [Query::CancelWait.kind().code()];
        self.stream.write_all(&request).await.map_err(RequestError::from)?;
        let first = self.take_u8().await?;
        let result = match first {
            WAIT_CANCELED => Err(WaitError::TimedOut(limit)),
            // The wait ended just before the cancellation arrived, which is answered too.
            STOP_WAITING if self.take_u8().await? == WAIT_CANCELED => Ok(()),
            _ => return Err(self.confused().into()),
        };
        self.phase = ClientPhase::Idle;
        result
    }

    /// Makes the client unusable, since the peer does not speak the protocol.
    pub(super) fn confused(&mut self) -> RequestError {
        self.phase = ClientPhase::Busy;
        RequestError::Protocol
    }

    pub(super) async fn take_values(&mut self, count: usize) -> Result<Vec<Bytes>, RequestError> {
        // Not reserved: the peer may send any count.
        let mut values = Vec::new();
        let mut room = ANSWER_LEN_MAX;
        for _ in 0..count {
            let value = self.take_value().await?;
            room = room.checked_sub(8 + value.len()).ok_or(RequestError::Protocol)?;
            values.push(value);
        }
        Ok(values)
    }

    pub(super) async fn take_value(&mut self) -> Result<Bytes, RequestError> {
        let len = self.take_len().await?;
        self.take(len).await
    }

    /// Takes a length or a count. Both are at most the bytes of an answer, as each item takes some.
    pub(super) async fn take_len(&mut self) -> Result<usize, RequestError> {
        let len = usize::try_from(self.take_i64().await?).map_err(|_| RequestError::Protocol)?;
        if len > ANSWER_LEN_MAX { Err(RequestError::Protocol) } else { Ok(len) }
    }

    pub(super) async fn take_i64(&mut self) -> Result<i64, RequestError> {
        Ok(self.take(8).await?.get_i64_le())
    }

    pub(super) async fn take_u8(&mut self) -> Result<u8, RequestError> {
        Ok(self.take(1).await?.get_u8())
    }

    /// Takes `len` bytes of answers, as soon as they have arrived.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the bytes that were received stay for the next call.
    pub(super) async fn take(&mut self, len: usize) -> Result<Bytes, RequestError> {
        while self.received.len() < len {
            self.received.reserve(READ_LEN);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(RequestError::Closed);
            }
        }
        Ok(self.received.split_to(len).freeze())
    }
}
