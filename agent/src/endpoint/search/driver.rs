//! Drives an election: until it has found the endpoint, and then, in a task, for agents that still
//! look.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use ragent_proto::convert::{NotHere, StatusAnswer};
use ragent_rendezvous::ids::RunId;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tracing::{debug, info, warn};

use super::{
    datagram::Candidate,
    election::{Effect, Election, Pace},
    notice::{Notice, Progress, Unlike},
    rivals::{self, Verdict},
    seal::{Opened, Seal},
    sockets::{Sockets, SocketsError},
};
use crate::{
    coordinator::{
        client,
        driver::{self as coordinator_driver, Input, Inputs},
        role::ElectedCoordinator,
    },
    endpoint::limits,
    net,
    report::telemetry,
    secret::Credentials,
    spec::{Endpoint, SearchSpec},
    sys::{clock, host::ThisHost},
};

/// The host of the endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Found {
    /// This agent is to host, at this address of its machine.
    Here(IpAddr),
    /// Another process hosts, or hosted, at this address.
    There(SocketAddr),
}

/// One agent's part in the search.
#[derive(Debug)]
pub(crate) struct Search {
    election: Election,
    sockets: Sockets,
    seal: Seal,
    /// An agent with another secret that searches.
    unlike: Option<Unlike>,
    /// True if it was reported that an agent of the job has no secret.
    has_warned_of_open: bool,
    credentials: Credentials,
    /// The sender of the last datagram, preferably on another machine; the route to it leads to the
    /// others.
    last_peer: Option<SocketAddr>,
    /// The coordinator that this agent hosts, if any.
    hosted: Option<Inputs>,
    /// Requests to other hosts for the state of their jobs. Each returns the reason for two jobs,
    /// if there will be two.
    rival_requests: JoinSet<Option<(SocketAddr, &'static str)>>,
    has_warned: bool,
    run_id: RunId,
    notice: Notice,
    /// The last address found at which no coordinator answered.
    unanswered: Option<SocketAddr>,
}

/// A search that continues for other agents, until this value is dropped.
#[derive(Debug)]
pub(crate) struct SearchResponder(JoinHandle<()>);

impl Drop for SearchResponder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Search {
    /// Begins to look for the coordinator of `run_id`.
    ///
    /// # Errors
    ///
    /// Returns [`SocketsError`] if no agent can be reached.
    pub(crate) fn begin(
        spec: &SearchSpec,
        run_id: &RunId,
        credentials: &Credentials,
    ) -> Result<Self, SocketsError> {
        let sockets = Sockets::open(spec)?;
        let interfaces = sockets.interfaces().join(",");
        let hosts = spec.hosts.len();
        info!(%run_id, port = spec.port, interfaces, hosts, "searching for the job's other agents");
        let own = Candidate { rank: spec.rank, number: rand::random() };
        let election = Election::new(clock::now(), own, spec.eligible, Pace::default());
        Ok(Self {
            election,
            sockets,
            seal: Seal::new(run_id.clone(), credentials.clone()),
            unlike: None,
            has_warned_of_open: false,
            credentials: credentials.clone(),
            last_peer: None,
            hosted: None,
            rival_requests: JoinSet::new(),
            has_warned: false,
            run_id: run_id.clone(),
            notice: Notice::new(clock::now()),
            unanswered: None,
        })
    }

    /// Looks until the endpoint is found, at most for `join_timeout`.
    pub(crate) async fn find(&mut self, join_timeout: Duration) -> Option<Found> {
        let deadline = clock::now() + join_timeout;
        while clock::now() < deadline {
            if let Some(found) = self.carry_out_all() {
                return Some(found);
            }
            self.wait(Some(deadline.min(self.notice.poll_timeout()))).await;
            let (interfaces, progress) = (self.interfaces(), self.progress());
            let run_id = self.run_id.as_str();
            let line = self.notice.handle_timeout(clock::now(), run_id, &interfaces, progress);
            line.iter().for_each(|line| telemetry::line(line));
        }
        None
    }

    fn progress(&self) -> Progress {
        match self.unanswered {
            Some(at) => Progress::NoCoordinator(at),
            None if self.election.is_alone() => Progress::Alone(self.unlike),
            None if self.election.has_candidate() => Progress::Candidates,
            None => Progress::NoCandidate,
        }
    }

    /// Returns true if no other agent of the job was found.
    pub(crate) fn is_alone(&self) -> bool {
        self.unanswered.is_none() && self.election.is_alone()
    }

    /// Returns an agent with another secret that searches, for the user.
    pub(crate) fn unlike(&self) -> Option<Unlike> {
        self.unlike
    }

