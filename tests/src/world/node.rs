//! Runs the agents: the real [`Node`] of each, driven as the program drives it.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use ragent_core::{
    agent::{Action, AgentSettings, Ending, News},
    memory,
    node::{Claims, Effect, Node},
    signal::Signal,
    supervisor,
};
use ragent_rendezvous::{
    heir::Member,
    ids::{NodeId, Peer, Round, RoundId, StreamNumber, Term, VoterAddress, VoterId},
    known_job::{KnownJob, Seniority},
    message::{
        FromNode, JobResult, NodeDescription, NodeNotice, NodeReport, NodeState, NoticeKind,
        Outcome, PROTOCOL_VERSION, RefuseReason, Registration, ToNode,
    },
    settings::Leases,
};

use crate::addresses::Place;

use super::{
    Bug, Input, Part, World,
    driver::Waiting,
    host::ProcessEnd,
    port::{Down, Leader, Up},
    workers::Group,
};

/// An agent, from its start to its end.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) description: NodeDescription,
    pub(super) node: Node,
    /// The worker group of the last round that it started, until the group has ended.
    pub(super) group: Option<Group>,
    /// The port of its newest store.
    store_port: u16,
    /// The times at which the keep-alives without an echo were sent.
    sent: BTreeMap<u64, Instant>,
}

/// An input of an agent, except those of its streams.
#[derive(Debug)]
pub(super) enum AgentInput {
    /// The store for the workers of the next round listens.
    StoreOpen,
    /// All standbys have imported their modules.
    StandbysSettled,
    /// The workers of this round can be started.
    Prepared(RoundId),
    /// An input of the worker group of this round.
    Group(RoundId, supervisor::Input),
    /// The keeper reports that the lease of this round's workers is over.
    LeaseExpired(RoundId),
    /// SIGTERM.
    Terminate,
    /// A notice, with the time that its source gives.
    Notice(NoticeKind, Option<Duration>),
    /// An event that concerns checkpoints in memory.
    Memory(Box<memory::Input>),
}

impl World {
    pub(super) fn new_agent(
        &mut self,
        host: usize,
        id: &NodeId,
        voter: Option<VoterId>,
        local: Instant,
    ) -> Agent {
        // A spare takes only the place of a node with as many workers.
        let others = if self.has_equal_nodes() { 0 } else { host % 3 };
        let workers = u32::try_from(1 + others).unwrap_or(1);
        let mut description = NodeDescription {
            agent_port: 1,
            script: "train.py".to_owned(),
            local_world_size: NonZeroU32::new(workers).unwrap_or(NonZeroU32::MIN),
            voter: voter.map(|voter| Member { voter, address: self.place(host).address() }),
            ..NodeDescription::new(
                id.clone(),
                format!("host{host}"),
                format!("10.0.0.{}", host + 1),
            )
        };
        let memory = self.memory_of_agent(host, &mut description);
        let known_round = self.describe(host, &mut description);
        let has_voters = self.fixed.is_none();
        let has_standbys = self.fixed.as_ref().is_some_and(|fixed| fixed.has_standbys);
        if has_standbys {
            let imports = self.random.millis(500, 15_000);
            self.wake_agent(id, imports, AgentInput::StandbysSettled);
        }
        let silence = match &self.etcd {
            Some(etcd) => etcd.timers.silence,
            None => self.timers.voter_lease,
        };
        let settings = AgentSettings {
            memory,
            shared: self.shared,
            silence: if has_voters { silence } else { Duration::ZERO },
            known_round,
            runs_unleased: false,
            has_voters,
            has_standbys,
            leases: Leases::default(),
            seed: self.random.between(0, u64::MAX - 1),
        };
        self.new_keeper(id, host);
        let node = Node::new(local, settings);
        Agent { description, node, group: None, store_port: self.new_port(), sent: BTreeMap::new() }
    }

    /// Returns a port at which no store was before. No world opens as many stores as there are ports.
    fn new_port(&mut self) -> u16 {
        self.stores_opened = self.stores_opened.wrapping_add(1);
        self.stores_opened
    }

    pub(super) fn agent(&mut self, id: &NodeId) -> Option<&mut Agent> {
        self.processes.get_mut(id)?.agent.as_mut()
    }

