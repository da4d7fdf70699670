//! Checks a job whose coordinator is chosen by voters or through etcd. The rules:
//!
//! - a: at no moment do two processes lead.
//! - b: no worker starts while a worker of another round runs on any host, or after the end of the job.
//! - c: no term is won twice.
//! - d: no round is completed below a round that a member knows. Unless a voter has lost its state file, no number of a round repeats, and
//!   a leader begins with the state that a majority has.
//! - e: a majority has granted the leader renewals that were sent within its lease.
//! - f: when a leader may assume that the workers of earlier leaders have ended, none runs on a node that has not registered with it.
//! - g: after the last fault the job runs within a bounded time and keeps its leader, or has ended with one outcome. No agent dials more
//!   often than its pauses allow.
//! - h: a voter that has lost its state file begins no second job: see d.
//! - i: after the last fault, each voter is alive, as far as there are enough nodes. A host that has returned without its state has the place
//!   of its earlier voter.
//! - o: a leader that reaches etcd leads until it resigns, or until another process has put a record of a higher term into the key.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

use ragent_election::election::{
    NewLeadership,
    message::{Lists, Replica, VoterSlot},
};
use ragent_rendezvous::{
    ids::{NodeId, Round, RoundId, Term, VoterAddress},
    message::{JobResult, NodeState, Outcome},
    settings::JobState,
    snapshot::PhaseName,
};

use super::{
    Bug, World,
    election::{StateFile, Voter},
    host::Process,
    jobs::Jobs,
    port::Leader,
};
use crate::addresses::host_of;

/// The history that the rules need.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The process that has won each term.
    winners: BTreeMap<Term, NodeId>,
    /// The term of each round whose workers have started.
    started: BTreeMap<Round, Term>,
    /// The round whose workers begin to succeed.
    pub(super) succeeded: Option<RoundId>,
    /// The time at which the newest renewal was sent that the voter at an address has granted in a term.
    grants: BTreeMap<(Term, VoterAddress), Instant>,
    /// The newest state that a majority has.
    copied: Option<JobState>,
    /// True if a voter has lost its state file.
    pub(super) has_forgotten: bool,
    /// True if a majority of the voters has lost its state files or its hosts. Then no process can continue the job, so the world ends.
    pub(super) is_majority_lost: bool,
    outcome: Option<Outcome>,
    /// True if another run has begun after the end of the job. Agents begin one if they were started too late to receive the outcome, so
    /// its outcome may differ.
    is_another_run: bool,
    pub(super) jobs: Jobs,
    /// The latest events, for a person who replays a seed.
    story: VecDeque<String>,
    pub(super) broken: Option<String>,
    pub(super) events: u64,
}

/// The numbers of a world at its end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// The number of leaderships that began.
    pub elections: u64,
    /// The number of rounds whose workers have started.
    pub rounds: u64,
    /// The number of jobs that have ended.
    pub closed: u64,
}

/// The stage of a world.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// Faults occur.
    Faulty,
    /// No faults have occurred since then.
    Quiet(Instant),
    /// The job has run again since then, after this number of elections.
    Healed(Instant, usize),
    /// An agent has received the outcome of the job at that time.
    Closed(Instant),
}

/// The time within which the job runs after the last fault. It covers late messages (5 s), an election and a recovery (10 s), the pause of
/// agents that were refused (8 s), and the timeouts of a gathering.
const RUNS_WITHIN: Duration = Duration::from_secs(60);

/// The time within which late messages have arrived. After that, the leader must stay for as long.
const SETTLED_AFTER: Duration = Duration::from_secs(6);
/// The same with etcd. A request may be delayed for 8 s, and a candidate waits for the end of a silence.
const SETTLED_IN_ETCD: Duration = Duration::from_secs(15);
const STABLE_FOR: Duration = Duration::from_secs(10);

/// The time within which lost voters are replaced, one after the other.
const REPLACED_WITHIN: Duration = Duration::from_secs(46);

