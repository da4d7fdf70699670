//! Tells the coordinator that an agent is gone and that nothing of it is left.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
};

use crate::{limits, state_file};

/// The path that takes an obituary on the coordinator's port.
pub(crate) const OBITUARY_PATH: &str = "/v1/obituary";

/// One small message, and where to take it.
#[derive(Debug)]
pub(super) struct Obituary {
    pub(super) node_id: String,
    /// None: the agent has taken its leave by itself.
    pub(super) coordinators: Vec<SocketAddr>,
    /// The newest round that ran here.
    pub(super) round: u64,
    /// The proof of that agent's node id; empty before it was welcomed.
    pub(super) proof: String,
    /// The state file beside which it is written too.
    pub(super) state_file: Option<PathBuf>,
}

impl Obituary {
    /// Whether the agent has ended in order.
    pub(super) fn is_in_order(&self) -> bool {
        self.coordinators.is_empty()
    }

    /// Tries to deliver it; the lease proves the same a little later if this fails.
    ///
    /// It is written before it is sent: a coordinator that is started meanwhile listens before it
    /// reads, so it finds the one or hears the other.
    pub(super) fn deliver(&self) {
        if let Some(path) = &self.state_file {
            // The lease proves the same a little later.
            let _ = state_file::write_grave(path, &self.text());
        }
        for coordinator in self.coordinators.iter().take(limits::MAX_ENDPOINT_ADDRESSES) {
            if self.deliver_to(*coordinator).is_ok() {
                return;
            }
        }
    }

    fn text(&self) -> String {
        // No trailing blank without a proof.
        format!("{} {} {}", self.node_id, self.round, self.proof).trim_end().to_owned()
    }

    fn deliver_to(&self, coordinator: SocketAddr) -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&coordinator, limits::OBITUARY_TIMEOUT)?;
        stream.set_write_timeout(Some(limits::OBITUARY_TIMEOUT))?;
        stream.set_read_timeout(Some(limits::OBITUARY_TIMEOUT))?;
        let body = self.text();
        let request = format!(
            "POST {OBITUARY_PATH} HTTP/1.1\r\nHost: {coordinator}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len(),
        );
        stream.write_all(request.as_bytes())?;
        // The answer says that it was taken; its text does not matter.
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        if answer.starts_with(b"HTTP/1.1 2") {
            Ok(())
        } else {
            Err(std::io::ErrorKind::InvalidData.into())
        }
    }
}
