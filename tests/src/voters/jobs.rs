//! The rules of worlds in which a job may lose its state for ever, so that another job of the same name begins.
//!
//! - a: at no moment do two processes lead the same job.
//! - b: no worker starts while a worker of another round runs on any host. Two jobs may break it only if the birth of one is
//!   excused: see j.
//! - j: no job is born while a voter of an unfinished job can reach its founder. A birth is excused if processes know such a job, and
//!   none of them could reach the founder for as long as a founder must have waited.
//! - l: a process is registered within 10 s after its start, if its job is led and nothing else happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ragent_rendezvous::ids::{JobUid, NodeId, RoundId};

use super::World;

/// The history of the jobs of a world.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// The job of each round.
    rounds: BTreeMap<RoundId, JobUid>,
    /// True for the jobs whose birth is excused.
    births: BTreeMap<JobUid, bool>,
    /// The jobs that have ended.
    ended: BTreeSet<JobUid>,
    /// The end of the last fault.
    disturbed_until: Option<Instant>,
    /// The job that is led, and the time since which it is.
    led: Option<(JobUid, Instant)>,
}

/// The time within which a process is registered after its start.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);

impl World {
    /// Notes that something disturbs the network or the hosts until then.
    pub(super) fn note_disturbance(&mut self, until: Instant) {
        let disturbed = &mut self.record.jobs.disturbed_until;
        *disturbed = (*disturbed).max(Some(until));
    }

    /// Returns the unfinished job with a round that a process knows.
    fn job_of(&self, id: &NodeId) -> Option<JobUid> {
        let voter = self.processes.get(id)?.voter.as_ref()?;
        let replica = voter.election.replica();
        let memory = replica.memory.as_ref().filter(|_| replica.has_round())?;
        let has_ended = memory.closed.is_some() || self.record.jobs.ended.contains(&memory.job_uid);
        (!has_ended).then(|| memory.job_uid.clone())
    }

    /// Notes that a job has ended.
    pub(super) fn note_end(&mut self, uid: JobUid) {
        self.record.jobs.ended.insert(uid);
    }

    /// Checks rule j for a round that is admitted by the coordinator of a process.
    pub(super) fn note_birth(&mut self, founder: &NodeId, uid: JobUid, round: RoundId) {
        self.record.jobs.rounds.insert(round, uid.clone());
        if !self.loses_states || self.record.jobs.births.contains_key(&uid) {
            return;
        }
        let knowing: Vec<_> = self
            .processes
            .keys()
            .filter(|id| self.job_of(id).is_some_and(|job| job != uid))
            .cloned()
            .collect();
        let teller = knowing.iter().find(|id| self.could_tell(id, founder)).cloned();
        let is_excused = !knowing.is_empty() && teller.is_none();
        self.record.jobs.births.insert(uid.clone(), is_excused);
        if let Some(teller) = teller {
            let job = self.job_of(&teller);
            self.record
                .breaks(|| format!("rule j: {founder} begins {uid} while {teller} knows {job:?}"));
        }
    }

    /// Returns true if a process is a voter of its job, and could reach another one during the whole last lease.
    fn could_tell(&self, teller: &NodeId, founder: &NodeId) -> bool {
        let lease = self.timers.voter_lease;
        let is_long_ago = |at: Instant| at + lease <= self.now;
        let [Some(one), Some(other)] = [teller, founder].map(|id| self.processes.get(id)) else {
            return false;
        };
        let is_voter = one.voter.as_ref().is_some_and(|voter| !voter.election.is_outside());
        let is_steady = |id: &NodeId| {
            let process = &self.processes[id];
            let thawed = self.hosts[process.host].thawed;
            is_long_ago(process.started) && thawed.is_none_or(is_long_ago)
        };
        let is_whole = |from: usize, to: usize| {
            self.cuts.get(&(from, to)).is_none_or(|until| is_long_ago(*until))
        };
        is_voter
            && is_steady(teller)
            && is_steady(founder)
            && is_whole(one.host, other.host)
            && is_whole(other.host, one.host)
            && is_long_ago(self.loss.1)
    }

    /// Checks rule b for workers that have started.
    pub(super) fn check_jobs_of_workers(&mut self, id: &NodeId, round: RoundId) {
        let jobs = &self.record.jobs;
        let is_excused = |round: RoundId| {
            let job = jobs.rounds.get(&round);
            job.is_some_and(|job| jobs.births.get(job).copied().unwrap_or_default())
        };
        let may_overlap = |other: RoundId| {
            jobs.rounds.get(&other) != jobs.rounds.get(&round)
                && (is_excused(round) || is_excused(other))
        };
        let other = self.alive().find(|(_, other)| *other != round && !may_overlap(*other));
        if let Some((node, other)) = other.map(|(node, other)| (node.clone(), other)) {
            self.record
                .breaks(|| format!("rule b: {round} starts on {id} while {other} runs on {node}"));
        }
    }

    /// Checks rules a and l. Returns false at the end of the world.
    pub(super) fn check_jobs(&mut self) -> bool {
        let mut leaders: BTreeMap<JobUid, usize> = BTreeMap::new();
        let leading: Vec<usize> = self.leading_hosts().collect();
        for host in leading {
            let id = self.hosts[host].process.clone();
            let Some(job) = id.and_then(|id| self.job_of(&id)) else { continue };
            if let Some(other) = leaders.insert(job.clone(), host) {
                self.record.breaks(|| format!("rule a: hosts {other} and {host} lead {job}"));
            }
        }
        let now = self.now;
        let led = match leaders.len() {
            1 => leaders.pop_first().map(|(job, _)| job),
            _ => None,
        };
        let before = self.record.jobs.led.take();
        self.record.jobs.led = led.map(|job| match before {
            Some((same, since)) if same == job => (same, since),
            Some(_) | None => (job, now),
        });
        self.check_registrations();
        now < self.start + super::FAULTY + LASTS
    }

    fn check_registrations(&mut self) {
        let Some((job, since)) = self.record.jobs.led.clone() else { return };
        let calm = self.record.jobs.disturbed_until.max(Some(since)).unwrap_or(since);
        if self.now < calm + REGISTERED_WITHIN {
            return;
        }
        let is_late = |id: &&NodeId| {
            let process = &self.processes[*id];
            let agent = process.agent.as_ref();
            self.now >= process.started + REGISTERED_WITHIN
                && process.ending.is_none()
                && agent.is_some_and(|agent| !agent.node.is_attended())
        };
        if let Some(id) = self.processes.keys().find(is_late).cloned() {
            let voter = self.processes[&id].voter.as_ref();
            let lists = voter.map(|voter| voter.election.replica().lists.clone());
            self.record.breaks(|| {
                format!("rule l: {id} is not registered, and {job} is led; it knows {lists:?}")
            });
        }
    }
}

/// The time after the last fault at which a world ends.
const LASTS: Duration = Duration::from_secs(35);