/// The time within which all processes end after the job. An agent that has not learned the end waits for the join timeout.
const ENDS_WITHIN: Duration = Duration::from_secs(100);

/// The number of lines of the story that are kept.
const STORY_LINES: usize = 60;

/// The number of dials that an agent may make at once after its start. More are allowed for each second of its age.
const DIALS: u64 = 12;
const DIALS_PER_SECOND: u64 = 3;

impl Record {
    /// Forgets the numbers of rounds, which may begin again.
    pub(super) fn forget_rounds(&mut self) {
        self.started.clear();
    }

    /// Notes that a rule is broken; the first one counts.
    pub(super) fn breaks(&mut self, why: impl FnOnce() -> String) {
        self.broken.get_or_insert_with(why);
    }
}

impl World {
    /// Adds a line to the story.
    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.record.story.len() >= STORY_LINES {
            self.record.story.pop_front();
        }
        let line = format!("{:?} {}", self.elapsed(), what());
        self.record.story.push_back(line);
    }

    /// Returns what has happened lately, a line for each event.
    pub fn story(&self) -> String {
        Vec::from(self.record.story.clone()).join("\n")
    }

    /// Returns the numbers so far.
    pub fn totals(&self) -> Totals {
        Totals {
            elections: self.record.winners.len() as u64,
            rounds: self.record.started.len() as u64,
            closed: u64::from(self.record.outcome.is_some()),
        }
    }

    /// Returns the hosts whose processes lead.
    pub(super) fn leading_hosts(&self) -> impl Iterator<Item = usize> {
        let hosts = self.hosts.iter().enumerate();
        hosts.filter_map(|(at, host)| {
            let process = self.processes.get(host.process.as_ref()?)?;
            let until = self.leads_until(process)?;
            (host.local(self.now) < until).then_some(at)
        })
    }

    /// Returns the end of the leadership of a process, by its own clock.
    fn leads_until(&self, process: &Process) -> Option<Instant> {
        let Process { voter, candidate, port, .. } = process;
        match self.bug {
            Bug::LeaseFromReceipt => port.until.get(&port.coordination.term()?).copied(),
            _ => match candidate {
                Some(candidate) => candidate.claim.leads_until(),
                None => voter.as_ref()?.election.leads_until(),
            },
        }
    }

    /// Notes that the voter at an address has granted a renewal that was sent at that time.
    pub(super) fn note_grant(&mut self, term: Term, address: &VoterAddress, sent: Instant) {
        let newest = self.record.grants.entry((term, address.clone())).or_insert(sent);
        *newest = sent.max(*newest);
    }

    /// Checks rules e and f for a process that leads.
    fn check_leader(&self, host: usize) -> Option<String> {
        let process = self.processes.get(self.hosts[host].process.as_ref()?)?;
        let Leader::Here(leadership) = &process.port.leader else { return None };
        if self.bug.forges_grants() {
            return None;
        }
        let term = leadership.term;
        let granted = process.voter.as_ref().and_then(|voter| self.check_grants(host, term, voter));
        if granted.is_some() {
            return granted;
        }
        if self.hosts[host].local(self.now) < leadership.workers_until {
            return None;
        }
        let has_registered =
            |id: &NodeId| self.keepers.get(id).is_some_and(|keeper| keeper.registered >= term);
        let mut alive = self.alive();
        let (id, round) = alive.find(|(id, round)| round.term < term && !has_registered(id))?;
        Some(format!("rule f: {round} runs on {id} although host {host} leads in term {term}"))
    }

    /// Checks rule e for a process that leads.
    fn check_grants(&self, host: usize, term: Term, voter: &Voter) -> Option<String> {
        // On a slow clock the lease is longer.
        let lease = self.timers.leader_lease.mul_f64(1.0 / 0.99) + Duration::from_micros(1);
        let lists = &voter.election.replica().lists;
        let list = lists.before.as_ref().unwrap_or(&lists.last);
        let own = self.place(host).address();
        let is_granted = |slot: &&VoterSlot| {
            let sent = self.record.grants.get(&(term, slot.address.clone()));
            slot.address == own || sent.is_some_and(|sent| self.now < *sent + lease)
        };
        let granted = list.iter().filter(is_granted).count();
        (granted <= list.len() / 2)
            .then(|| format!("rule e: host {host} leads with {granted} leases of {list:?}"))
    }

    /// Checks rules a, e and f.
    pub(super) fn check_coordinators(&mut self) {
        let leading: Vec<usize> = self.leading_hosts().collect();
        if let Some(why) = leading.into_iter().find_map(|host| self.check_leader(host)) {
            self.record.breaks(|| why);
        }
        let has_round = |host: &usize| self.knows_round(*host);
        let (with_round, without): (Vec<_>, Vec<_>) = self.leading_hosts().partition(has_round);
        for leaders in [with_round, without] {
            let [one, other, ..] = *leaders else { continue };
            self.record.breaks(|| format!("rule a: hosts {one} and {other} lead"));
        }
    }

    /// Returns true if the voter on a host knows of a round.
    fn knows_round(&self, host: usize) -> bool {
        let process = self.hosts[host].process.as_ref().and_then(|id| self.processes.get(id));
        let job_state = process.and_then(Process::job_state);
        job_state.is_some_and(|job_state| job_state.round > Round(0))
    }

    pub(super) fn note_copied(&mut self, job_state: JobState) {
        self.note_stored(&job_state);
        self.record.is_another_run |= job_state.closed.is_none() && self.record.outcome.is_some();
        let is_newer =
            self.record.copied.as_ref().is_none_or(|copied| copied.term <= job_state.term);
        if is_newer {
            self.record.copied = Some(job_state);
        }
    }

    /// Checks rules c and d for a leadership that begins.
    pub(super) fn note_winner(&mut self, id: &NodeId, leadership: &NewLeadership) {
        let term = leadership.term;
        self.tell(|| format!("{id} leads in term {term}"));
        self.note_leadership(leadership.job_state.as_ref());
        if self.loses_states || self.has_lost_key() {
            self.record.winners.insert(term, id.clone());
            return;
        }
        if let Some(winner) = self.record.winners.insert(term, id.clone()) {
            self.record.breaks(|| format!("rule c: {winner} and {id} have won term {term}"));
        }
        let value = |job_state: &JobState| {
            (job_state.round, job_state.charged_through, job_state.restarts_used)
        };
        // The charges of a job that has ended do not count for another run.
        let copied = self.record.copied.as_ref().filter(|copied| copied.closed.is_none());
        let (copied, taken) = (copied.map(value), leadership.job_state.as_ref().map(value));
        // A host that returns without its state file may lead until it learns of the job. It completes no round.
        let has_round = taken.is_some_and(|(round, ..)| round > Round(0));
        // A change that was not copied in time may have reached the winner, so the winner may know more.
        if has_round && taken < copied {
            self.record.breaks(|| format!("rule d: {id} has {taken:?} instead of {copied:?}"));
        }
    }

    /// Checks rule d for a member of a round that is completed.
    pub(super) fn note_admission(&mut self, id: &NodeId, round: RoundId) {
        let loses_states = self.loses_states || self.has_lost_key();
        let Some(agent) = self.agent(id).filter(|_| !loses_states) else { return };
        let known = agent.node.agent().known_round().round;
        if known.round > round.round || known.round == round.round && known != round {
            self.record.breaks(|| format!("rule d: {id} knows {known} and is admitted to {round}"));
        }
    }

    /// Checks rules b and d for workers that have started.
    pub(super) fn note_workers(&mut self, id: &NodeId, round: RoundId) {
        if self.loses_states {
            self.record.started.insert(round.round, round.term);
            return self.check_jobs_of_workers(id, round);
        }
        if self.follows_an_ended_job(round) {
            self.record.started.clear();
        }
        let other = self.alive().find(|(_, other)| *other != round);
        if let Some((node, other)) = other.map(|(node, round)| (node.clone(), round)) {
            self.record
                .breaks(|| format!("rule b: {round} starts on {id} while {other} runs on {node}"));
        }
        let first = *self.record.started.entry(round.round).or_insert(round.term);
        let newest = self.record.started.last_key_value().map(|(round, _)| *round);
        if !self.has_lost_key() && (first != round.term || newest > Some(round.round)) {
            self.record
                .breaks(|| format!("rule d: {round} starts on {id} after {newest:?} of {first}"));
        }
        if self.record.outcome.is_some() && !self.may_run_again() {
            self.record
                .breaks(|| format!("rule b: {round} starts on {id} after the end of the job"));
        }
    }

    /// Checks rule g for the outcome that an agent has received.
    pub(super) fn note_outcome(&mut self, id: &NodeId, outcome: Outcome) {
        if self.loses_states {
            self.record.outcome.get_or_insert(outcome);
            return;
        }
        let Record { outcome: first, is_another_run, .. } = &mut self.record;
        // A run without a round. A host had begun it that no longer knew the job.
        let is_of_empty_run =
            matches!(outcome.result, JobResult::JoinTimeout { after: Round(0), .. });
        let is_of_another_run = |first: &mut Outcome| {
            let has_other_result =
                mem::discriminant(&first.result) != mem::discriminant(&outcome.result);
            *first != outcome && (*is_another_run || is_of_empty_run && has_other_result)
        };
        if first.take_if(is_of_another_run).is_some() {
            *is_another_run = false;
        }
        let first = self.record.outcome.get_or_insert_with(|| outcome.clone());
        if *first != outcome {
            let first = first.clone();
            self.record.breaks(|| format!("rule g: {id} has {outcome:?}, others {first:?}"));
        }
        if !matches!(self.stage, Stage::Closed(_)) {
            self.stage = Stage::Closed(self.now);
            self.end_faults();
        }
    }

    /// Checks rule g for an agent that dials.
    pub(super) fn note_dial(&mut self, id: &NodeId) {
        let Some(process) = self.processes.get(id) else { return };
        let age = self.now.saturating_duration_since(process.started).as_secs();
        let dials = process.dials;
        if dials > DIALS + DIALS_PER_SECOND * age {
            self.record.breaks(|| format!("rule g: {id} has dialed {dials} times in {age} s"));
        }
    }

    /// Returns true if the job runs on all members of its round.
    pub(super) fn runs(&self) -> bool {
        let mut leaders = self.leading_hosts();
        let leader = match &self.fixed {
            Some(_) => Some(0),
            None => leaders.find(|host| self.knows_round(*host)),
        };
        let Some(host) = leader else { return false };
        let now = self.hosts[host].local(self.now);
        let process = self.hosts[host].process.as_ref().and_then(|id| self.processes.get(id));
        let Some(coordinator) = process.and_then(|process| process.port.coordination.running())
        else {
            return false;
        };
        let snapshot = coordinator.rendezvous.snapshot(now);
        let members = snapshot.nodes.iter().filter(|node| node.group_rank.is_some());
        let mut runs = members.map(|node| self.runs_on(&node.node_id, snapshot.round));
        snapshot.phase == PhaseName::Running && runs.all(|runs| runs)
    }

    fn runs_on(&self, id: &NodeId, round: Round) -> bool {
        let agent = self.processes.get(id).and_then(|process| process.agent.as_ref());
        let report = agent.map(|agent| agent.node.agent().report(self.now));
        let is_running = report.is_some_and(|report| report.state == NodeState::Running);
        is_running && self.round_on(id).is_some_and(|runs| runs.round == round)
    }

    /// Returns true if agents that are started after the end of the job begin another run.
    fn may_run_again(&self) -> bool {
        let is_another_run = self.record.is_another_run;
        let outcome = self.record.outcome.as_ref();
        outcome.is_some_and(|outcome| is_another_run || !outcome.result.is_lasting())
    }

    /// Notes that a majority of the voters is lost, if it is.
    pub(super) fn check_majority(&mut self) {
        let files: Vec<_> = self.hosts.iter().filter_map(|host| host.file.as_ref()).collect();
        let newest = |files: &mut dyn Iterator<Item = &&StateFile>| {
            let newest = files.max_by_key(|file| file.replica.knowledge())?;
            newest.replica.has_round().then(|| newest.replica.lists.clone())
        };
        let exists = |slot: &VoterSlot| {
            slot.voter.is_some_and(|voter| files.iter().any(|file| file.id == voter))
        };
        let has_majority = |list: &Vec<VoterSlot>| {
            list.iter().filter(|slot| exists(slot)).count() > list.len() / 2
        };
        let is_voter =
            |file: &&&StateFile| file.replica.lists.slots().any(|slot| slot.voter == Some(file.id));
        // Only a process that is not a voter may know the end of a change, and no voter asks it.
        let known = [newest(&mut files.iter()), newest(&mut files.iter().filter(is_voter))];
        let mut lists =
            known.iter().flatten().flat_map(|lists| lists.before.iter().chain([&lists.last]));
        self.record.is_majority_lost |= !lists.all(has_majority);
    }

    /// Returns true if the job keeps a majority of its voters, and enough nodes, without a host.
    pub(super) fn can_lose(&mut self, host: usize) -> bool {
        let left = self.hosts.iter().enumerate().filter(|(at, h)| *at != host && !h.is_lost);
        let listed = left.clone().filter(|(at, _)| *at < self.listed).count();
        let is_known = left.clone().all(|(_, host)| host.knows_job());
        if left.count() < self.shared.nodes.min() as usize {
            return false;
        }
        // Before the first round, and for hosts that do not know the job, the listed hosts count.
        if listed <= self.listed / 2 && !is_known {
            return false;
        }
        self.can_lose_file(host)
    }

    /// Returns true if the job keeps a majority of its voters without the state file of a host.
    pub(super) fn can_lose_file(&mut self, host: usize) -> bool {
        let knowing = self.hosts.iter().filter(|host| host.knows_job()).count();
        if self.hosts[host].knows_job() && knowing == 1 {
            return false;
        }
        let file = self.hosts[host].file.take();
        self.check_majority();
        self.hosts[host].file = file;
        !mem::take(&mut self.record.is_majority_lost)
    }

    /// Returns the lists of the voter that leads.
    fn leading_lists(&self) -> Option<&Lists> {
        let leader = self.leading_hosts().find(|host| self.knows_round(*host))?;
        let process = self.processes.get(self.hosts[leader].process.as_ref()?)?;
        Some(&process.voter.as_ref()?.election.replica().lists)
    }

    /// Checks rule i for hosts that have returned without their state. Returns false at the end of the world.
    fn check_returned(&self) -> Result<bool, String> {
        let Some(lists) = self.leading_lists() else { return Ok(false) };
        let is_lost = |slot: &&VoterSlot| {
            let host = host_of(&slot.address).and_then(|host| self.hosts[host].process.as_ref());
            let process = host.and_then(|id| self.processes.get(id));
            let process = process.filter(|process| process.agent.is_some());
            process.filter(|process| process.started + STABLE_FOR < self.now).is_some_and(|there| {
                let here = there.voter.as_ref().map(|voter| voter.id);
                slot.voter.is_some() && lists.slots().all(|slot| slot.voter != here)
            })
        };
        match lists.slots().find(is_lost) {
            Some(slot) => Err(format!("rule i: {slot:?} of a host that has returned")),
            None => Ok(false),
        }
    }

    /// Checks rule i. Returns false at the end of the world.
    fn check_voters(&self) -> Result<bool, String> {
        let Some(lists) = self.leading_lists() else { return Ok(true) };
        let alive: Vec<_> =
            self.processes.values().filter_map(|p| p.voter.as_ref()).map(|v| v.id).collect();
        let dead: Vec<_> =
            lists.last.iter().filter(|s| s.voter.is_none_or(|v| !alive.contains(&v))).collect();
        let knowing = self.finding().filter(|replica| replica.has_round()).count();
        let too_few = lists.last.len().saturating_sub(knowing);
        let nodes = self.shared.nodes;
        let has_more = nodes.min() >= 2 && nodes.max() >= 3;
        let is_short = has_more && knowing >= 3 && lists.last.len() < 3;
        if lists.before.is_some() || dead.len() > too_few || is_short {
            return Err(format!("rule i: {lists:?} of {alive:?} at {:?}", self.elapsed()));
        }
        Ok(false)
    }

    /// Returns what the processes know that can still find the job: at least one voter in their lists is not lost.
    fn finding(&self) -> impl Iterator<Item = &Replica> {
        let is_there = |slot: &VoterSlot| {
            let host = host_of(&slot.address).and_then(|host| self.hosts.get(host));
            host.is_some_and(|host| !host.is_lost)
        };
        let voters = self.processes.values().filter_map(|process| process.voter.as_ref());
        let replicas = voters.map(|voter| voter.election.replica());
        replicas.filter(move |replica| replica.lists.slots().any(is_there))
    }

    /// Checks rule g. Returns false at the end of the world.
    pub(super) fn check_health(&mut self) -> Result<bool, String> {
        let elections = self.record.winners.len();
        match self.stage {
            Stage::Faulty => Ok(true),
            // A frozen process is a fault that has not ended.
            Stage::Quiet(_) if self.is_any_frozen() => {
                self.stage = Stage::Quiet(self.now);
                Ok(true)
            }
            Stage::Quiet(since) => {
                let is_checked = self.record.events.is_multiple_of(16);
                if is_checked && self.runs() {
                    self.stage = Stage::Healed(self.now, elections);
                } else if self.now > since + RUNS_WITHIN {
                    self.check_majority();
                    let nodes = match self.etcd {
                        Some(_) => self.hosts.len(),
                        None => self.finding().count(),
                    };
                    let has_nodes = nodes >= self.shared.nodes.min() as usize;
                    if self.record.is_majority_lost || !has_nodes {
                        return Ok(false);
                    }
                    return Err(format!("rule g: the job does not run at {:?}", self.elapsed()));
                }
                Ok(true)
            }
            Stage::Healed(since, before) => {
                let settled_after =
                    if self.etcd.is_some() { SETTLED_IN_ETCD } else { SETTLED_AFTER };
                if self.now < since + settled_after {
                    self.stage = Stage::Healed(since, elections);
                } else if elections > before {
                    return Err(format!("rule g: another election at {:?}", self.elapsed()));
                }
                let lasts = if self.checks_voters { REPLACED_WITHIN } else { STABLE_FOR };
                if self.now < since + settled_after + lasts || self.memory_goes_on() {
                    return Ok(true);
                }
                if self.checks_voters { self.check_voters() } else { self.check_returned() }
            }
            Stage::Closed(since) => {
                let is_checked = self.record.events.is_multiple_of(16);
                if is_checked && self.may_run_again() && self.runs() {
                    return Ok(false);
                }
                if self.now > since + ENDS_WITHIN {
                    self.check_end()
                } else {
                    Ok(!self.processes.is_empty())
                }
            }
        }
    }

    /// Checks that no process is left when nothing happens any more. The job has ended, or all agents have left while others were lost.
    pub(super) fn check_end(&self) -> Result<bool, String> {
        if matches!(self.stage, Stage::Closed(_) | Stage::Faulty) && self.processes.is_empty() {
            return Ok(false);
        }
        let left: Vec<_> = self.processes.keys().collect();
        Err(format!("rule g: {left:?} have not ended at {:?}", self.elapsed()))
    }
}
