//! Rebuilds the state of a job from its events alone.

use ragent_rendezvous::{
    event::{Event, EventId, EventKind},
    ids::Round,
    snapshot::{PhaseName, Snapshot},
};

/// The state after the events so far.
#[derive(Debug)]
pub struct Replay {
    phase: PhaseName,
    round: Round,
    members: u32,
    restarts_used: u32,
    /// True while the workers make no progress.
    is_stalled: bool,
    last: EventId,
    /// The first event that contradicts the ones before it.
    broken: Option<String>,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            phase: PhaseName::Gathering,
            round: Round(0),
            members: 0,
            restarts_used: 0,
            is_stalled: false,
            last: EventId::default(),
            broken: None,
        }
    }
}

impl Replay {
    /// Applies an event.
    pub fn apply(&mut self, event: &Event) {
        let is_effect = event.cause.is_some_and(|cause| cause >= event.id);
        if event.id <= self.last || is_effect {
            self.broken.get_or_insert_with(|| format!("{event:?} came after {}", self.last));
        }
        self.last = event.id;
        self.round = event.round;
        match &event.kind {
            EventKind::CoordinatorStarted { restarts_used, .. }
            | EventKind::CoordinatorTookOver { restarts_used, .. } => {
                (self.members, self.is_stalled) = (0, false);
                self.restarts_used = *restarts_used;
            }
            EventKind::StateLearned { restarts_used, .. }
            | EventKind::RunBegan { restarts_used }
            | EventKind::FailureCharged { restarts_used, .. } => {
                self.restarts_used = *restarts_used;
            }
            EventKind::Gathering => {
                self.phase = PhaseName::Gathering;
                self.members = 0;
            }
            EventKind::Recovering => {
                self.phase = PhaseName::Recovering;
                self.members = 0;
            }
            EventKind::Recovered { .. }
            | EventKind::RoundEnded { .. }
            | EventKind::RoundStillStopping => {
                self.phase = PhaseName::Stopping;
            }
            EventKind::RoundStopped => self.phase = PhaseName::Gathering,
            EventKind::RoundAdmitted { nodes, .. } => {
                self.phase = PhaseName::Running;
                self.members = *nodes;
            }
            EventKind::NodeLost { was_member: true, .. } => {
                self.members = self.members.saturating_sub(1);
            }
            EventKind::JobClosed { .. } => self.phase = PhaseName::Closed,
            EventKind::StallBegan { .. } => self.is_stalled = true,
            EventKind::StallEnded { .. } => self.is_stalled = false,
            EventKind::RunAdopted
            | EventKind::CoordinatorLeaving
            | EventKind::CoordinatorEnded { .. }
            | EventKind::WorkersStarted
            | EventKind::FirstProgress { .. }
            | EventKind::RestartCost(_)
            | EventKind::WorkerFailed { .. }
            | EventKind::FailureNotCharged { .. }
            | EventKind::NoticeGiven { .. }
            | EventKind::NoticeOver { .. }
            | EventKind::SaveFailed { .. }
            | EventKind::StallExplained { .. }
            | EventKind::MemoryRestored { .. }
            | EventKind::MemoryFetched { .. }
            | EventKind::MemoryStruck { .. }
            | EventKind::MemoryOff { .. }
            | EventKind::NodeLost { was_member: false, .. }
            | EventKind::NodeLeaseExpired
            | EventKind::NodeLeft
            | EventKind::NodeQuarantined
            | EventKind::NodeReplaced { .. }
            | EventKind::NodeReleased { .. }
            | EventKind::NodeUnhealthy { .. }
            | EventKind::NodeHealthy
            | EventKind::NodeExcluded { .. }
            | EventKind::NodeRefused { .. }
            | EventKind::StoreClientsRefused { .. }
            | EventKind::VotersChanged { .. }
            | EventKind::VoterSilent { .. }
            | EventKind::VoterBack { .. } => {}
        }
    }

    /// Returns a description of the difference from the state of the machine. `None` if they agree.
    pub fn difference(&self, snapshot: &Snapshot) -> Option<String> {
        if let Some(broken) = &self.broken {
            return Some(broken.clone());
        }
        let members = snapshot.nodes.iter().filter(|node| node.group_rank.is_some()).count();
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        // A round that an earlier coordinator completed has no known table.
        let members = if snapshot.world_size == 0 { self.members } else { members };
        let is_stalled = snapshot.stall.is_some();
        let machine = (snapshot.phase, snapshot.round, members, snapshot.restarts_used, is_stalled);
        let replayed = (self.phase, self.round, self.members, self.restarts_used, self.is_stalled);
        (machine != replayed).then(|| {
            format!(
                "the events give {replayed:?}, and the machine {machine:?} (phase, round, members, restarts, stall)"
            )
        })
    }
}
