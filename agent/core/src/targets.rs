//! Decides which voter of a job an agent connects to: the leader, as far as the agent knows it, or
//! another voter that may know a newer one.
//!
//! An agent with a stream dials only the leader. An agent without a stream dials the leader once, and
//! then all voters one after the other, until one welcomes it or names a leader of a higher term.

use ragent_rendezvous::ids::Term;

/// The choice of the voter to dial; voters are numbered by their position in the list.
#[derive(Clone, Debug)]
pub struct Targets {
    voters: usize,
    /// The voter that is dialed first if no leader is known; for an agent that is a voter, itself.
    first: usize,
    /// The voter that was dialed last, if not as the leader.
    turn: usize,
    /// The newest known leader, and its term.
    leader: Option<(usize, Term)>,
    /// True if the leader could not be reached, or did not accept this agent, since it was named.
    has_failed: bool,
}

impl Targets {
    /// Creates the targets of an agent that knows no leader. It dials the voter at `first` first: its own if
    /// the agent is itself a voter, as that one learns of a new leader as early as any other.
    pub fn new(voters: usize, first: usize) -> Self {
        let mut targets =
            Self { voters: voters.max(1), first, turn: 0, leader: None, has_failed: false };
        targets.begin_with_first();
        targets
    }

    /// Returns the voter to dial next; `is_attended` is true if the agent has a stream.
    pub fn next(&mut self, is_attended: bool) -> usize {
        match self.leader {
            Some((leader, _)) if is_attended || !self.has_failed => leader,
            Some(_) | None => {
                self.turn = (self.turn + 1) % self.voters;
                self.turn
            }
        }
    }

    /// Notes that `voter` has welcomed the agent in `term`.
    pub fn handle_welcome(&mut self, voter: usize, term: Term) {
        self.leader = Some((voter, term));
        self.has_failed = false;
    }

    /// Notes that an attempt to register with `voter` has failed.
    pub fn handle_failed(&mut self, voter: usize) {
        if self.leader.is_some_and(|(leader, _)| leader == voter) && !self.has_failed {
            self.has_failed = true;
            self.begin_with_first();
        }
    }

    /// Notes that a voter names `leader`, which leads in `term`. Returns true if this leader is new to the
    /// agent, which is to dial it at once.
    pub fn handle_redirect(&mut self, leader: usize, term: Term) -> bool {
        let is_new = leader < self.voters && self.leader.is_none_or(|(_, known)| known < term);
        if is_new {
            self.leader = Some((leader, term));
            self.has_failed = false;
        }
        is_new
    }

    fn begin_with_first(&mut self) {
        self.turn = (self.first + self.voters - 1) % self.voters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a leader, the voters are dialed one after the other.
    #[test]
    fn voters_are_dialed_in_turn() {
        let mut targets = Targets::new(3, 1);
        let dialed: Vec<_> = (0..4).map(|_| targets.next(false)).collect();
        assert_eq!(dialed, [1, 2, 0, 1]);
    }

    /// A known leader is dialed first; if that fails, all voters are dialed one after the other, including
    /// the leader.
    #[test]
    fn leader_is_dialed_first() {
        let mut targets = Targets::new(3, 1);
        targets.handle_welcome(2, Term(5));
        assert_eq!(targets.next(true), 2);
        assert_eq!(targets.next(false), 2);
        targets.handle_failed(2);
        let dialed: Vec<_> = (0..3).map(|_| targets.next(false)).collect();
        assert_eq!(dialed, [1, 2, 0]);
        assert_eq!(targets.next(true), 2, "a stream that is only suspect has the same leader");
    }

    /// A redirect counts once, and only to the leader of a higher term: a voter may not know yet that
    /// its leader is lost.
    #[test]
    fn redirects_lead_to_higher_terms() {
        let mut targets = Targets::new(3, 0);
        assert!(targets.handle_redirect(2, Term(5)));
        assert_eq!(targets.next(false), 2);
        targets.handle_failed(2);
        assert!(!targets.handle_redirect(2, Term(5)));
        assert!(!targets.handle_redirect(1, Term(4)));
        assert_eq!(targets.next(false), 0);
        assert!(targets.handle_redirect(1, Term(6)));
        assert_eq!(targets.next(false), 1);
        assert!(!targets.handle_redirect(3, Term(7)), "a voter that does not exist");
    }
}
