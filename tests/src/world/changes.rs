//! Plants bugs in the changes of the voters, by forged messages and state files.
//!
//! A machine counts its voters itself, so the world cannot change how it counts. Instead, when the real grants are a majority by the wrong
//! count, the world adds forged grants of all other voters, and withholds refusals.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ragent_election::election::message::{
    Answer, Knowledge, Replica, Request, VoterMessage, VoterSlot,
};
use ragent_rendezvous::{
    heir::{Member, MembersReport},
    ids::{NodeId, Term, VoterAddress},
};

use super::{Bug, World, election::StateFile};
use crate::addresses::Place;

/// The addresses that have granted each of the newest requests of a voter.
pub(super) type Tally = BTreeMap<u64, BTreeSet<VoterAddress>>;

/// The number of requests whose grants are counted, those of a few seconds.
const TALLIED: usize = 32;

impl Bug {
    /// Returns true if a machine with this bug counts these voters as a majority.
    fn counts(self, replica: &Replica, granted: &BTreeSet<VoterAddress>) -> bool {
        let lists = &replica.lists;
        let is_granted = |slot: &&VoterSlot| granted.contains(&slot.address);
        let has_majority = |list: &[VoterSlot], others: usize| {
            list.iter().filter(is_granted).count() + others > list.len() / 2
        };
        let is_changing = replica.has_round() && lists.before.is_some();
        match self {
            Self::OnlyNewList | Self::NewListAtOnce => is_changing && has_majority(&lists.last, 0),
            Self::UnitedLists => {
                let all: Vec<VoterSlot> = lists.slots().cloned().collect();
                is_changing && has_majority(&all, 0)
            }
            Self::CountedNewcomer => {
                let is_newcomer =
                    |address: &&VoterAddress| lists.slots().all(|slot| slot.address != **address);
                let newcomers = granted.iter().filter(is_newcomer).count();
                let mut all = lists.before.iter().chain([&lists.last]);
                replica.has_round() && all.all(|list| has_majority(list, newcomers))
            }
            _ => false,
        }
    }

    /// Returns true if lost voters seem to grant requests, so that they are not replaced.
    pub(super) fn forges_grants(self) -> bool {
        self == Self::SlotsByAddress || self.is_of_counting()
    }

    fn is_of_counting(self) -> bool {
        matches!(
            self,
            Self::OnlyNewList | Self::NewListAtOnce | Self::UnitedLists | Self::CountedNewcomer
        )
    }
}

impl World {
    /// Changes a request as the bug does, before it is handled. Returns `None` if it is never sent.
    pub(super) fn forge_request(
        &mut self,
        id: &NodeId,
        mut message: VoterMessage<Request>,
    ) -> Option<VoterMessage<Request>> {
        let bug = self.bug;
        match &mut message.body {
            Request::PreVote | Request::Vote { .. } if bug == Bug::VoteUnderLease => {
                for process in self.processes.keys().cloned().collect::<Vec<_>>() {
                    self.with_election(id, |election, now| {
                        election.handle_death_notice(now, &process);
                    });
                }
            }
            Request::PreVote | Request::Vote { .. } if bug == Bug::IgnorantCandidate => {
                let own = self.voter(id)?.election.replica().knowledge();
                if message.knows.has_round {
                    message.knows = message.knows.max(own);
                }
            }
            Request::Renew { replica, .. } if bug == Bug::NewListAtOnce => {
                replica.lists.before = None;
            }
            Request::Hello if bug == Bug::UninformedHosts => return None,
            _ => {}
        }
        Some(message)
    }

    /// Changes an answer as the bug does, before it is sent.
    pub(super) fn forge_answer(&self, is_renewal: bool, answer: &mut VoterMessage<Answer>) {
        match (self.bug, &mut answer.body.replica) {
            (Bug::NewListAtOnce, Some(replica)) => replica.lists.before = None,
            (Bug::UnreportedWorkers, _) => answer.body.workers_for = Duration::ZERO,
            (Bug::EarlyVotesCount, _) => {
                answer.body.is_granted |= answer.has_just_started && is_renewal;
                answer.has_just_started = false;
            }
            _ => {}
        }
    }

