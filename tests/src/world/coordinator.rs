//! The driver of the machine, its state file, and the end of its process.

use ragent_rendezvous::ids::GroupRank;
use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    event::{Event as JournalEvent, EventKind},
    ids::{NodeId, Peer},
    message::{Admission, Assignment, KnownRound, ToNode, WaitReason},
    settings::{Memory, Settings},
    tenure::Tenure,
    voter_count::VoterCount,
};

use super::{Event, LEASES, Stage, World};
use crate::{replay::Replay, sabotage::Sabotage, world::network::FromAgent};

impl World {
    /// Starts the coordinator's process with the content of its state file.
    pub(super) fn start_coordinator(&mut self) {
        if self.coordinator.is_some() || self.stage == Stage::Finished {
            return;
        }
        if self.sabotage == Sabotage::Amnesia {
            self.memory = Memory::fresh(self.memory.job_uid.clone());
        }
        // The host's agent is started right after this, in the same process.
        self.host_node = self.host.map(|machine| self.next_agent_on(machine));
        let settings = Settings {
            run_id: Self::run_id(),
            coordinator: format!("coordinator {}", self.events_scheduled),
            host: self.host_node.clone(),
            shared: Some(self.shared),
            // As under a service manager, except if the file is of another run.
            voters: Vec::new(),
            voter_count: VoterCount::One,
            keeps_charges: self.planted.is_none() || self.sabotage == Sabotage::OthersCharges,
            leases: LEASES,
            begins_at: None,
        };
        // The new coordinator is not bound by assignments of its predecessor, which may never have
        // arrived.
        self.chronicle.running.clear();
        let mut memory = self.memory.clone();
        if let Some(seat) = &mut memory.host {
            // A keeper leaves a mark when no process is left, unless it was killed too.
            let is_gone =
                !self.agents.contains_key(&seat.node) && !self.processes.contains_key(&seat.node);
            let is_reported = is_gone && self.random.chance(70);
            seat.is_confirmed_dead |= is_reported || self.sabotage == Sabotage::FalseObituary;
        }
        let before = u64::try_from(memory.time.age().as_millis()).unwrap_or(u64::MAX);
        self.accounted_since = (self.now, before);
        self.coordinator = Some(Rendezvous::new(self.now, settings, memory, Tenure::Sole));
        self.dies_after = None;
        self.carry_out();
    }

    /// Kills the coordinator's process, and with it the host's agent.
    pub(super) fn kill_coordinator(&mut self) {
        if self.coordinator.take().is_none() {
            return;
        }
        let open: Vec<Peer> =
            self.streams.keys().filter(|peer| self.is_whole(peer)).cloned().collect();
        for peer in open {
            self.break_stream(&peer);
        }
        if let Some(node) = self.host_node.take() {
            // The next coordinator gets the obituary if it has been started by then.
            let is_reported = self.random.chance(50);
            self.kill_agent(&node, is_reported);
        }
        let mut down = self.random.millis(50, 5_000);
        if self.sabotage == Sabotage::FalseObituary {
            // The bug only matters while the host's old processes are alive.
            down = down.min(std::time::Duration::from_millis(100));
        }
        self.schedule(down, Event::StartCoordinator);
        if let Some(machine) = self.host {
            let at = self.now + down + std::time::Duration::from_micros(1);
            self.schedule_at(at, Event::StartAgent { machine });
        }
    }

    pub(super) fn arrive_up(&mut self, from: Peer, message: FromAgent) {
        if !self.is_whole(&from) {
            return;
        }
        let Some(coordinator) = &mut self.coordinator else {
            // The connection is refused.
            return self.break_stream(&from);
        };
        match message {
            FromAgent::Attend(attend) => coordinator.handle_attend(self.now, *attend),
            FromAgent::Message(message) => coordinator.handle_message(self.now, from, message),
        }
        self.carry_out();
    }

