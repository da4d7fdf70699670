//! Drives the machine of a voter: one task, which waits for nothing but its inputs.

use std::{net::IpAddr, time::Instant};

use bytes::Bytes;
use ragent_proto::convert::voter::FromVoter;
use ragent_rendezvous::{
    election::{
        Effect, Election, Leadership,
        message::{Answer, Place, Request, Version, VoterMessage},
    },
    ids::Term,
    jitter::Jitter,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    VoterSpec,
    frames::Format,
    handle::{Answered, Command, Leader, Stored, Tenancy},
    incoming, limits,
    outgoing::{Outgoing, OutgoingRequest},
    reach::Reachability,
};
use crate::{net::port::VoterConnection, spec::Endpoint, sys::clock};

/// An event on a connection.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection to this voter is open.
    Connected(Place),
    /// The connection to this voter is lost, or could not be opened, for this reason.
    Lost(Place, String),
    /// The endpoint of this voter has these addresses.
    Resolved(Place, Vec<IpAddr>),
    /// The answer of this voter to a request.
    Answer(Place, Box<VoterMessage<Answer>>),
    /// The request of another voter, and the channel for the answer; dropped if the request has none.
    Request(Box<VoterMessage<Request>>, oneshot::Sender<Bytes>),
    /// A process at this address has sent a message that does not belong to this election, for this reason.
    Mismatch(IpAddr, String),
}

/// The inputs from the rest of the agent.
pub(super) struct Inputs {
    pub commands: mpsc::Receiver<Command>,
    pub connections: mpsc::Receiver<VoterConnection>,
}

/// The state that the voter publishes to the rest of the agent.
pub(super) struct Published {
    pub leader: watch::Sender<Leader>,
    pub answered: watch::Sender<Answered>,
    pub stored: watch::Sender<Stored>,
}

/// The driver of one voter.
pub(super) struct Driver {
    election: Election,
    format: Format,
    list: Vec<Endpoint>,
    reach: Reachability,
    published: Published,
    /// The term in which this process leads, and its end; `None` if it does not.
    leading: Option<(Term, watch::Sender<Instant>)>,
    /// Changes of the memory that are being copied, in their order.
    copying: Vec<(Version, oneshot::Sender<()>)>,
    /// The queues of requests to the other voters, by place; `None` at this voter's place.
    outgoing: Vec<Option<mpsc::Sender<OutgoingRequest>>>,
    /// The tasks of connections from other voters, the oldest first.
    incoming: Vec<AbortHandle>,
    /// The places whose endpoint leads to the same process as another one, and that were reported.
    duplicates: Vec<Place>,
    events: mpsc::Sender<Event>,
    queue: mpsc::Receiver<Event>,
    tasks: JoinSet<()>,
}

impl Driver {
    /// Starts the voter, and the tasks of its connections.
    pub(super) fn new(spec: VoterSpec, published: Published) -> Self {
        let VoterSpec { run_id, list, settings, stored: Stored { replica, highest }, source } =
            spec;
        let now = clock::now();
        let format = Format::new(run_id, &list, settings.timers);
        let (events, queue) = mpsc::channel(limits::EVENTS);
        let own = settings.place;
        let mut jitter = Jitter::new(settings.seed);
        let mut tasks = JoinSet::new();
        let mut outgoing = Vec::new();
        for (place, endpoint) in list.iter().enumerate() {
            if Place(place) == own {
                outgoing.push(None);
                continue;
            }
            let (sender, requests) = mpsc::channel(limits::FRAMES);
            outgoing.push(Some(sender));
            let connection = Outgoing {
                place: Place(place),
                endpoint: endpoint.clone(),
                source,
                format: format.clone(),
                requests,
                events: events.clone(),
                addresses: Vec::new(),
                jitter: Jitter::new(jitter.bits()),
            };
            tasks.spawn(connection.run());
        }
        Self {
            election: Election::new(now, settings, replica, highest),
            format,
            reach: Reachability::new(now, list.clone(), own),
            list,
            published,
            leading: None,
            copying: Vec::new(),
            outgoing,
            incoming: Vec::new(),
            duplicates: Vec::new(),
            events,
            queue,
            tasks,
        }
    }