    /// Gives an answer to a voter, with the forged answers that follow from it.
    pub(super) fn arrive_answer(&mut self, id: &NodeId, mut message: VoterMessage<Answer>) {
        let bug = self.bug;
        let Some(voter) = self.voter(id) else { return };
        let replica = voter.election.replica();
        if bug == Bug::SlotsByAddress && replica.has_round() {
            let slot = replica.lists.slots().find(|slot| slot.address == message.address);
            message.voter = slot.and_then(|slot| slot.voter).unwrap_or(message.voter);
        }
        let counts = bug.is_of_counting() && replica.has_round();
        let (sequence, is_granted) = (message.sequence, message.body.is_granted);
        if counts && !is_granted && message.body.replica.is_none() {
            return;
        }
        let granted = (is_granted && !message.has_just_started).then(|| message.address.clone());
        self.with_election(id, |election, now| election.handle_answer(now, message));
        if let Some(address) = granted.filter(|_| counts) {
            self.tally(id, sequence, address);
        }
    }

    /// Records a grant. If the bug counts the grants as a majority, adds those of all other voters.
    fn tally(&mut self, id: &NodeId, sequence: u64, address: VoterAddress) {
        let bug = self.bug;
        let Some(host) = self.processes.get(id).map(|process| process.host) else { return };
        let own = self.place(host).address();
        let Some(process) = self.processes.get_mut(id) else { return };
        let Some(voter) = &mut process.voter else { return };
        if voter.tally.len() >= TALLIED {
            voter.tally.pop_first();
        }
        let granted = voter.tally.entry(sequence).or_default();
        granted.extend([own, address]);
        let replica = voter.election.replica();
        if !bug.counts(replica, granted) {
            return;
        }
        let missing = replica.lists.slots().filter(|slot| !granted.contains(&slot.address));
        let missing: Vec<VoterSlot> = missing.cloned().collect();
        for slot in missing {
            let grant = self.forged_grant(slot, sequence);
            self.with_election(id, |election, now| election.handle_answer(now, grant));
        }
    }

    /// Returns the grant of a voter that has not granted the request.
    fn forged_grant(&self, slot: VoterSlot, sequence: u64) -> VoterMessage<Answer> {
        let process = Place::of(&slot.address).and_then(|place| self.process_at(place));
        VoterMessage {
            voter: slot.voter.unwrap_or_default(),
            process: process.unwrap_or_else(|| NodeId::new(slot.address.as_str())),
            address: slot.address,
            has_just_started: false,
            highest: Term(0),
            knows: Knowledge::default(),
            job: None,
            ended: Vec::new(),
            sequence,
            body: Answer {
                is_granted: true,
                is_connected: true,
                workers_for: Duration::ZERO,
                former: None,
                replica: None,
            },
        }
    }

    /// Changes the state file of a process as the bug does, before it is written.
    pub(super) fn forge_file(&self, host: usize, file: &mut StateFile) {
        let before = self.hosts[host].file.as_ref().map(|file| &file.replica);
        match self.bug {
            Bug::NewListAtOnce => file.replica.lists.before = None,
            Bug::OldList => {
                if let Some(before) = before.filter(|before| before.has_round()) {
                    file.replica.lists.clone_from(&before.lists);
                }
            }
            _ => {}
        }
    }

    /// Changes the members that a coordinator reports to its voter as the bug does.
    pub(super) fn forge_members(&mut self, id: &NodeId, report: &mut MembersReport) {
        if self.bug != Bug::SilentVoter {
            return;
        }
        let Some(voter) = self.voter(id) else { return };
        let list = &voter.election.replica().lists.last;
        if report.wanted <= list.len() {
            let is_at_voter = |member: &Member| list.iter().any(|s| s.address == member.address);
            report.members.retain(is_at_voter);
        }
    }
}
