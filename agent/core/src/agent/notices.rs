//! Receives notices on this node, and shows the notices of the round to the workers.
//!
//! A node with a notice reports it to the coordinator, which gives all nodes of the round time for a checkpoint. It
//! leaves when the round has ended. If the coordinator does not end the round in time, the node leaves by
//! itself.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{Guidance, NodeNotice, Notice, NoticeKind, Requests, Saved},
};

use super::{Action, Agent, AgentState, News};
use crate::{saves::NodeSaves, signal::Signal};

/// A notice that this node has received.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Received {
    /// True if the job ends; false if only this node leaves.
    pub ends_job: bool,
    /// The time that its source gives; `None` if it gives none.
    pub within: Option<Duration>,
    /// The source, for people; at most [`NOTICE_TEXT_MAX`](ragent_rendezvous::message::NOTICE_TEXT_MAX) bytes.
    pub text: String,
}

/// What can be requested on one node, from all nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wanted {
    /// A checkpoint.
    Save,
    /// A look at the workers.
    Look,
}

/// The reason why a notice does not count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotTaken {
    /// This node is leaving, or the job has ended.
    TooLate,
    /// No round runs on this node.
    NoRound,
}

/// A notice as the workers see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShownNotice {
    /// The notice.
    pub notice: Notice,
    /// True if this node goes.
    pub is_here: bool,
    /// The time at which the notice is over; `None` if the round goes on.
    pub until: Option<Instant>,
}

/// The end of a notice's phase, as this node knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NoticeEnd {
    /// The number of the notice.
    pub number: u64,
    /// The step that all ranks of the job have saved; `None` if they have not.
    pub step: Option<u64>,
    /// A step in memory that was enough: other nodes hold all parts of it, and the next round can begin with it.
    pub memory_step: Option<u64>,
    /// The answers of this node's workers.
    pub here: SavedHere,
    /// The time since this node learned of the notice.
    pub after: Duration,
}

/// The answers of a node's workers to a notice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SavedHere {
    /// All of them have saved one step.
    OneStep,
    /// All of them have saved something, and no step is the same for all.
    OtherSteps,
    /// These ranks have not saved. The others have.
    NotBy(Vec<GlobalRank>),
    /// None of them has saved.
    Nothing,
}

/// The notices that concern this node.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// The notice that this node has received, with the time at which it is over.
    received: Option<(Received, Instant)>,
    /// The newest notice of the round, and the time at which this node learned of it.
    shown: Option<(ShownNotice, Instant)>,
    /// The highest number of a notice so far.
    highest: u64,
    /// The checkpoint with which the workers have answered it.
    saved: Option<Saved>,
    /// The newest notice that any worker has answered, and the workers that have not.
    unanswered: Option<(u64, Vec<LocalRank>)>,
    /// The rank of the first worker of this node in the round.
    first_global_rank: GlobalRank,
    pub(super) requests: Requests,
    /// The step that all ranks have saved, by the coordinator's last message about the round; `None` if a later
    /// round has begun.
    pub(super) complete_step: Option<u64>,
    /// The value of `complete_step` when this node began to leave, if no later round had begun.
    pub(super) left_after: Option<u64>,
}

impl Notices {
    /// Clears the state of the last round.
    pub(super) fn begin_round(&mut self, first_global_rank: GlobalRank) {
        self.complete_step = None;
        self.unanswered = None;
        self.left_after = None;
        self.first_global_rank = first_global_rank;
    }

    /// Returns what the workers have saved for a notice.
    fn saved_here(&self, number: u64) -> SavedHere {
        if self.saved.is_some_and(|saved| saved.notice == number) {
            return SavedHere::OneStep;
        }
        match &self.unanswered {
            Some((notice, ranks)) if *notice == number && ranks.is_empty() => SavedHere::OtherSteps,
            Some((notice, ranks)) if *notice == number => {
                let first = self.first_global_rank.0;
                SavedHere::NotBy(
                    ranks.iter().map(|rank| GlobalRank(first.saturating_add(rank.0))).collect(),
                )
            }
            Some(_) | None => SavedHere::Nothing,
        }
    }

