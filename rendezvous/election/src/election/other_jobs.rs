//! Finds other jobs of the same name, so that no second one begins while one runs.
//!
//! A process without a state file cannot know whether its job exists already. Therefore:
//!
//! - Voters of an unfinished job *show* it to the hosts that the user listed, and to each other.
//!   They do so on each new connection, and repeat it until the other side shows the same job.
//! - Processes without a led job *ask* at every address that they know.
//!
//! A job that was shown is not stored, and never becomes the receiver's own state. It has two
//! effects: its addresses are asked, and no other job begins here until one of these happens:
//!
//! - A process shows that the job has ended, in an answer or when it registers.
//! - A process answers that it leads the job. This process then joins it.
//! - No process has shown it for [`Timers::patience`](super::timers::Timers::patience).
//!
//! If two jobs have begun nevertheless, the elder goes on, and the other one closes. If the elder
//! has lacked nodes for long, and the younger has enough, the elder closes.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use ragent_rendezvous::{
    ids::{JobUid, Term, VoterAddress},
    known_job::{KnownJob, Leads, Seniority},
    limits::VOTERS_MAX,
};
use tracing::{info, warn};

use crate::{
    election::{
        Effect, Election, Role,
        message::{Replica, Request, VoterMessage},
    },
    limits::{ENDED_MAX, OTHER_JOBS_MAX, SHOWN_BY_MAX},
};

/// The jobs that other processes have shown.
#[derive(Debug, Default)]
pub(super) struct OtherJobs {
    jobs: BTreeMap<JobUid, ShownJob>,
    /// Jobs that have ended, the newest last.
    ended: VecDeque<JobUid>,
    /// The addresses that have shown this process's own job since they were connected, and when
    /// they did so last.
    shown: BTreeMap<VoterAddress, Instant>,
    /// Addresses of this process's own job, named by a process that knows a newer state of it, and
    /// when it named them. Also addresses of processes that a search has found.
    newer: BTreeMap<VoterAddress, Instant>,
    next_hello: Option<Instant>,
}

/// The origin of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    /// A process that this one has dialed.
    Answer,
    /// A process that has sent a request, and may be a voter of the job.
    Voter,
    /// Any other process that has sent a request.
    Stranger,
}

/// A job that another process has shown.
#[derive(Debug)]
struct ShownJob {
    /// The addresses of its voters, and of processes that have shown it.
    addresses: BTreeSet<VoterAddress>,
    /// The time at which it was last shown.
    at: Instant,
    /// The process that has last answered that it leads the job, its term, and the time of the
    /// answer.
    leader: Option<(VoterAddress, Term, Instant)>,
}

/// A job that other processes have shown to this one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OtherJob {
    /// The job.
    pub uid: JobUid,
    /// The addresses at which it can be found.
    pub addresses: Vec<VoterAddress>,
    /// Its leader and the leader's term, if a process has answered that it leads.
    pub leader: Option<(VoterAddress, Term)>,
}

impl OtherJobs {
    /// Records the jobs that an earlier process knew to have ended.
    pub(super) fn know_ended(&mut self, ended: &[JobUid]) {
        self.ended = ended.iter().rev().take(ENDED_MAX).rev().cloned().collect();
    }
}

impl Election {
    /// Returns the unfinished job of this process's own state, as others are shown it.
    pub(super) fn known_job(&self) -> Option<KnownJob> {
        let replica = self.voter.replica();
        let uid = job_uid(replica)?;
        let voters = replica.lists.slots().map(|slot| slot.address.clone()).collect();
        let leads = self.leads();
        (!self.has_copied_outcome()).then(|| KnownJob { uid: uid.clone(), voters, leads })
    }

    /// Returns this process's leadership of a job with a round, as others are shown it.
    fn leads(&self) -> Option<Leads> {
        let Role::Leader(leader) = &self.role else { return None };
        leader.until?;
        let born_ms = self.own_seniority()?.born_ms;
        Some(Leads { born_ms, term: leader.term, has_nodes: leader.lacks_nodes.is_none() })
    }

    /// Returns the time since which this process leads a job without enough nodes.
    fn lacks_nodes_since(&self) -> Option<Instant> {
        let Role::Leader(leader) = &self.role else { return None };
        leader.until.and(leader.lacks_nodes)
    }

    fn own_seniority(&self) -> Option<Seniority> {
        let replica = self.voter.replica();
        let uid = job_uid(replica)?.clone();
        let born_ms = replica.job_state.as_ref()?.born_ms;
        Some(Seniority { born_ms, uid })
    }

