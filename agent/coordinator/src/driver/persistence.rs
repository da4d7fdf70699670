//! Stores the state of a coordinator that the next coordinator needs: in a file, at a majority of the voters, or in etcd.
//!
//! No effect of a change is carried out before the change is stored. Otherwise an agent could act on a round that the next coordinator does
//! not know.

use ragent_leadership::{Leadership, LeadershipCommand};
use ragent_rendezvous::{heir::Successor, ids::Term, settings::JobState};
use tokio::sync::oneshot;

/// The storage of a coordinator's state.
#[derive(Debug)]
pub(crate) struct Persistence {
    leadership: Leadership,
    /// The coordinator's term.
    term: Term,
    /// Notified when the newest state is stored.
    storing: Option<oneshot::Receiver<()>>,
    /// True if this process no longer leads, so nothing more will be stored.
    is_over: bool,
}

impl Persistence {
    pub(super) fn new(leadership: Leadership, term: Term) -> Self {
        Self { leadership, term, storing: None, is_over: false }
    }

    /// Starts to store `job_state`. `successors` are the nodes that may replace this one.
    pub(super) fn remember(&mut self, job_state: JobState, successors: Vec<Successor>) {
        let (copied, storing) = oneshot::channel();
        let (term, job_state) = (self.term, Box::new(job_state));
        let command = LeadershipCommand::Remember { term, job_state, successors, copied };
        // A newer state replaces an older one, so only the newest one is awaited.
        self.storing = Some(storing);
        if !self.leadership.try_send(command) {
            self.storing = None;
            self.is_over = true;
        }
    }

    /// Returns true if nothing more can be stored, because this process no longer leads.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns true if effects must wait until a change is stored.
    pub(super) fn is_awaited(&self) -> bool {
        self.storing.is_some() || self.is_over
    }

    /// Waits until the change is stored. Never returns if none is being stored.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn stored(&mut self) {
        let Some(storing) = &mut self.storing else { return std::future::pending().await };
        let is_lost = storing.await.is_err();
        self.storing = None;
        self.is_over |= is_lost;
    }
}

#[cfg(test)]
mod tests {
    use ragent_leadership::{Commands, Leader, Means, Stored};
    use ragent_rendezvous::ids::JobUid;
    use tokio::sync::{mpsc, watch};

    use super::*;

    fn persistence(commands: &Commands) -> Persistence {
        let (leader, stored) =
            (watch::channel(Leader::Unknown).1, watch::channel(Stored::default()).1);
        Persistence::new(
            Leadership::without_voters(Means::Fixed, commands, leader, stored),
            Term(1),
        )
    }

    fn job_state() -> JobState {
        JobState::new(JobUid::new("u"))
    }

    /// Effects wait until a majority has the newest state.
    #[tokio::test]
    async fn copies_are_awaited() {
        let (commands, mut queue) = mpsc::channel(4);
        let mut copies = persistence(&commands);
        assert!(!copies.is_awaited());
        copies.remember(job_state(), Vec::new());
        copies.remember(job_state(), Vec::new());
        let (
            Some(LeadershipCommand::Remember { copied: first, .. }),
            Some(LeadershipCommand::Remember { copied, .. }),
        ) = (queue.recv().await, queue.recv().await)
        else {
            panic!("two commands are sent")
        };
        drop(first);
        assert!(copies.is_awaited());
        copied.send(()).unwrap();
        copies.stored().await;
        assert!(!copies.is_awaited());
    }

    /// If this process no longer leads, no further effect is carried out.
    #[tokio::test]
    async fn lost_leadership_ends_the_effects() {
        let (commands, mut queue) = mpsc::channel(4);
        let mut copies = persistence(&commands);
        copies.remember(job_state(), Vec::new());
        drop(queue.recv().await);
        copies.stored().await;
        assert!(copies.is_awaited() && copies.is_over());
        drop(queue);
        copies.remember(job_state(), Vec::new());
        assert!(copies.is_awaited());
    }
}
