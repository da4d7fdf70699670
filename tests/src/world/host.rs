//! Simulates the hosts: their clocks, their processes, and how these freeze and end.

use std::time::{Duration, Instant};

use ragent_core::targets::Targets;
use ragent_election::election::Election;
use ragent_rendezvous::{
    ids::{JobUid, NodeId},
    settings::JobState,
};

use super::{
    Bug, Event, Input, Part, World,
    election::{StateFile, Voter},
    etcd::Candidate,
    node::Agent,
    port::Port,
    rules::Stage,
};
use crate::{
    addresses::{LISTED_PORT, Place},
    random::Random,
};

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    start: Instant,
    /// The rate of its clock; 1 is exact.
    rate: f64,
    /// The time by which its clock was stopped.
    stopped: Duration,
    pub(super) process: Option<NodeId>,
    /// True while the machine has no power.
    pub(super) is_off: bool,
    /// The machine is suspended until then. Its clock goes on.
    pub(super) suspended: Option<Instant>,
    suspended_since: Instant,
    /// The jobs that have ended, and since when this host knows it.
    pub(super) ended: Vec<(JobUid, Instant)>,
    /// The port of its voter. It changes at each start without a state file, except on a listed host.
    port: u16,
    /// The voter's state file.
    pub(super) file: Option<StateFile>,
    /// True if the machine never returns.
    pub(super) is_lost: bool,
    /// The time after which a process that leaves is started again, and true if its state is lost.
    pub(super) returns: Option<(Duration, bool)>,
    /// The end of its last freeze.
    pub(super) thawed: Option<Instant>,
}

/// An agent's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) host: usize,
    pub(super) voter: Option<Voter>,
    /// The claim, if the coordinator is chosen through etcd.
    pub(super) candidate: Option<Candidate>,
    pub(super) port: Port,
    /// The agent, until it has ended.
    pub(super) agent: Option<Agent>,
    pub(super) targets: Targets<Place>,
    pub(super) started: Instant,
    pub(super) dials: u64,
    pub(super) parts: [PartState; 3],
    /// The reason for its end, once its agent has ended.
    pub(super) ending: Option<ProcessEnd>,
}

/// A part of a process that runs on its own.
#[derive(Debug)]
pub(super) struct PartState {
    frozen_until: Option<Instant>,
    /// The earliest time for the next input from another part, so that inputs arrive in order.
    pub(super) free_at: Instant,
    timer: Option<Instant>,
}

/// The way in which an agent has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ProcessEnd {
    /// The job has ended.
    Closed,
    /// It has left.
    Left,
    /// It was refused, or could not reach a coordinator. A service manager starts it again.
    Other,
    /// Another job goes on instead of its own. A service manager starts it again.
    Yielded,
}

/// The time after the last fault in which agents restart that have waited for a coordinator. An agent that knows only voters that are lost
/// for ever restarts as long as the world lasts.
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);

/// The maximum drift of a clock, in millionths.
const DRIFT_MAX: u64 = 10_000;

impl Host {
    /// Returns true if this host knows since `before` that a job has ended.
    pub(super) fn knows_end(&self, job: &JobUid, before: Instant) -> bool {
        self.ended.iter().any(|(uid, since)| uid == job && *since <= before)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns true if its state file has a round.
    pub(super) fn knows_job(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.replica.has_round())
    }

    pub(super) fn new(start: Instant, random: &mut Random) -> Self {
        let drift = random.between(0, 2 * DRIFT_MAX) as f64 - DRIFT_MAX as f64;
        let rate = 1.0 + drift / 1e6;
        Self {
            start,
            rate,
            stopped: Duration::ZERO,
            process: None,
            is_off: true,
            suspended: None,
            suspended_since: start,
            ended: Vec::new(),
            port: LISTED_PORT,
            file: None,
            is_lost: false,
            returns: None,
            thawed: None,
        }
    }

    /// Returns the time on the clock of this host.
    pub(super) fn local(&self, now: Instant) -> Instant {
        let now = now.saturating_duration_since(self.start).mul_f64(self.rate);
        self.start + now.saturating_sub(self.stopped)
    }

