//! Checks worlds in which a job may lose its state for ever, so that another job of the same name begins. The rules:
//!
//! - a: at no moment do two processes lead the same job.
//! - b: no worker starts while a worker of another round runs on any host. Two jobs may break it only if the birth of one is excused: see
//!   j.
//! - j: no job is born while a voter of an unfinished job can reach its founder. The birth is excused if no process that knows such a job
//!   could reach the founder for as long as a founder must have waited. State files of hosts that are down know jobs too.
//! - k: the workers of two jobs do not run for longer than 15 s, if a listed host is there and nothing else happens.
//! - l: a process that is started is registered within 10 s, if its job is led and nothing else happens. A process that knows another job
//!   first waits for that one.
//! - m: a job that has ended prevents the next one for 10 s at most, if a process that knows the end is registered and nothing else
//!   happens.
//! - ar: two jobs are not led for longer than 45 s while workers of one of them run, if a listed host is there and nothing else happens: one
//!   that lacks nodes closes, even if it is the elder.
//! - n: a host records the end of a job only if the job has an outcome.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::{Duration, Instant},
};

use ragent_election::election::message::Replica;
use ragent_rendezvous::{
    ids::{JobUid, NodeId, RoundId},
    known_job::Seniority,
};

use super::{Bug, World, host::Process};

/// The history of the jobs of a world.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// The job of each round.
    rounds: BTreeMap<RoundId, JobUid>,
    /// The host of each job's founder, and true if its birth is excused.
    births: BTreeMap<JobUid, (usize, bool)>,
    /// The job whose workers were started last.
    started: Option<JobUid>,
    /// The jobs that have ended.
    ended: BTreeSet<JobUid>,
    /// The end of the last fault.
    disturbed_until: Option<Instant>,
    /// The job that is led, and since when.
    led: Option<(JobUid, Instant)>,
    /// The time since which the workers of two jobs run.
    two_run: Option<Instant>,
    /// The time since which two jobs are led, and workers run.
    two_led: Option<Instant>,
}

/// The time within which a process is registered after its start.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);

/// The time within which the younger of two jobs closes.
const ONE_JOB_WITHIN: Duration = Duration::from_secs(15);