    /// Drives the voter until no sender of commands is left.
    pub(super) async fn drive(mut self, mut inputs: Inputs) {
        loop {
            self.carry_out_all();
            let (due, report_at) = (self.election.poll_timeout(), self.reach.poll_timeout());
            tokio::select! {
                // Messages before deadlines, so that a stall of this process is not mistaken for silence of the others.
                biased;
                Some(event) = self.queue.recv() => self.handle_event(event),
                command = inputs.commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return,
                },
                Some(connection) = inputs.connections.recv() => self.accept(connection),
                () = clock::until(due) => self.election.handle_timeout(clock::now()),
                () = clock::until(report_at) => {
                    if let Some(report) = self.reach.handle_timeout(clock::now()) {
                        warn!("{report}");
                    }
                }
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Connected(place) => self.election.handle_connected(now, place),
            Event::Lost(place, cause) => {
                debug!(voter = %self.name(place), cause, "no connection to a voter");
                self.reach.handle_lost(now, place, cause);
            }
            Event::Resolved(place, addresses) => self.reach.handle_resolved(place, addresses),
            Event::Answer(place, answer) => {
                self.reach.handle_answer(place);
                self.election.handle_answer(now, VoterMessage { place, ..*answer });
                self.published.answered.send_replace(self.election.answered().to_vec());
            }
            Event::Request(request, answered) => {
                let answer = self.election.handle_request(now, *request);
                // The answer may only be sent when the effects are carried out.
                self.carry_out_all();
                if let Some(frame) =
                    answer.and_then(|answer| self.format.encode(FromVoter::Answer(answer)))
                {
                    // The connection may have ended.
                    let _ = answered.send(frame);
                }
            }
            Event::Mismatch(ip, cause) => {
                if self.reach.is_new_mismatch(ip, &cause) {
                    warn!(
                        "the message of a voter at {ip} was refused: {cause}; give the same `--rdzv-id`, \
                         `--rdzv-endpoint` and `--nnodes` on all nodes"
                    );
                }
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        let now = clock::now();
        match command {
            Command::Remember { term, memory, successors: _, copied } => {
                let leads = self.leading.as_ref().is_some_and(|(leading, _)| *leading == term);
                // Otherwise this process no longer leads in that term, and drops `copied`.
                if leads && let Some(version) = self.election.handle_remember(now, *memory) {
                    self.copying.push((version, copied));
                }
            }
            Command::Highest(term) => self.election.handle_highest(now, term),
            Command::Resign(term) => self.election.handle_resigned(now, term),
            // Each voter deletes its own copy of the memory when it ends.
            Command::JobOver(_) => {}
            Command::Obituary(process) => self.election.handle_obituary(now, &process),
            Command::Leave(left) => {
                self.election.handle_leaving(now);
                self.carry_out_all();
                let outgoing = self.outgoing.iter().enumerate();
                let connected =
                    outgoing.filter(|(place, _)| self.reach.is_connected(Place(*place)));
                let outgoing: Vec<_> = connected.filter_map(|(_, sender)| sender.clone()).collect();
                self.tasks.spawn(async move {
                    let _ = timeout(limits::LEAVE_TIMEOUT, flush(outgoing)).await;
                    let _ = left.send(());
                });
            }
        }
    }

    /// Serves a connection that comes from another voter; closes any other connection before a message is read.
    fn accept(&mut self, connection: VoterConnection) {
        let VoterConnection { peer, is_own_user, .. } = connection;
        let is_voter = if peer.is_here { is_own_user } else { self.reach.is_voter(peer.ip) };
        if !is_voter {
            return debug!(peer = %peer.ip, "connection closed: the peer is not a voter of the job");
        }
        self.incoming.retain(|task| !task.is_finished());
        if self.incoming.len() >= limits::MAX_CONNECTIONS {
            self.incoming.remove(0).abort();
        }
        let serving = incoming::serve(connection, self.format.clone(), self.events.clone());
        self.incoming.push(self.tasks.spawn(serving));
    }

    fn carry_out_all(&mut self) {
        while let Some(effect) = self.election.poll_effect() {
            self.carry_out(effect);
        }
        let (version, highest) = (self.election.replica().version, self.election.highest());
        self.published.stored.send_if_modified(|stored| {
            let is_new = stored.replica.version != version || stored.highest != highest;
            if is_new {
                *stored = Stored { replica: self.election.replica().clone(), highest };
            }
            is_new
        });
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
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
                let term = self.election.lease_term().unwrap_or_default();
                debug!(leader = leader.map(|place| self.name(place)), %term, "leader");
                self.published.leader.send_replace(match leader {
                    Some(place) => Leader::Other(place, term),
                    None => Leader::Unknown,
                });
            }
            Effect::Duplicate { place } => {
                if !self.duplicates.contains(&place) {
                    warn!(
                        "the endpoint {} leads to the same process as another one in `--rdzv-endpoint`; list \
                         each host once",
                        self.name(place)
                    );
                    self.duplicates.push(place);
                }
            }
        }
    }

    fn lead(&mut self, leadership: Leadership) {
        let (sender, until) = watch::channel(leadership.until);
        self.leading = Some((leadership.term, sender));
        self.reach.handle_leader(clock::now(), true, true);
        self.published
            .leader
            .send_replace(Leader::Here(Tenancy { leadership: leadership.into(), until }));
    }

    fn send(&mut self, to: Place, message: VoterMessage<Request>) {
        let is_answered = !matches!(message.body, Request::Release { .. });
        let Some(Some(requests)) = self.outgoing.get(to.0) else { return };
        let Some(bytes) = self.format.encode(FromVoter::Request(message)) else {
            return warn!(voter = %self.name(to), "failed to send a request: it is too large");
        };
        // While the voter is not connected, the queue is full: the machine repeats what is needed.
        let _ = requests.try_send(OutgoingRequest { bytes, is_answered });
    }

    fn name(&self, place: Place) -> String {
        self.list.get(place.0).map(ToString::to_string).unwrap_or_default()
    }
}

/// Waits until all requests are sent.
async fn flush(outgoing: Vec<mpsc::Sender<OutgoingRequest>>) {
    for requests in outgoing {
        // The capacity is complete when the task has taken all requests; it writes each of them before it
        // takes the next one.
        let _ = requests.reserve_many(limits::FRAMES).await;
    }
    // The task may still be writing the last request.
    tokio::task::yield_now().await;
}
