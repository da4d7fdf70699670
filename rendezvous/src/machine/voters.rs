//! Follows the voters that elect the job's coordinators, and other jobs of the same name.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Instant,
};

use tracing::warn;

use crate::{
    event::EventKind,
    heir::{Member, MembersReport},
    ids::{Round, VoterAddress},
    limits::MEMBERS_REPORTED_MAX,
    machine::{Rendezvous, closing::Failures},
    message::{JobResult, Registration, ToNode},
    phase::Phase,
    roster::RosterNode,
};

/// The most silences of voters that are recorded as events in a term, so that a bad network does not fill the
/// journal.
const SILENCES_MAX: u32 = 64;

/// The voters that do not answer.
#[derive(Debug, Default)]
pub(super) struct SilentVoters {
    /// All voters that do not answer now.
    now: BTreeSet<String>,
    /// The part of them whose silence is recorded as an event.
    recorded: BTreeSet<String>,
    /// The number of silences of this term that are recorded as events.
    count: u32,
}

impl Rendezvous {
    /// Returns the voters of the nodes in the newest round, by rank, and then the voters of other nodes that
    /// could be in the next one. Before them come those at the hosts of voters, because they may have returned
    /// without their state. A node that is not alone at its host does not.
    pub fn members(&self) -> MembersReport {
        let group = self.job.phase.group();
        let mut members: Vec<_> = group.into_iter().flat_map(|group| group.members()).collect();
        members.sort_by_key(|(_, member)| member.rank);
        let is_member = |node: &RosterNode| {
            group.is_some_and(|group| group.member(&node.description.node_id).is_some())
        };
        let others = self.job.roster.iter().map(|(_, node)| node).filter(|node| !is_member(node));
        let nodes = members.iter().filter_map(|(id, _)| self.job.roster.get(id)).chain(others);
        let stays = |node: &&RosterNode| node.attached && !node.is_leaving();
        let mut voters: Vec<Member> =
            nodes.filter(stays).filter_map(|node| node.description.voter.clone()).collect();
        let mut at_hosts: BTreeMap<&str, u32> = BTreeMap::new();
        for voter in &voters {
            *at_hosts.entry(voter.address.host()).or_default() += 1;
        }
        let listed = self.job.settings.voters.iter().map(VoterAddress::host);
        let returned: BTreeSet<String> =
            listed.filter(|host| at_hosts.get(host) == Some(&1)).map(str::to_owned).collect();
        voters.sort_by_key(|voter| !returned.contains(voter.address.host()));
        voters.truncate(MEMBERS_REPORTED_MAX);
        let wanted = self.job.settings.voter_count.at_most(voters.len()).number();
        let min = self.job.settings.shared.map_or(1, |shared| shared.nodes.min() as usize);
        let has_nodes = self.job.phase.running().is_some() || self.job.roster.len() >= min;
        MembersReport { members: voters, wanted, has_nodes }
    }

    /// Records the voters of the job, and informs all nodes.
    pub fn handle_voters(&mut self, voters: Vec<VoterAddress>) {
        if self.job.settings.voters == voters {
            return;
        }
        let voters_listed = voters.iter().map(ToString::to_string).collect();
        self.out.event(&self.job, None, None, EventKind::VotersChanged { voters: voters_listed });
        self.job.settings.voters = voters;
        let peers: Vec<_> = self.job.roster.iter().map(|(_, node)| node.peer()).collect();
        for peer in peers {
            self.out.send(peer, ToNode::Voters(self.job.settings.voters.clone()));
        }
    }

    /// Records the other jobs of this name that may run, as text for people. While there are any, no first
    /// round is completed.
    pub fn handle_other_jobs(&mut self, now: Instant, jobs: Vec<String>) {
        if self.job.other_jobs == jobs || !self.begin(now) {
            return;
        }
        for job in jobs.iter().filter(|job| !self.job.other_jobs.contains(job)) {
            if self.job.state.round == Round(0) {
                warn!("{job}; no round begins meanwhile");
            }
        }
        self.job.other_jobs = jobs;
        self.advance(now);
    }

    /// Closes this job, because an elder job of this name is led at `endpoint`.
    pub fn handle_elder_job(&mut self, now: Instant, endpoint: String, born_ms: u64) {
        if !self.begin(now) || matches!(self.job.phase, Phase::Closed(_)) {
            return;
        }
        let born_ms = Some(born_ms);
        self.close(JobResult::OtherJob { endpoint, born_ms }, Failures::default());
        self.advance(now);
    }

    /// Returns the voters that do not answer, as [`handle_silent_voters`](Self::handle_silent_voters) has
    /// last recorded them.
    pub fn silent_voters(&self) -> &BTreeSet<String> {
        &self.silent_voters.now
    }

    /// Records which voters have become silent, and which answer again. `silent` are all that do not answer
    /// now, and `listed` are all voters.
    pub fn handle_silent_voters(&mut self, silent: BTreeSet<String>, listed: &BTreeSet<String>) {
        let before = mem::replace(&mut self.silent_voters.now, silent);
        let newly: Vec<String> = self.silent_voters.now.difference(&before).cloned().collect();
        for voter in before.difference(&self.silent_voters.now).cloned().collect::<Vec<_>>() {
            // A voter that was replaced while it was silent does not answer again.
            if self.silent_voters.recorded.remove(&voter) && listed.contains(&voter) {
                self.out.event(&self.job, None, None, EventKind::VoterBack { voter });
            }
        }
        for voter in newly {
            if self.silent_voters.count < SILENCES_MAX {
                self.silent_voters.count += 1;
                self.silent_voters.recorded.insert(voter.clone());
                self.out.event(&self.job, None, None, EventKind::VoterSilent { voter });
            }
        }
    }

    /// Returns true if the node belongs to a job with a round, and this elected coordinator to a job without
    /// one.
    ///
    /// The process that began this job may have lost its state file, and the voters of the node's job have
    /// theirs. With an external store, no job can have begun elsewhere.
    pub(super) fn is_of_job_elsewhere(&self, registration: &Registration) -> bool {
        let knows_round =
            registration.known_round.round.max(registration.report.round).round > Round(0);
        let is_other =
            registration.job_uid.as_ref().is_some_and(|uid| *uid != self.job.state.job_uid);
        let has_none = self.job.state.round == Round(0) && self.job.state.closed.is_none();
        self.has_voters() && is_other && knows_round && has_none
    }

    /// Returns true if voters have elected this coordinator.
    pub(super) fn has_voters(&self) -> bool {
        self.job.grant.is_some() && !self.job.settings.voters.is_empty()
    }
}