    /// Calls the machine of an agent with the time on its clock, and carries out the effects.
    pub(super) fn with_node<T>(
        &mut self,
        id: &NodeId,
        call: impl FnOnce(&mut Node, Instant) -> T,
    ) -> Option<T> {
        let local = self.local(id)?;
        let result = call(&mut self.agent(id)?.node, local);
        self.settle_agent(id);
        Some(result)
    }

    /// Gives an agent an input after a delay.
    pub(super) fn wake_agent(&mut self, id: &NodeId, delay: Duration, input: AgentInput) {
        self.wake(id, delay, Input::Agent(input));
    }

    pub(super) fn input(&mut self, id: &NodeId, input: AgentInput) {
        let Some(now) = self.local(id) else { return };
        let Some(agent) = self.agent(id) else { return };
        let group_of = |round: RoundId| move |group: &&mut Group| group.round == round;
        match input {
            AgentInput::StoreOpen => {
                let port = agent.store_port;
                agent.node.tell(now, |agent| agent.handle_store_open(now, port));
            }
            AgentInput::StandbysSettled => {
                agent.node.tell(now, |agent| agent.handle_standbys_settled(now))
            }
            AgentInput::Prepared(round) => self.start_group(id, round),
            AgentInput::Group(round, input) => {
                if let Some(group) = agent.group.as_mut().filter(group_of(round)) {
                    group.supervisor.handle(now, input);
                }
            }
            AgentInput::LeaseExpired(round) => {
                self.note_disturbed(id);
                let Some(agent) = self.agent(id) else { return };
                if let Some(group) = agent.group.as_mut().filter(group_of(round)) {
                    group.supervisor.handle(now, supervisor::Input::Kill);
                    agent.node.tell(now, |agent| agent.handle_lease_expired());
                }
            }
            AgentInput::Terminate => {
                agent.node.tell(now, |agent| agent.handle_signal(now, Signal::TERM));
                self.note_disturbed(id);
            }
            AgentInput::Notice(kind, within) => self.notify(id, now, kind, within),
            AgentInput::Memory(input) => {
                agent.node.tell(now, |agent| agent.handle_memory(now, *input))
            }
        }
        self.settle_agent(id);
    }

    pub(super) fn time_out_agent(&mut self, id: &NodeId) {
        let Some(now) = self.local(id) else { return };
        let Some(agent) = self.agent(id) else { return };
        agent.node.handle_timeout(now);
        if let Some(group) = &mut agent.group {
            group.supervisor.handle_timeout(now);
        }
        self.settle_agent(id);
    }

    /// Handles a message on a stream.
    pub(super) fn arrive_down(&mut self, peer: &Peer, message: Down) {
        let (id, stream) = (&peer.node, peer.stream);
        if !self.is_read(peer) {
            return;
        }
        match message {
            Down::Connected => {
                let address = self.memory_address(id);
                self.with_node(id, |node, now| {
                    node.tell(now, |agent| {
                        address.into_iter().for_each(|address| agent.set_memory_address(address));
                    });
                });
                let claims = self.with_node(id, |node, now| node.handle_connected(now, stream));
                match claims.flatten() {
                    Some(claims) => self.register(peer, claims),
                    None => self.forget(peer),
                }
            }
            Down::Accepted => {
                self.with_node(id, |node, now| node.handle_accepted(now, stream));
            }
            Down::Elsewhere(place, term) => self.go_elsewhere(peer, place, term),
            Down::Message(message) => self.handle_message(peer, *message),
            Down::End => {
                self.forget(peer);
                self.streams.remove(peer);
                self.with_node(id, |node, now| node.handle_ended(now, stream));
            }
        }
    }