    /// Returns the jobs that are known to have ended.
    pub fn ended(&self) -> Vec<JobUid> {
        let own = self.own_end().filter(|uid| !self.other_jobs.ended.contains(uid));
        self.other_jobs.ended.iter().chain(own).cloned().collect()
    }

    /// Returns the other jobs that this process was shown, and that may run.
    pub fn other_jobs(&self) -> impl Iterator<Item = OtherJob> {
        let own = job_uid(self.voter.replica());
        let jobs = self.other_jobs.jobs.iter().filter(move |(uid, _)| Some(*uid) != own);
        jobs.map(|(uid, job)| OtherJob {
            uid: uid.clone(),
            addresses: job.addresses.iter().cloned().collect(),
            leader: job.leader.as_ref().map(|(at, term, _)| (at.clone(), *term)),
        })
    }

    /// Returns true if no other job is known, so that one may begin here.
    pub(super) fn may_begin_a_job(&self) -> bool {
        self.other_jobs.jobs.is_empty()
    }

    /// Returns true if this process should join a job: it has no running job, and was shown a led job.
    pub(super) fn is_to_join(&self) -> bool {
        let is_led = |job: &ShownJob| job.leader.is_some();
        let replica = self.voter.replica();
        (!replica.has_round() || replica.is_closed()) && self.other_jobs.jobs.values().any(is_led)
    }

    /// Returns the addresses that other processes have shown.
    fn shown_addresses(&self) -> impl Iterator<Item = &VoterAddress> {
        let OtherJobs { jobs, newer, .. } = &self.other_jobs;
        jobs.values().flat_map(|job| &job.addresses).chain(newer.keys())
    }

    /// Records a job that a registration shows.
    pub fn handle_known_job(&mut self, now: Instant, job: &KnownJob) {
        self.begin(now);
        self.note_job(now, job, None);
        self.say_hello(now);
    }

    /// Records jobs that have ended according to a registration.
    pub fn handle_ended(&mut self, now: Instant, ended: &[JobUid]) {
        self.begin(now);
        for uid in ended {
            self.learn_end(now, uid);
        }
    }

    /// Records the job for which this process's agent is registered; `None` if it is not
    /// registered.
    pub fn handle_registered(&mut self, now: Instant, job: Option<JobUid>) {
        self.begin(now);
        self.is_registered = job.is_some();
        self.joined = job.or_else(|| self.joined.take());
        self.schedule_hello(now);
    }

    /// Records what a message shows of jobs. `from` is the address that was dialed, for an answer.
    /// For a request, it is the address that the sender names.
    pub(super) fn note_message<Body>(
        &mut self,
        now: Instant,
        from: &VoterAddress,
        message: &VoterMessage<Body>,
        source: Source,
    ) {
        // Any process may name addresses, at which this one asks. The end of a job counts only from
        // processes at known addresses, and from nodes that register.
        let ended = message.ended.iter().filter(|_| source != Source::Stranger);
        for uid in ended {
            self.learn_end(now, uid);
        }
        let Some(job) = &message.job else {
            if self.other_jobs.shown.remove(from).is_some() {
                self.schedule_hello(now);
            }
            return;
        };
        let is_own = job_uid(self.voter.replica()) == Some(&job.uid);
        if is_own {
            let knows_as_much = message.knows.version >= self.voter.replica().version;
            let shown = &mut self.other_jobs.shown;
            let has_room = shown.len() < SHOWN_BY_MAX || shown.contains_key(from);
            if has_room && (knows_as_much || job.leads.is_some()) {
                shown.insert(from.clone(), now);
            }
            if message.knows.version > self.voter.replica().version && !self.is_at_home(now) {
                self.note_newer(now, job, from);
            }
            return;
        }
        self.other_jobs.shown.remove(from);
        self.note_job(now, job, Some(from));
        if let (Some(leads), Source::Answer) = (job.leads, source) {
            self.note_leader(now, &job.uid, from, leads);
        }
    }

    /// Records the addresses of a newer list of this process's job, because its own list may have
    /// no living voter.
    fn note_newer(&mut self, now: Instant, job: &KnownJob, from: &VoterAddress) {
        for address in job.voters.iter().take(2 * VOTERS_MAX).chain([from]) {
            self.note_address(now, address);
        }
        self.schedule_hello(now);
    }

