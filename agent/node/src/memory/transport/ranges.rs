//! Reads ranges of blocks from the agents that hold them, and sends them.

use std::fs::File;

use ragent_base::{net::secure_stream::SecureStream, sys::clock};
use ragent_core::memory::{BlockRange, PartId, Sum, TransferEnd, TransferId};
use ragent_rendezvous::jitter::Pauses;
use tokio::io::AsyncReadExt;

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

/// The ranges, or the way in which the transfer has ended.
type Read = Result<File, TransferEnd>;

impl Transport {
    /// Reads ranges of a part from one of its holders into a file, one after the other, and reports the end.
    pub(in crate::memory) async fn fetch_ranges(
        &self,
        (transfer, stop): (TransferId, Stop),
        sources: Vec<String>,
        part: PartId,
        ranges: Vec<BlockRange>,
    ) {
        let read = tokio::select! {
            read = self.read_from_any(&stop, &sources, part, &ranges) => read,
            () = stopped(stop.clone()) => Err(TransferEnd::Failed(STOPPED.to_owned())),
        };
        match read {
            // This fails only if the agent ends.
            Ok(file) => drop(self.events.send(Event::Fetched { transfer, file }).await),
            Err(end) => self.ended(transfer, end).await,
        }
    }

    async fn read_from_any(
        &self,
        stop: &Stop,
        sources: &[String],
        part: PartId,
        ranges: &[BlockRange],
    ) -> Read {
        let (first, longest) = (limits::RANGES_RETRY_FIRST, limits::RANGES_RETRY_MAX);
        let mut pauses = Pauses::new(first, longest, rand::random());
        let mut last = TransferEnd::Failed("it is not known".to_owned());
        for _ in 0..limits::RANGES_ATTEMPTS {
            let mut may_answer_later = false;
            for source in sources {
                match self.read_from(stop, source, part, ranges).await {
                    Ok(file) => return Ok(file),
                    Err(end) => last = end,
                }
                may_answer_later |= matches!(last, TransferEnd::Failed(_));
            }
            if !may_answer_later {
                break;
            }
            clock::until(Some(clock::now() + pauses.after_failure())).await;
        }
        Err(last)
    }

    async fn read_from(
        &self,
        stop: &Stop,
        source: &str,
        part: PartId,
        ranges: &[BlockRange],
    ) -> Read {
        let (stream, _place) =
            unless_stopped(stop, self.connect(source)).await.map_err(TransferEnd::Failed)?;
        let ranges = ranges.to_vec();
        let read = self.on_thread(stop.clone(), read_ranges(stream, part, ranges)).await;
        read.unwrap_or_else(|why| Err(TransferEnd::Failed(why)))
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
            let (mut sums, bytes) = (Sums::new(), range.offset..range.offset + range.bytes);
            send(&mut stream, file.with_content()?, bytes, |piece| sums.add(piece)).await?;
            write(&mut stream, &sums.finish().0.to_be_bytes()).await?;
            Ok((TransferEnd::Done, stream))
        })
        .await
    }
}

/// Asks for all ranges at once, and writes them to a file. The error is the reason why the connection is of no use.
async fn read_ranges(
    mut stream: SecureStream,
    part: PartId,
    ranges: Vec<BlockRange>,
) -> Result<Read, String> {
    let total = ranges.iter().map(|range| range.bytes).sum();
    let file = make(total).map_err(|error| error.to_string())?;
    let frames: Vec<u8> =
        ranges.iter().flat_map(|range| Frame::Range(part, *range).encode()).collect();
    write(&mut stream, &frames).await?;
    let mut at = 0;
    for range in ranges {
        let verdict = Verdict::decode(read_byte(&mut stream).await?);
        if let Verdict::Decline(why) = verdict.map_err(|error| error.to_string())? {
            return Ok(Err(TransferEnd::Declined(why)));
        }
        let sum = receive(&mut stream, &file, at..at + range.bytes).await?;
        if sum != Sum(moved(stream.read_u128()).await?) {
            return Ok(Err(TransferEnd::WrongSum));
        }
        at += range.bytes;
    }
    Ok(Ok(file))
}
