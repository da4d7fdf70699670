//! An agent, as far as the coordinator can tell: it says what it does, and does what it is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::{AttendNumber, GlobalRank, JobUid, LocalRank, NodeId, Peer, Round, RoundId},
    message::{
        Admission, Assignment, Attend, FromNode, Heard, NodeDescription, NodeState,
        PROTOCOL_VERSION, Standing, ToNode, WorkerEnd, WorkerFailure,
    },
};

use super::{Event, LEASES, World, network::FromAgent};
use crate::sabotage::Sabotage;

/// An agent that has been started and has not ended.
#[derive(Debug)]
pub(super) struct Agent {
    description: NodeDescription,
    job_uid: Option<JobUid>,
    attend: AttendNumber,
    is_welcome: bool,
    dialled: Instant,
    heard: Heard,
    restarts_used: u32,
    charged_through: Round,
    /// What holds on it.
    pub(super) standing: Standing,
    /// When the newest keep-alive was sent that has been echoed.
    pub(super) echoed: Instant,
    sequence: u64,
    unanswered: BTreeMap<u64, Instant>,
    /// The machine does nothing before.
    pub(super) frozen_until: Option<Instant>,
    /// The network lets nothing through before.
    pub(super) black_until: Option<Instant>,
    is_closing: bool,
}

/// Something that an agent does by itself after a while.
#[derive(Clone, Debug)]
pub(super) enum Alarm {
    /// It sends a keep-alive.
    KeepAlive,
    /// Its stream has ended.
    LinkDown(AttendNumber),
    /// It dials again.
    Dial(AttendNumber),
    /// It is ready again after that round.
    Prepared(RoundId),
    /// It learns that its workers of that round are gone.
    Reaped(RoundId),
    /// A worker of that round fails.
    WorkerFails(RoundId),
    /// Its workers of that round exit with 0.
    Succeeds(RoundId),
    /// It thaws, and what has come meanwhile is waiting.
    Received(Peer, Box<ToNode>),
}

impl Agent {
    /// Whether the job can count on it.
    pub(super) fn may_take_part(&self) -> bool {
        !self.is_closing && !matches!(self.standing.state, NodeState::Leaving { .. })
    }

    /// Its newest stream.
    pub(super) fn peer(&self) -> Peer {
        Peer { node: self.description.node_id.clone(), attend: self.attend }
    }
}

impl World {
    /// The agent that will be started next on `machine`.
    pub(super) fn next_agent_on(&self, machine: u64) -> NodeId {
        NodeId::new(format!("m{machine}-{}", self.agents_started + 1))
    }

    /// Adds a machine that has never taken part.
    pub(super) fn new_machine(&mut self) -> u64 {
        100 + self.events_scheduled
    }

    pub(super) fn start_agent(&mut self, machine: u64) {
        let node = self.next_agent_on(machine);
        if self.host == Some(machine) && self.host_node.as_ref() != Some(&node) {
            // Another agent was started in between: the host's is the one its process named.
            self.host_node = None;
        }
        self.agents_started += 1;
        let description = NodeDescription {
            node_id: node.clone(),
            host_name: format!("machine{machine}"),
            address: format!("10.0.0.{machine}"),
            addresses: Vec::new(),
            agent_port: 1,
            role: "default".to_owned(),
            local_world_size: NonZeroU32::new(1 + (machine % 3) as u32).unwrap_or(NonZeroU32::MIN),
            node_rank: self.node_rank(machine),
        };
        let standing = Standing {
            round: RoundId::default(),
            state: NodeState::Preparing,
            failure: None,
            was_cut_off: false,
        };
        let agent = Agent {
            description,
            job_uid: None,
            attend: AttendNumber(0),
            is_welcome: false,
            dialled: self.now,
            heard: self.machines.get(&machine).copied().unwrap_or_default(),
            restarts_used: 0,
            charged_through: Round(0),
            standing,
            echoed: self.now,
            sequence: 0,
            unanswered: BTreeMap::new(),
            frozen_until: None,
            black_until: None,
            is_closing: false,
        };
        self.descriptions.insert(node.clone(), agent.description.clone());
        self.agents.insert(node.clone(), agent);
        self.prepare(&node);
        self.dial(&node);
        self.wake(&node, LEASES.keep_alive_interval, Alarm::KeepAlive);
    }

