//! The agents: the real [`Node`] and [`Supervisor`] of each, driven as the program drives them.

use std::{
    collections::BTreeSet,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use ragent_core::{
    agent::{Action, AgentSettings, Ending, News},
    node::{Claims, Effect, Node},
    signal::Signal,
    supervisor::{self, GroupEnd, Supervisor},
};
use ragent_rendezvous::{
    ids::{AttendNumber, GlobalRank, LocalRank, NodeId, Peer, RoundId},
    message::{
        Attend, KnownRound, NodeDescription, NodeState, PROTOCOL_VERSION, Standing, ToNode,
        WorkerEnd, WorkerFailure,
    },
};

use super::{Event, LEASES, World, network::FromAgent};
use crate::sabotage::Sabotage;

/// An agent's process, from its start to its end.
#[derive(Debug)]
pub(super) struct Agent {
    description: NodeDescription,
    node: Node,
    /// The worker group of the last round that it started, until that has ended.
    group: Option<Group>,
    /// The time at which its keeper kills the workers, unless the lease is renewed.
    pub(super) lease: Option<Instant>,
    /// The deadline for which a timer is scheduled.
    timer: Option<Instant>,
    /// The process is frozen until then.
    pub(super) frozen_until: Option<Instant>,
    /// The network delivers nothing to or from it until then.
    pub(super) black_until: Option<Instant>,
}

#[derive(Debug)]
struct Group {
    round: RoundId,
    supervisor: Supervisor,
}

/// An input of an agent's process.
#[derive(Debug)]
pub(super) enum Input {
    /// The connection for this stream has been made.
    Connected(AttendNumber),
    /// This stream has ended, or could not be opened.
    Ended(AttendNumber),
    /// A message on this stream.
    Message(AttendNumber, Box<ToNode>),
    /// The store for the workers of the next round listens.
    StoreOpen,
    /// The workers of this round can be started.
    Prepared(RoundId),
    /// An input of the worker group of this round.
    Group(RoundId, supervisor::Input),
    /// The keeper has found that the lease of this round's workers is over.
    CutOff(RoundId),
    /// SIGTERM.
    Terminate,
    /// The timer for this deadline fires.
    Timer(Instant),
}

impl Agent {
    /// Returns true if the agent is not leaving.
    pub(super) fn may_take_part(&self) -> bool {
        !self.node.agent().is_leaving()
    }

    pub(super) fn standing(&self, now: Instant) -> Standing {
        self.node.agent().standing(now)
    }
}

impl World {
    /// The id of the next agent on `machine`.
    pub(super) fn next_agent_on(&self, machine: u64) -> NodeId {
        NodeId::new(format!("m{machine}-{}", self.agents_started + 1))
    }

    /// Adds a machine that has never taken part.
    pub(super) fn new_machine(&mut self) -> u64 {
        100 + self.events_scheduled
    }

    pub(super) fn start_agent(&mut self, machine: u64) {
        let id = self.next_agent_on(machine);
        if self.host == Some(machine) && self.host_node.as_ref() != Some(&id) {
            // Another agent was started in between: this is not the id that the host's process has
            // announced.
            self.host_node = None;
        }
        self.agents_started += 1;
        let description = NodeDescription {
            node_id: id.clone(),
            host_name: format!("machine{machine}"),
            address: format!("10.0.0.{machine}"),
            addresses: Vec::new(),
            agent_port: 1,
            role: "default".to_owned(),
            script: "train.py".to_owned(),
            load: String::new(),
            local_world_size: NonZeroU32::new(1 + (machine % 3) as u32).unwrap_or(NonZeroU32::MIN),
            node_rank: self.node_rank(machine),
            voter: None,
        };
        let settings = AgentSettings {
            stop_grace: self.shared.timeouts.stop_grace,
            join_timeout: self.shared.timeouts.join,
            silence: Duration::ZERO,
            known_round: self.machines.get(&machine).copied().unwrap_or_default(),
            runs_unleased: false,
            has_voters: false,
            has_standbys: false,
            leases: LEASES,
            seed: self.random.between(0, u64::MAX - 1),
        };
        self.descriptions.insert(id.clone(), description.clone());
        let agent = Agent {
            description,
            node: Node::new(self.now, settings),
            group: None,
            lease: None,
            timer: None,
            frozen_until: None,
            black_until: None,
        };
        self.agents.insert(id.clone(), agent);
        self.settle(&id);
    }

    /// The rank of `machine`, if ranks are fixed: permanent, and not that of another machine if one
    /// is free. A surplus machine has the rank of another one by mistake.
    fn node_rank(&mut self, machine: u64) -> Option<u32> {
        if !self.shared.fixed_ranks {
            return None;
        }
        if let Some(rank) = self.node_ranks.get(&machine) {
            return Some(*rank);
        }
        let alive = self.agents.values().filter(|agent| agent.may_take_part());
        let taken: BTreeSet<u32> = alive.filter_map(|agent| agent.description.node_rank).collect();
        let size = self.shared.nodes.max();
        let rank = (0..size).find(|rank| !taken.contains(rank)).unwrap_or(machine as u32 % size);
        self.node_ranks.insert(machine, rank);
        Some(rank)
    }

    /// Kills an agent's process; its keeper's obituary arrives if `is_reported`.
    pub(super) fn kill_agent(&mut self, id: &NodeId, is_reported: bool) {
        if let Some(agent) = self.agents.remove(id) {
            self.chronicle.note_stopped(id);
            self.break_streams(id);
            self.outlive_agent(id, is_reported, agent.lease);
        }
    }

    /// Gives an agent an input after a while.
    pub(super) fn wake(&mut self, id: &NodeId, delay: Duration, input: Input) {
        self.schedule(delay, Event::Input(id.clone(), input));
    }

    /// Gives an agent an input now; a frozen agent gets it when it resumes.
    pub(super) fn input(&mut self, id: &NodeId, input: Input) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        if let Some(until) = agent.frozen_until.filter(|until| now < *until) {
            // The driver reads waiting messages before it checks its timers.
            let is_timer = matches!(input, Input::Timer(_));
            let at = until + Duration::from_micros(u64::from(is_timer));
            return self.schedule_at(at, Event::Input(id.clone(), input));
        }
        match input {
            Input::Connected(attend) => match agent.node.handle_connected(now, attend) {
                Some(claims) => self.register(id, attend, claims),
                None => self.close_stream(&Peer { node: id.clone(), attend }),
            },
            Input::Ended(attend) => agent.node.handle_ended(now, attend),
            Input::Message(attend, message) => agent.node.handle_message(now, attend, *message),
            Input::StoreOpen => agent.node.handle_store_open(now, 4_000),
            Input::Prepared(round) => self.start_group(id, round),
            Input::Group(round, input) => {
                if let Some(group) = agent.group.as_mut().filter(|group| group.round == round) {
                    group.supervisor.handle(now, input);
                }
            }
            Input::CutOff(round) => {
                if let Some(group) = agent.group.as_mut().filter(|group| group.round == round) {
                    group.supervisor.handle(now, supervisor::Input::Kill);
                    agent.node.handle_cut_off(now);
                }
            }
            Input::Terminate => agent.node.handle_signal(now, Signal::TERM),
            // An earlier deadline has replaced this one.
            Input::Timer(at) if agent.timer != Some(at) => return,
            Input::Timer(_) => {
                agent.timer = None;
                agent.node.handle_timeout(now);
                if let Some(group) = &mut agent.group {
                    group.supervisor.handle_timeout(now);
                }
            }
        }
        self.settle(id);
    }

    /// Carries out all effects of an agent's machines, and sets its timer.
    fn settle(&mut self, id: &NodeId) {
        while let Some(agent) = self.agents.get_mut(id) {
            let of_group = agent.group.as_mut().and_then(|group| group.supervisor.poll_effect());
            if let Some(effect) = of_group {
                self.carry_out_of_group(id, effect);
            } else if let Some(effect) = agent.node.poll_effect() {
                self.carry_out_of_node(id, effect);
            } else {
                break;
            }
        }
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        if agent.standing(self.now).state != NodeState::Running {
            self.chronicle.note_stopped(id);
        }
        let of_group = agent.group.as_ref().and_then(|group| group.supervisor.poll_timeout());
        let deadline = of_group.into_iter().chain(agent.node.poll_timeout()).min();
        if let Some(at) = deadline.filter(|at| agent.timer.is_none_or(|timer| *at < timer)) {
            agent.timer = Some(at);
            self.schedule_at(at.max(self.now), Event::Input(id.clone(), Input::Timer(at)));
        }
    }

    fn carry_out_of_node(&mut self, id: &NodeId, effect: Effect) {
        let peer = |attend| Peer { node: id.clone(), attend };
        let now = self.now;
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        match effect {
            Effect::Dial(attend) => {
                self.chronicle.dials += 1;
                self.open_stream(peer(attend));
            }
            Effect::Send { attend, message } => {
                self.send_up(peer(attend), FromAgent::Message(message));
            }
            Effect::Drop(attend) => self.close_stream(&peer(attend)),
            Effect::Renew(until) => {
                agent.lease = until;
                if let Some(until) = until {
                    self.schedule_at(until, Event::Lease(id.clone()));
                }
            }
            Effect::LeaseLost => {}
            Effect::Local(Action::OpenStore) => {
                let takes = self.random.millis(1, 300);
                self.wake(id, takes, Input::StoreOpen);
            }
            Effect::Local(Action::Start(admission)) => {
                let (round, size) = (admission.round, agent.description.local_world_size.get());
                let supervisor = Supervisor::new(size, self.shared.timeouts.stop_grace);
                agent.group = Some(Group { round, supervisor });
                let takes = self.random.millis(0, 100);
                self.wake(id, takes, Input::Prepared(round));
            }
            Effect::Local(Action::Stop { signal, grace }) => {
                if let Some(group) = &mut agent.group {
                    group.supervisor.handle(now, supervisor::Input::Stop { signal, grace });
                }
            }
            Effect::Local(Action::Kill) => {
                if let Some(group) = &mut agent.group {
                    group.supervisor.handle(now, supervisor::Input::Kill);
                }
            }
            Effect::Local(Action::Announce(News::WorkerFailed(failure) | News::Cause(failure))) => {
                self.chronicle.failed_rounds.insert(failure.round.round);
            }
            Effect::Local(
                Action::Announce(_)
                | Action::ReportWait(_)
                | Action::Vouch(_)
                | Action::ServeClients(_),
            ) => {}
            Effect::Local(Action::Finish(ending)) => self.end_agent(id, &ending),
        }
    }

    fn carry_out_of_group(&mut self, id: &NodeId, effect: supervisor::Effect) {
        let now = self.now;
        let is_final = matches!(effect, supervisor::Effect::Failed(..)) && self.random.chance(2);
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        let Some(group) = &agent.group else {
            return;
        };
        let round = group.round;
        match effect {
            supervisor::Effect::Failed(local_rank, end) => {
                let mut failure = failure(&agent.description, round, local_rank, is_final);
                failure.end = end;
                agent.node.handle_failed(now, failure);
            }
            supervisor::Effect::Signal(_) => self.stop_workers(id, round),
            supervisor::Effect::Sweep => self.sweep_workers(id, round),
            supervisor::Effect::KillKeeper => {}
            supervisor::Effect::Finish(end) => {
                let is_cause = end == GroupEnd::Stopped && self.random.chance(5);
                let agent = self.agents.get_mut(id).expect("it was there above");
                if is_cause {
                    // A worker other than the first to exit had written its error file before.
                    let mut cause = failure(&agent.description, round, LocalRank(0), is_final);
                    cause.error_file_age = Some(Duration::from_secs(3));
                    agent.node.handle_cause(now, cause);
                }
                agent.group = None;
                agent.node.handle_finished(now, end);
            }
        }
    }

    /// Sends the first message of a stream.
    fn register(&mut self, id: &NodeId, attend: AttendNumber, claims: Claims) {
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let Claims { job_uid, known_round, restarts_used, charged_through, standing, .. } = claims;
        let mut message = Attend {
            ended: Vec::new(),
            job: None,
            waited: Duration::MAX,
            protocol_version: PROTOCOL_VERSION,
            run_id: Self::run_id(),
            job_uid,
            attend,
            node: agent.description.clone(),
            settings: self.shared,
            known_round,
            restarts_used,
            charged_through,
            standing,
        };
        match self.sabotage {
            Sabotage::Amnesia => {
                message.known_round = KnownRound::default();
                message.standing.round = RoundId::default();
            }
            Sabotage::ForgottenCharges => message.restarts_used = 0,
            Sabotage::None
            | Sabotage::DoubleRank
            | Sabotage::WaitingMember
            | Sabotage::FewerThanMin
            | Sabotage::NoKeeper
            | Sabotage::FalseObituary
            | Sabotage::NoTimeouts
            | Sabotage::OthersCharges
            | Sabotage::LostEvents => {}
        }
        let peer = Peer { node: id.clone(), attend };
        self.send_up(peer, FromAgent::Attend(Box::new(message)));
    }

    /// Starts the workers of a group, unless it was stopped meanwhile or the lease is over.
    fn start_group(&mut self, id: &NodeId, round: RoundId) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        let group = agent.group.as_mut().filter(|group| group.round == round);
        let Some(group) = group.filter(|group| group.supervisor.is_running()) else {
            return;
        };
        if agent.lease.is_none_or(|lease| lease <= now) {
            // The keeper starts nothing in this case, and reports that the lease is over.
            return group.supervisor.handle(now, supervisor::Input::Kill);
        }
        self.start_workers(id, round);
    }

    /// Records that an agent's process has ended by itself.
    fn end_agent(&mut self, id: &NodeId, ending: &Ending) {
        self.chronicle.note_stopped(id);
        self.agents.remove(id);
        self.close_streams(id);
        if self.processes.contains_key(id) {
            self.kill_workers(id, 100);
        }
        match ending {
            Ending::Closed(_) | Ending::Left(_) => {}
            // Restarted by a service manager.
            Ending::Refused(_) | Ending::Outlived | Ending::Unreachable { .. } => {
                self.start_again(id, 50);
            }
        }
    }

    /// Makes a worker of `round` fail on a node, if any runs there.
    pub(super) fn fail_a_worker(&mut self, id: &NodeId, round: RoundId) {
        if self.runs_workers_of(id, round) {
            let ended = supervisor::Input::Ended(LocalRank(0), WorkerEnd::Exited(1));
            let delay = self.random.millis(0, 20);
            self.wake(id, delay, Input::Group(round, ended));
        }
    }

    /// Makes all workers of `round` exit with 0 on a node, if any run there.
    pub(super) fn finish_workers(&mut self, id: &NodeId, round: RoundId) {
        if !self.runs_workers_of(id, round) {
            return;
        }
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let size = agent.description.local_world_size.get();
        self.processes.remove(id);
        for local_rank in (0..size).map(LocalRank) {
            let ended = supervisor::Input::Ended(local_rank, WorkerEnd::Exited(0));
            self.wake(id, Duration::ZERO, Input::Group(round, ended));
        }
    }
}

/// Returns a failure that has just occurred on a node.
pub(crate) fn failure(
    node: &NodeDescription,
    round: RoundId,
    local_rank: LocalRank,
    is_final: bool,
) -> WorkerFailure {
    WorkerFailure {
        host_name: node.host_name.clone(),
        round,
        global_rank: GlobalRank(local_rank.0),
        local_rank,
        pid: 1,
        end: WorkerEnd::Exited(1),
        age: Duration::ZERO,
        message: None,
        error_file: None,
        stderr_tail: String::new(),
        is_final,
        error_file_age: None,
    }
}
