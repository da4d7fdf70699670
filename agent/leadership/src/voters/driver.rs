//! Drives the machine of a voter: one task, which waits only for its inputs.
//!
//! In each turn of the loop
//!
//! 1. all effects of the machine are carried out: requests are sent, a new leader is published, a
//!    change of the voters is stored.
//! 2. the connections are adapted to the list of voters.
//! 3. the next event is handled: a message, a command, a new connection, or a deadline.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use ragent_base::{
    net::{Endpoint, bounded_connections::Connections, port::PassedConnection},
    secret::Credentials,
    sys::{
        alarm::{Alarm, passed},
        clock,
    },
};
use ragent_election::election::{
    Effect, Election, NewLeadership, OtherJob,
    message::{Request, Version, VoterMessage},
};
use ragent_proto::convert::voter::FromVoter;
use ragent_rendezvous::{
    heir::Member,
    ids::{JobUid, Term, VoterAddress, VoterId},
    jitter::{Jitter, Pauses},
};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::{AbortHandle, Id, JoinSet},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    Answered, Leader, LeadershipCommand, StateLoss, StateNeed, Stored, VoterSpec,
    event::{Sender, VoterEvent},
    frames::Format,
    incoming, limits,
    outgoing::{Outgoing, OutgoingRequest},
    state_loss::AnsweringVoters,
    voter_reach::VoterReach,
};
use crate::{Mandate, Superseded};

/// The inputs from the rest of the agent.
pub(super) struct Inputs {
    pub commands: mpsc::Receiver<LeadershipCommand>,
    pub connections: mpsc::Receiver<PassedConnection>,
}

/// The values that the voter publishes to the rest of the agent.
pub(super) struct Published {
    pub leader: watch::Sender<Leader>,
    pub answered: watch::Sender<Answered>,
    pub stored: watch::Sender<Stored>,
    pub state_loss: watch::Sender<Option<StateLoss>>,
    pub others: watch::Sender<Vec<OtherJob>>,
    pub superseded: watch::Sender<Option<Superseded>>,
    pub ended: watch::Sender<Vec<JobUid>>,
}

/// The connection to another voter.
struct VoterLink {
    requests: mpsc::Sender<OutgoingRequest>,
    /// Ends the pause before the next attempt to connect.
    redial: Arc<Notify>,
    task: AbortHandle,
}

/// A process that leaves, and waits until a member has replaced its voter.
struct LeavingVoter {
    until: Instant,
    left: oneshot::Sender<StateNeed>,
}

/// The driver of one voter.
pub(super) struct VoterDriver {
    election: Election,
    is_list_common: bool,
    format: Format,
    voter: VoterId,
    address: VoterAddress,
    reach: VoterReach,
    answering: AnsweringVoters,
    published: Published,
    /// The term in which this process leads, and the end of its right; `None` if it does not lead.
    leading: Option<(Term, watch::Sender<Instant>)>,
    /// Changes of the state that are being copied, in order.
    copying: Vec<(Version, oneshot::Sender<()>)>,
    /// The connections to the other voters.
    outgoing: BTreeMap<VoterAddress, VoterLink>,
    /// Set while this process leaves.
    leaving: Option<LeavingVoter>,
    /// Writes the state to the voter's file.
    store: Box<dyn Fn(&Stored) -> bool + Send>,
    /// Records that a job of this name has ended.
    record_end: Box<dyn Fn(&JobUid) + Send>,
    source: Option<IpAddr>,
    credentials: Credentials,
    jitter: Jitter,
    /// The connections from addresses of other voters that are not authenticated yet.
    opening: Connections,
    /// The connections from other voters.
    incoming: Connections,
    /// The connections from other processes. These may show a job that this process does not know.
    strangers: Connections,
    /// True if the voter's file may contain an older list of voters. The voter then grants nothing.
    cannot_store: bool,
    /// The addresses that were reported because they lead to the same process as another one.
    duplicates: BTreeSet<VoterAddress>,
    events: mpsc::Sender<VoterEvent>,
    queue: mpsc::Receiver<VoterEvent>,
    tasks: JoinSet<()>,
}

