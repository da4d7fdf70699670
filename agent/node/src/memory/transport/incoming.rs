//! Serves the connections of other agents.
//!
//! 1. The port passes a connection on after its first byte, and counts it until it has authenticated itself, for at most 5 s.
//! 2. Then it has 5 s to find a place and to send its greeting.
//! 3. Its requests are served one after the other.
//! 4. It is closed when a transfer fails, or after a minute without a request.

use std::sync::atomic::Ordering;

use ragent_base::{
    net::{
        port::PassedConnection,
        secure_stream::{self, AcceptError, SecureStream},
    },
    secret::ALPN_MEMORY,
};
use ragent_core::memory::{PartId, TransferEnd, TransferId};
use ragent_rendezvous::ids::LocalRank;
use tokio::{io::AsyncReadExt, time::timeout};
use tracing::debug;

use super::{
    Transport,
    block::{Moved, write},
    frames::{FRAME_LEN, Frame},
};
use crate::memory::{
    event::{Event, TransferAnswer},
    limits,
};

impl Transport {
    /// Serves a connection until it ends.
    pub(in crate::memory) async fn serve(&self, connection: PassedConnection) {
        let PassedConnection { stream, peer, refusals, mut authenticated } = connection;
        let opened = tokio::select! {
            opened = secure_stream::accept_after_byte(stream, &self.credentials, ALPN_MEMORY) => opened,
            () = authenticated.closed() => Err(AcceptError::Incomplete),
        };
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(AcceptError::Incomplete) => {
                return debug!(peer = %peer.ip, "connection closed before it was authenticated");
            }
            Err(error) => return refusals.handle_refused(peer.ip, &error.to_string()),
        };
        // The port has closed it, or does not count it any more.
        let _ = authenticated.send(());
        let greeted = async {
            let place = self.incoming.take(peer.ip).await;
            self.greet(&mut stream).await.map(|()| place)
        };
        match timeout(limits::GREETING_TIMEOUT, greeted).await {
            Ok(Ok(_place)) => {
                if let Err(why) = self.serve_requests(stream).await {
                    debug!(peer = %peer.ip, why, "connection of an agent closed");
                }
            }
            Ok(Err(why)) => refusals.handle_refused(peer.ip, &why),
            Err(_) => {
                debug!(peer = %peer.ip, "connection closed: no greeting in time, or no place")
            }
        }
    }

    async fn serve_requests(&self, mut stream: SecureStream) -> Result<(), String> {
        loop {
            let mut frame = [0; FRAME_LEN];
            match timeout(limits::IDLE_TIMEOUT, stream.read_exact(&mut frame)).await {
                Ok(Ok(_)) => {}
                // The other agent needs it no longer.
                Ok(Err(_)) | Err(_) => return Ok(()),
            }
            let frame = Frame::decode(&frame).map_err(|error| error.to_string())?;
            let number = self.foreign.fetch_add(1, Ordering::Relaxed);
            let transfer = TransferId { is_foreign: true, number };
            let served = match frame {
                Frame::Put(header) => {
                    let stop = self.stop.clone();
                    self.receive_offered(stream, transfer, header, stop).await
                }
                Frame::Get(part, local_rank) => self.give(stream, transfer, part, local_rank).await,
                Frame::Range(part, range) => self.give_range(stream, transfer, part, range).await,
                Frame::Decline(_) => return Err("it answers, but was not asked".to_owned()),
            };
            match served {
                Ok((end, rest)) => {
                    self.ended(transfer, end).await;
                    stream = rest;
                }
                Err(why) => {
                    self.ended(transfer, TransferEnd::Failed(why.clone())).await;
                    return Err(why);
                }
            }
        }
    }

    /// Sends a block that the other end wants.
    async fn give(
        &self,
        mut stream: SecureStream,
        transfer: TransferId,
        part: PartId,
        local_rank: LocalRank,
    ) -> Result<Moved<SecureStream>, String> {
        let wanted = |answer| Event::Wanted { transfer, part, local_rank, answer };
        match self.decide(wanted).await? {
            TransferAnswer::Serve(header, file) => {
                self.offer(stream, header, file, self.stop.clone()).await
            }
            TransferAnswer::Decline(why) => {
                write(&mut stream, &Frame::Decline(why).encode()).await?;
                Ok((TransferEnd::Declined(why), stream))
            }
            TransferAnswer::Receive(..) | TransferAnswer::ServeRange(..) => {
                Err("this agent has decided otherwise".to_owned())
            }
        }
    }
}