    /// Returns the time at which the clock of this host shows `local`.
    pub(super) fn global(&self, local: Instant) -> Instant {
        let local = local.saturating_duration_since(self.start) + self.stopped;
        // Rounded up, so that a deadline has passed when its timer fires.
        self.start + local.div_f64(self.rate) + Duration::from_nanos(2)
    }

    pub(super) fn is_suspended(&self, now: Instant) -> bool {
        self.suspended.is_some_and(|until| now < until)
    }

    /// Stops the clock for the time that the machine was suspended until `now`.
    pub(super) fn stop_clock(&mut self, now: Instant) {
        self.stopped += now.saturating_duration_since(self.suspended_since).mul_f64(self.rate);
    }
}

impl Process {
    /// Returns the state of the job that the process knows.
    pub(super) fn job_state(&self) -> Option<&JobState> {
        match (&self.voter, &self.candidate) {
            (Some(voter), _) => voter.election.replica().job_state.as_ref(),
            (None, Some(candidate)) => candidate.claim.record()?.job_state.as_ref(),
            (None, None) => None,
        }
    }

    pub(super) fn frozen_until(&self, part: Part) -> Option<Instant> {
        self.parts[part as usize].frozen_until
    }
}

impl World {
    /// Returns the time on the clock of a process.
    pub(super) fn local(&self, id: &NodeId) -> Option<Instant> {
        let process = self.processes.get(id)?;
        Some(self.hosts[process.host].local(self.now))
    }

    pub(super) fn start_process(&mut self, host: usize) {
        if self.hosts[host].process.is_some() || self.hosts[host].is_lost || !self.may_start() {
            return;
        }
        if let Some(until) = self.hosts[host].suspended.filter(|until| self.now < *until) {
            return self.schedule_at(until, Event::Start(host));
        }
        self.processes_started += 1;
        self.tell(|| format!("a process starts on host {host}"));
        // While another host is lost for ever, the restart of an agent may cost the voters their majority.
        if let Stage::Healed(_, elections) = self.stage
            && self.elapsed() < self.faulty + RESTARTS_WITHIN
        {
            self.stage = Stage::Healed(self.now, elections);
        }
        let id = NodeId::new(format!("h{host}-{}", self.processes_started));
        if !self.is_listed(host) && self.hosts[host].file.is_none() {
            // A process that knows the last one does not reach this process.
            self.hosts[host].port += 1;
        }
        let now = self.now;
        let local = self.hosts[host].local(now);
        let has_voter = self.fixed.is_none() && self.etcd.is_none();
        let voter = has_voter.then(|| self.new_voter(host, &id, local));
        let candidate = self.etcd.is_some().then(|| self.new_candidate(host, &id, local));
        let first = if self.is_listed(host) {
            host
        } else {
            usize::try_from(self.random.between(0, self.listed as u64 - 1)).unwrap_or(0)
        };
        let is_alone =
            self.is_listed(host) && self.fixed.as_ref().is_some_and(|fixed| !fixed.has_agent);
        let voter_id = voter.as_ref().map(|voter| voter.id);
        let agent = (!is_alone).then(|| self.new_agent(host, &id, voter_id, local));
        let part = || PartState { frozen_until: None, free_at: now, timer: None };
        let process = Process {
            host,
            voter,
            candidate,
            port: Port::new(),
            agent,
            targets: Targets::new(
                match self.etcd {
                    Some(_) => vec![Place::listed(host)],
                    None => (0..self.listed).map(Place::listed).collect(),
                },
                Some(Place::listed(first)),
            ),
            started: now,
            dials: 0,
            parts: [part(), part(), part()],
            ending: None,
        };
        self.processes.insert(id.clone(), process);
        self.hosts[host].process = Some(id.clone());
        self.hosts[host].is_off = false;
        if self.fixed.is_some() && self.is_listed(host) {
            self.lead_alone(&id);
        }
        if self.etcd.is_some() {
            self.watch(&id);
        }
        self.learn_voters_of_file(&id);
        self.settle_voter(&id);
        self.settle_agent(&id);
    }

