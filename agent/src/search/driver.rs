//! Drives an election: until it has found the endpoint, and then, in a task, for those that still look.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use ragent_proto::convert::StatusAnswer;
use ragent_rendezvous::{
    ids::{Round, RunId},
    settings::NodeRange,
};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tracing::{debug, info, warn};

use super::{
    datagram::{Candidate, Datagram, JobDigest},
    election::{Effect, Election, Pace},
    sockets::{Sockets, SocketsError},
};
use crate::{
    clock,
    coordinator::{
        client,
        driver::{Input, Inputs},
    },
    host::ThisHost,
    job_spec::{Endpoint, SearchSpec},
    limits, net,
};

/// Who hosts the endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    /// This agent is to, at this address of its machine.
    Here(IpAddr),
    /// Somebody does, or did, there.
    There(SocketAddr),
}

/// An agent's part in the search.
#[derive(Debug)]
pub struct Search {
    election: Election,
    sockets: Sockets,
    run_id: RunId,
    job: JobDigest,
    /// Who was heard last: the way to it is the way to the others.
    heard: Option<SocketAddr>,
    /// The coordinator that this agent hosts, if it does.
    seat: Option<Seat>,
}

/// A coordinator that may have to give way to another one of its job.
#[derive(Debug)]
struct Seat {
    inputs: Inputs,
    nodes: NodeRange,
    has_warned: bool,
}

/// A search that goes on for the sake of others, as long as this value is there.
#[derive(Debug)]
pub struct Beacon(JoinHandle<()>);

impl Drop for Beacon {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Search {
    /// Begins to look for the coordinator of `run_id`.
    ///
    /// # Errors
    ///
    /// Returns [`SocketsError`] if nobody can be reached.
    pub fn begin(spec: &SearchSpec, run_id: &RunId) -> Result<Self, SocketsError> {
        let sockets = Sockets::open(spec)?;
        let interfaces = sockets.interfaces().join(",");
        let hosts = spec.hosts.len();
        info!(%run_id, port = spec.port, interfaces, hosts, "looking for the job's other agents");
        let own = Candidate { rank: spec.rank, number: rand::random() };
        let election = Election::new(clock::now(), own, spec.eligible, Pace::default());
        let (run_id, job) = (run_id.clone(), JobDigest::of(run_id));
        Ok(Self { election, sockets, run_id, job, heard: None, seat: None })
    }

    /// Looks until the endpoint is found, at most for `join_timeout`.
    pub async fn find(&mut self, join_timeout: Duration) -> Option<Found> {
        let deadline = clock::now() + join_timeout;
        while clock::now() < deadline {
            if let Some(found) = self.carry_out_all().await {
                return Some(found);
            }
            self.wait(Some(deadline)).await;
        }
        None
    }

    /// Nobody was where this agent was sent: it looks again.
    pub fn in_vain(&mut self) {
        self.election.handle_in_vain(clock::now());
    }

    /// This agent hosts a coordinator for so many nodes, there; goes on answering those that look, and
    /// gives way to another one where it must.
    pub fn hosts(mut self, at: SocketAddr, inputs: Inputs, nodes: NodeRange) -> Beacon {
        self.election.handle_hosting(clock::now(), at);
        self.seat = Some(Seat { inputs, nodes, has_warned: false });
        self.goes_on()
    }

    /// This agent has joined; goes on answering those that look.
    pub fn goes_on(mut self) -> Beacon {
        Beacon(tokio::spawn(async move {
            loop {
                // Found once, nothing else is found.
                let _ = self.carry_out_all().await;
                self.wait(None).await;
            }
        }))
    }

    async fn carry_out_all(&mut self) -> Option<Found> {
        while let Some(effect) = self.election.poll_effect() {
            match effect {
                Effect::Say(saying) => {
                    let bytes = Datagram::new(self.job.clone(), saying).encode();
                    self.sockets.say(&bytes);
                }
                Effect::Host => return Some(Found::Here(self.own_address())),
                Effect::Join(at) => return Some(Found::There(at)),
                Effect::Meet { rival, it_stays } => self.meet(rival, it_stays).await,
            }
        }
        None
    }

    /// Asks another host how its job stands, and joins it where this one can and that one stays.
    async fn meet(&mut self, rival: SocketAddr, it_stays: bool) {
        let Some(seat) = &mut self.seat else { return };
        let endpoint = Endpoint { host: rival.ip().to_string(), port: rival.port() };
        // Nobody is believed: only whoever coordinates a job of this name is one to give way to.
        let asked = timeout(limits::IDENTIFY_TIMEOUT, client::status(&endpoint)).await;
        let theirs = match asked {
            Ok(Ok(StatusAnswer::Snapshot(theirs))) if theirs.run_id == self.run_id => theirs,
            Ok(_) | Err(_) => {
                debug!(%rival, "it does not coordinate this job, or does not say so");
                return;
            }
        };
        if theirs.max_nodes == 0 {
            // Its own agent is about to attend.
            return;
        }
        let is_same = (theirs.min_nodes, theirs.max_nodes) == (seat.nodes.min(), seat.nodes.max());
        let has_begun = theirs.round != Round(0);
        if is_same && (it_stays || has_begun) && seat.give_way(endpoint).await {
            info!(to = %rival, "another agent coordinates this job too; giving way");
            self.seat = None;
            self.election.handle_gave_way(clock::now(), rival);
        } else if (has_begun || !is_same) && !seat.has_warned {
            seat.has_warned = true;
            warn!(other = %rival, "another agent hosts a job with this name too: are there two?");
        }
        // Else it is the other one that gives way, when it hears of this one.
    }

    async fn wait(&mut self, deadline: Option<Instant>) {
        let due = [self.election.poll_timeout(), deadline].into_iter().flatten().min();
        tokio::select! {
            // What was heard before what is due: an agent that stood still has not waited for anybody.
            biased;
            heard = self.sockets.hear() => match heard {
                Ok((bytes, peer)) => {
                    self.hear(&bytes, peer);
                    // However much is said, what is due is done.
                    let now = clock::now();
                    if self.election.poll_timeout().is_some_and(|due| due <= now) {
                        self.election.handle_timeout(now);
                    }
                }
                Err(error) => {
                    debug!(%error, "nothing can be heard for now");
                    clock::until(Some(clock::now() + limits::REDIAL_INTERVAL)).await;
                }
            },
            () = clock::until(due) => self.election.handle_timeout(clock::now()),
        }
    }

    fn hear(&mut self, bytes: &[u8], peer: SocketAddr) {
        let Some(datagram) = Datagram::decode(bytes) else { return };
        if datagram.job == self.job {
            self.heard = self.heard.filter(|_| ThisHost.owns(peer.ip())).or(Some(peer));
            self.election.handle_saying(clock::now(), &datagram.saying, peer);
        }
    }

    /// This machine's address, as the others see it.
    fn own_address(&self) -> IpAddr {
        if let Some(address) = self.sockets.named_interface() {
            return address;
        }
        let towards = self.heard.filter(|peer| !ThisHost.owns(peer.ip()));
        let known = towards.and_then(net::own_address_towards);
        known.or_else(net::default_address).unwrap_or_else(|| {
            let addresses = ThisHost.addresses();
            addresses.into_iter().next().unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]))
        })
    }
}

impl Seat {
    /// Has the coordinator give way, unless it has a round.
    async fn give_way(&self, endpoint: Endpoint) -> bool {
        let (answer, gives_way) = oneshot::channel();
        let asked = self.inputs.send(Input::GiveWay(endpoint, answer)).await;
        asked.is_ok() && gives_way.await.unwrap_or(false)
    }
}