    fn handle_message(&mut self, peer: &Peer, mut message: ToNode) {
        let (id, stream) = (&peer.node, peer.stream);
        if self.bug == Bug::LeftFromReceipt {
            self.count_from_receipt(id, &mut message);
        }
        self.forge_guidance(&mut message);
        self.receive_look(peer, &mut message);
        self.forge_memory_down(id, &mut message);
        if let ToNode::Voters(voters) = &message {
            self.learn_voters(id, voters);
        }
        let ToNode::Welcome(welcome) = message else {
            self.with_node(id, |node, now| node.handle_message(now, stream, message));
            return;
        };
        let to = self.streams.get(peer).map(|stream| stream.to);
        let counts = self.with_node(id, |node, now| node.handle_welcome(now, stream, &welcome));
        if counts == Some(true) {
            self.tell(|| format!("{id} is registered at {to:?}"));
        }
        if let (Some(true), Some(to), Some(process)) = (counts, to, self.processes.get_mut(id)) {
            process.targets.handle_welcome(to, welcome.term);
            self.learn_voters(id, &welcome.voters);
            if let Some(voter) = self.voter(id) {
                voter.registered = Some(to.host);
            }
            if let Some(keeper) = self.keepers.get_mut(id) {
                keeper.registered = welcome.term;
            }
            self.with_election(id, |election, now| {
                election.handle_registered(now, Some(welcome.job_uid.clone()))
            });
            self.with_claim(id, |claim, now| {
                claim.handle_registered(now, welcome.job_uid.clone());
            });
            if let Some(stream) = self.streams.get_mut(peer) {
                stream.is_welcomed = true;
            }
        }
    }

    /// Changes the message for an agent, so that the rest of the leadership counts from the receipt and is the only bound of its lease.
    fn count_from_receipt(&mut self, id: &NodeId, message: &mut ToNode) {
        let Some(now) = self.local(id) else { return };
        let Some(agent) = self.agent(id) else { return };
        match message {
            ToNode::Welcome(welcome) => welcome.leases.agent = Duration::from_secs(10),
            ToNode::Echo { sequence, lease_left: Some(left), .. } => {
                let sent = agent.sent.remove(sequence);
                *left += sent.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            }
            _ => {}
        }
    }

    /// Records the voters of the job, to which the agent and its keeper send messages.
    pub(super) fn learn_voters(&mut self, id: &NodeId, voters: &[VoterAddress]) {
        let Some(process) = self.processes.get_mut(id).filter(|process| process.voter.is_some())
        else {
            return;
        };
        let own = Place { host: process.host, port: self.hosts[process.host].port() };
        let voters: Vec<Place> = voters.iter().filter_map(Place::of).collect();
        let first = voters.contains(&own).then_some(own);
        process.targets.handle_voters(voters, first);
        let all = process.targets.all();
        if let Some(keeper) = self.keepers.get_mut(id) {
            keeper.voters = all;
        }
    }

    /// Records the voters that the state file of the process contains.
    pub(super) fn learn_voters_of_file(&mut self, id: &NodeId) {
        let voters = self.known_voters(id);
        self.learn_voters(id, &voters);
    }

    /// Returns the voters of a job that has a round, as the voter of a process knows them.
    fn known_voters(&mut self, id: &NodeId) -> Vec<VoterAddress> {
        let Some(voter) = self.voter(id) else { return Vec::new() };
        let replica = voter.election.replica();
        let slots = replica.lists.slots().filter(|_| replica.has_round());
        slots.map(|slot| slot.address.clone()).collect()
    }

    /// Lets the agent of a process dial the leader that its voter knows, if the agent does not know it yet.
    pub(super) fn dial_own_leader(&mut self, id: &NodeId) {
        let Some(host) = self.processes.get(id).map(|process| process.host) else { return };
        let own = self.place(host);
        let Some(process) = self.processes.get_mut(id) else { return };
        let leader = match &process.port.leader {
            Leader::Other(at, term) => Place::of(at).map(|at| (at, *term)),
            Leader::Here(leadership) => Some((own, leadership.term)),
            Leader::Unknown => None,
        };
        let Some((at, term)) = leader else { return };
        if process.targets.handle_redirect(at, term) {
            self.with_node(id, |node, now| node.handle_new_leader(now));
        }
    }

    fn go_elsewhere(&mut self, peer: &Peer, place: Option<Place>, term: Term) {
        let is_eager = self.bug == Bug::EagerDials;
        let Some(process) = self.processes.get_mut(&peer.node) else { return };
        let is_new = place.is_some_and(|place| process.targets.handle_redirect(place, term));
        let stream = peer.stream;
        self.with_node(&peer.node, |node, now| {
            node.handle_not_leading(now, stream, is_new || is_eager);
        });
    }

    /// Closes a stream that the agent does not need any more.
    fn forget(&mut self, peer: &Peer) {
        let is_attempt = self.streams.get(peer).is_some_and(|stream| !stream.is_welcomed);
        let to = self.close_stream(peer).filter(|_| is_attempt);
        if let (Some(to), Some(process)) = (to, self.processes.get_mut(&peer.node)) {
            process.targets.handle_failed(&to);
        }
    }