    /// Returns what the node reports.
    pub(super) fn of_node(&self, now: Instant) -> Option<NodeNotice> {
        let (Received { ends_job, text, .. }, until) = self.received.as_ref()?;
        let left = until.saturating_duration_since(now);
        Some(NodeNotice { ends_job: *ends_job, left, text: text.clone() })
    }

    /// Returns true if this node leaves when its round is over.
    pub(super) fn is_leaving(&self) -> bool {
        self.received.as_ref().is_some_and(|(received, _)| !received.ends_job)
    }

    /// Returns the checkpoint with which the workers have answered a notice that ends the round, or one that this
    /// node does not know yet.
    pub(super) fn answer(&self) -> Option<Saved> {
        let ends_round = |saved: &Saved| {
            let of_number =
                self.shown.as_ref().filter(|(shown, _)| shown.notice.number == saved.notice);
            of_number.is_some_and(|(shown, _)| shown.until.is_some())
        };
        self.saved.filter(|saved| saved.notice > self.highest || ends_round(saved))
    }
}

impl Agent {
    /// Notes that this node has received a notice.
    ///
    /// # Errors
    ///
    /// Returns the reason if it does not count.
    pub fn handle_notice(&mut self, now: Instant, received: Received) -> Result<(), NotTaken> {
        if self.is_leaving() {
            return Err(NotTaken::TooLate);
        }
        let is_running = match self.state {
            AgentState::Running | AgentState::Stopping => true,
            // Its workers have exited because of a notice, and those of other nodes may still save.
            AgentState::Succeeded => self.notices.answer().is_some(),
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Leaving { .. }
            | AgentState::Closing(_)
            | AgentState::Finished => false,
        };
        let longest = self.settings.shared.notice;
        if !received.ends_job && (longest.is_zero() || !is_running) {
            // Without `--notice`, no rank saves. Without workers, this node has nothing to save.
            self.handle_signal(now, Signal::TERM);
            return Ok(());
        }
        if self.state == AgentState::Stopping && !received.ends_job {
            // The round is over, so this node leaves when its workers have ended.
            self.note_leaving();
        }
        let until = now + received.within.map_or(longest, |within| within.min(longest));
        let (received, until) = match self.notices.received.take() {
            Some((before, earlier)) => {
                let ends_job = before.ends_job || received.ends_job;
                (Received { ends_job, ..before }, until.min(earlier))
            }
            None => (received, until),
        };
        self.notices.received = Some((received, until));
        self.send_report(now);
        Ok(())
    }

    /// Notes that something was requested on this node, from all nodes.
    ///
    /// # Errors
    ///
    /// Returns the reason if it does not count.
    pub fn handle_request(&mut self, now: Instant, wanted: Wanted) -> Result<(), NotTaken> {
        match self.state {
            AgentState::Running | AgentState::Succeeded => {
                let Requests { saves, looks } = &mut self.notices.requests;
                let count = match wanted {
                    Wanted::Save => saves,
                    Wanted::Look => looks,
                };
                *count = count.saturating_add(1);
                self.send_report(now);
                Ok(())
            }
            AgentState::Preparing | AgentState::Ready { .. } | AgentState::Stopping => {
                Err(NotTaken::NoRound)
            }
            AgentState::Leaving { .. } | AgentState::Closing(_) | AgentState::Finished => {
                Err(NotTaken::TooLate)
            }
        }
    }

    /// Returns the highest number of a notice that this node has received; zero if there was none.
    pub fn notice_number(&self) -> u64 {
        self.notices.highest
    }