impl VoterDriver {
    /// Starts the voter and the tasks of its connections.
    pub(super) fn new(spec: VoterSpec, published: Published) -> Self {
        let VoterSpec {
            run_id,
            is_list_common,
            settings,
            stored,
            store,
            record_end,
            source,
            credentials,
        } = spec;
        let Stored { replica, highest, .. } = stored;
        let now = clock::now();
        let is_listed = settings.listed.contains(&settings.address);
        let listed = (is_list_common && is_listed).then_some(settings.listed.as_slice());
        let format = Format::new(run_id, listed, settings.timers);
        let (events, queue) = mpsc::channel(limits::EVENTS);
        let jitter = Jitter::new(settings.seed);
        let own = Member { voter: settings.voter, address: settings.address.clone() };
        let mut driver = Self {
            voter: settings.voter,
            address: settings.address.clone(),
            election: Election::new(now, settings, replica, highest),
            is_list_common,
            format,
            reach: VoterReach::new(now),
            answering: AnsweringVoters::new(own),
            published,
            leading: None,
            copying: Vec::new(),
            outgoing: BTreeMap::new(),
            leaving: None,
            store,
            record_end,
            source,
            credentials,
            jitter,
            opening: Connections::new(limits::MAX_OPENING, limits::MAX_OPENING_PER_ADDRESS),
            incoming: Connections::new(limits::MAX_CONNECTIONS, limits::MAX_CONNECTIONS),
            strangers: Connections::new(limits::MAX_STRANGERS, limits::MAX_STRANGERS_PER_ADDRESS),
            cannot_store: false,
            duplicates: BTreeSet::new(),
            events,
            queue,
            tasks: JoinSet::new(),
        };
        driver.connect();
        driver
    }

    /// Opens the connections that the voter needs, and closes all others.
    fn connect(&mut self) {
        let needed = self.election.connections();
        let lists = &self.election.replica().lists;
        let slots = || lists.slots().map(|slot| slot.address.clone());
        let voters = slots().filter(|address| *address != self.address).collect();
        let count = (lists.last.len(), !self.election.is_outside());
        // The voters may change even if the connections do not.
        self.reach.handle_voters(clock::now(), &needed, &voters, count);
        if needed.iter().eq(self.outgoing.keys()) {
            return;
        }
        let is_unneeded = |address: &VoterAddress, _: &mut VoterLink| !needed.contains(address);
        for (_, VoterLink { requests, task, .. }) in self.outgoing.extract_if(.., is_unneeded) {
            // The task ends after it has sent its queue: a leader that resigns releases the leases of all its voters.
            drop(requests);
            self.tasks.spawn(async move {
                clock::until(Some(clock::now() + limits::LEAVE_TIMEOUT)).await;
                task.abort();
            });
        }
        for address in needed {
            if self.outgoing.contains_key(&address) {
                continue;
            }
            let Ok(endpoint) = address.as_str().parse::<Endpoint>() else {
                debug!(%address, "the address of a voter is not an endpoint");
                continue;
            };
            let (requests, received) = mpsc::channel(limits::FRAMES);
            let redial = Arc::new(Notify::new());
            let connection = Outgoing {
                address: address.clone(),
                endpoint,
                source: self.source,
                credentials: self.credentials.clone(),
                format: self.format.clone(),
                requests: received,
                events: self.events.clone(),
                addresses: Vec::new(),
                redial: Arc::clone(&redial),
                pauses: Pauses::new(limits::REDIAL_FIRST, limits::REDIAL_MAX, self.jitter.bits()),
            };
            let task = self.tasks.spawn(connection.run());
            self.outgoing.insert(address, VoterLink { requests, redial, task });
        }
    }

