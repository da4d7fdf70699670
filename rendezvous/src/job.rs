//! What is true about the job: its nodes, its phase, and what the next coordinator goes on from.
//!
//! A feature in a file of its own, such as `health.rs`, gets it as `&Job`. So it cannot change the phase or a node by mistake: it returns
//! what must follow, and the machine carries it out.

use std::time::Instant;

use crate::{
    event::EventNode,
    grant::Grant,
    group::Group,
    ids::{JobUid, NodeId, Peer, RoundId},
    phase::{Gathering, Phase},
    roster::Roster,
    settings::{JobState, Settings},
    snapshot::PhaseName,
};

/// The job, as the coordinator knows it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) settings: Settings,
    /// The stored state, without the parts of features: `time`, `training`, `restarts` and `host_tallies` are not current here.
    /// `Rendezvous::kept_state` fills them in.
    pub(crate) state: JobState,
    /// The term in which this process may coordinate, and the end of its lease. `None` for a job with one endpoint, which has no lease.
    pub(crate) grant: Option<Grant>,
    pub(crate) availability: Availability,
    pub(crate) phase: Phase,
    pub(crate) roster: Roster,
    /// The phase that the events show, and the time at which it began.
    pub(crate) shown: (PhaseName, Instant),
    /// True if the assignments of nodes may have changed.
    pub(crate) has_news: bool,
    pub(crate) clock: Instant,
    /// The time up to which the deadlines of the phase were applied. It may be before `clock`, because a message that is handled at once, such as a
    /// keep-alive, moves the clock and applies no deadline.
    pub(crate) advanced: Instant,
    /// The job uid that nodes received before this coordinator adopted another run.
    pub(crate) given_before: Option<JobUid>,
    /// True if the host was lost with the previous coordinator shortly after a start, and this loss
    /// is not counted yet.
    pub(crate) has_lost_host: bool,
    /// Other jobs of this name that may run, as text for people. While there are any, no first
    /// round is completed.
    pub(crate) other_jobs: Vec<String>,
}

impl Job {
    /// Returns a job without nodes, before its first round.
    pub(crate) fn new(now: Instant, settings: Settings, state: JobState) -> Self {
        Self {
            settings,
            state,
            grant: None,
            availability: Availability::Available,
            phase: Phase::Gathering(Gathering::default()),
            roster: Roster::default(),
            shown: (PhaseName::Gathering, now),
            has_news: false,
            clock: now,
            advanced: now,
            given_before: None,
            has_lost_host: false,
            other_jobs: Vec::new(),
        }
    }

    pub(crate) fn event_node(&self, id: &NodeId) -> EventNode {
        EventNode { node_id: id.clone(), host_name: self.host_name(id) }
    }

    pub(crate) fn host_name(&self, id: &NodeId) -> String {
        self.roster.get(id).map(|node| node.description.host_name.clone()).unwrap_or_default()
    }

    /// Returns the number of other nodes that can take part in the next round, and are neither unhealthy nor excluded.
    pub(crate) fn fit_without(&self, id: &NodeId) -> usize {
        let Some(group) = self.phase.group() else { return 0 };
        let is_fit = |id: &NodeId| {
            self.roster.get(id).is_some_and(|node| {
                node.tally.quarantined_until().is_none() && node.unfit().is_none()
            })
        };
        let members = group
            .members()
            .filter(|(other, member)| *other != id && member.state.stays() && is_fit(other));
        let others = self.roster.ready().iter();
        let others = others.filter(|other| group.held(other).is_none() && is_fit(other));
        members.count() + others.count()
    }

    /// Returns the newest round.
    pub(crate) fn newest_round(&self) -> RoundId {
        match &self.phase {
            Phase::Recovering(recovering) => recovering.round,
            Phase::Running(_) | Phase::Regathering(_) | Phase::Gathering(_) | Phase::Closed(_) => {
                self.phase
                    .group()
                    .map_or(RoundId { term: self.state.term, round: self.state.round }, |group| {
                        group.round
                    })
            }
        }
    }

    /// Returns the running round if this node is a member of it, and has reported so.
    pub(crate) fn run_by(&self, id: &NodeId) -> Option<&Group> {
        let group = &self.phase.running()?.group;
        let runs_it = self.roster.get(id).is_some_and(|node| node.report.round == group.round);
        (runs_it && group.held(id).is_some()).then_some(group)
    }

    /// Returns the stream of a node, if it is open.
    pub(crate) fn attached(&self, id: &NodeId) -> Option<Peer> {
        self.roster.get(id).filter(|node| node.attached).map(|node| node.peer())
    }

    /// Returns true for the node in the process of this coordinator.
    pub(crate) fn is_host(&self, id: &NodeId) -> bool {
        self.settings.host.as_ref() == Some(id)
    }
}

/// The availability of this coordinator for another round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Availability {
    /// The coordinator stays.
    Available,
    /// The node in the coordinator's process is leaving. The coordinator ends with that node.
    HostLeaving,
    /// The coordinator's process is shutting down. The coordinator ends when the workers have
    /// stopped.
    ShuttingDown,
    /// The coordinator has returned [`Effect::Finish`], [`Effect::Resign`], [`Effect::HandOver`] or
    /// [`Effect::Forget`], and ignores all input.
    ///
    /// [`Effect::Finish`]: crate::effect::Effect::Finish
    /// [`Effect::Resign`]: crate::effect::Effect::Resign
    /// [`Effect::HandOver`]: crate::effect::Effect::HandOver
    /// [`Effect::Forget`]: crate::effect::Effect::Forget
    Ended,
}
