//! Reads ranges of blocks from the agents that hold them, and sends them.

use std::{fs::File, sync::Arc};

use ragent_base::{net::secure_stream::SecureStream, sys::clock};
use ragent_core::memory::{BlockRange, Decline, PartId, Sum, TransferEnd, TransferId};
use ragent_rendezvous::jitter::Pauses;
use tokio::io::AsyncReadExt;
use tracing::warn;

use super::{
    Transport,
    block::{Moved, STOPPED, read_byte, receive, send, write},
    frames::{Frame, Verdict},
    moved,
    outgoing::unless_stopped,
};
use crate::memory::{
    buffers::{Sums, make},
    event::{Event, TransferAnswer},
    limits,
    threads::{Stop, stopped},
};

/// Ranges of a part that a worker wants, and the file to which they are written, one after the other.
#[derive(Clone, Debug)]
struct Wanted {
    part: PartId,
    ranges: Arc<[BlockRange]>,
    file: Arc<File>,
}

impl Transport {
    /// Reads ranges of a part from one of its holders, and reports the end.
    pub(in crate::memory) async fn fetch_ranges(
        &self,
        (transfer, stop): (TransferId, Stop),
        sources: Vec<String>,
        part: PartId,
        ranges: Vec<BlockRange>,
    ) {
        let file = match make(ranges.iter().map(|range| range.bytes).sum()) {
            Ok(file) => Arc::new(file),
            Err(error) => {
                warn!(%error, "failed to make a file for a checkpoint in memory");
                return self.ended(transfer, TransferEnd::Declined(Decline::NoRoom)).await;
            }
        };
        let wanted = Wanted { part, ranges: ranges.into(), file: Arc::clone(&file) };
        let end = tokio::select! {
            end = self.read_from_any(&stop, &sources, &wanted) => end,
            () = stopped(stop.clone()) => TransferEnd::Failed(STOPPED.to_owned()),
        };
        match end {
            // This fails only if the agent ends.
            TransferEnd::Done => drop(self.events.send(Event::Fetched { transfer, file }).await),
            end => self.ended(transfer, end).await,
        }
    }

    async fn read_from_any(&self, stop: &Stop, sources: &[String], wanted: &Wanted) -> TransferEnd {
        let (first, longest) = (limits::RANGES_RETRY_FIRST, limits::RANGES_RETRY_MAX);
        let mut pauses = Pauses::new(first, longest, rand::random());
        let until = clock::now() + limits::RANGES_PATIENCE;
        loop {
            let (mut end, mut may_answer_later) = (TransferEnd::Done, false);
            for source in sources {
                let read = self.read_from(stop, source, wanted.clone()).await;
                end = read.unwrap_or_else(TransferEnd::Failed);
                if end == TransferEnd::Done {
                    return end;
                }
                may_answer_later |= matches!(end, TransferEnd::Failed(_));
            }
            if !may_answer_later || clock::now() >= until {
                return end;
            }
            clock::until(Some(clock::now() + pauses.after_failure())).await;
        }
    }

    async fn read_from(
        &self,
        stop: &Stop,
        source: &str,
        wanted: Wanted,
    ) -> Result<TransferEnd, String> {
        let (stream, _place) = unless_stopped(stop, self.connect(source)).await?;
        self.on_thread(stop.clone(), read_ranges(stream, wanted)).await
    }

    /// Sends the range that the other end wants.
    pub(super) async fn give_range(
        &self,
        mut stream: SecureStream,
        transfer: TransferId,
        part: PartId,
        range: BlockRange,
    ) -> Result<Moved<SecureStream>, String> {
        let wanted = |answer| Event::WantedRange { transfer, part, range, answer };
        let (range, file) = match self.decide(wanted).await? {
            TransferAnswer::ServeRange(range, file) => (range, file),
            TransferAnswer::Decline(why) => {
                write(&mut stream, &[Verdict::Decline(why).encode()]).await?;
                return Ok((TransferEnd::Declined(why), stream));
            }
            TransferAnswer::Receive(..) | TransferAnswer::Serve(..) => {
                return Err("this agent has decided otherwise".to_owned());
            }
        };
        self.on_thread(self.stop.clone(), async move {
            write(&mut stream, &[Verdict::Take.encode()]).await?;
            let (mut sums, mut is_same, mut block) = (Sums::new(), true, Vec::new());
            let (mut at, end) = (range.offset, range.offset + range.bytes);
            while at < end {
                let (piece, is_block_same) = file.read_checked(at, end, &mut block)?;
                is_same &= is_block_same;
                sums.add(piece);
                send(&mut stream, piece).await?;
                at += piece.len() as u64;
            }
            let sum = sums.finish().0;
            // The other end takes a wrong sum for what it is: content that has changed.
            let sum = if is_same { sum } else { !sum };
            write(&mut stream, &sum.to_be_bytes()).await?;
            Ok((TransferEnd::Done, stream))
        })
        .await
    }
}

/// Asks for all ranges at once, and writes them to the file.
///
/// # Errors
///
/// Returns the reason why the connection is of no further use.
async fn read_ranges(mut stream: SecureStream, wanted: Wanted) -> Result<TransferEnd, String> {
    let Wanted { part, ranges, file } = wanted;
    let frames: Vec<u8> =
        ranges.iter().flat_map(|range| Frame::Range(part, *range).encode()).collect();
    write(&mut stream, &frames).await?;
    let mut at = 0;
    for range in &*ranges {
        let verdict = Verdict::decode(read_byte(&mut stream).await?);
        match verdict.map_err(|error| error.to_string())? {
            Verdict::Take => {}
            Verdict::Decline(Decline::Changed) => return Ok(TransferEnd::WrongSum),
            Verdict::Decline(_) => return Ok(TransferEnd::Declined(Decline::NotHere)),
        }
        let sum = receive(&mut stream, &file, at..at + range.bytes).await?;
        if sum != Sum(moved(stream.read_u128()).await?) {
            return Ok(TransferEnd::WrongSum);
        }
        at += range.bytes;
    }
    Ok(TransferEnd::Done)
}