    /// Drives the voter until no sender of commands is left.
    pub(super) async fn drive(mut self, mut inputs: Inputs) {
        let mut alarm = Alarm::new();
        loop {
            self.carry_out_all();
            self.let_go();
            let leave_at = self.leaving.as_ref().map(|leaving| leaving.until);
            let (due, report_at) = (self.election.poll_timeout(), self.reach.poll_timeout());
            tokio::select! {
                // Messages come before deadlines. Otherwise a pause of this process would look like silence of the others.
                biased;
                Some(event) = self.queue.recv() => self.handle_event(event),
                command = inputs.commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return,
                },
                Some(connection) = inputs.connections.recv() => self.accept(connection),
                () = passed(due) => self.election.handle_timeout(clock::now()),
                () = passed(report_at) => {
                    if let Some(report) = self.reach.handle_timeout(clock::now()) {
                        warn!("{report}");
                    }
                }
                Some(_) = self.tasks.join_next() => {}
                // The next turn of the loop notices which deadline has passed.
                () = alarm.until([due, report_at, leave_at]) => {}
            }
        }
    }

    fn handle_event(&mut self, event: VoterEvent) {
        let now = clock::now();
        match event {
            VoterEvent::Connected(address) => self.election.handle_connected(now, &address),
            VoterEvent::Lost(address, cause) => {
                debug!(voter = %address, cause, "no connection to a voter");
                self.election.handle_disconnected(&address);
                self.reach.handle_lost(now, &address, cause);
            }
            VoterEvent::Resolved(address, addresses) => {
                self.reach.handle_resolved(&address, addresses)
            }
            VoterEvent::Answer(address, answer) => {
                self.reach.handle_answer(&address);
                let voter = answer.voter;
                let answer = VoterMessage { address: address.clone(), ..*answer };
                self.election.handle_answer(now, answer);
                self.answering.handle_answer(self.election.replica(), &address, voter);
                self.published.answered.send_replace(self.election.answered());
            }
            VoterEvent::Request(task, sender, request, answered) => {
                let mut answer = if self.is_voter(sender) {
                    if let Some((ip, task)) = self.strangers.take(task) {
                        self.incoming.add(ip, task);
                    }
                    self.election.handle_request(now, *request)
                } else {
                    self.election.handle_stranger(now, *request)
                };
                // The answer may be sent only after the effects are carried out.
                self.carry_out_all();
                if self.cannot_store
                    && let Some(answer) = &mut answer
                {
                    answer.body.is_granted = false;
                }
                if let Some(frame) =
                    answer.and_then(|answer| self.format.encode(FromVoter::Answer(answer)))
                {
                    // The connection may have ended.
                    let _ = answered.send(frame);
                }
            }
            VoterEvent::Opened(task) => self.handle_opened(task),
            VoterEvent::Mismatch(ip, cause, hint) => {
                if self.reach.is_new_mismatch(ip, &cause) {
                    warn!("the message of a voter at {ip} was refused: {cause}; {hint}");
                }
            }
            VoterEvent::Shown(job) => self.election.handle_known_job(now, &job),
        }
    }

    fn handle_command(&mut self, command: LeadershipCommand) {
        let now = clock::now();
        match command {
            LeadershipCommand::Remember { term, job_state, copied, .. } => {
                let leads = self.leading.as_ref().is_some_and(|(leading, _)| *leading == term);
                // Otherwise this process no longer leads in that term, and `copied` is dropped.
                if leads && let Some(version) = self.election.handle_remember(now, *job_state) {
                    self.copying.push((version, copied));
                }
            }
            LeadershipCommand::Highest(term) => self.election.handle_highest(now, term),
            LeadershipCommand::Resign(term) => self.election.handle_resigned(now, term),
            // Each voter deletes its own copy of the state when it ends.
            LeadershipCommand::JobOver(_) => {}
            LeadershipCommand::DeathNotice(process) => {
                self.election.handle_death_notice(now, &process)
            }
            LeadershipCommand::Members(report) => self.election.handle_members(now, report),
            LeadershipCommand::Forget => self.election.handle_forgotten(now),
            LeadershipCommand::KnownJob(job) => self.election.handle_known_job(now, &job),
            LeadershipCommand::Found(address) => self.election.handle_found(now, &address),
            LeadershipCommand::Ended(jobs) => self.election.handle_ended(now, &jobs),
            LeadershipCommand::StepDown(to) => {
                self.election.handle_stepping_down(now, VoterAddress::new(to.endpoint));
            }
            LeadershipCommand::Registered(at) => {
                let (job, ip) = at.unzip();
                self.election.handle_registered(now, job);
                self.reach.handle_trusted(ip);
            }
            LeadershipCommand::Leave { is_replaced, left } => {
                self.election.handle_leaving(now);
                let patience = limits::REPLACE_TIMEOUT;
                let until = if is_replaced { now + patience } else { now };
                self.leaving = Some(LeavingVoter { until, left });
            }
        }
    }

    /// Lets a process leave if its voter was replaced, or if the time is over.
    fn let_go(&mut self) {
        let is_over =
            |leaving: &mut LeavingVoter| self.election.may_end() || leaving.until <= clock::now();
        let Some(LeavingVoter { left, .. }) = self.leaving.take_if(is_over) else { return };
        let need = match self.election.ended_job() {
            Some(uid) => StateNeed::Ended(uid.clone()),
            None if self.election.is_needed() => StateNeed::Needed,
            None => StateNeed::Replaced,
        };
        let connected =
            self.outgoing.iter().filter(|(address, _)| self.reach.is_connected(address));
        let outgoing: Vec<_> = connected.map(|(_, to)| to.requests.clone()).collect();
        self.tasks.spawn(async move {
            let _ = timeout(limits::LEAVE_TIMEOUT, flush(outgoing)).await;
            let _ = left.send(need);
        });
    }

    /// Serves a connection. Requests that do not come from the address of a voter only show a job, and nothing else in them counts. Their
    /// connections have a limit of their own.
    fn accept(&mut self, connection: PassedConnection) {
        let peer = connection.peer;
        let is_own_user = peer.is_here.then_some(peer.is_own_user);
        let sender = Sender { ip: peer.ip, is_own_user };
        if sender.is_own_user == Some(false) {
            return debug!("connection closed: the peer belongs to another user of this machine");
        }
        let (format, credentials) = (self.format.clone(), self.credentials.clone());
        let serving = incoming::serve(connection, sender, format, credentials, self.events.clone());
        let task = self.tasks.spawn(serving);
        if self.is_voter(sender) {
            self.opening.add(peer.ip, task);
        } else {
            self.strangers.add(peer.ip, task);
        }
    }

    /// Returns true if a process may be a voter of the job.
    fn is_voter(&self, sender: Sender) -> bool {
        sender.is_own_user.unwrap_or_else(|| self.reach.is_voter(sender.ip))
    }

    fn handle_opened(&mut self, task: Id) {
        // The task may have been ended meanwhile.
        let Some((ip, task)) = self.opening.take(task) else { return };
        // The other voter is running, so the next attempt need not wait.
        for (_, to) in self.outgoing.iter().filter(|(to, _)| self.reach.is_at(to, ip)) {
            to.redial.notify_one();
        }
        self.incoming.add(ip, task);
    }

    fn carry_out_all(&mut self) {
        while let Some(effect) = self.election.poll_effect() {
            self.carry_out(effect);
        }
        self.connect();
        self.review_state();
        let (version, highest) = (self.election.replica().version, self.election.highest());
        let is_led = self.election.has_leader();
        self.published.stored.send_if_modified(|stored| {
            let known = (stored.replica.version, stored.highest, stored.is_led);
            let is_new = known != (version, highest, is_led);
            if is_new {
                *stored = self.stored();
            }
            is_new
        });
    }

    /// Publishes and logs that a majority of the voters has lost the job's state.
    fn review_state(&mut self) {
        let loss = self.answering.state_loss(self.election.replica());
        // Another voter may still answer with a newer list.
        let loss = loss.filter(|_| self.reach.lacks_leader_for(clock::now(), limits::STATE_LOSS));
        if *self.published.state_loss.borrow() == loss {
            return;
        }
        if let Some(loss) = &loss {
            warn!("{loss}; {}", StateLoss::HINT);
        }
        self.reach.handle_state_loss(loss.is_some());
        self.published.state_loss.send_replace(loss);
    }

    fn stored(&self) -> Stored {
        Stored {
            voter: Some(self.voter),
            replica: self.election.replica().clone(),
            highest: self.election.highest(),
            is_led: self.election.has_leader(),
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Store => self.cannot_store = !(self.store)(&self.stored()),
            Effect::OtherJobs => {
                self.published.others.send_replace(self.election.other_jobs().collect());
            }
            Effect::Ended(uid) => {
                (self.record_end)(&uid);
                self.published.ended.send_replace(self.election.ended());
            }
            Effect::Yield { other: job, at } => {
                self.published.superseded.send_replace(Some(Superseded::ByJob { job, at }));
            }
            Effect::Outlived(outcome) => {
                self.published.superseded.send_replace(Some(Superseded::ByEnd(outcome)));
            }
            // The coordinator reads the voters from the published state.
            Effect::Voters(_) => {}
            Effect::Send { to, message } => self.send(to, message),
            Effect::Lead(leadership) => self.lead(*leadership),
            Effect::Extend(until) => {
                if let Some((_, sender)) = &self.leading {
                    sender.send_replace(until);
                }
            }
            Effect::Copied(version) => {
                let (done, rest) =
                    self.copying.drain(..).partition(|(copying, _)| *copying <= version);
                self.copying = rest;
                let done: Vec<(Version, oneshot::Sender<()>)> = done;
                for (_, copied) in done {
                    // The coordinator may have ended.
                    let _ = copied.send(());
                }
            }
            Effect::Follow { leader } => {
                self.leading = None;
                self.copying.clear();
                self.reach.handle_leader(clock::now(), leader.is_some(), false);
                if leader.is_some() {
                    self.answering.handle_leader();
                }
                let term = self.election.lease_term().unwrap_or_default();
                debug!(leader = leader.as_ref().map(VoterAddress::as_str), %term, "leader");
                self.published.leader.send_replace(match leader {
                    Some(address) => Leader::At(address.to_string(), term),
                    None => Leader::Unknown,
                });
            }
            Effect::Duplicate { address } => {
                if self.is_list_common
                    && self.duplicates.len() < limits::MAX_DUPLICATES
                    && self.duplicates.insert(address.clone())
                {
                    warn!(
                        "the endpoint {address} leads to the same process as another one in `--rdzv-endpoint`; list \
                         each host once"
                    );
                }
            }
        }
    }

    fn lead(&mut self, leadership: NewLeadership) {
        let (sender, until) = watch::channel(leadership.until);
        self.leading = Some((leadership.term, sender));
        self.reach.handle_leader(clock::now(), true, true);
        self.answering.handle_leader();
        self.published
            .leader
            .send_replace(Leader::Here(Mandate::elected(leadership, until).into()));
    }

    fn send(&mut self, to: VoterAddress, message: VoterMessage<Request>) {
        let is_answered = !matches!(message.body, Request::Release { .. });
        let Some(connection) = self.outgoing.get(&to) else { return };
        let Some(bytes) = self.format.encode(FromVoter::Request(message)) else {
            return warn!(voter = %to, "failed to send a request: it is too large");
        };
        // The queue is full while the voter is not connected. The machine repeats what is needed.
        let _ = connection.requests.try_send(OutgoingRequest { bytes, is_answered });
    }
}

/// Waits until all requests are sent.
async fn flush(outgoing: Vec<mpsc::Sender<OutgoingRequest>>) {
    for requests in outgoing {
        // The capacity is complete once the task has taken all requests. The task writes each request before it takes the next one.
        let _ = requests.reserve_many(limits::FRAMES).await;
    }
    // The task may still be writing the last request.
    tokio::task::yield_now().await;
}
