//! Runs the voter of a process as its thread does.

use std::{collections::BTreeMap, mem, time::Instant};

use ragent_election::election::{
    self, Effect, Election,
    message::{Answer, Replica, Request, Version, VoterMessage},
};
use ragent_rendezvous::{
    heir::MembersReport,
    ids::{JobUid, NodeId, Term, VoterAddress, VoterId},
    known_job::KnownJob,
    settings::JobState,
};

use super::{Bug, Input, Part, World, changes::Tally, host::ProcessEnd, links::Link, port::Leader};
use crate::addresses::{address, host_of};

/// The voter of a process.
#[derive(Debug)]
pub(super) struct Voter {
    pub(super) election: Election,
    pub(super) id: VoterId,
    /// The connections to other voters.
    pub(super) links: BTreeMap<VoterAddress, Link>,
    /// The host at which the agent was welcomed last.
    pub(super) registered: Option<usize>,
    /// Changes of the state that are being copied, in their order.
    copying: Vec<(Version, u64)>,
    /// The grants of the newest requests. Some bugs count them differently.
    pub(super) tally: Tally,
}

impl Voter {
    /// Returns true if a process on that host may be a voter of the job. If so, this process connects to it, or its agent is registered
    /// there.
    pub(super) fn knows(&self, host: usize) -> bool {
        let connections = self.election.connections();
        connections.iter().any(|to| host_of(to) == Some(host)) || self.registered == Some(host)
    }
}

/// A voter's state file.
#[derive(Clone, Debug, Default)]
pub(super) struct StateFile {
    pub(super) id: VoterId,
    pub(super) replica: Replica,
    pub(super) highest: Term,
}

/// A command of a coordinator to its voter.
#[derive(Debug)]
pub(super) enum Command {
    Remember(Box<JobState>, u64),
    Highest(Term),
    Resign(Term),
    DeathNotice(NodeId),
    Members(MembersReport),
    KnownJob(KnownJob),
    Ended(Vec<JobUid>),
    Forget,
    /// The job has ended in this term.
    JobOver(Term),
    Leave,
}

impl World {
    /// Creates the voter of a process that starts.
    pub(super) fn new_voter(&mut self, host: usize, id: &NodeId, local: Instant) -> Voter {
        let id_of_file = self.hosts[host].file.as_ref().map(|file| file.id);
        let voter = id_of_file.unwrap_or_else(|| VoterId(self.random.between(1, u64::MAX - 1)));
        let settings = election::ElectionSettings {
            voter,
            is_new: id_of_file.is_none(),
            is_first_start: self.bug == Bug::NoMute,
            ended: self.hosts[host].ended.iter().map(|(uid, _)| uid.clone()).collect(),
            address: self.place(host).address(),
            listed: (0..self.listed).map(address).collect(),
            process: id.clone(),
            timers: self.timers,
            seed: match self.bug {
                Bug::SharedTerms => 0,
                _ => self.random.between(0, u64::MAX - 1),
            },
        };
        let StateFile { replica, highest, .. } = self.hosts[host].file.clone().unwrap_or_default();
        Voter {
            election: Election::new(local, settings, replica, highest),
            id: voter,
            links: BTreeMap::new(),
            registered: None,
            copying: Vec::new(),
            tally: Tally::new(),
        }
    }

    pub(super) fn voter(&mut self, id: &NodeId) -> Option<&mut Voter> {
        self.processes.get_mut(id)?.voter.as_mut()
    }

    /// Calls the voter of a process with the time on its clock, and carries out the effects.
    pub(super) fn with_election<T>(
        &mut self,
        id: &NodeId,
        call: impl FnOnce(&mut Election, Instant) -> T,
    ) -> Option<T> {
        let local = self.local(id)?;
        let result = call(&mut self.voter(id)?.election, local);
        self.settle_voter(id);
        Some(result)
    }

    /// Handles a request, and returns the answer.
    pub(super) fn arrive_request(
        &mut self,
        id: &NodeId,
        sent: Instant,
        message: VoterMessage<Request>,
    ) -> Option<VoterMessage<Answer>> {
        let message = self.forge_request(id, message)?;
        let renewed = match message.body {
            Request::Renew { term, .. } => Some(term),
            _ => None,
        };
        let answer = self.with_election(id, |election, now| election.handle_request(now, message));
        let mut answer = answer.flatten()?;
        self.forge_answer(renewed.is_some(), &mut answer);
        if let Some(term) = renewed.filter(|_| answer.body.is_granted && !answer.has_just_started) {
            self.note_grant(term, &answer.address, sent);
        }
        Some(answer)
    }