    /// The rank of `machine`, where ranks are fixed: for good, and one that nobody else has if there
    /// is one. A surplus machine is given somebody's rank by mistake.
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

    /// Ends an agent that did not end by itself.
    pub(super) fn kill_agent(&mut self, node: &NodeId, is_heard: bool) {
        if let Some(agent) = self.agents.remove(node) {
            self.chronicle.note_stopped(node);
            self.break_link(&agent.peer());
            self.outlive_agent(node, is_heard);
        }
    }

    pub(super) fn arrive_down(&mut self, to: Peer, message: ToNode) {
        let Some(agent) = self.agents.get(&to.node) else {
            return;
        };
        if agent.attend != to.attend || !self.is_open(&to) {
            return;
        }
        let node = to.node.clone();
        self.alarm(&node, Alarm::Received(to, Box::new(message)));
    }

    /// Lets an agent act; a frozen one acts when it thaws.
    pub(super) fn alarm(&mut self, node: &NodeId, alarm: Alarm) {
        let Some(agent) = self.agents.get(node) else {
            return;
        };
        if let Some(until) = agent.frozen_until.filter(|until| self.now < *until) {
            self.schedule_at(until, Event::Alarm { node: node.clone(), alarm });
            return;
        }
        match alarm {
            Alarm::KeepAlive => self.keep_alive(node),
            Alarm::LinkDown(attend) => {
                let delay = self.random.millis(1, 250);
                self.wake(node, delay, Alarm::Dial(attend));
            }
            Alarm::Dial(attend) => {
                if agent.attend == attend {
                    self.dial(node);
                }
            }
            Alarm::Prepared(round) => self.become_ready(node, round),
            Alarm::Reaped(round) => self.notice_reaped(node, round),
            Alarm::WorkerFails(round) => self.notice_failure(node, round),
            Alarm::Succeeds(round) => self.notice_success(node, round),
            Alarm::Received(on, message) => {
                if agent.attend == on.attend {
                    self.receive(node, *message);
                }
            }
        }
    }

    pub(super) fn wake(&mut self, node: &NodeId, delay: Duration, alarm: Alarm) {
        self.schedule(delay, Event::Alarm { node: node.clone(), alarm });
    }

    /// Opens a new stream and says what holds.
    fn dial(&mut self, node: &NodeId) {
        let Some(agent) = self.agents.get_mut(node) else {
            return;
        };
        agent.attend.0 += 1;
        agent.is_welcome = false;
        agent.dialled = self.now;
        agent.unanswered.clear();
        let mut attend = Attend {
            protocol_version: PROTOCOL_VERSION,
            run_id: Self::run_id(),
            job_uid: agent.job_uid.clone(),
            attend: agent.attend,
            node: agent.description.clone(),
            settings: self.shared,
            heard: agent.heard,
            restarts_used: agent.restarts_used,
            charged_through: agent.charged_through,
            standing: agent.standing.clone(),
        };
        match self.sabotage {
            Sabotage::Amnesia => {
                attend.heard = Heard::default();
                attend.standing.round = RoundId::default();
            }
            Sabotage::ForgottenCharges => attend.restarts_used = 0,
            Sabotage::None
            | Sabotage::DoubleRank
            | Sabotage::WaitingMember
            | Sabotage::FewerThanMin
            | Sabotage::NoKeeper
            | Sabotage::FalseGrave
            | Sabotage::NoTimeouts => {}
        }
        let peer = agent.peer();
        self.open_link(&peer);
        self.send_up(peer, FromAgent::Attend(Box::new(attend)));
    }

    fn keep_alive(&mut self, node: &NodeId) {
        self.wake(node, LEASES.keep_alive_interval, Alarm::KeepAlive);
        let now = self.now;
        let Some(agent) = self.agents.get_mut(node) else {
            return;
        };
        let waits_since = agent.unanswered.values().next().copied().unwrap_or(now);
        let is_stale = now.saturating_duration_since(waits_since) > Duration::from_millis(700);
        let is_ignored = !agent.is_welcome
            && now.saturating_duration_since(agent.dialled) > Duration::from_secs(1);
        if is_stale || is_ignored {
            return self.dial(node);
        }
        if agent.is_welcome {
            agent.sequence += 1;
            let sequence = agent.sequence;
            agent.unanswered.insert(sequence, now);
            self.tell(node, FromNode::KeepAlive { sequence });
        }
    }