    /// Applies the coordinator's guidance for the nodes of the round.
    pub(crate) fn handle_guidance(&mut self, now: Instant, guidance: Guidance) {
        let runs = matches!(self.state, AgentState::Running | AgentState::Succeeded);
        if guidance.round != self.round.id || !runs {
            return;
        }
        if let Some(why) = &guidance.memory_off {
            self.handle_memory_off(now, why);
        }
        self.handle_look(now, guidance.look);
        self.handle_hung(guidance.hung);
        let Some(notice) = guidance.notice else {
            if self.notices.shown.take().is_some() {
                self.notices.saved = None;
                self.act(Action::ShowNotice(None));
            }
            return;
        };
        let until = notice.left.map(|left| now + left);
        let is_here = self.notices.received.is_some() || notice.kind == NoticeKind::End;
        let shown = ShownNotice { notice, is_here, until };
        let (is_same, since) = match &self.notices.shown {
            Some((known, since)) if known.notice.number == shown.notice.number => {
                (is_alike(known, &shown), *since)
            }
            Some(_) | None => (false, now),
        };
        if is_same {
            return;
        }
        self.notices.highest = shown.notice.number.max(self.notices.highest);
        self.announce(News::NoticeGiven(shown.notice.clone()));
        self.act(Action::ShowNotice(Some(Box::new(shown.clone()))));
        self.notices.shown = Some((shown, since));
    }

    /// Notes what the workers have saved for a notice. They may know of a notice before this agent does, from ranks of other
    /// nodes, so the coordinator decides which notice they have answered.
    pub(super) fn answer_notice(&mut self, now: Instant, saves: NodeSaves) {
        self.notices.unanswered = saves.unanswered;
        if saves.answer.is_some() && saves.answer != self.notices.saved {
            self.notices.saved = saves.answer;
            self.send_report(now);
        }
    }

    /// Notes that this node leaves. Without a lease, the others may have gone on since the last round, unless the only
    /// coordinator has left.
    pub(super) fn note_leaving(&mut self) {
        let is_certain = self.coordinator.is_leased || self.coordinator.has_host_left;
        self.notices.left_after = self.notices.complete_step.filter(|_| is_certain);
    }

    /// Removes the notice of a round whose workers have ended.
    pub(super) fn remove_notice(&mut self) {
        self.notices.saved = None;
        if self.notices.shown.take().is_some() {
            self.act(Action::ShowNotice(None));
        }
    }

    /// Ends the notice of a round with the round.
    pub(super) fn end_notice(
        &mut self,
        now: Instant,
        complete_step: Option<u64>,
        memory_step: Option<u64>,
    ) {
        self.notices.complete_step = complete_step;
        if self.notices.is_leaving()
            && self.notices.shown.as_ref().is_none_or(|(shown, _)| !shown.is_here)
        {
            // The phase of other nodes was over when this node's own notice came.
            self.note_leaving();
        }
        let Some((ShownNotice { notice, until, .. }, since)) = self.notices.shown.take() else {
            return;
        };
        let here = self.notices.saved_here(notice.number);
        self.notices.saved = None;
        self.act(Action::ShowNotice(None));
        if until.is_some() {
            self.announce(News::NoticeOver(NoticeEnd {
                number: notice.number,
                step: complete_step,
                memory_step,
                here,
                after: now.saturating_duration_since(since),
            }));
        }
    }

    /// Returns the time at which this node leaves, although the coordinator has not ended the round.
    ///
    /// If the job is to end, perhaps only this node knows of it, and must still report it to the next coordinator. So it waits for that
    /// one as long as for the first one.
    pub(super) fn notice_deadline(&self) -> Option<Instant> {
        let (received, until) = self.notices.received.as_ref().filter(|_| !self.is_leaving())?;
        let coordinator = self.settings.leases.coordinator;
        let patience = if received.ends_job { self.patience() } else { coordinator };
        Some(*until + patience.max(coordinator))
    }

    pub(super) fn handle_notice_timeout(&mut self, now: Instant) {
        if self.notice_deadline().is_some_and(|at| at <= now) {
            self.handle_signal(now, Signal::TERM);
        }
    }
}

/// Returns true if nothing has changed that a person or a worker would want to know.
fn is_alike(known: &ShownNotice, new: &ShownNotice) -> bool {
    let is_earlier = match (known.until, new.until) {
        (Some(known), Some(new)) => new + Duration::from_secs(1) < known,
        (None, None) => false,
        (None, Some(_)) | (Some(_), None) => true,
    };
    !is_earlier
        && known.is_here == new.is_here
        && known.notice.kind == new.notice.kind
        && known.notice.hosts == new.notice.hosts
}