    pub(super) fn handle_command(&mut self, id: &NodeId, command: Command) {
        match command {
            Command::Remember(job_state, number) => {
                let remember =
                    |election: &mut Election, now| election.handle_remember(now, *job_state);
                let Some(local) = self.local(id) else { return };
                let Some(voter) = self.voter(id) else { return };
                match remember(&mut voter.election, local) {
                    Some(version) => voter.copying.push((version, number)),
                    // This process no longer leads.
                    None => self.pass(id, Input::Stored(number, false)),
                }
                self.settle_voter(id);
            }
            Command::Highest(term) => {
                self.with_election(id, |election, now| election.handle_highest(now, term));
            }
            Command::Resign(term) => {
                self.with_election(id, |election, now| election.handle_resigned(now, term));
            }
            Command::DeathNotice(node) => {
                self.with_election(id, |election, now| election.handle_death_notice(now, &node));
            }
            Command::Members(mut report) => {
                self.forge_members(id, &mut report);
                self.with_election(id, |election, now| election.handle_members(now, report));
            }
            Command::KnownJob(_) if self.bug == Bug::UninformedHosts => {}
            Command::KnownJob(job) => {
                self.with_election(id, |election, now| election.handle_known_job(now, &job));
            }
            Command::Ended(_) if self.bug == Bug::UnshownEnds => {}
            Command::Ended(jobs) => {
                self.with_election(id, |election, now| election.handle_ended(now, &jobs));
            }
            Command::JobOver(_) => {}
            Command::Forget => {
                self.with_election(id, |election, now| election.handle_forgotten(now));
            }
            Command::Leave => {
                self.with_election(id, |election, now| election.handle_leaving(now));
            }
        }
    }

    /// Carries out the effects of a voter, and sets its timer.
    pub(super) fn settle_voter(&mut self, id: &NodeId) {
        while let Some(effect) = self.voter(id).and_then(|voter| voter.election.poll_effect()) {
            if self.dies_now(id) {
                return;
            }
            self.carry_out_of_voter(id, effect);
        }
        let Some(voter) = self.voter(id) else { return };
        let election = &voter.election;
        let (replica, highest) = (election.replica().clone(), election.highest());
        let (deadline, may_end) = (election.poll_timeout(), election.may_end());
        let mut file = StateFile { id: voter.id, replica, highest };
        let Some(process) = self.processes.get(id) else { return };
        let (host, leaves) = (process.host, process.ending == Some(ProcessEnd::Left));
        self.forge_file(host, &mut file);
        self.hosts[host].file = Some(file);
        self.set_timer(id, Part::Voter, deadline);
        self.settle_links(id);
        self.release_held(id);
        if leaves && may_end {
            self.pass(id, Input::Exit);
        }
    }

    fn carry_out_of_voter(&mut self, id: &NodeId, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.queue_request(id, &to, message),
            Effect::Lead(leadership) => {
                self.note_winner(id, &leadership);
                self.lead(id, leadership);
            }
            Effect::Extend(until) => {
                let Some(now) = self.local(id) else { return };
                let receipt = now + self.timers.leader_lease;
                let until = if self.bug == Bug::LeaseFromReceipt { receipt } else { until };
                self.extend(id, until);
            }
            Effect::Copied(version) => {
                let Some(voter) = self.voter(id) else { return };
                let (done, rest) =
                    mem::take(&mut voter.copying).into_iter().partition(|(at, _)| *at <= version);
                voter.copying = rest;
                let done: Vec<(Version, u64)> = done;
                for (_, number) in done {
                    self.pass(id, Input::Stored(number, true));
                }
            }
            Effect::Follow { leader } => {
                let Some(voter) = self.voter(id) else { return };
                let lost = mem::take(&mut voter.copying);
                let term = voter.election.lease_term().unwrap_or_default();
                let leader = match leader {
                    Some(address) => Leader::Other(address, term),
                    None => Leader::Unknown,
                };
                for (_, number) in lost {
                    self.pass(id, Input::Stored(number, false));
                }
                self.follow(id, leader);
            }
            // The file is written after each call.
            Effect::Store => {
                self.split_voters(id);
                self.note_change();
            }
            Effect::Voters(slots) => {
                self.tell(|| format!("{id} has changed the voters to {slots:?}"));
                let voters = slots.into_iter().map(|slot| slot.address).collect();
                self.pass(id, Input::Voters(voters));
            }
            Effect::OtherJobs => {
                let Some(voter) = self.voter(id) else { return };
                let others: Vec<_> =
                    voter.election.other_jobs().map(|job| job.uid.to_string()).collect();
                self.pass(id, Input::OtherJobs(others));
            }
            Effect::Ended(uid) => {
                let Some(host) = self.processes.get(id).map(|process| process.host) else { return };
                self.learn_end(host, Some(uid));
            }
            Effect::Yield { .. } if self.bug == Bug::NoYield => {}
            Effect::Yield { other, .. } if self.is_patient_elder(id, &other) => {}
            Effect::Yield { other, at } => self.pass(id, Input::Yield(other, at)),
            Effect::Outlived(outcome) => self.pass(id, Input::Outlived(outcome)),
            Effect::Duplicate { address } => {
                self.record.breaks(|| format!("rule c: a process answers at {address} as well"));
            }
        }
    }
}