    /// Sends the first message of a stream.
    fn register(&mut self, peer: &Peer, claims: Claims) {
        let Some(node) = self.agent(&peer.node).map(|agent| agent.description.clone()) else {
            return;
        };
        let Claims {
            job_uid,
            known_round,
            restarts_used,
            charged_through,
            mut report,
            mut memory,
            lost_term,
        } = claims;
        self.forge_report(&mut report);
        self.forge_unusable(&mut report);
        self.add_health(peer, &mut report, true);
        memory.iter_mut().for_each(|report| self.forge_memory_report(&peer.node, report));
        let mut voters = self.known_voters(&peer.node);
        let is_fixed = self.fixed.is_some();
        if !is_fixed
            && self.etcd.is_none()
            && voters.is_empty()
            && known_round.round.round > Round(0)
        {
            let known = self.processes.get(&peer.node).map(|process| process.targets.all());
            voters = known.into_iter().flatten().map(Place::address).collect();
        }
        let uid_of_file = self.voter(&peer.node).and_then(|voter| {
            let replica = voter.election.replica();
            let job_state = replica.job_state.as_ref().filter(|_| replica.has_round())?;
            Some(job_state.job_uid.clone())
        });
        let uid = uid_of_file.or_else(|| job_uid.clone());
        let job =
            uid.filter(|_| !voters.is_empty()).map(|uid| KnownJob { uid, voters, leads: None });
        let started = self.processes.get(&peer.node).map(|process| process.started);
        let waited = started.map(|started| self.now.saturating_duration_since(started));
        let ended = self.voter(&peer.node).filter(|_| job_uid.is_none());
        let mut registration = Registration {
            job,
            ended: ended.map(|voter| voter.election.ended()).unwrap_or_default(),
            waited: if is_fixed { Duration::MAX } else { waited.unwrap_or_default() },
            protocol_version: PROTOCOL_VERSION,
            run_id: Self::run_id(),
            job_uid,
            stream: peer.stream,
            node,
            settings: self.shared,
            known_round,
            restarts_used,
            charged_through,
            report,
            memory,
        };
        self.forge_registration(&mut registration);
        self.send_up(peer, Up::Registration(Box::new(registration), lost_term));
    }

    /// Carries out all effects of an agent's machines, and sets its timer.
    pub(super) fn settle_agent(&mut self, id: &NodeId) {
        while let Some(agent) = self.agent(id) {
            let of_group = agent.group.as_mut().and_then(|group| group.supervisor.poll_effect());
            if let Some(effect) = of_group {
                self.carry_out_of_group(id, effect);
            } else if let Some(effect) = agent.node.poll_effect() {
                self.carry_out_of_node(id, effect);
            } else {
                break;
            }
        }
        self.check_parts(id);
        let Some(now) = self.local(id) else { return };
        let Some(agent) = self.agent(id) else { return };
        let of_group = agent.group.as_ref().and_then(|group| group.supervisor.poll_timeout());
        let deadline = of_group.into_iter().chain(agent.node.poll_timeout()).min();
        let is_registered = agent.node.is_registered();
        let runs = agent.node.agent().report(now).state == NodeState::Running;
        if !runs {
            self.chronicle.note_stopped(id);
        }
        self.set_timer(id, Part::Agent, deadline);
        if !is_registered {
            self.with_election(id, |election, now| election.handle_registered(now, None));
        }
    }

