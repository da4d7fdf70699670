//! Asks NCCL which collectives each rank of the job has launched (NCCL RAS).
//!
//! Each process with NCCL answers for the whole job, on an address that all processes of a machine share. So one
//! connection of one agent is enough:
//!
//! 1. `SET FORMAT json` is confirmed by `OK`, by NCCL 2.28.7 and newer. Otherwise there is no answer.
//! 2. `VERBOSE STATUS` makes the process ask all others. Silent ones are listed as missing.
//! 3. The answer ends with the connection. Its size and time have a limit.

pub(super) mod answer;

use std::{io, time::Duration};

use ragent_base::{net, spec::Endpoint};
use ragent_rendezvous::ids::JobUid;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::spawn_blocking,
    time::timeout,
};
use tracing::debug;

use self::answer::OwnWorkers;
use super::Groups;
use crate::workers::limits;

/// The request. NCCL itself waits for at most five seconds for other processes.
const REQUEST: &[u8] = b"SET FORMAT json\nTIMEOUT 5\nVERBOSE STATUS\n";

/// The time for an answer.
const TIMEOUT: Duration = limits::RAS_TIMEOUT;

/// The first port of those at which the processes of a job answer: below the ports that systems choose by themselves.
const FIRST_PORT: u16 = 30_720;

/// The number of these ports.
const PORTS: u16 = 2_048;

/// Returns the port at which the processes of a job answer. Two jobs on a machine would otherwise answer for each other.
pub(crate) fn port_of(job: &JobUid) -> u16 {
    let hash = Sha256::digest(job.as_str());
    FIRST_PORT + u16::from_be_bytes([hash[0], hash[1]]) % PORTS
}

/// Asks at this address. Returns `None` if nothing answers, or not for this job.
pub(super) async fn ask(address: &Endpoint, own: OwnWorkers) -> Option<Groups> {
    let received = match timeout(TIMEOUT, exchange(address)).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => {
            debug!(%address, %error, "NCCL RAS does not answer");
            return None;
        }
        Err(_) => {
            debug!(%address, "NCCL RAS has not answered in time");
            return None;
        }
    };
    // An answer for thousands of ranks takes a while.
    spawn_blocking(move || answer::groups(&received, &own)).await.ok().flatten()
}

async fn exchange(address: &Endpoint) -> io::Result<Vec<u8>> {
    let mut stream = connect(address).await?;
    stream.write_all(REQUEST).await?;
    let mut received = Vec::new();
    let mut answer = stream.take(limits::MAX_RAS_ANSWER + 1);
    answer.read_to_end(&mut received).await?;
    if received.len() as u64 > limits::MAX_RAS_ANSWER {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(received)
}

/// Connects to the first address that accepts the connection: NCCL listens on one of those of `localhost`.
async fn connect(address: &Endpoint) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in net::resolve(address).await.map_err(io::Error::other)? {
        match net::dial(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::Ipv4Addr};

    use ragent_rendezvous::ids::GlobalRank;
    use tokio::net::TcpListener;

    use super::*;

    const ANSWER: &str = include_str!("ras/answer.json");

    fn own() -> OwnWorkers {
        OwnWorkers {
            pids: BTreeMap::from([(4_001, GlobalRank(0))]),
            addresses: vec![Ipv4Addr::new(10, 0, 0, 1).into()],
            world_size: 4,
        }
    }

    /// Asks a server that answers the whole request like this. `holds` keeps its connection open.
    async fn asked(answer: Vec<u8>, holds: bool) -> Option<Groups> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; REQUEST.len()];
            stream.read_exact(&mut request).await.unwrap();
            assert_eq!(request, REQUEST);
            // A client that has enough closes the connection.
            let _ = stream.write_all(&answer).await;
            if holds {
                std::future::pending::<()>().await;
            }
        });
        let address: Endpoint = format!("localhost:{port}").parse().unwrap();
        let groups = ask(&address, own()).await;
        server.abort();
        groups
    }

    fn recorded() -> Vec<u8> {
        format!("OK\nOK\n{ANSWER}").into_bytes()
    }

    /// A whole answer is read. A cut answer is dropped, and so is that of an older NCCL.
    #[tokio::test]
    async fn answers_are_read() {
        assert!(asked(recorded(), false).await.is_some_and(|found| found.groups.len() == 3));
        let half = recorded()[..recorded().len() / 2].to_vec();
        assert_eq!(asked(half, false).await, None);
        let old = b"ERROR: Unknown command SET FORMAT json\nOK\nNCCL version 2.24.3\n".to_vec();
        assert_eq!(asked(old, false).await, None);
        assert_eq!(asked(Vec::new(), false).await, None);
    }

    /// An answer that is larger than the limit is dropped.
    #[tokio::test]
    async fn large_answers_are_dropped() {
        let mut large = recorded();
        large.resize(usize::try_from(limits::MAX_RAS_ANSWER).unwrap() + 1, b' ');
        assert_eq!(asked(large, false).await, None);
    }

    /// A process that is silent, or does not end its answer, is given up. So is a closed port.
    #[tokio::test(start_paused = true)]
    async fn slow_processes_are_given_up() {
        assert_eq!(asked(recorded(), true).await, None);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address: Endpoint = closed.to_string().parse().unwrap();
        assert_eq!(ask(&address, own()).await, None);
    }
}