/// The time within which a leader learns of an end that a registered process knows.
const ENDS_KNOWN_WITHIN: Duration = Duration::from_secs(10);

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
        let job_state = replica.job_state.as_ref().filter(|_| replica.has_round())?;
        let has_ended =
            job_state.closed.is_some() || self.record.jobs.ended.contains(&job_state.job_uid);
        (!has_ended).then(|| job_state.job_uid.clone())
    }

    /// Notes that a job has ended.
    pub(super) fn note_end(&mut self, uid: JobUid) {
        self.record.jobs.ended.insert(uid);
    }

    /// Checks rule j for a round that is admitted by the coordinator of a process.
    pub(super) fn note_birth(&mut self, founder: &NodeId, uid: JobUid, round: RoundId) {
        if self.record.jobs.rounds.insert(round, uid.clone()).is_none() {
            self.tell(|| format!("{founder} begins {round} of {uid}"));
            if self.etcd.is_some() && !self.has_lost_key() && self.record.jobs.ended.contains(&uid)
            {
                self.record.breaks(|| {
                    format!("rule b: {founder} begins {round} of {uid}, which has ended")
                });
            }
        }
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
        let is_known = !knowing.is_empty() || self.is_in_a_file(&uid);
        let is_excused = is_known && teller.is_none();
        let host = self.processes.get(founder).map_or(0, |process| process.host);
        self.record.jobs.births.insert(uid.clone(), (host, is_excused));
        if let Some(teller) = teller {
            let job = self.job_of(&teller);
            self.record
                .breaks(|| format!("rule j: {founder} begins {uid} while {teller} knows {job:?}"));
        }
    }

    /// Returns true if a host that is down has the state file of another unfinished job.
    fn is_in_a_file(&self, uid: &JobUid) -> bool {
        let of_other_job = |replica: &Replica| {
            let job_state = replica.job_state.as_ref().filter(|_| replica.has_round());
            job_state.is_some_and(|job_state| {
                let has_ended = job_state.closed.is_some()
                    || self.record.jobs.ended.contains(&job_state.job_uid);
                job_state.job_uid != *uid && !has_ended
            })
        };
        let down = self.hosts.iter().filter(|host| host.process.is_none());
        down.filter_map(|host| host.file.as_ref()).any(|file| of_other_job(&file.replica))
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
        is_voter
            && is_steady(teller)
            && is_steady(founder)
            && self.are_connected(one.host, other.host)
            && is_long_ago(self.loss.1)
    }

    /// Returns true if messages between two hosts have arrived during the whole last lease.
    fn are_connected(&self, one: usize, other: usize) -> bool {
        let lease = self.timers.voter_lease;
        let cuts = [(one, other), (other, one)];
        let until = cuts.iter().filter_map(|cut| self.cuts.get(cut)).max();
        until.is_none_or(|until| *until + lease <= self.now)
    }

    /// Returns true if a round is the first after the end of another job, and no process of that job is left.
    pub(super) fn follows_an_ended_job(&mut self, round: RoundId) -> bool {
        let jobs = &mut self.record.jobs;
        let job = jobs.rounds.get(&round).cloned();
        let before = mem::replace(&mut jobs.started, job.clone());
        let has_ended = |uid: &JobUid| {
            jobs.ended.contains(uid) || self.hosts.iter().any(|host| host.knows_end(uid, self.now))
        };
        before.is_some_and(|before| Some(&before) != job.as_ref() && has_ended(&before))
    }

    /// Checks rule b for workers that have started.
    pub(super) fn check_jobs_of_workers(&mut self, id: &NodeId, round: RoundId) {
        let jobs = &self.record.jobs;
        let birth = |round: RoundId| jobs.births.get(jobs.rounds.get(&round)?).copied();
        let is_excused = |round: RoundId, host: usize| {
            let is_cut = |founder: usize| !self.are_connected(founder, host);
            birth(round).is_some_and(|(founder, is_excused)| is_excused || is_cut(founder))
        };
        let own = self.keepers.get(id).map_or(0, |keeper| keeper.host);
        let may_overlap = |node: &NodeId, other: RoundId| {
            let there = self.keepers.get(node).map_or(0, |keeper| keeper.host);
            jobs.rounds.get(&other) != jobs.rounds.get(&round)
                && (is_excused(round, there) || is_excused(other, own))
        };
        let mut alive = self.alive();
        let other = alive.find(|(node, other)| *other != round && !may_overlap(node, *other));
        drop(alive);
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
        self.check_led_jobs(&leaders);
        let led = match leaders.len() {
            1 => leaders.pop_first().map(|(job, _)| job),
            _ => None,
        };
        let before = self.record.jobs.led.take();
        self.record.jobs.led = led.map(|job| match before {
            Some((same, since)) if same == job => (same, since),
            Some(_) | None => (job, now),
        });
        self.check_running_jobs();
        self.check_registrations();
        self.check_ended();
        let lasts = if self.record.jobs.two_led.is_some() { 2 * LASTS } else { LASTS };
        now < self.start + super::FAULTY + lasts
    }

    /// Returns true if a planted bug makes the leader of an elder job go on, although it yields to this one.
    pub(super) fn is_patient_elder(&self, id: &NodeId, other: &Seniority) -> bool {
        let voter = self.processes.get(id).and_then(|process| process.voter.as_ref());
        voter.is_some_and(|voter| {
            let job_state = voter.election.replica().job_state.as_ref();
            let own = job_state.map(|own| (own.born_ms, &own.job_uid));
            let is_elder = own.is_some_and(|own| own < (other.born_ms, &other.uid));
            self.bug == Bug::PatientElder && is_elder && voter.election.leads_until().is_some()
        })
    }

    /// Checks rule ar.
    fn check_led_jobs(&mut self, leaders: &BTreeMap<JobUid, usize>) {
        let (now, jobs) = (self.now, &self.record.jobs);
        let is_running = self.alive().next().is_some();
        let since = (leaders.len() > 1 && is_running).then(|| jobs.two_led.unwrap_or(now));
        let calm = jobs.disturbed_until.max(since).unwrap_or(self.start);
        let can_meet = self.listed_host_is_there(ONE_JOB_WITHIN);
        self.record.jobs.two_led = since;
        if since.is_some() && can_meet && now >= calm + self.timers.patience() + ONE_JOB_WITHIN {
            self.record.breaks(|| format!("rule ar: the jobs {:?} are led", leaders.keys()));
        }
    }

    /// Checks rule k.
    fn check_running_jobs(&mut self) {
        let (now, jobs) = (self.now, &self.record.jobs);
        let running: BTreeSet<JobUid> =
            self.alive().filter_map(|(_, round)| jobs.rounds.get(&round).cloned()).collect();
        let since = (running.len() > 1).then(|| jobs.two_run.unwrap_or(now));
        let calm = jobs.disturbed_until.max(since).unwrap_or(self.start);
        let can_meet = self.listed_host_is_there(ONE_JOB_WITHIN);
        self.record.jobs.two_run = since;
        if since.is_some() && can_meet && now >= calm + ONE_JOB_WITHIN {
            self.record.breaks(|| format!("rule k: the workers of {running:?} run"));
        }
    }

    /// Returns true if a process has run on a listed host for this time.
    fn listed_host_is_there(&self, time: Duration) -> bool {
        let is_old = |host: usize| {
            let process = self.hosts[host].process.as_ref().and_then(|id| self.processes.get(id));
            process.is_some_and(|process| self.now >= process.started + time)
        };
        (0..self.listed).any(is_old)
    }

    /// Checks rule n for the end of a job that a host records.
    pub(super) fn check_recorded_end(&mut self, host: usize, job: &JobUid) {
        let has_outcome = |replica: &Replica| {
            let job_state =
                replica.job_state.as_ref().filter(|job_state| job_state.closed.is_some());
            job_state.is_some_and(|job_state| job_state.job_uid == *job)
        };
        let voters = self.processes.values().filter_map(|process| process.voter.as_ref());
        let files = self.hosts.iter().filter_map(|host| host.file.as_ref());
        let mut all =
            voters.map(|voter| voter.election.replica()).chain(files.map(|file| &file.replica));
        let mut others = self.hosts.iter().enumerate().filter(|(other, _)| *other != host);
        let is_heard = others.any(|(_, other)| other.knows_end(job, self.now));
        if !is_heard && !all.any(has_outcome) {
            self.record.breaks(|| format!("rule n: host {host} records an end of {job}"));
        }
    }

    /// Checks rule m.
    fn check_ended(&mut self) {
        let calm = self.record.jobs.disturbed_until.unwrap_or(self.start);
        if self.now < calm + ENDS_KNOWN_WITHIN {
            return;
        }
        let before = self.now - ENDS_KNOWN_WITHIN;
        let is_old = |process: &Process| process.started <= before;
        let leading = self.leading_hosts().filter_map(|host| self.hosts[host].process.as_ref());
        let waiting = leading.filter_map(|id| Some((id, self.processes.get(id)?)));
        let broken = waiting.filter(|(_, process)| is_old(process)).find_map(|(id, process)| {
            let election = &process.voter.as_ref()?.election;
            let shown = election.other_jobs().map(|job| job.uid);
            let mut ended = shown.filter(|uid| self.record.jobs.ended.contains(uid));
            let job = ended.next().filter(|_| !election.replica().has_round())?;
            let knows = |other: &&Process| {
                let is_there = other.agent.as_ref().is_some_and(|agent| agent.node.is_registered());
                is_there && is_old(other) && self.hosts[other.host].knows_end(&job, before)
            };
            let knowing = self.processes.values().find(knows)?;
            Some(format!("rule m: {id} waits for {job}; host {} knows its end", knowing.host))
        });
        if let Some(broken) = broken {
            self.record.breaks(|| broken);
        }
    }

    fn check_registrations(&mut self) {
        let Some((job, since)) = self.record.jobs.led.clone() else { return };
        let calm = self.record.jobs.disturbed_until.max(Some(since)).unwrap_or(since);
        if self.now < calm + REGISTERED_WITHIN {
            return;
        }
        // A process that knows no job finds it through a listed host.
        let can_be_found = self.listed_host_is_there(REGISTERED_WITHIN);
        let is_late = |id: &&NodeId| {
            let process = &self.processes[*id];
            let agent = process.agent.as_ref();
            let has_registered =
                process.voter.as_ref().is_some_and(|voter| voter.registered.is_some());
            let own = self.job_of(id);
            let waits_for_own = own.as_ref().is_some_and(|own| *own != job);
            let patience = if waits_for_own { self.timers.patience() } else { Duration::ZERO };
            (can_be_found || own.is_some())
                && !has_registered
                && self.now >= process.started + patience + REGISTERED_WITHIN
                && process.ending.is_none()
                && agent.is_some_and(|agent| !agent.node.is_registered())
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
