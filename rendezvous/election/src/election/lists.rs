//! Keeps the list of voters, or two lists while the voters change.
//!
//! As in Raft's joint consensus, a majority is a majority of every list. So the old and the new
//! voters never elect two leaders, even if only some of them know of the change.

use ragent_rendezvous::{
    ids::{VoterAddress, VoterId},
    limits::VOTERS_MAX,
};

/// An entry in a list of voters.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct VoterSlot {
    /// The address at which the voter is reached.
    pub address: VoterAddress,
    /// The voter. Before the first round it is `None`: any process at the address is the voter. In
    /// a later round, `None` is a listed host that took no part in the election, and never counts.
    pub voter: Option<VoterId>,
}

/// The voters of a job.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Lists {
    /// During a change: the old list.
    pub before: Option<Vec<VoterSlot>>,
    /// The newest list.
    pub last: Vec<VoterSlot>,
}

impl Lists {
    /// Returns the list of a job that has no round: the endpoints that the user gave.
    pub fn listed(addresses: &[VoterAddress]) -> Self {
        let slot = |address: &VoterAddress| VoterSlot { address: address.clone(), voter: None };
        Self { before: None, last: addresses.iter().map(slot).collect() }
    }

    /// Returns the slots of all lists. A slot in both lists is returned once.
    pub fn slots(&self) -> impl Iterator<Item = &VoterSlot> {
        let before = self.before.iter().flatten().filter(|slot| !self.last.contains(slot));
        self.last.iter().chain(before)
    }

    /// Returns the lists during a change to `next`.
    pub(super) fn changing_to(&self, next: Vec<VoterSlot>) -> Self {
        Self { before: Some(self.last.clone()), last: next }
    }

    /// Returns the lists at the end of a change.
    pub(super) fn without_before(&self) -> Self {
        Self { before: None, last: self.last.clone() }
    }

    /// Returns true if `counts` is true for a majority of each list.
    pub(super) fn has_majority(&self, counts: impl Fn(&VoterSlot) -> bool) -> bool {
        self.of_majority(counts) == Some(true)
    }

    /// Returns the greatest value that a majority of each list has reached; `None` without voters.
    pub(super) fn of_majority<T: Ord>(&self, value: impl Fn(&VoterSlot) -> T) -> Option<T> {
        let of_list = |list: &Vec<VoterSlot>| {
            let mut values: Vec<T> = list.iter().map(&value).collect();
            values.sort();
            let index = values.len().checked_sub(majority(values.len()))?;
            values.into_iter().nth(index)
        };
        let last = of_list(&self.last)?;
        match &self.before {
            Some(before) => of_list(before).map(|before| before.min(last)),
            None => Some(last),
        }
    }

    /// Returns true if no list is empty or longer than [`VOTERS_MAX`].
    pub(super) fn is_valid(&self) -> bool {
        let is_valid = |list: &Vec<VoterSlot>| !list.is_empty() && list.len() <= VOTERS_MAX;
        is_valid(&self.last) && self.before.as_ref().is_none_or(is_valid)
    }
}

/// Returns the smallest majority of this number of voters.
fn majority(voters: usize) -> usize {
    voters / 2 + 1
}