    /// Says something, if there is a stream that counts.
    fn tell(&mut self, node: &NodeId, message: FromNode) {
        if let Some(agent) = self.agents.get(node).filter(|agent| agent.is_welcome) {
            let peer = agent.peer();
            self.send_up(peer, FromAgent::Message(message));
        }
    }

    /// Changes what holds, and says so.
    fn stand(&mut self, node: &NodeId, state: NodeState) {
        let Some(agent) = self.agents.get_mut(node) else {
            return;
        };
        agent.standing.state = state;
        let standing = agent.standing.clone();
        if state != NodeState::Running {
            self.chronicle.note_stopped(node);
        }
        self.tell(node, FromNode::Standing(standing));
    }

    fn prepare(&mut self, node: &NodeId) {
        self.stand(node, NodeState::Preparing);
        let round = self.agents.get(node).map(|agent| agent.standing.round).unwrap_or_default();
        let takes = self.random.millis(1, 300);
        self.wake(node, takes, Alarm::Prepared(round));
    }

    fn become_ready(&mut self, node: &NodeId, round: RoundId) {
        let Some(agent) = self.agents.get(node) else {
            return;
        };
        if agent.standing.round == round && agent.standing.state == NodeState::Preparing {
            self.stand(node, NodeState::Ready { store_port: 4_000 });
        }
    }

    fn receive(&mut self, node: &NodeId, message: ToNode) {
        let Some(agent) = self.agents.get_mut(node) else {
            return;
        };
        match message {
            ToNode::Welcome(welcome) => {
                agent.is_welcome = true;
                agent.echoed = agent.echoed.max(agent.dialled);
                agent.job_uid = Some(welcome.job_uid);
                // What has changed since the attend was sent is said again.
                let standing = agent.standing.clone();
                self.tell(node, FromNode::Standing(standing));
            }
            ToNode::Refuse(_) => self.kill_agent(node, false),
            ToNode::Echo { sequence } => {
                if let Some(sent) = agent.unanswered.get(&sequence).copied() {
                    agent.echoed = agent.echoed.max(sent);
                    agent.unanswered = agent.unanswered.split_off(&(sequence + 1));
                }
            }
            ToNode::Probe { round } => self.tell(node, FromNode::Alive { round }),
            ToNode::Assignment(assignment) => self.obey(node, assignment),
            ToNode::HostLeaving => {}
        }
    }

    fn obey(&mut self, node: &NodeId, assignment: Assignment) {
        let Some(agent) = self.agents.get_mut(node) else {
            return;
        };
        let state = agent.standing.state;
        match assignment {
            Assignment::Wait { round, .. } => {
                if agent.heard.round < round {
                    agent.heard = Heard { round, size: 0, group_rank: None };
                }
            }
            Assignment::Admit(admission) => {
                if matches!(state, NodeState::Ready { .. })
                    && agent.standing.round < admission.round
                {
                    self.start_round(node, &admission);
                }
            }
            Assignment::Restart { round, .. } => {
                if round < agent.standing.round {
                    return;
                }
                match state {
                    NodeState::Running => {
                        self.stand(node, NodeState::Stopping);
                        self.stop_workers(node);
                    }
                    NodeState::Succeeded => self.prepare(node),
                    NodeState::Preparing
                    | NodeState::Ready { .. }
                    | NodeState::Stopping
                    | NodeState::Leaving { .. } => {}
                }
            }
            Assignment::Evict { round, .. } => self.be_evicted(node, round),
            Assignment::Dismiss => {
                if state == (NodeState::Leaving { reaped: true }) {
                    self.say_goodbye(node);
                }
            }
            Assignment::Close(_) => {
                agent.is_closing = true;
                if self.processes.contains_key(node) {
                    self.stop_workers(node);
                } else {
                    self.say_goodbye(node);
                }
            }
        }
    }