    pub(super) fn detach(&mut self, peer: Peer) {
        self.streams.remove(&peer);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_detached(self.now, peer);
            self.carry_out();
        }
    }

    pub(super) fn arrive_obituary(&mut self, node: &NodeId) {
        if let Some(coordinator) = &mut self.coordinator {
            let round = self.ran.get(node).copied().unwrap_or_default();
            coordinator.handle_obituary(self.now, node, round);
            self.carry_out();
        }
    }

    pub(super) fn time_out(&mut self) {
        let Some(coordinator) = &mut self.coordinator else {
            return;
        };
        coordinator.handle_timeout(self.now);
        self.overdue = coordinator.poll_timeout().filter(|at| *at <= self.now);
        self.carry_out();
    }

    /// Carries out the machine's effects, unless its process dies half-way.
    fn carry_out(&mut self) {
        while let Some(effect) = self.coordinator.as_mut().and_then(Rendezvous::poll_effect) {
            match &mut self.dies_after {
                Some(0) => return self.kill_coordinator(),
                Some(left) => *left -= 1,
                None => {}
            }
            match effect {
                Effect::Send { to, message } => self.deliver(to, message),
                Effect::HangUp { to } => self.break_stream(&to),
                Effect::Record(event) => self.replay(&event),
                Effect::Remember(memory) => self.remember(*memory),
                // The only coordinator of a job has no other one above it.
                Effect::Resign { .. }
                | Effect::HandOver
                | Effect::Forget
                | Effect::Finish { .. } => self.stage = Stage::Finished,
            }
        }
    }

    fn replay(&mut self, event: &JournalEvent) {
        if let EventKind::RunBegan { .. } = event.kind {
            self.accounted_since = (self.now, 0);
        }
        let is_start = matches!(event.kind, EventKind::CoordinatorStarted { .. });
        if self.sabotage == Sabotage::Amnesia && is_start {
            // Rule 3 is to notice this bug.
            self.replay = Replay::default();
        }
        let is_loss = matches!(event.kind, EventKind::NodeLost { .. });
        if self.sabotage != Sabotage::LostEvents || !is_loss {
            self.replay.apply(event);
        }
    }

    /// Returns the state of the job, from the journal alone.
    pub fn replay_of_journal(&self) -> &Replay {
        &self.replay
    }

    /// Returns the time in milliseconds that the coordinator has to account for.
    pub fn accounted_ms(&self) -> u64 {
        let (since, before) = self.accounted_since;
        let term = self.now.saturating_duration_since(since).as_millis();
        before.saturating_add(u64::try_from(term).unwrap_or(u64::MAX))
    }

    fn remember(&mut self, memory: Memory) {
        self.chronicle.memories.push(memory.clone());
        self.memory = memory;
        if self.sabotage == Sabotage::ForgottenCharges {
            self.memory.restarts_used = 0;
        }
        self.chronicle.has_news = true;
    }

    fn deliver(&mut self, to: Peer, message: ToNode) {
        let message = self.tamper(message);
        let description = self.descriptions.get(&to.node);
        if let (ToNode::Assignment(assignment), Some(node)) = (&message, description) {
            self.chronicle.note(node, assignment);
        }
        if let ToNode::Assignment(Assignment::Admit(admission)) = &message {
            self.keep_state_file(&to.node, admission);
            if self.sabotage == Sabotage::WaitingMember {
                let round = admission.round;
                let wait = Assignment::Wait { round, reason: WaitReason::Spare };
                if let Some(node) = self.descriptions.get(&to.node) {
                    self.chronicle.note(node, &wait);
                }
            }
        }
        self.send_down(to, message);
    }

    fn tamper(&self, mut message: ToNode) -> ToNode {
        if let ToNode::Assignment(Assignment::Admit(admission)) = &mut message
            && self.sabotage == Sabotage::DoubleRank
            && admission.group_rank == GroupRank(1)
        {
            admission.group_rank = GroupRank(0);
        }
        message
    }

    /// Stores this admission for the host's next agent.
    fn keep_state_file(&mut self, node: &NodeId, admission: &Admission) {
        if self.host_node.as_ref() == Some(node)
            && let Some(machine) = self.host
        {
            let known_round = KnownRound {
                round: admission.round,
                size: admission.group_world_size,
                group_rank: Some(admission.group_rank),
            };
            self.machines.insert(machine, known_round);
        }
    }
}