    /// Returns the names of the interfaces on which it searches.
    pub(crate) fn interfaces(&self) -> String {
        self.sockets.interfaces().join(",")
    }

    /// Notes that no coordinator answered at the address found; the agent looks again.
    pub(crate) fn handle_no_coordinator(&mut self, at: SocketAddr) {
        self.unanswered = Some(at);
        self.election.handle_failed(clock::now());
    }

    /// Notes that this agent hosts a coordinator at `at`. Continues to answer agents that look, and
    /// makes the coordinator give way to another one where it must.
    pub(crate) fn answer_as_host(
        mut self,
        at: SocketAddr,
        coordinator: Inputs,
        known: watch::Receiver<NotHere>,
    ) -> SearchResponder {
        self.election.handle_hosting(clock::now(), at);
        self.hosted = Some(coordinator);
        self.answer_as_member(known)
    }

    /// Notes that this agent has joined. Continues to answer agents that look, with the `known`
    /// endpoint of the coordinator.
    pub(crate) fn answer_as_member(
        mut self,
        mut known: watch::Receiver<NotHere>,
    ) -> SearchResponder {
        known.mark_unchanged();
        SearchResponder(tokio::spawn(async move {
            let mut endpoint = known.borrow().endpoint.clone();
            loop {
                // The endpoint is found only once.
                let _ = self.carry_out_all();
                tokio::select! {
                    () = self.wait(None) => {}
                    Ok(()) = known.changed() => {
                        let now_known = known.borrow_and_update().endpoint.clone();
                        if now_known != endpoint {
                            self.move_to(address_of(&now_known).await);
                            endpoint = now_known;
                        }
                    }
                }
            }
        }))
    }

    /// Continues to answer agents that look, for an agent with a voter at `own`: with its own endpoint while it leads,
    /// otherwise with the endpoint of the coordinator with which it is registered. While it leads, makes its coordinator give
    /// way to another one where it must.
    pub(crate) fn answer_as_voter(
        mut self,
        own: SocketAddr,
        mut elected: watch::Receiver<ElectedCoordinator>,
        mut known: watch::Receiver<NotHere>,
    ) -> SearchResponder {
        if !self.election.has_found() {
            // It is the first voter, or knows the voters of the job.
            self.election.handle_sent_elsewhere(clock::now(), own);
        }
        SearchResponder(tokio::spawn(async move {
            let mut registered = String::new();
            loop {
                let leads = match &*elected.borrow_and_update() {
                    ElectedCoordinator::Here(inputs) => Some(inputs.clone()),
                    ElectedCoordinator::There(_) | ElectedCoordinator::Unknown => None,
                };
                let now_known = known.borrow_and_update().endpoint.clone();
                match leads {
                    Some(inputs) => self.lead(own, inputs),
                    None if self.hosted.is_some() || now_known != registered => {
                        self.move_to(address_of(&now_known).await);
                    }
                    None => {}
                }
                registered = now_known;
                // The endpoint is found only once.
                let _ = self.carry_out_all();
                tokio::select! {
                    () = self.wait(None) => {}
                    Ok(()) = elected.changed() => {}
                    Ok(()) = known.changed() => {}
                }
            }
        }))
    }

    /// Notes that this agent's voter leads, and hosts a coordinator at `own`.
    fn lead(&mut self, own: SocketAddr, coordinator: Inputs) {
        if !self.hosted.as_ref().is_some_and(|hosted| hosted.same_channel(&coordinator)) {
            self.rival_requests.abort_all();
            self.hosted = Some(coordinator);
            self.election.handle_hosting(clock::now(), own);
        }
    }

    /// Notes that this agent does not coordinate, and the address of the coordinator with which it is registered, if that is
    /// known.
    fn move_to(&mut self, coordinator: Option<SocketAddr>) {
        self.hosted = None;
        self.rival_requests.abort_all();
        if let Some(at) = coordinator {
            self.election.handle_sent_elsewhere(clock::now(), at);
        }
    }

    fn carry_out_all(&mut self) -> Option<Found> {
        while let Some(effect) = self.election.poll_effect() {
            match effect {
                Effect::Broadcast(message) => {
                    for datagram in self.seal.close(&message) {
                        self.sockets.broadcast(&datagram);
                    }
                }
                Effect::Answer(peer, message) if self.sockets.misses(peer) => {
                    for datagram in self.seal.close(&message) {
                        self.sockets.send_to(peer, &datagram);
                    }
                }
                Effect::Answer(..) => {}
                Effect::Host => return Some(Found::Here(self.own_address())),
                Effect::Join(at) => return Some(Found::There(at)),
                Effect::AskRival(rival) => {
                    if let Some(hosted) = &self.hosted {
                        let credentials = self.credentials.clone();
                        self.rival_requests.spawn(ask_rival(rival, hosted.clone(), credentials));
                    }
                }
            }
        }
        None
    }

