//! Drives the choice of a host: first until this agent has found it, then in a task for agents that still search.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use ragent_base::{
    net::{self, Reach},
    report::telemetry,
    secret::{Credentials, Mismatch},
    sys::{clock, host::ThisHost, system_error::system},
};
use ragent_coordinator::{
    driver::Input,
    pages::identity::{Candidate, SearchStanding},
};
use ragent_leadership::LeadershipCommand;
use ragent_options::spec::SearchSpec;
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::ids::{RunId, VoterAddress};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tracing::{debug, info, warn};

use super::{
    choice::{DialAnswer, Effect, HostChoice},
    datagram::{Opened, Seal},
    home::{Home, endpoint_at},
    notice::{SearchNotice, SearchProgress},
    sockets::{Sockets, SocketsError},
};
use crate::endpoint::{
    error::{HostOrJoinError, LocateError},
    identity::{self, IdentityAnswer},
    limits, locate,
    server::Server,
};

/// The host of the job.
pub(crate) enum Found {
    /// This agent should host, at this address of its machine, on this listener.
    Here(IpAddr, TcpListener),
    /// Another process hosts at this address.
    There(SocketAddr),
}

/// One agent's part in the search.
pub(crate) struct Search {
    choice: HostChoice,
    sockets: Sockets,
    seal: Seal,
    run_id: RunId,
    credentials: Credentials,
    /// The port on which this agent answers.
    port: u16,
    standing: watch::Sender<SearchStanding>,
    /// The attempts at addresses that datagrams have named.
    dials: JoinSet<(SocketAddr, Dialed)>,
    /// The sender of the last datagram, preferably on another machine. The route to it also leads to the others.
    last_peer: Option<SocketAddr>,
    /// The address at which the last attempt failed, and the reason.
    unanswered: Option<(SocketAddr, String)>,
    /// The process that has refused this agent.
    mismatch: Option<Mismatch>,
    notice: SearchNotice,
    has_warned_of_version: bool,
    has_warned_of_clash: bool,
    /// A host for which this one will step down once it is elected, and when it answered.
    rival: Option<(SocketAddr, Instant)>,
}