    /// Records an address at which this process asks for a while.
    fn note_address(&mut self, now: Instant, address: &VoterAddress) {
        let newer = &mut self.other_jobs.newer;
        let has_room = newer.len() < 4 * VOTERS_MAX || newer.contains_key(address);
        if *address != self.settings.address && has_room {
            newer.insert(address.clone(), now);
        }
    }

    /// Handles that a search has found a process of this name at an address. For a while, this
    /// process shows it its job, as to a listed host, and asks for its own.
    pub fn handle_found(&mut self, now: Instant, address: &VoterAddress) {
        self.begin(now);
        self.note_address(now, address);
        self.schedule_hello(now);
    }

    fn note_job(&mut self, now: Instant, job: &KnownJob, from: Option<&VoterAddress>) {
        let is_own = job_uid(self.voter.replica()) == Some(&job.uid);
        if is_own || self.other_jobs.ended.contains(&job.uid) {
            return;
        }
        let is_new = !self.other_jobs.jobs.contains_key(&job.uid);
        if is_new && self.other_jobs.jobs.len() >= OTHER_JOBS_MAX {
            return;
        }
        let own = self.settings.address.clone();
        let known = self.other_jobs.jobs.entry(job.uid.clone()).or_insert_with(|| ShownJob {
            addresses: BTreeSet::new(),
            at: now,
            leader: None,
        });
        known.at = now;
        for address in job.voters.iter().take(2 * VOTERS_MAX).chain(from) {
            if *address != own && known.addresses.len() < 4 * VOTERS_MAX {
                known.addresses.insert(address.clone());
            }
        }
        if is_new {
            info!(uid = %job.uid, voters = ?job.voters, "another process knows a job of this name");
            self.effects.push_back(Effect::OtherJobs);
            self.schedule_hello(now);
        }
    }

    fn note_leader(&mut self, now: Instant, uid: &JobUid, at: &VoterAddress, leads: Leads) {
        let Some(job) = self.other_jobs.jobs.get_mut(uid) else { return };
        let before = job.leader.replace((at.clone(), leads.term, now));
        if before.is_none_or(|(known, term, _)| known != *at || term != leads.term) {
            self.effects.push_back(Effect::OtherJobs);
        }
        let other = Seniority { born_ms: leads.born_ms, uid: uid.clone() };
        match self.own_seniority() {
            None if self.is_leading() => self.step_down(now, "another process leads the job"),
            None => {}
            Some(own) => self.yield_to(now, (&own, &other), at, leads),
        }
    }

    /// Ends this process's part in its job, if the other job goes on instead.
    fn yield_to(
        &mut self,
        now: Instant,
        (own, other): (&Seniority, &Seniority),
        at: &VoterAddress,
        leads: Leads,
    ) {
        let timers = self.settings.timers;
        let lacks_leader_for = |time| self.leaderless.is_some_and(|since| since + time <= now);
        let yields = if self.voter.replica().is_closed() {
            false
        } else if other < own {
            leads.has_nodes && (self.leads().is_some() || lacks_leader_for(timers.voter_lease))
        } else {
            // Otherwise the nodes of both would wait: these for more nodes, the others for no one.
            let lacks_nodes =
                self.lacks_nodes_since().is_some_and(|at| at + timers.patience() <= now);
            lacks_leader_for(timers.patience()) || leads.has_nodes && lacks_nodes
        };
        if yields && !self.has_yielded {
            self.has_yielded = true;
            warn!(
                uid = %own.uid, other = %other.uid, endpoint = %at,
                "another job of this name runs; this one is closed"
            );
            let other = other.clone();
            self.effects.push_back(Effect::Yield { other, at: at.clone() });
        }
    }

    /// Records that a job has ended. A process that knows the job only from its state file takes
    /// part in the next one.
    fn learn_end(&mut self, now: Instant, uid: &JobUid) {
        self.note_ended(uid);
        let is_own = job_uid(self.voter.replica()) == Some(uid);
        if is_own && !self.has_had_leader && !self.is_leading() {
            self.forget_job(now);
        }
    }

