//! Decides which voter of a job an agent dials: the known leader, or another voter that may know a newer one.
//!
//! 1. An agent with a stream dials only the leader.
//! 2. An agent without a stream dials the leader once.
//! 3. After that, it dials all voters one after the other, until one welcomes it or names a leader of a
//!    higher term.

use ragent_rendezvous::{ids::Term, limits::VOTERS_MAX};

/// Chooses the voter to dial.
#[derive(Clone, Debug)]
pub struct Targets<T> {
    /// The endpoints that the user gave.
    listed: Vec<T>,
    /// The known voters of the job.
    voters: Vec<T>,
    /// The voter that is dialed first if no leader is known. For an agent that is a voter, this is its own
    /// voter.
    first: Option<T>,
    /// The number of the voter that was last dialed, unless as the leader.
    turn: usize,
    /// The newest known leader, and its term.
    leader: Option<(T, Term)>,
    /// True if the leader could not be reached, or has not accepted this agent, since it was named.
    has_failed: bool,
}

impl<T: Clone + PartialEq> Targets<T> {
    /// Creates the targets of an agent that knows no leader. It dials `first` first. This is its own voter,
    /// if it has one, which learns of a new leader as early as any other.
    pub fn new(listed: Vec<T>, first: Option<T>) -> Self {
        let voters = Vec::new();
        let mut targets = Self { listed, voters, first, turn: 0, leader: None, has_failed: false };
        targets.begin_with_first();
        targets
    }

    /// Returns the voter to dial next; `None` if no endpoint is known. `is_registered` is true if the agent
    /// has a stream.
    pub fn next(&mut self, is_registered: bool) -> Option<T> {
        match &self.leader {
            Some((leader, _)) if is_registered || !self.has_failed => Some(leader.clone()),
            Some(_) | None => {
                let all = self.all();
                self.turn = (self.turn + 1) % all.len().max(1);
                all.get(self.turn).cloned()
            }
        }
    }

    /// Notes that `voter` has welcomed the agent in `term`.
    pub fn handle_welcome(&mut self, voter: T, term: Term) {
        self.leader = Some((voter, term));
        self.has_failed = false;
    }

    /// Replaces the known voters of the job, and the voter that is dialed first. There are at most
    /// [`VOTERS_MAX`] for each of two lists.
    pub fn handle_voters(&mut self, voters: Vec<T>, first: Option<T>) {
        self.first = first;
        self.voters = voters;
        self.voters.truncate(2 * VOTERS_MAX);
    }

    /// Notes that an attempt to register with `voter` has failed.
    pub fn handle_failed(&mut self, voter: &T) {
        if self.leader.as_ref().is_some_and(|(leader, _)| leader == voter) && !self.has_failed {
            self.has_failed = true;
            self.begin_with_first();
        }
    }

    /// Notes that a voter names `leader`, which leads in `term`. Returns true if the agent did not know this
    /// leader, and should dial it at once.
    pub fn handle_redirect(&mut self, leader: T, term: Term) -> bool {
        let is_new = self.leader.as_ref().is_none_or(|(_, known)| *known < term);
        if is_new {
            self.leader = Some((leader, term));
            self.has_failed = false;
        }
        is_new
    }

    /// Notes that `voter` names `leader`, in any term. Returns true if `voter` was the leader: it has stepped
    /// down for another job, and terms of two jobs cannot be compared.
    pub fn handle_stepped_down(&mut self, voter: &T, leader: T) -> bool {
        let is_leader = |(known, _): &(T, Term)| known == voter && *known != leader;
        let steps_down = self.leader.as_ref().is_some_and(is_leader);
        if steps_down {
            self.leader = Some((leader, Term(0)));
            self.has_failed = false;
        }
        steps_down
    }

    /// Returns the newest known leader.
    pub fn leader(&self) -> Option<&T> {
        self.leader.as_ref().map(|(leader, _)| leader)
    }

    /// Returns the voters, the endpoints that the user gave, and the leader, each once.
    pub fn all(&self) -> Vec<T> {
        let mut all: Vec<T> = Vec::new();
        let (voters, listed) = (self.voters.iter(), &self.listed);
        for endpoint in voters.chain(listed).chain(&self.first).chain(self.leader()) {
            if !all.contains(endpoint) {
                all.push(endpoint.clone());
            }
        }
        all
    }