    /// Warns of a second job with this name, once.
    fn note(&mut self, clash: Option<(SocketAddr, &'static str)>) {
        if let Some((other, why)) = clash
            && !self.has_warned
        {
            self.has_warned = true;
            warn!(
                %other, why,
                "another agent hosts a different job with the same name: check `--rdzv-id` on \
                 all nodes"
            );
        }
    }

    async fn wait(&mut self, deadline: Option<Instant>) {
        let due = [self.election.poll_timeout(), deadline].into_iter().flatten().min();
        tokio::select! {
            // Datagrams before deadlines: an agent that was stalled has not waited for the others.
            biased;
            received = self.sockets.receive() => match received {
                Ok((bytes, peer)) => {
                    self.handle_datagram(&bytes, peer);
                    // A flood of datagrams does not delay deadlines.
                    let now = clock::now();
                    if self.election.poll_timeout().is_some_and(|due| due <= now) {
                        self.election.handle_timeout(now);
                    }
                }
                Err(error) => {
                    debug!(%error, "failed to receive datagrams; retrying");
                    clock::until(Some(clock::now() + limits::RETRY_INTERVAL)).await;
                }
            },
            Some(answer) = self.rival_requests.join_next() => self.note(answer.ok().flatten()),
            () = clock::until(due) => self.election.handle_timeout(clock::now()),
        }
    }

    fn handle_datagram(&mut self, bytes: &[u8], peer: SocketAddr) {
        match self.seal.open(bytes) {
            Opened::Message(message) => {
                self.last_peer = self.last_peer.filter(|_| ThisHost.owns(peer.ip())).or(Some(peer));
                self.election.handle_message(clock::now(), &message, peer);
            }
            Opened::OtherSecret(secret) => {
                self.unlike.get_or_insert_with(|| Unlike { at: peer.ip(), secret });
            }
            Opened::NoSecret if !self.has_warned_of_open => {
                self.has_warned_of_open = true;
                warn!(
                    "an agent of this job at {} searches without the secret of this one; give both the same \
                     `--secret-file`, or `--auth none`",
                    peer.ip()
                );
            }
            Opened::NoSecret | Opened::Foreign => {}
        }
    }

    /// Returns this machine's address from the point of view of other agents.
    fn own_address(&self) -> IpAddr {
        if let Some(address) = self.sockets.named_interface() {
            return address;
        }
        let towards = self.last_peer.filter(|peer| !ThisHost.owns(peer.ip()));
        let known = towards.and_then(net::own_address_towards);
        known.or_else(net::default_address).unwrap_or_else(|| {
            let addresses = ThisHost.addresses();
            addresses.into_iter().next().unwrap_or_else(|| IpAddr::from([127, 0, 0, 1]))
        })
    }
}

/// Returns an address of an endpoint, if it is known.
async fn address_of(endpoint: &str) -> Option<SocketAddr> {
    let endpoint: Endpoint = endpoint.parse().ok()?;
    net::resolve(&endpoint).await.ok()?.into_iter().next()
}

/// Asks another host for the state of its job, and makes this one give way to it if it must.
/// Returns the reason for two jobs, if there will be two.
async fn ask_rival(
    rival: SocketAddr,
    hosted: Inputs,
    credentials: Credentials,
) -> Option<(SocketAddr, &'static str)> {
    let endpoint = Endpoint { host: rival.ip().to_string(), port: rival.port() };
    // Datagrams are not trusted: this agent gives way only to a process that coordinates the job.
    let asked = timeout(limits::IDENTIFY_TIMEOUT, client::status(&endpoint, &credentials)).await;
    let Ok(Ok(StatusAnswer::Snapshot(theirs))) = asked else {
        debug!(%rival, "the other agent does not answer as the coordinator of a job");
        return None;
    };
    let own = coordinator_driver::snapshot(&hosted).await?;
    match rivals::verdict(&own, &theirs) {
        Verdict::Stay => None,
        Verdict::Clash(why) => Some((rival, why)),
        Verdict::GiveWay => {
            info!(to = %rival, "another agent also coordinates this job; joining it there");
            // The coordinator may have ended at this moment.
            let _ = hosted.send(Input::GiveWay(endpoint)).await;
            None
        }
    }
}