    fn note_ended(&mut self, uid: &JobUid) {
        let replica = self.voter.replica();
        let is_led = job_uid(replica) == Some(uid) && self.leaderless.is_none();
        // A process that has a leader in that job knows better.
        let is_contradicted = is_led && !replica.is_closed();
        if is_contradicted || self.other_jobs.ended.contains(uid) {
            return;
        }
        if self.other_jobs.ended.len() >= ENDED_MAX {
            self.other_jobs.ended.pop_front();
        }
        self.other_jobs.ended.push_back(uid.clone());
        self.effects.push_back(Effect::Ended(uid.clone()));
        if self.other_jobs.jobs.remove(uid).is_some() {
            self.effects.push_back(Effect::OtherJobs);
        }
    }

    /// Ends this process, because its job has ended elsewhere while it had no leader. It reports an
    /// outcome only if a majority is known to have it: another one may not be the job's. A process
    /// whose agent has joined another job only forgets its own.
    fn outlive_job(&mut self, now: Instant) {
        let is_in_another_job = |joined: &JobUid| job_uid(self.voter.replica()) != Some(joined);
        if self.joined.as_ref().is_some_and(is_in_another_job) {
            return self.forget_job(now);
        }
        self.has_yielded = true;
        warn!("the job has ended while this process had no leader; this process ends");
        let replica = self.voter.replica();
        let job_state = replica.job_state.as_ref().filter(|_| self.copied == replica.version);
        let outcome = job_state.and_then(|job_state| job_state.closed.clone());
        self.effects.push_back(Effect::Outlived(outcome.map(Box::new)));
    }

    /// Returns the time at which this process ends because its job has ended and it has no leader.
    /// A process that knows the outcome waits longer: it may become the next leader, from which
    /// others learn the outcome.
    fn outlives_at(&self) -> Option<Instant> {
        let (replica, timers) = (self.voter.replica(), self.settings.timers);
        let is_known = self.own_end().is_some() && self.has_had_leader && !self.has_yielded;
        let lasts = if replica.is_closed() { timers.patience() } else { timers.voter_lease };
        self.leaderless.filter(|_| is_known).map(|since| since + lasts)
    }

    /// Returns this process's job if its state is no longer useful, because the job has ended. A
    /// report of other processes counts only if no leader contradicts it.
    pub fn ended_job(&self) -> Option<&JobUid> {
        let lease = self.settings.timers.voter_lease;
        let lacks_leader = self.leaderless.is_some_and(|since| since + lease <= self.clock);
        self.own_end().filter(|_| self.has_copied_outcome() || lacks_leader)
    }

    /// Returns true if a majority is known to have the outcome of this process's job.
    fn has_copied_outcome(&self) -> bool {
        let replica = self.voter.replica();
        replica.is_closed() && self.copied == replica.version
    }

    /// Returns this process's job if it is known to have ended.
    fn own_end(&self) -> Option<&JobUid> {
        let is_copied = self.has_copied_outcome();
        job_uid(self.voter.replica()).filter(|uid| is_copied || self.other_jobs.ended.contains(uid))
    }

    /// Handles that the coordinator of a job that had ended before has no node left: this process
    /// forgets the job.
    pub fn handle_forgotten(&mut self, now: Instant) {
        self.begin(now);
        let replica = self.voter.replica();
        let Some(uid) = job_uid(replica).filter(|_| replica.is_closed()).cloned() else { return };
        self.note_ended(&uid);
        if self.is_leading() {
            self.step_down(now, "the job has ended");
        }
        self.forget_job(now);
    }

    fn forget_job(&mut self, now: Instant) {
        info!("the job has ended; its state is forgotten");
        self.voter.forget(super::Lists::listed(&self.settings.listed));
        self.has_had_leader = false;
        self.effects.push_back(Effect::Store);
        self.forget_addresses();
        self.follow(now);
    }

    /// Forgets what no process has shown for a while, and leaders that no longer answer.
    pub(super) fn expire_shown(&mut self, now: Instant) {
        let timers = self.settings.timers;
        let own = job_uid(self.voter.replica()).cloned();
        let count = self.other_jobs.jobs.len();
        self.other_jobs.jobs.retain(|uid, job| {
            job.leader.take_if(|(_, _, at)| *at + timers.voter_lease <= now);
            job.at + timers.patience() > now && Some(uid) != own.as_ref()
        });
        self.other_jobs.newer.retain(|_, at| *at + timers.patience() > now);
        self.other_jobs.shown.retain(|_, at| *at + timers.voter_lease > now);
        if self.other_jobs.jobs.len() != count {
            self.effects.push_back(Effect::OtherJobs);
        }
    }