    fn start_round(&mut self, node: &NodeId, admission: &Admission) {
        let Some(agent) = self.agents.get_mut(node) else {
            return;
        };
        if agent.echoed + LEASES.agent <= self.now {
            // Said long ago, to an agent that was frozen: its keeper starts nothing any more.
            return self.dial(node);
        }
        let round = admission.round;
        agent.standing =
            Standing { round, state: NodeState::Running, failure: None, was_cut_off: false };
        agent.heard = Heard {
            round,
            size: admission.group_world_size,
            group_rank: Some(admission.group_rank),
        };
        agent.restarts_used = admission.restart_count;
        agent.charged_through = admission.charged_through;
        self.start_workers(node, round);
        self.stand(node, NodeState::Running);
    }

    fn be_evicted(&mut self, node: &NodeId, round: RoundId) {
        let Some(agent) = self.agents.get(node) else {
            return;
        };
        if round < agent.standing.round {
            return;
        }
        match agent.standing.state {
            NodeState::Running | NodeState::Stopping => {
                self.stand(node, NodeState::Stopping);
                self.kill_workers(node, 100);
            }
            NodeState::Succeeded => self.prepare(node),
            NodeState::Preparing | NodeState::Ready { .. } | NodeState::Leaving { .. } => {}
        }
        self.dial(node);
    }

    fn say_goodbye(&mut self, node: &NodeId) {
        self.tell(node, FromNode::Goodbye);
        self.agents.remove(node);
        self.chronicle.note_stopped(node);
    }

    /// Its keeper tells the agent, if there still is one.
    pub(super) fn heed_reaped(&mut self, node: &NodeId, round: RoundId) {
        self.chronicle.note_stopped(node);
        self.alarm(node, Alarm::Reaped(round));
    }

    fn notice_reaped(&mut self, node: &NodeId, round: RoundId) {
        let Some(agent) = self.agents.get(node) else {
            return;
        };
        if agent.is_closing {
            return self.say_goodbye(node);
        }
        match agent.standing.state {
            NodeState::Running | NodeState::Stopping if agent.standing.round == round => {
                self.prepare(node);
            }
            NodeState::Leaving { reaped: false } => {
                self.stand(node, NodeState::Leaving { reaped: true });
            }
            NodeState::Running
            | NodeState::Stopping
            | NodeState::Preparing
            | NodeState::Ready { .. }
            | NodeState::Succeeded
            | NodeState::Leaving { reaped: true } => {}
        }
    }

    fn is_running(&self, node: &NodeId, round: RoundId) -> bool {
        self.processes.get(node).is_some_and(|processes| processes.round == round)
            && self.agents.get(node).is_some_and(|agent| {
                agent.standing.round == round
                    && agent.standing.state == NodeState::Running
                    && !agent.is_closing
            })
    }

    fn notice_failure(&mut self, node: &NodeId, round: RoundId) {
        if !self.is_running(node, round) {
            return;
        }
        self.chronicle.failed_rounds.insert(round.round);
        let age = self.random.millis(0, 20);
        let is_final = self.random.chance(2);
        if let Some(agent) = self.agents.get_mut(node) {
            agent.standing.failure = Some(WorkerFailure {
                host_name: agent.description.host_name.clone(),
                round,
                global_rank: GlobalRank(0),
                local_rank: LocalRank(0),
                pid: 1,
                end: WorkerEnd::Exited(1),
                age,
                message: None,
                error_file: None,
                stderr_tail: String::new(),
                is_final,
            });
        }
        self.stand(node, NodeState::Stopping);
        self.stop_workers(node);
    }

    fn notice_success(&mut self, node: &NodeId, round: RoundId) {
        if self.is_running(node, round) {
            self.processes.remove(node);
            self.stand(node, NodeState::Succeeded);
        }
    }

    /// Tells an agent to leave.
    pub(super) fn terminate(&mut self, node: &NodeId) {
        if !self.agents.get(node).is_some_and(Agent::may_take_part) {
            return;
        }
        let has_workers = self.processes.contains_key(node);
        self.stand(node, NodeState::Leaving { reaped: !has_workers });
        self.stop_workers(node);
    }
}
