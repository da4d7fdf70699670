//! Serves the connections of other agents.
//!
//! 1. A connection has 5 s to authenticate itself, to find a place, and to send its greeting.
//! 2. Its requests are served one after the other.
//! 3. It is closed when a transfer fails, or after a minute without a request.

use std::{
    net::{IpAddr, TcpStream as StdTcpStream},
    sync::{Arc, PoisonError, atomic::Ordering},
};

use ragent_base::{
    net::secure_stream::{self, AcceptError, SecureStream},
    secret::ALPN_MEMORY,
};
use ragent_core::memory::{PartId, TransferEnd, TransferId};
use ragent_rendezvous::ids::LocalRank;
use tokio::{io::AsyncReadExt, net::TcpStream, runtime::Handle, task, time::timeout};
use tracing::debug;

use super::{
    Transport,
    block::{Moved, write},
    frames::{FRAME_LEN, Frame},
    places::Place,
};
use crate::memory::{
    event::{Event, TransferAnswer},
    limits,
};

impl Transport {
    /// Serves a connection on the threads of `handle`.
    pub(in crate::memory) fn serve(
        self: &Arc<Self>,
        handle: &Handle,
        stream: StdTcpStream,
        ip: IpAddr,
    ) {
        let own = Arc::clone(self);
        // The list is locked until the task is in it.
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let task = handle.spawn(async move { own.serve_opened(stream, ip).await });
        opening.add(ip, task.abort_handle());
    }

    async fn serve_opened(&self, stream: StdTcpStream, ip: IpAddr) {
        match timeout(limits::GREETING_TIMEOUT, self.open(stream, ip)).await {
            Ok(Ok((stream, _place))) => {
                if let Err(why) = self.serve_requests(stream).await {
                    debug!(peer = %ip, why, "connection of an agent closed");
                }
            }
            Ok(Err(Some(why))) => self.refusals.handle_refused(ip, &why),
            Ok(Err(None)) => debug!(peer = %ip, "connection closed before its greeting"),
            Err(_) => debug!(peer = %ip, "connection closed: no greeting in time, or no place"),
        }
    }

    /// Authenticates a connection, and waits for its place. The error is the reason, unless the other end has closed it.
    async fn open(
        &self,
        stream: StdTcpStream,
        ip: IpAddr,
    ) -> Result<(SecureStream, Place), Option<String>> {
        let stream = TcpStream::from_std(stream).map_err(|_| None)?;
        stream.set_nodelay(true).map_err(|_| None)?;
        let accepted = match secure_stream::accept(stream, &self.credentials).await {
            Ok(accepted) => accepted,
            Err(AcceptError::Incomplete) => return Err(None),
            Err(error) => return Err(Some(error.to_string())),
        };
        if accepted.get_ref().1.alpn_protocol() != Some(ALPN_MEMORY) {
            return Err(Some("it does not use the protocol of checkpoints".to_owned()));
        }
        let mut stream = SecureStream::from(accepted);
        let is_open = || {
            let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
            opening.take(task::id()).is_some()
        };
        if !is_open() {
            return Err(None);
        }
        let place = self.incoming.take(ip).await.ok_or(None)?;
        self.greet(&mut stream).await.map_err(Some)?;
        Ok((stream, place))
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