    /// Returns true if this process is in a job that is led.
    fn is_at_home(&self, now: Instant) -> bool {
        let is_led = self.voter.lease(now).is_some() || self.leads().is_some();
        self.is_registered || self.voter.replica().has_round() && is_led
    }

    /// Returns true if this process shows its job to others: it is a voter of an unfinished job.
    fn shows(&self) -> bool {
        !self.is_outside() && self.known_job().is_some() && self.has_copied_round()
    }

    /// Returns false while a majority does not have the job's first round yet.
    pub(super) fn has_copied_round(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.first_round.is_none(),
            Role::Follower { .. } | Role::PreCandidate(_) | Role::Candidate { .. } => true,
        }
    }

    /// Returns true if this process asks others for its job: it may be a voter, has a state file,
    /// or was shown a job.
    fn asks(&self, now: Instant) -> bool {
        let may_ask = self.voter.replica().has_round()
            || !self.is_outside()
            || !self.other_jobs.jobs.is_empty();
        may_ask && !self.is_at_home(now)
    }

    /// Returns the addresses to which this process shows its job, or at which it asks for one.
    pub(super) fn greeted(&self, now: Instant) -> BTreeSet<VoterAddress> {
        let mut all = BTreeSet::new();
        if self.shows() || self.asks(now) {
            let slots = self.voter.replica().lists.slots().map(|slot| &slot.address);
            all.extend(slots.chain(&self.settings.listed).cloned());
        }
        all.extend(self.shown_addresses().cloned());
        all.remove(&self.settings.address);
        all
    }

    /// Sends a hello to all addresses that have not shown the same job.
    pub(super) fn say_hello(&mut self, now: Instant) {
        let asks = self.asks(now);
        let mut to = self.greeted(now);
        if !asks {
            to.retain(|address| !self.has_shown(now, address));
        }
        for address in to {
            self.send(now, address, self.sequence, Request::Hello);
        }
        self.other_jobs.next_hello = None;
        self.schedule_hello(now);
    }

    /// Sends a hello over a new connection.
    pub(super) fn greet(&mut self, now: Instant, address: &VoterAddress) {
        if self.greeted(now).contains(address) {
            self.send(now, address.clone(), self.sequence, Request::Hello);
        }
    }

    pub(super) fn forget_shown(&mut self, address: &VoterAddress) {
        self.other_jobs.shown.remove(address);
    }

    pub(super) fn schedule_hello(&mut self, now: Instant) {
        let is_needed = !self.greeted(now).is_empty();
        self.other_jobs.next_hello = if is_needed {
            let next = now + self.settings.timers.hello();
            Some(self.other_jobs.next_hello.map_or(next, |at| at.min(next)))
        } else {
            None
        };
    }

    /// Returns true if the process at an address has shown the same job a moment ago. This does not
    /// count for long: another process may be there soon, and is not noticed before it sends
    /// something.
    fn has_shown(&self, now: Instant, address: &VoterAddress) -> bool {
        let lasts = self.settings.timers.voter_lease / 2;
        self.other_jobs.shown.get(address).is_some_and(|at| now < *at + lasts)
    }

    /// Returns the time of the next hello, or of the next end of what was shown.
    pub(super) fn shown_deadline(&self) -> Option<Instant> {
        let timers = self.settings.timers;
        let expiry = |job: &ShownJob| {
            let leader = job.leader.as_ref().map(|(_, _, at)| *at + timers.voter_lease);
            leader.into_iter().chain([job.at + timers.patience()]).min()
        };
        let OtherJobs { jobs, newer, next_hello, .. } = &self.other_jobs;
        let expires = jobs.values().filter_map(expiry).min();
        let outdated = newer.values().min().map(|at| *at + timers.patience());
        let own = [*next_hello, self.outlives_at()].into_iter().flatten();
        own.chain(expires).chain(outdated).min()
    }

    /// Handles the deadlines of this module.
    pub(super) fn time_out_shown(&mut self, now: Instant) {
        self.expire_shown(now);
        if self.outlives_at().is_some_and(|at| at <= now) {
            self.outlive_job(now);
        }
        if self.other_jobs.next_hello.is_some_and(|at| at <= now) {
            self.say_hello(now);
        } else {
            self.schedule_hello(now);
        }
    }
}

/// Returns the job of a replica, if it has a round.
pub(super) fn job_uid(replica: &Replica) -> Option<&JobUid> {
    let job_state = replica.job_state.as_ref().filter(|_| replica.has_round())?;
    Some(&job_state.job_uid)
}
