//! Moves one block over a connection, in pieces, from a buffer to a buffer.
//!
//! The bytes move on a thread of their own, because encryption and checksums need a processor.

use std::{fs::File, ops::Range, os::unix::fs::FileExt, sync::Arc};

use ragent_core::memory::{BlockHeader, Sum, TransferEnd, TransferId};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    runtime::Handle,
};

use super::{
    AgentStream, Transport,
    frames::{Frame, Receipt, Verdict},
    moved,
};
use crate::memory::{
    buffers::{MemoryFile, Sums, piece_len},
    event::{Event, TransferAnswer, memory_left},
    threads::{Stop, stopped},
};

/// A transfer that has ended, and its connection, on which further requests may follow.
pub(super) type Moved<S> = (TransferEnd, S);

impl Transport {
    /// Offers a block to the other end, and sends it if that takes it.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection is of no further use.
    pub(super) async fn offer<S: AgentStream>(
        &self,
        mut stream: S,
        header: BlockHeader,
        file: Arc<MemoryFile>,
        stop: Stop,
    ) -> Result<Moved<S>, String> {
        write(&mut stream, &Frame::Put(header).encode()).await?;
        let verdict = Verdict::decode(read_byte(&mut stream).await?);
        if let Verdict::Decline(why) = verdict.map_err(|error| error.to_string())? {
            return Ok((TransferEnd::Declined(why), stream));
        }
        self.on_thread(stop, async move {
            send_file(&mut stream, file.with_content()?, header.bytes).await?;
            let receipt = Receipt::decode(read_byte(&mut stream).await?);
            let end = match receipt.map_err(|error| error.to_string())? {
                Receipt::Done => TransferEnd::Done,
                Receipt::WrongSum => TransferEnd::WrongSum,
            };
            Ok((end, stream))
        })
        .await
    }

    /// Answers an offer of the other end, and receives the block if the machine wants it.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection is of no further use.
    pub(super) async fn receive_offered<S: AgentStream>(
        &self,
        mut stream: S,
        transfer: TransferId,
        header: BlockHeader,
        stop: Stop,
    ) -> Result<Moved<S>, String> {
        let left = memory_left();
        let incoming = |answer| Event::Incoming { transfer, header, left, answer };
        let (buffer, file) = match self.decide(incoming).await? {
            TransferAnswer::Receive(buffer, file) => (buffer, file),
            TransferAnswer::Decline(why) => {
                write(&mut stream, &[Verdict::Decline(why).encode()]).await?;
                return Ok((TransferEnd::Declined(why), stream));
            }
            TransferAnswer::Serve(..) | TransferAnswer::ServeRange(..) => {
                return Err("this agent has decided otherwise".to_owned());
            }
        };
        if buffer.size < header.bytes {
            return Err("the buffer is too small".to_owned());
        }
        let events = self.events.clone();
        self.on_thread(stop, async move {
            let open = match file.open() {
                Ok(open) => open,
                Err(why) => {
                    let not_made = Event::NotMade { buffer, why: why.clone(), reply: None };
                    // This fails only if the agent ends.
                    let _ = events.send(not_made).await;
                    return Err(why);
                }
            };
            write(&mut stream, &[Verdict::Take.encode()]).await?;
            let is_right = receive(&mut stream, open, 0..header.bytes).await? == header.sum;
            let (receipt, end) = match is_right {
                true => (Receipt::Done, TransferEnd::Done),
                false => (Receipt::WrongSum, TransferEnd::WrongSum),
            };
            write(&mut stream, &[receipt.encode()]).await?;
            Ok((end, stream))
        })
        .await
    }

    /// Runs a part of a transfer on a thread of its own.
    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        stop: Stop,
        part: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        let (handle, busy) = (Handle::current(), self.busy.begin());
        let run = move || {
            let end = handle.block_on(async {
                tokio::select! {
                    biased;
                    () = stopped(stop) => Err(STOPPED.to_owned()),
                    end = part => end,
                }
            });
            drop(busy);
            end
        };
        Handle::current().spawn_blocking(run).await.unwrap_or_else(|_| Err(STOPPED.to_owned()))
    }
}