/// The result of an attempt at an address.
enum Dialed {
    Standing(SearchStanding),
    Free,
    Refused(Mismatch),
    Nobody(String),
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
        let choice = HostChoice::new(clock::now(), own, spec.eligible);
        Ok(Self {
            sockets,
            seal: Seal::new(run_id.clone(), credentials.clone()),
            run_id: run_id.clone(),
            credentials: credentials.clone(),
            port: spec.port,
            standing: watch::Sender::new(choice.standing()),
            choice,
            dials: JoinSet::new(),
            last_peer: None,
            unanswered: None,
            mismatch: None,
            notice: SearchNotice::new(clock::now()),
            has_warned_of_version: false,
            has_warned_of_clash: false,
            rival: None,
        })
    }

    /// Searches until the host is found, at most for `join_timeout`. Meanwhile this agent's port answers others.
    ///
    /// # Errors
    ///
    /// Returns [`HostOrJoinError`] if no host was found, or if the host has refused this agent.
    pub(crate) async fn find(&mut self, join_timeout: Duration) -> Result<Found, HostOrJoinError> {
        let (listener, server) = self.listen()?;
        let deadline = clock::now() + join_timeout;
        let found = loop {
            if let Some(effect) = self.carry_out_all() {
                match effect {
                    Effect::Join(at) => break Found::There(at),
                    Effect::Host => break Found::Here(self.own_address(), listener),
                    Effect::Continue(at) => match continued(at, self.port, &listener) {
                        Ok(listener) => {
                            info!(endpoint = %at, "continuing the coordinator at this address");
                            break Found::Here(at.ip(), listener);
                        }
                        Err(error) => {
                            self.unanswered = Some((at, format!("cannot listen at {at}: {error}")));
                            self.choice.handle_not_continued(clock::now(), at);
                        }
                    },
                    Effect::GiveUp => {
                        if let Some(mismatch) = self.mismatch.take() {
                            return Err(LocateError::from(mismatch).into());
                        }
                    }
                    // They are carried out already, or only an agent that has settled has them.
                    Effect::Send(_) | Effect::Dial(_) | Effect::StepDown(_) | Effect::Show(..) => {}
                }
                continue;
            }
            if clock::now() >= deadline {
                let cause = self.unanswered.take().map(|(_, cause)| cause);
                let cause =
                    cause.unwrap_or_else(|| "no agent that may host the job answered".to_owned());
                return Err(LocateError::NotFound { waited: join_timeout, cause }.into());
            }
            self.wait(Some(deadline.min(self.notice.poll_timeout()))).await;
            let (interfaces, progress) = (self.interfaces(), self.progress());
            let run_id = self.run_id.as_str();
            let line = self.notice.handle_timeout(clock::now(), run_id, &interfaces, progress);
            line.iter().for_each(|line| telemetry::line(line));
        };
        self.dials.abort_all();
        server.stop();
        Ok(found)
    }

    /// Opens this agent's port, or a free one if another job uses it. The other agents receive the port in use.
    fn listen(&mut self) -> Result<(TcpListener, Server), HostOrJoinError> {
        let reach = Reach::of(self.own_address());
        let listener = net::listen(reach, self.port).or_else(|_| net::listen(reach, 0));
        let listener = listener.map_err(system("listen"))?;
        self.port = listener.local_addr().map_err(system("listen"))?.port();
        let served = listener.try_clone().map_err(system("listen"))?;
        let known = watch::channel(CoordinatorAddress::unknown()).1;
        let server = Server::elsewhere(served, &self.run_id, known, &self.credentials)?;
        server.show_standing(self.standing.subscribe());
        Ok((listener, server))
    }

    fn progress(&self) -> SearchProgress {
        match &self.unanswered {
            Some((at, _)) => SearchProgress::NoCoordinator(*at),
            None if self.choice.is_alone() => SearchProgress::Alone,
            None if self.choice.has_candidate() => SearchProgress::Candidates,
            None => SearchProgress::NoCandidate,
        }
    }

    /// Returns true if no other agent of the job has sent a datagram.
    pub(crate) fn is_alone(&self) -> bool {
        self.choice.is_alone()
    }

    /// Returns the names of the interfaces that it searches on.
    pub(crate) fn interfaces(&self) -> String {
        self.sockets.interfaces().join(",")
    }

    /// Returns what this agent shows on its port.
    pub(crate) fn standing(&self) -> watch::Receiver<SearchStanding> {
        self.standing.subscribe()
    }

    /// Continues to answer searching agents, for an agent at `port` that hosts or has joined.
    pub(crate) fn answer(mut self, port: u16, mut home: Home) -> SearchResponder {
        self.port = port;
        SearchResponder(tokio::spawn(async move {
            loop {
                let settled = home.settled().await;
                self.choice.handle_settled(clock::now(), settled);
                if self.rival.is_some() && home.coordinator().is_some() {
                    let is_fresh = |at: Instant| clock::now() < at + limits::RIVAL_COUNTS;
                    let rival = self.rival.take().filter(|(_, at)| is_fresh(*at));
                    rival.into_iter().for_each(|(rival, _)| self.step_down(rival, &home));
                }
                while let Some(effect) = self.carry_out_all() {
                    match effect {
                        Effect::StepDown(at) => self.step_down(at, &home),
                        Effect::Show(at, has_begun) => self.show(at, has_begun, &home),
                        // They are carried out already, or the search has ended.
                        Effect::Send(_) | Effect::Dial(_) | Effect::Join(_) => {}
                        Effect::Host | Effect::Continue(_) | Effect::GiveUp => {}
                    }
                }
                if self.is_alone()
                    && home.coordinator().is_some()
                    && let Some(others) = self.notice.lonely_host(clock::now())
                {
                    warn!("no other agent of this job was found, but {others}");
                }
                tokio::select! {
                    () = self.wait(None) => {}
                    () = home.changed() => {}
                }
            }
        }))
    }

    /// Makes the coordinator of this process step down for the host at `at`, as soon as it is elected.
    fn step_down(&mut self, at: SocketAddr, home: &Home) {
        let Some(coordinator) = home.coordinator() else {
            self.rival = Some((at, clock::now()));
            return;
        };
        info!(to = %at, "another agent also coordinates this job; joining it there");
        // The next answer repeats it.
        let _ = coordinator.try_send(Input::StepDown(endpoint_at(at)));
    }

    /// Shows this job to the host at `at`. Jobs without voters are not compared.
    fn show(&mut self, at: SocketAddr, has_begun: bool, home: &Home) {
        let Some((leadership, _)) = &home.leading else { return };
        if !leadership.is_fixed() {
            // The next answer repeats it.
            leadership.try_send(LeadershipCommand::Found(VoterAddress::new(at.to_string())));
        } else if has_begun && !self.has_warned_of_clash {
            self.has_warned_of_clash = true;
            warn!(
                other = %at,
                "another agent hosts a different job with the same name: check `--rdzv-id` on all nodes"
            );
        }
    }

    /// Carries out effects. Returns the first effect whose execution depends on the part of this agent.
    fn carry_out_all(&mut self) -> Option<Effect> {
        self.standing.send_if_modified(|shown| {
            let standing = self.choice.standing();
            std::mem::replace(shown, standing) != standing
        });
        loop {
            match self.choice.poll_effect()? {
                Effect::Send(peers) => {
                    let announcement = self.choice.announcement(self.port);
                    for datagram in announcement.iter().flat_map(|one| self.seal.close(one)) {
                        self.sockets.broadcast(&datagram);
                        let missed = peers.iter().filter(|peer| self.sockets.misses(**peer));
                        missed.for_each(|peer| self.sockets.send_to(*peer, &datagram));
                    }
                }
                Effect::Dial(at) => {
                    let (run_id, credentials) = (self.run_id.clone(), self.credentials.clone());
                    self.dials.spawn(async move { (at, dial(at, &run_id, &credentials).await) });
                }
                effect => return Some(effect),
            }
        }
    }

    async fn wait(&mut self, deadline: Option<Instant>) {
        let due = [self.choice.poll_timeout(), deadline].into_iter().flatten().min();
        tokio::select! {
            // Hosts that have answered come first, because there are few. Datagrams come before deadlines: otherwise an agent that was
            // paused would act as if it had waited for the others.
            biased;
            Some(Ok((at, dialed))) = self.dials.join_next() => self.handle_dialed(at, dialed),
            received = self.sockets.receive() => match received {
                Ok((bytes, peer)) => {
                    self.handle_datagram(&bytes, peer);
                    // A flood of datagrams must not delay deadlines.
                    self.choice.handle_timeout(clock::now());
                }
                Err(error) => {
                    debug!(%error, "failed to receive datagrams; retrying");
                    clock::until(Some(clock::now() + limits::RETRY_INTERVAL)).await;
                }
            },
            () = clock::until(due) => self.choice.handle_timeout(clock::now()),
        }
    }

    fn handle_dialed(&mut self, at: SocketAddr, dialed: Dialed) {
        let answer = match dialed {
            Dialed::Standing(standing) => {
                self.unanswered = None;
                DialAnswer::Standing(standing)
            }
            Dialed::Free => DialAnswer::Free,
            Dialed::Refused(mismatch) => {
                self.unanswered = Some((at, mismatch.to_string()));
                if self.credentials.is_secured() && !self.credentials.has_certificate() {
                    // An agent with another secret sends no datagram of this job, so a stranger has sent an old one again.
                    DialAnswer::Nobody
                } else {
                    self.mismatch = Some(mismatch);
                    DialAnswer::Refused
                }
            }
            Dialed::Nobody(cause) => {
                // A refusal explains the failure better.
                if !self.choice.is_refused() && self.choice.is_named_host(at) {
                    self.unanswered = Some((at, cause));
                }
                DialAnswer::Nobody
            }
        };
        self.choice.handle_answer(clock::now(), at, answer);
    }

    fn handle_datagram(&mut self, bytes: &[u8], peer: SocketAddr) {
        match self.seal.open(bytes) {
            Opened::Announcement(announcement) => {
                self.last_peer = self.last_peer.filter(|_| ThisHost.owns(peer.ip())).or(Some(peer));
                self.choice.handle_announcement(clock::now(), peer, &announcement);
            }
            Opened::OtherJob => self.notice.handle_other_job(),
            Opened::OtherVersion if !self.has_warned_of_version => {
                self.has_warned_of_version = true;
                warn!(
                    "an agent of this job at {} runs another version of ragent, and the two do not find each other; install the same version on all nodes",
                    peer.ip()
                );
            }
            Opened::OtherVersion | Opened::Foreign => {}
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
            addresses.into_iter().next().unwrap_or_else(|| Ipv4Addr::LOCALHOST.into())
        })
    }
}

