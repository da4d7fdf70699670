//! Detects that a majority of the voters has lost the job's state.
//!
//! The identity of a voter is in its state file. A process that starts without that file is another voter at the same address. A leader
//! would replace the lost voter, but a leader needs a majority. So if too many of them are lost, the job cannot continue.

use std::{collections::BTreeMap, fmt};

use ragent_election::election::message::{Lists, Replica, VoterSlot};
use ragent_rendezvous::{
    heir::Member,
    ids::{VoterAddress, VoterId},
};

/// The loss of a job's state by a majority of its voters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StateLoss {
    /// The addresses of the voters that were started without their state files.
    lost: Vec<VoterAddress>,
    /// The number of voters.
    voters: usize,
}

impl StateLoss {
    /// The advice for the user.
    pub const HINT: &'static str = "end all agents, and start the job under another `--rdzv-id`: it continues \
                                           from the last checkpoint of its workers";
}

impl fmt::Display for StateLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, voters } = self;
        let addresses: Vec<&str> = lost.iter().map(VoterAddress::as_str).collect();
        write!(
            f,
            "no majority of the {voters} voters has the state of the job any more: the voters at {} were started without their state files",
            addresses.join(", ")
        )
    }
}

/// The voters that answer at the listed addresses, while the job has no leader.
#[derive(Debug)]
pub(super) struct AnsweringVoters {
    own: Member,
    lists: Lists,
    others: BTreeMap<VoterAddress, VoterId>,
}

impl AnsweringVoters {
    pub(super) fn new(own: Member) -> Self {
        Self { own, lists: Lists::default(), others: BTreeMap::new() }
    }

    /// Records the answer of the voter at an address. This process has `replica`.
    pub(super) fn handle_answer(
        &mut self,
        replica: &Replica,
        address: &VoterAddress,
        voter: VoterId,
    ) {
        if self.lists != replica.lists {
            self.others.clear();
            self.lists = replica.lists.clone();
        }
        if self.lists.slots().any(|slot| slot.address == *address) {
            self.others.insert(address.clone(), voter);
        }
    }

    /// Forgets all answers: a leader is known, and a leader replaces voters.
    pub(super) fn handle_leader(&mut self) {
        self.others.clear();
    }

    /// Returns the loss of the state in `replica`; `None` if a majority may still have it.
    pub(super) fn state_loss(&self, replica: &Replica) -> Option<StateLoss> {
        if !replica.has_round() || self.others.is_empty() || self.lists != replica.lists {
            return None;
        }
        let is_without_majority = |list: &&Vec<VoterSlot>| {
            let left = list.iter().filter(|slot| slot.voter.is_some() && !self.is_lost(slot));
            left.count() <= list.len() / 2
        };
        let lists = [Some(&self.lists.last), self.lists.before.as_ref()];
        let list = lists.into_iter().flatten().find(is_without_majority)?;
        let lost = list.iter().filter(|slot| self.is_lost(slot));
        let lost: Vec<_> = lost.map(|slot| slot.address.clone()).collect();
        (!lost.is_empty()).then_some(StateLoss { lost, voters: list.len() })
    }

    /// Returns true if another voter answers at the address of a slot.
    fn is_lost(&self, slot: &VoterSlot) -> bool {
        let answering = if slot.address == self.own.address {
            Some(&self.own.voter)
        } else {
            self.others.get(&slot.address)
        };
        slot.voter.zip(answering).is_some_and(|(listed, answering)| listed != *answering)
    }
}

#[cfg(test)]
mod tests {
    use ragent_election::election::message::Version;
    use ragent_rendezvous::{
        ids::{JobUid, Round, Term},
        settings::JobState,
    };

    use super::*;

    fn at(host: &str) -> VoterAddress {
        VoterAddress::new(format!("{host}:1"))
    }

    /// A job in this round, with voters 1 to 3 on hosts a to c.
    fn replica(round: u64) -> Replica {
        let slot = |(host, voter)| VoterSlot { address: at(host), voter: Some(VoterId(voter)) };
        Replica {
            version: Version { term: Term(1), number: 1 },
            lists: Lists { before: None, last: [("a", 1), ("b", 2), ("c", 3)].map(slot).into() },
            job_state: Some(JobState { round: Round(round), ..JobState::new(JobUid::new("u")) }),
        }
    }

    /// The answers of voters to voter 1 on host a, which has this replica.
    fn answers(replica: &Replica, answers: &[(&str, u64)]) -> AnsweringVoters {
        let mut answering = AnsweringVoters::new(Member { voter: VoterId(1), address: at("a") });
        for (host, voter) in answers {
            answering.handle_answer(replica, &at(host), VoterId(*voter));
        }
        answering
    }

    fn text(answering: &AnsweringVoters, replica: &Replica) -> Option<String> {
        answering.state_loss(replica).map(|loss| loss.to_string())
    }

    /// The state is lost when other voters answer at the addresses of two of three voters. It is not lost when another voter answers at
    /// one, when the others do not answer, or when the job has no round.
    #[test]
    fn loss_of_the_majority_is_found() {
        let job = replica(1);
        let lost = text(&answers(&job, &[("b", 7), ("c", 8)]), &job);
        let expected = "no majority of the 3 voters has the state of the job any more: the voters at b:1, c:1 were \
                        started without their state files";
        assert_eq!(lost.as_deref(), Some(expected));
        for known in [&[("b", 7)][..], &[("b", 7), ("c", 3)], &[("b", 2), ("c", 3)], &[]] {
            assert_eq!(text(&answers(&job, known), &job), None);
        }
        let new = replica(0);
        assert_eq!(text(&answers(&new, &[("b", 7), ("c", 8)]), &new), None);
    }

    /// A process that has lost its own state file counts as lost once it knows the job from another voter.
    #[test]
    fn own_loss_counts() {
        let mut job = replica(1);
        job.lists.last[0].voter = Some(VoterId(9));
        assert!(text(&answers(&job, &[("b", 7)]), &job).is_some());
        assert_eq!(text(&answers(&job, &[("c", 3)]), &job), None);
    }

    /// While the voters change, a lost majority of either list is enough.
    #[test]
    fn both_lists_are_needed() {
        let mut job = replica(1);
        let next =
            ["d", "e", "f"].map(|host| VoterSlot { address: at(host), voter: Some(VoterId(5)) });
        job.lists.before = Some(std::mem::replace(&mut job.lists.last, next.into()));
        let lost = text(&answers(&job, &[("b", 7), ("c", 8), ("d", 5)]), &job);
        assert!(lost.is_some_and(|lost| lost.contains("b:1, c:1")));
    }

    /// Answers do not count after the voters have changed, or once a leader is known, because it replaces voters.
    #[test]
    fn earlier_answers_do_not_count() {
        let job = replica(1);
        let mut answering = answers(&job, &[("b", 7), ("c", 8)]);
        let mut next = job.clone();
        next.lists.last[1].voter = Some(VoterId(7));
        assert_eq!(text(&answering, &next), None);
        answering.handle_leader();
        assert_eq!(text(&answering, &job), None);
    }
}
