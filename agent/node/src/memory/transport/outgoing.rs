//! Carries out the transfers that this agent begins: a connection for each.

use std::{net::SocketAddr, sync::Arc};

use ragent_base::{
    net::{
        Endpoint, resolve,
        secure_stream::{self, SecureStream},
    },
    secret::ALPN_MEMORY,
};
use ragent_core::memory::{BlockHeader, PartId, TransferEnd, TransferId};
use ragent_rendezvous::ids::LocalRank;
use tokio::{io::AsyncReadExt, time::timeout};

use super::{
    Transport,
    block::{STOPPED, write},
    frames::{FRAME_LEN, Frame},
    moved,
    places::Place,
};
use crate::memory::{
    buffers::MemoryFile,
    limits,
    threads::{Stop, stopped},
};

impl Transport {
    /// Sends a block to the agent at this address, and reports the end.
    pub(in crate::memory) async fn copy(
        &self,
        (transfer, stop): (TransferId, Stop),
        to: String,
        header: BlockHeader,
        file: Arc<MemoryFile>,
    ) {
        let copied = async {
            let (stream, _place) = unless_stopped(&stop, self.connect(&to)).await?;
            let (end, _) = self.offer(stream, header, file, stop.clone()).await?;
            Ok(end)
        };
        self.report(transfer, copied).await;
    }

    /// Asks the agent at this address for a block, and reports the end.
    pub(in crate::memory) async fn fetch(
        &self,
        (transfer, stop): (TransferId, Stop),
        from: String,
        part: PartId,
        local_rank: LocalRank,
    ) {
        let fetched = async {
            let asked = async {
                let (mut stream, place) = self.connect(&from).await?;
                write(&mut stream, &Frame::Get(part, local_rank).encode()).await?;
                let mut frame = [0; FRAME_LEN];
                moved(stream.read_exact(&mut frame)).await?;
                Ok((stream, place, frame))
            };
            let (stream, _place, frame) = unless_stopped(&stop, asked).await?;
            let header = match Frame::decode(&frame).map_err(|error| error.to_string())? {
                Frame::Put(header) if is_wanted(&header, part, local_rank) => header,
                Frame::Decline(why) => return Ok(TransferEnd::Declined(why)),
                Frame::Put(_) | Frame::Get(..) | Frame::Range(..) => {
                    return Err("it has answered with another block".to_owned());
                }
            };
            let received = self.receive_offered(stream, transfer, header, stop.clone());
            Ok(received.await?.0)
        };
        self.report(transfer, fetched).await;
    }

    /// Waits for the end of a transfer, and reports it. No thread uses its buffer any more then.
    async fn report(
        &self,
        transfer: TransferId,
        ending: impl Future<Output = Result<TransferEnd, String>>,
    ) {
        let end = ending.await.unwrap_or_else(TransferEnd::Failed);
        self.ended(transfer, end).await;
    }

    /// Opens a connection to the agent at this address. The connection holds the place.
    pub(super) async fn connect(&self, address: &str) -> Result<(SecureStream, Place), String> {
        if !self.credentials.is_secured() {
            return Err("the job has no secret".to_owned());
        }
        let endpoint: Endpoint =
            address.parse().map_err(|_| format!("`{address}` is not an address"))?;
        let addresses = resolve(&endpoint).await.map_err(|error| error.to_string())?;
        let mut cause = String::new();
        for address in addresses {
            match self.connect_to(address).await {
                Ok(connected) => return Ok(connected),
                Err(why) => cause = why,
            }
        }
        Err(cause)
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<(SecureStream, Place), String> {
        let place = self.outgoing.take(address.ip()).await.ok_or(STOPPED)?;
        let opened = secure_stream::connect(address, &self.credentials, ALPN_MEMORY).await;
        let mut stream = opened.map_err(|error| error.to_string())?;
        let opened = stream.end(address);
        match timeout(limits::GREETING_TIMEOUT, self.greet(&mut stream)).await {
            Ok(Ok(())) => Ok((stream, place)),
            // The other end verifies a certificate after the handshake has ended for this one.
            Ok(Err(why)) => {
                Err(opened.mismatch(&self.credentials).map_or(why, |mismatch| mismatch.to_string()))
            }
            Err(_) => Err("it accepts connections but does not answer".to_owned()),
        }
    }
}

/// Waits for something, unless this agent ends the transfer meanwhile.
pub(super) async fn unless_stopped<T>(
    stop: &Stop,
    awaited: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::select! {
        result = awaited => result,
        () = stopped(stop.clone()) => Err(STOPPED.to_owned()),
    }
}

/// Returns true if a block is the wanted one. If it is replicated, it may be from any node.
fn is_wanted(header: &BlockHeader, part: PartId, local_rank: LocalRank) -> bool {
    let is_part =
        header.part == part || (header.is_replicated && header.part.checkpoint == part.checkpoint);
    is_part && header.local_rank == local_rank
}