/// Asks the agent at `at` for its part in the job.
async fn dial(at: SocketAddr, run_id: &RunId, credentials: &Credentials) -> Dialed {
    let asked = timeout(limits::DIAL_TIMEOUT, async {
        let cause = match identity::standing_at(at, run_id, credentials).await {
            Ok(standing) => return Dialed::Standing(standing),
            Err(cause) => cause,
        };
        match identity::ask(at, Some(credentials)).await {
            IdentityAnswer::Mismatch(mismatch) => Dialed::Refused(mismatch),
            IdentityAnswer::None(_) if ThisHost.owns(at.ip()) => Dialed::Free,
            // It has just replaced the listener of its search.
            IdentityAnswer::Ragent => match identity::standing_at(at, run_id, credentials).await {
                Ok(standing) => Dialed::Standing(standing),
                Err(cause) => Dialed::Nobody(cause),
            },
            _ => Dialed::Nobody(cause),
        }
    });
    asked.await.unwrap_or_else(|_| Dialed::Nobody(format!("{at} did not answer in time")))
}

/// Returns a listener at the own address `at`, where this agent continues the host. It may be that of the search.
fn continued(at: SocketAddr, port: u16, listener: &TcpListener) -> io::Result<TcpListener> {
    if at.port() == port { listener.try_clone() } else { locate::bind(&endpoint_at(at), at) }
}