    fn begin_with_first(&mut self) {
        let all = self.all();
        let first = all.iter().position(|endpoint| Some(endpoint) == self.first.as_ref());
        let first = first.unwrap_or_default();
        self.turn = (first + all.len().max(1) - 1) % all.len().max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a leader, the voters are dialed one after the other.
    #[test]
    fn voters_are_dialed_in_turn() {
        let mut targets = Targets::new(vec![0, 1, 2], Some(1));
        let dialed: Vec<_> = (0..4).map(|_| targets.next(false).unwrap()).collect();
        assert_eq!(dialed, [1, 2, 0, 1]);
    }

    /// A known leader is dialed first. If that fails, all voters are dialed one after the other, including
    /// the leader.
    #[test]
    fn leader_is_dialed_first() {
        let mut targets = Targets::new(vec![0, 1, 2], Some(1));
        targets.handle_welcome(2, Term(5));
        assert_eq!(targets.next(true), Some(2));
        assert_eq!(targets.next(false), Some(2));
        targets.handle_failed(&0);
        assert_eq!(targets.next(false), Some(2), "another voter has failed");
        targets.handle_failed(&2);
        let dialed: Vec<_> = (0..3).map(|_| targets.next(false).unwrap()).collect();
        assert_eq!(dialed, [1, 2, 0]);
        assert_eq!(
            targets.next(true),
            Some(2),
            "a stream that is only suspect has the same leader"
        );
    }

    /// A redirect counts once, and only to the leader of a higher term: a voter may not know yet that its
    /// leader is lost.
    #[test]
    fn redirects_lead_to_higher_terms() {
        let mut targets = Targets::new(vec![0, 1, 2], Some(0));
        assert!(targets.handle_redirect(2, Term(5)));
        assert_eq!(targets.next(false), Some(2));
        targets.handle_failed(&2);
        assert!(!targets.handle_redirect(2, Term(5)));
        assert!(!targets.handle_redirect(1, Term(4)));
        assert_eq!(targets.next(false), Some(0));
        assert!(targets.handle_redirect(1, Term(6)));
        assert_eq!(targets.next(false), Some(1));
        assert!(targets.handle_redirect(3, Term(7)), "a voter that was not listed");
        assert_eq!(targets.next(false), Some(3));
    }

    /// The leader itself names another one, in any term; other voters cannot.
    #[test]
    fn leader_steps_down() {
        let mut targets = Targets::new(vec![0, 1], Some(0));
        assert!(!targets.handle_stepped_down(&0, 3), "no leader is known");
        targets.handle_welcome(1, Term(9));
        assert!(!targets.handle_stepped_down(&0, 3));
        assert!(!targets.handle_stepped_down(&1, 1), "itself");
        assert!(targets.handle_stepped_down(&1, 3));
        assert_eq!(targets.leader(), Some(&3));
        assert_eq!(targets.next(false), Some(3));
        targets.handle_welcome(3, Term(2));
        assert_eq!(targets.next(true), Some(3));
    }

    /// A leader that was not listed, and has failed to accept the agent, is dialed again in its turn.
    #[test]
    fn leader_that_was_not_listed_is_dialed_again() {
        let mut targets = Targets::new(vec![0], Some(0));
        assert!(targets.handle_redirect(3, Term(7)));
        assert_eq!(targets.next(false), Some(3));
        targets.handle_failed(&3);
        assert!(!targets.handle_redirect(3, Term(7)));
        let dialed: Vec<_> = (0..3).map(|_| targets.next(false).unwrap()).collect();
        assert_eq!(dialed, [0, 3, 0]);
    }

    /// The voters of the job are dialed as well as the endpoints that the user gave.
    #[test]
    fn voters_that_were_not_listed_are_dialed() {
        let mut targets = Targets::new(vec![0], None);
        targets.handle_voters(vec![4, 5, 0], None);
        let dialed: Vec<_> = (0..4).map(|_| targets.next(false).unwrap()).collect();
        assert_eq!(dialed, [5, 0, 4, 5]);
        targets.handle_voters((0..100).collect(), None);
        assert_eq!(targets.all().len(), 2 * VOTERS_MAX);
    }
}
