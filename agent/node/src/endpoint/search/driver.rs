//! Drives the choice of a host: first until this agent has found the endpoint, then in a task for agents that still search.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use ragent_base::{
    net,
    report::telemetry,
    secret::{Credentials, Mismatch},
    spec::{Endpoint, SearchSpec},
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::{
    client,
    driver::{self as coordinator_driver, Input, Inputs},
    role::ElectedCoordinator,
};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{RunId, VoterAddress},
    known_job::KnownJob,
};
use tokio::{
    sync::watch,
    task::{self, AbortHandle, JoinHandle, JoinSet},
    time::timeout,
};
use tracing::{debug, info, warn};

use super::{
    datagram::{Candidate, SearchMessage},
    host_choice::{Effect, HostChoice, Pace},
    notice::{OtherSecrets, SearchNotice, SearchProgress},
    rivals::{self, Verdict},
    seal::{Opened, Seal},
    sockets::{Sockets, SocketsError},
    trial::{self, Trial},
};
use crate::endpoint::{error::LocateError, limits, locate};

/// The host of the endpoint.
#[derive(Debug)]
pub(crate) enum Found {
    /// This agent should host, at this address of its machine.
    Here(IpAddr),
    /// This agent should continue the host at this address of its machine, on this listener.
    HereAgain(SocketAddr, TcpListener),
    /// Another process hosts at this address.
    There(SocketAddr),
}

/// One agent's part in the search.
#[derive(Debug)]
pub(crate) struct Search {
    choice: HostChoice,
    sockets: Sockets,
    seal: Seal,
    /// The number of this agent in datagrams.
    number: u64,
    other_secrets: OtherSecrets,
    /// True if it was reported that an agent of the job has no secret.
    has_warned_of_open: bool,
    credentials: Credentials,
    /// The sender of the last datagram, preferably on another machine. The route to it also leads to the others.
    last_peer: Option<SocketAddr>,
    /// The coordinator that this agent hosts, if any.
    hosted: Option<Inputs>,
    /// Requests to other hosts for the state of their jobs. Each returns the reason if two jobs will remain.
    rival_requests: JoinSet<Option<(SocketAddr, &'static str)>>,
    has_warned: bool,
    run_id: RunId,
    notice: SearchNotice,
    /// The attempts to reach the coordinator at addresses in datagrams.
    trials: JoinSet<(SocketAddr, Trial)>,
    trials_by_place: BTreeMap<SocketAddr, AbortHandle>,
    /// The result, until [`Self::find`] returns it.
    found: Option<Found>,
    /// The last address at which no coordinator answered, and the reason.
    unanswered: Option<(SocketAddr, String)>,
    /// The process that has refused this agent.
    mismatch: Option<Mismatch>,
}

/// A search that continues for other agents until this value is dropped.
#[derive(Debug)]
pub(crate) struct SearchResponder(JoinHandle<()>);

impl Drop for SearchResponder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Search {
    /// Starts to search for the coordinator of `run_id`.
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
        let choice = HostChoice::new(clock::now(), own, spec.eligible, Pace::default());
        Ok(Self {
            choice,
            sockets,
            seal: Seal::new(run_id.clone(), credentials.clone()),
            number: own.number,
            other_secrets: OtherSecrets::default(),
            has_warned_of_open: false,
            credentials: credentials.clone(),
            last_peer: None,
            hosted: None,
            rival_requests: JoinSet::new(),
            has_warned: false,
            run_id: run_id.clone(),
            notice: SearchNotice::new(clock::now()),
            trials: JoinSet::new(),
            trials_by_place: BTreeMap::new(),
            found: None,
            unanswered: None,
            mismatch: None,
        })
    }

    /// Searches until the endpoint is found, at most for `join_timeout`.
    ///
    /// # Errors
    ///
    /// Returns [`LocateError`] if no host was found, or if the host has refused this agent.
    pub(crate) async fn find(&mut self, join_timeout: Duration) -> Result<Found, LocateError> {
        let deadline = clock::now() + join_timeout;
        loop {
            self.carry_out_all()?;
            if let Some(found) = self.found.take() {
                self.trials.abort_all();
                self.trials_by_place.clear();
                return Ok(found);
            }
            if clock::now() >= deadline {
                break;
            }
            self.wait(Some(deadline.min(self.notice.poll_timeout()))).await;
            let (interfaces, progress) = (self.interfaces(), self.progress());
            let run_id = self.run_id.as_str();
            let line = self.notice.handle_timeout(clock::now(), run_id, &interfaces, progress);
            line.iter().for_each(|line| telemetry::line(line));
        }
        let cause = match &self.unanswered {
            Some((_, cause)) => cause.clone(),
            None => "no agent that may host the job answered".to_owned(),
        };
        Err(LocateError::NotFound { waited: join_timeout, cause })
    }

    fn progress(&self) -> SearchProgress {
        match &self.unanswered {
            Some((at, _)) => SearchProgress::NoCoordinator(*at),
            None if self.choice.is_alone() => SearchProgress::Alone(self.other_secrets.first()),
            None if self.choice.has_candidate() => SearchProgress::Candidates,
            None => SearchProgress::NoCandidate,
        }
    }