    /// Notes that a host knows the end of a job.
    pub(super) fn learn_end(&mut self, host: usize, job: Option<JobUid>) {
        let now = self.now;
        let ended = &mut self.hosts[host].ended;
        let Some(job) = job.filter(|job| ended.iter().all(|(known, _)| known != job)) else {
            return;
        };
        ended.push((job.clone(), now));
        self.check_recorded_end(host, &job);
    }

    /// Returns true if the user has listed a host.
    pub(super) fn is_listed(&self, host: usize) -> bool {
        host < self.listed
    }

    /// Returns the place of the voter on a host.
    pub(super) fn place(&self, host: usize) -> Place {
        Place { host, port: self.hosts[host].port }
    }

    /// Returns the process that is reached at a place.
    pub(super) fn process_at(&self, place: Place) -> Option<NodeId> {
        let host = self.hosts.get(place.host).filter(|host| host.port == place.port)?;
        host.process.clone()
    }

    /// Sets the timer of a part for its earliest deadline, which is on the clock of its host.
    pub(super) fn set_timer(&mut self, id: &NodeId, part: Part, deadline: Option<Instant>) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(id) else { return };
        let Some(deadline) = deadline else { return };
        let at = self.hosts[process.host].global(deadline).max(now);
        let timer = &mut process.parts[part as usize].timer;
        if timer.is_none_or(|timer| at < timer) {
            *timer = Some(at);
            self.schedule_at(at, Event::Process(id.clone(), Input::Timer(part, at)));
        }
    }

    pub(super) fn time_out(&mut self, id: &NodeId, part: Part, at: Instant) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let timer = &mut process.parts[part as usize].timer;
        if *timer != Some(at) {
            // An earlier deadline has replaced this one.
            return;
        }
        *timer = None;
        match part {
            Part::Voter if self.bug == Bug::NoTimeoutsOfVoters => {}
            Part::Voter => {
                self.with_election(id, |election, now| election.handle_timeout(now));
                self.with_claim(id, |claim, now| claim.handle_timeout(now));
            }
            Part::Coordinator => self.time_out_coordinator(id),
            Part::Agent => self.time_out_agent(id),
        }
    }

    /// Stops a process for a while, as SIGSTOP does. Its parts continue in any order.
    pub(super) fn freeze(&mut self, host: usize, time: Duration) {
        let Some(id) = self.hosts[host].process.clone() else { return };
        for part in [Part::Voter, Part::Coordinator, Part::Agent] {
            let until = self.now + time + self.random.millis(0, 3);
            self.hosts[host].thawed = self.hosts[host].thawed.max(Some(until));
            let Some(process) = self.processes.get_mut(&id) else { return };
            let frozen_until = &mut process.parts[part as usize].frozen_until;
            *frozen_until = (*frozen_until).max(Some(until));
        }
    }

    /// Suspends a machine for a while.
    pub(super) fn suspend(&mut self, host: usize, time: Duration) {
        let until = self.now + time;
        if self.hosts[host].suspended.is_some_and(|suspended| until <= suspended) {
            return;
        }
        if !self.hosts[host].is_suspended(self.now) {
            self.hosts[host].suspended_since = self.now;
        }
        self.hosts[host].suspended = Some(until);
        self.schedule_at(until, Event::Resume(host));
        self.freeze(host, time);
    }

    /// Returns true if a process or a machine is frozen.
    pub(super) fn is_any_frozen(&self) -> bool {
        let parts = self.processes.values().flat_map(|process| &process.parts);
        let mut frozen = parts.filter_map(|part| part.frozen_until);
        frozen.any(|until| self.now < until)
            || self.is_store_away()
            || self.hosts.iter().any(|host| host.is_suspended(self.now))
    }

    /// Kills the process of a host; its keeper remains.
    pub(super) fn kill_process(&mut self, host: usize) -> Option<NodeId> {
        let id = self.hosts[host].process.take()?;
        self.tell(|| format!("{id} is killed"));
        self.processes.remove(&id);
        self.chronicle.note_stopped(&id);
        self.lose_memory(&id);
        self.end_streams(&id, host);
        self.end_links(&id, host);
        if self.forgets && self.random.chance(30) {
            self.forget_file(host);
        }
        Some(id)
    }

    /// Kills the agent of a host for `down`; its keeper sends a death notice.
    pub(super) fn kill_agent(&mut self, host: usize, down: Duration) {
        if let Some(id) = self.kill_process(host) {
            self.outlive_agent(&id);
            self.return_after(host, down);
        }
    }

    /// Kills a process if it has carried out the number of effects after which it is to die. Returns true if it is dead.
    pub(super) fn dies_now(&mut self, id: &NodeId) -> bool {
        let Some((_, left)) = self.dies_after.as_mut().filter(|(dying, _)| dying == id) else {
            return false;
        };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.dies_after = None;
        let down = self.random.millis(20, 6_000);
        if let Some(host) = self.processes.get(id).map(|process| process.host) {
            self.kill_agent(host, down);
        }
        true
    }

    /// Switches a host off for `down`.
    pub(super) fn kill_host(&mut self, host: usize, down: Duration) {
        self.hosts[host].is_off = true;
        self.hosts[host].suspended = None;
        self.kill_process(host);
        self.keepers.retain(|_, keeper| keeper.host != host);
        self.return_after(host, down);
    }

    /// Ends the process of an agent that has ended by itself.
    pub(super) fn exit(&mut self, id: &NodeId) {
        let Some(process) = self.processes.remove(id) else { return };
        self.tell(|| format!("{id} ends: {:?}", process.ending));
        let host = process.host;
        let election = process.voter.map(|voter| voter.election);
        let is_needed = election.as_ref().is_some_and(Election::is_needed);
        let ended = election.and_then(|election| election.ended_job().cloned());
        let yields = process.ending == Some(ProcessEnd::Yielded);
        let ended = ended.or_else(|| {
            let file = self.hosts[host].file.as_ref().filter(|file| file.replica.has_round());
            let job_state = file.and_then(|file| file.replica.job_state.as_ref());
            job_state
                .map(|job_state| job_state.job_uid.clone())
                .filter(|_| yields && self.bug == Bug::YieldIsAnEnd)
        });
        self.hosts[host].process = None;
        self.end_streams(id, host);
        self.end_links(id, host);
        match process.ending {
            Some(ProcessEnd::Left) if is_needed => {}
            // The job does not need the voter any more, or does not go on in this process.
            Some(ProcessEnd::Closed | ProcessEnd::Yielded | ProcessEnd::Left) => {
                self.learn_end(host, ended);
                self.hosts[host].file = None;
                if self.training.is_some() {
                    // Many nodes leave at once, perhaps before other voters have replaced them.
                    self.check_majority();
                }
            }
            Some(ProcessEnd::Other) | None => {}
        }
        if let Some((down, loses)) = self.hosts[host].returns.take() {
            if loses {
                self.hosts[host].file = None;
            }
            return self.schedule(down, Event::Start(host));
        }
        let restarts = match process.ending {
            Some(ProcessEnd::Closed) => false,
            Some(ProcessEnd::Left) if self.fixed.is_some() => false,
            _ if self.fixed.is_some() => self.random.chance(50),
            Some(ProcessEnd::Left) => self.stage != Stage::Faulty || self.random.chance(70),
            Some(ProcessEnd::Other | ProcessEnd::Yielded) | None => true,
        };
        if restarts {
            let delay = self.random.millis(200, 8_000);
            self.schedule(delay, Event::Start(host));
        }
    }

    pub(super) fn forget_file(&mut self, host: usize) {
        // A host that does not know the job finds it through a listed host.
        if (0..self.listed).any(|listed| listed != host && !self.hosts[listed].is_lost) {
            self.record.has_forgotten |= self.hosts[host].file.take().is_some();
            self.check_majority();
        }
    }

    /// Returns true if processes may still be started: no agent has received the outcome of the job.
    fn may_start(&self) -> bool {
        self.loses_states || !matches!(self.stage, Stage::Closed(_))
    }
}