/// The reason of a transfer that this agent has ended.
pub(super) const STOPPED: &str = "this agent has ended the transfer";

pub(super) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
) -> Result<(), String> {
    moved(async {
        stream.write_all(bytes).await?;
        // TLS has a buffer of its own.
        stream.flush().await
    })
    .await
}

pub(super) async fn read_byte(stream: &mut (impl AsyncRead + Unpin)) -> Result<u8, String> {
    moved(stream.read_u8()).await
}

/// Sends the first `bytes` bytes of a file.
pub(super) async fn send_file(
    stream: &mut (impl AsyncWrite + Unpin),
    file: &File,
    bytes: u64,
) -> Result<(), String> {
    let (mut at, mut piece) = (0, vec![0; piece_len(bytes)]);
    while at < bytes {
        let piece = &mut piece[..piece_len(bytes - at)];
        file.read_exact_at(piece, at).map_err(|error| error.to_string())?;
        send(stream, piece).await?;
        at += piece.len() as u64;
    }
    moved(stream.flush()).await
}

/// Sends these bytes. Each system call may take [`limits::SILENCE`](crate::memory::limits::SILENCE).
pub(super) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    mut rest: &[u8],
) -> Result<(), String> {
    while !rest.is_empty() {
        let sent = moved(stream.write(rest)).await?;
        rest = rest.get(sent.max(1)..).unwrap_or_default();
    }
    Ok(())
}

/// Receives these bytes of a file. Returns their checksum.
pub(super) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    file: &File,
    Range { start: mut at, end }: Range<u64>,
) -> Result<Sum, String> {
    let (mut sums, mut piece) = (Sums::new(), vec![0; piece_len(end - at)]);
    while at < end {
        let piece = &mut piece[..piece_len(end - at)];
        let mut filled = 0;
        while filled < piece.len() {
            match moved(stream.read(&mut piece[filled..])).await? {
                0 => return Err("it has closed the connection".to_owned()),
                read => filled += read,
            }
        }
        sums.add(piece);
        file.write_all_at(piece, at).map_err(|error| error.to_string())?;
        at += filled as u64;
    }
    Ok(sums.finish())
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::clock;
    use ragent_core::memory::Buffer;
    use tokio::io::duplex;

    use super::*;
    use crate::memory::{buffers::Buffers, limits};

    /// A transfer ends 10 s after the last byte, in both directions, and not while bytes move.
    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_transfer() {
        let buffers = Buffers::default();
        let file = buffers.get(Buffer { id: 1, size: 8 << 20 });
        let file = file.open().unwrap();
        let (mut near, mut far) = duplex(1 << 10);
        let begun = clock::now();
        let sending = async {
            far.write_all(&[7; 100]).await.unwrap();
            clock::until(Some(begun + limits::SILENCE * 9 / 10)).await;
            far.write_all(&[7; 100]).await.unwrap();
            std::future::pending::<()>().await;
        };
        let end = tokio::select! {
            end = receive(&mut near, file, 0..8 << 20) => end.unwrap_err(),
            () = sending => unreachable!("it waits for ever"),
        };
        assert_eq!(end, "no byte has moved for 10 s");
        assert_eq!(clock::now() - begun, limits::SILENCE * 19 / 10);
        let begun = clock::now();
        let end = send_file(&mut near, file, 8 << 20).await.unwrap_err();
        assert_eq!(
            (end.as_str(), clock::now() - begun),
            ("no byte has moved for 10 s", limits::SILENCE)
        );
        drop(far);
        assert_eq!(
            receive(&mut near, file, 0..1).await.unwrap_err(),
            "it has closed the connection"
        );
    }
}
