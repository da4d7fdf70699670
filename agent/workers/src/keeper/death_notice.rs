//! Reports to the coordinator that an agent is gone and that no process of its node is left.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    thread,
};

use ragent_leadership::state_file::{self, DEATH_NOTICE_PATH};

use crate::keeper::limits;

/// One small message and its recipients.
#[derive(Debug)]
pub(super) struct DeathNoticeSender {
    pub(super) node_id: String,
    /// The coordinator and all voters; empty if the agent has left in order.
    pub(super) coordinators: Vec<SocketAddr>,
    /// The newest round that ran on this node.
    pub(super) round: u64,
    /// The proof of the agent's node id; empty before it was registered.
    pub(super) proof: String,
    /// The state file that the death notice is written next to, if any.
    pub(super) state_file: Option<PathBuf>,
}

impl DeathNoticeSender {
    /// Returns true if the agent has left in order.
    pub(super) fn is_in_order(&self) -> bool {
        self.coordinators.is_empty()
    }

    /// Tries to deliver the death notice. If that fails, the end of the lease proves the same a little later.
    ///
    /// The file is written before the message is sent. A starting coordinator listens before it reads the file, so it
    /// gets at least one of the two.
    pub(super) fn deliver(&self) {
        if let Some(path) = &self.state_file {
            // If this fails, the end of the lease proves the same a little later.
            let _ = state_file::write_death_notice(path, &self.text());
        }
        // A silent recipient must not delay the others, each of which may be a voter.
        thread::scope(|scope| {
            for coordinator in self.coordinators.iter().take(limits::MAX_ENDPOINT_ADDRESSES) {
                let deliver = || self.deliver_to(*coordinator);
                // If no thread can be started, the recipients are served one after the other.
                if thread::Builder::new().spawn_scoped(scope, deliver).is_err() {
                    let _ = deliver();
                }
            }
        });
    }

    fn text(&self) -> String {
        // Without a proof, the trailing blank is removed.
        format!("{} {} {}", self.node_id, self.round, self.proof).trim_end().to_owned()
    }

    fn deliver_to(&self, coordinator: SocketAddr) -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&coordinator, limits::DEATH_NOTICE_TIMEOUT)?;
        stream.set_write_timeout(Some(limits::DEATH_NOTICE_TIMEOUT))?;
        stream.set_read_timeout(Some(limits::DEATH_NOTICE_TIMEOUT))?;
        let body = self.text();
        let request = format!(
            "POST {DEATH_NOTICE_PATH} HTTP/1.1\r\nHost: {coordinator}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len(),
        );
        stream.write_all(request.as_bytes())?;
        // The status shows whether the death notice was accepted. The body does not matter.
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        if answer.starts_with(b"HTTP/1.1 2") {
            Ok(())
        } else {
            Err(std::io::ErrorKind::InvalidData.into())
        }
    }
}