    /// Returns true if no other agent of the job was found.
    pub(crate) fn is_alone(&self) -> bool {
        self.choice.is_alone()
    }

    /// Notes that this agent hosts although it has found no other one. From now on it also warns of agents with another secret, until it
    /// finds an agent of the job.
    pub(crate) fn handle_hosting_alone(&mut self) {
        let others = self.other_secrets.handle_hosting_alone();
        others.iter().for_each(|other| warn!("{other}"));
    }

    /// Returns the names of the interfaces that it searches on.
    pub(crate) fn interfaces(&self) -> String {
        self.sockets.interfaces().join(",")
    }

    /// Notes that this agent has joined. Continues to answer searching agents, with the `known`
    /// endpoint of the coordinator.
    pub(crate) fn answer_as_member(
        mut self,
        mut known: watch::Receiver<NotHere>,
    ) -> SearchResponder {
        known.mark_unchanged();
        SearchResponder(tokio::spawn(async move {
            let mut endpoint = known.borrow().endpoint.clone();
            loop {
                // This can fail only during a search, which has ended.
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

    /// Continues to answer searching agents, for an agent at `own` that may lead.
    ///
    /// - While it leads, it answers with its own endpoint. If another host of the job must win, its coordinator steps down.
    /// - Otherwise it answers with the endpoint of the coordinator with which it is registered.
    pub(crate) fn answer_as_host(
        mut self,
        own: SocketAddr,
        mut elected: watch::Receiver<ElectedCoordinator>,
        mut known: watch::Receiver<NotHere>,
    ) -> SearchResponder {
        if !self.choice.has_found() {
            // This agent is the first voter, or it knows the voters of the job.
            self.choice.handle_sent_elsewhere(clock::now(), own);
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
                // This can fail only during a search, which has ended.
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
            self.choice.handle_hosting(clock::now(), own);
        }
    }

    /// Notes that this agent does not coordinate. `coordinator` is the coordinator with which it is registered, if known.
    fn move_to(&mut self, coordinator: Option<SocketAddr>) {
        self.hosted = None;
        self.rival_requests.abort_all();
        if let Some(at) = coordinator {
            self.choice.handle_sent_elsewhere(clock::now(), at);
        }
    }

    fn carry_out_all(&mut self) -> Result<(), LocateError> {
        while let Some(effect) = self.choice.poll_effect() {
            match effect {
                Effect::Broadcast(message) => self.broadcast(&message),
                Effect::Answer(peer, message) if self.sockets.misses(peer) => {
                    self.send_to(peer, &message);
                }
                Effect::Answer(..) => {}
                Effect::Send(peers, message) if self.sockets.reaches_each() => {
                    peers.iter().for_each(|peer| self.send_to(*peer, &message));
                }
                Effect::Send(_, message) => self.broadcast(&message),
                Effect::Present(asked) => self.answer_present(asked),
                Effect::Host => self.found = Some(Found::Here(self.own_address())),
                Effect::Try(at) => self.try_place(at),
                Effect::Drop(at) => {
                    if let Some(trial) = self.trials_by_place.remove(&at) {
                        trial.abort();
                    }
                }
                Effect::Continue(at) => self.continue_host(at),
                Effect::GiveUp(_) => {
                    if let Some(mismatch) = self.mismatch.take() {
                        return Err(mismatch.into());
                    }
                }
                Effect::AskRival(rival) => {
                    if let Some(hosted) = &self.hosted {
                        let credentials = self.credentials.clone();
                        self.rival_requests.spawn(ask_rival(rival, hosted.clone(), credentials));
                    }
                }
            }
        }
        Ok(())
    }

    fn broadcast(&self, message: &SearchMessage) {
        for datagram in self.seal.close(message) {
            self.sockets.broadcast(&datagram);
        }
    }

    fn send_to(&self, peer: SocketAddr, message: &SearchMessage) {
        for datagram in self.seal.close(message) {
            self.sockets.send_to(peer, &datagram);
        }
    }

    fn answer_present(&self, asked: BTreeMap<SocketAddr, Vec<u64>>) {
        let answer = |nonces| SearchMessage::Answer { by: self.number, nonces };
        if self.sockets.reaches_each() {
            asked.into_iter().for_each(|(peer, nonces)| self.send_to(peer, &answer(nonces)));
        } else {
            self.broadcast(&answer(asked.into_values().flatten().collect()));
        }
    }

    fn continue_host(&mut self, at: SocketAddr) {
        let endpoint = Endpoint { host: at.ip().to_string(), port: at.port() };
        match locate::bind(&endpoint, at) {
            Ok(listener) => self.found = Some(Found::HereAgain(at, listener)),
            Err(error) => {
                self.unanswered = Some((at, format!("cannot listen at {at}: {error}")));
                self.choice.handle_not_continued(clock::now(), at);
            }
        }
    }

    fn try_place(&mut self, at: SocketAddr) {
        debug!(%at, "an agent names this address as that of the coordinator");
        let (run_id, credentials) = (self.run_id.clone(), self.credentials.clone());
        let trial = async move { (at, trial::try_place(at, &run_id, &credentials).await) };
        self.trials_by_place.insert(at, self.trials.spawn(trial));
    }

    fn handle_trial(&mut self, id: task::Id, at: SocketAddr, trial: Trial) {
        // A trial that was dropped may have ended before that.
        if self.trials_by_place.get(&at).is_none_or(|current| current.id() != id) {
            return;
        }
        self.trials_by_place.remove(&at);
        let now = clock::now();
        if self.found.is_some() || self.choice.has_found() {
            return;
        }
        match trial {
            Trial::There => {
                self.choice.handle_joined(now, at);
                self.found = Some(Found::There(at));
            }
            Trial::Here => self.choice.handle_own_place(now, at),
            Trial::Refused(mismatch) => {
                self.unanswered = Some((at, mismatch.to_string()));
                if self.choice.handle_refused(now, at) {
                    self.mismatch = Some(mismatch);
                }
            }
            Trial::NotThere(cause) => {
                // A refusal explains the failure better.
                if self.mismatch.is_none() {
                    self.unanswered = Some((at, cause));
                }
                self.choice.handle_not_joined(now, at);
            }
        }
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
        let due = [self.choice.poll_timeout(), deadline].into_iter().flatten().min();
        tokio::select! {
            // Hosts that have answered come first, because there are few. Datagrams come before deadlines: otherwise an agent that was
            // paused would act as if it had waited for the others.
            biased;
            Some(tried) = self.trials.join_next_with_id() => {
                // A trial that was dropped has no result, unless it had ended before.
                if let Ok((id, (at, trial))) = tried {
                    self.handle_trial(id, at, trial);
                }
            }
            received = self.sockets.receive() => match received {
                Ok((bytes, peer)) => {
                    self.handle_datagram(&bytes, peer);
                    // A flood of datagrams must not delay deadlines.
                    let now = clock::now();
                    if self.choice.poll_timeout().is_some_and(|due| due <= now) {
                        self.choice.handle_timeout(now);
                    }
                }
                Err(error) => {
                    debug!(%error, "failed to receive datagrams; retrying");
                    clock::until(Some(clock::now() + limits::RETRY_INTERVAL)).await;
                }
            },
            Some(answer) = self.rival_requests.join_next() => self.note(answer.ok().flatten()),
            () = clock::until(due) => self.choice.handle_timeout(clock::now()),
        }
    }

    fn handle_datagram(&mut self, bytes: &[u8], peer: SocketAddr) {
        match self.seal.open(bytes) {
            Opened::Message(message) => {
                self.last_peer = self.last_peer.filter(|_| ThisHost.owns(peer.ip())).or(Some(peer));
                self.choice.handle_message(clock::now(), &message, peer);
                if !self.choice.is_alone() {
                    self.other_secrets.handle_agent_found();
                }
            }
            Opened::OtherSecret(secret) => {
                if let Some(other) = self.other_secrets.handle_datagram(peer.ip(), secret) {
                    warn!("{other}");
                }
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

    /// Returns this machine's address, as other agents see it.
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

/// Returns an address of an endpoint, if known.
async fn address_of(endpoint: &str) -> Option<SocketAddr> {
    let endpoint: Endpoint = endpoint.parse().ok()?;
    net::resolve(&endpoint).await.ok()?.into_iter().next()
}

/// Asks another host for the state of its job, and makes this one step down if it must. Returns the
/// reason if two jobs will remain.
async fn ask_rival(
    rival: SocketAddr,
    hosted: Inputs,
    credentials: Credentials,
) -> Option<(SocketAddr, &'static str)> {
    let endpoint = Endpoint { host: rival.ip().to_string(), port: rival.port() };
    // Datagrams are not trusted, so this agent steps down only for a process that does coordinate the job.
    let asked = timeout(limits::IDENTIFY_TIMEOUT, client::job(&endpoint, &credentials)).await;
    let Ok(Ok(Some(theirs))) = asked else {
        debug!(%rival, "the other agent does not answer as the coordinator of a job");
        return None;
    };
    let own = coordinator_driver::snapshot(&hosted).await?;
    match rivals::verdict(&own, &theirs) {
        Verdict::Stay => None,
        Verdict::Clash => Some((rival, "the settings differ")),
        Verdict::BothBegun if own.voters.is_empty() || theirs.voters.is_empty() => {
            Some((rival, "both jobs have started"))
        }
        Verdict::BothBegun => {
            info!(at = %rival, "another job of this name has begun; the voters of both compare them");
            let voters = vec![VoterAddress::new(endpoint.to_string())];
            let job = KnownJob { uid: theirs.job_uid.clone(), voters, leads: None };
            // The coordinator may have ended at this moment.
            let _ = hosted.send(Input::OtherJob(job)).await;
            None
        }
        Verdict::StepDown => {
            info!(to = %rival, "another agent also coordinates this job; joining it there");
            // The coordinator may have ended at this moment.
            let _ = hosted.send(Input::StepDown(endpoint)).await;
            None
        }
    }
}