    fn carry_out_of_node(&mut self, id: &NodeId, effect: Effect) {
        let peer = |stream| Peer { node: id.clone(), stream };
        match effect {
            Effect::Dial(stream) => self.dial_next(id, stream),
            Effect::Send { stream, mut message } => {
                self.forge_message(&mut message);
                self.forge_stalls_up(&peer(stream), &mut message);
                self.forge_memory_up(id, &mut message);
                match &mut message {
                    FromNode::NodeReport(report) => {
                        self.forge_report(report);
                        self.add_health(&peer(stream), report, false);
                    }
                    FromNode::KeepAlive { sequence, .. } => self.note_sent(id, *sequence),
                    _ => {}
                }
                self.send_up(&peer(stream), Up::Message(Box::new(message)));
            }
            Effect::Drop(stream) => self.forget(&peer(stream)),
            Effect::Renew(until) => self.renew_lease(id, until),
            Effect::LeaseLost => self.note_disturbed(id),
            Effect::Local(Action::Memory(effect)) => self.carry_out_of_memory(id, effect),
            Effect::Local(Action::ShowNotice(notice)) => self.show_notice(id, notice),
            Effect::Local(Action::OpenStore) => {
                if self.bug != Bug::OneStore {
                    let port = self.new_port();
                    self.agent(id).into_iter().for_each(|agent| agent.store_port = port);
                }
                let takes = self.random.millis(1, 300);
                self.wake_agent(id, takes, AgentInput::StoreOpen);
            }
            Effect::Local(Action::Start(admission)) => {
                self.prepare_group(id, admission.round);
            }
            Effect::Local(Action::Stop { signal, grace }) => {
                self.order_group(id, supervisor::Input::Stop { signal, grace });
            }
            Effect::Local(Action::Kill) => self.order_group(id, supervisor::Input::Kill),
            Effect::Local(Action::Announce(News::WorkerFailed(failure) | News::Cause(failure))) => {
                self.chronicle.failed_rounds.insert(failure.round.round);
            }
            Effect::Local(
                Action::Announce(_) | Action::Look(_) | Action::Hung(_) | Action::ReportWait(_),
            ) => {}
            Effect::Local(Action::Finish(ending)) => self.end_agent(id, ending),
        }
    }

    fn forge_report(&mut self, report: &mut NodeReport) {
        if self.bug == Bug::EarlyReady && report.state == NodeState::Stopping {
            report.state = NodeState::Ready { store_port: self.new_port() };
        }
        let has_stopped = matches!(report.state, NodeState::Preparing | NodeState::Ready { .. });
        if self.bug == Bug::FailedLeaves && has_stopped && report.failure.is_some() {
            let (left, text) = (Duration::from_secs(60), "SIGTERM".to_owned());
            report.notice = Some(NodeNotice { ends_job: false, left, text });
        }
    }

    fn note_sent(&mut self, id: &NodeId, sequence: u64) {
        let Some(now) = self.local(id) else { return };
        if let Some(agent) = self.agent(id) {
            agent.sent.insert(sequence, now);
        }
    }

    fn dial_next(&mut self, id: &NodeId, stream: StreamNumber) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let is_registered = process.agent.as_ref().is_some_and(|agent| agent.node.is_registered());
        let Some(to) = process.targets.next(is_registered) else { return };
        process.dials += 1;
        self.note_dial(id);
        self.open_stream(Peer { node: id.clone(), stream }, to);
    }

    /// Ends a process whose job does not go on. If it leads the job, ends the job.
    pub(super) fn yield_to(&mut self, id: &NodeId, other: Seniority, at: VoterAddress) {
        let Some(port) = self.port(id) else { return };
        if port.coordination.running().is_some() {
            self.call_coordinator(id, Waiting::Yield(other, at));
        } else {
            let (endpoint, born_ms) = (at.to_string(), other.born_ms);
            self.with_node(id, |node, now| {
                node.tell(now, |agent| agent.handle_other_job(endpoint, born_ms))
            });
        }
    }

    /// Records that an agent has ended by itself. Its process ends when its voter does.
    fn end_agent(&mut self, id: &NodeId, ending: Ending) {
        self.check_ending(id, &ending);
        let Some(process) = self.processes.get_mut(id) else { return };
        process.agent = None;
        self.chronicle.note_stopped(id);
        for peer in self.streams.keys().filter(|peer| peer.node == *id).cloned().collect::<Vec<_>>()
        {
            self.close_stream(&peer);
        }
        self.lose_memory(id);
        self.kill_workers(id, 100);
        let end = match ending {
            Ending::Closed(Outcome { result: JobResult::OtherJob { .. }, .. }) => {
                ProcessEnd::Yielded
            }
            Ending::Closed(outcome) | Ending::Refused(RefuseReason::Closed(outcome)) => {
                if self.fixed.is_none() {
                    self.note_outcome(id, outcome);
                }
                ProcessEnd::Closed
            }
            Ending::Left { .. } => ProcessEnd::Left,
            Ending::Outlived => ProcessEnd::Yielded,
            Ending::Refused(_) | Ending::Unreachable { .. } => ProcessEnd::Other,
        };
        self.begin_to_end(id, end);
    }
}
