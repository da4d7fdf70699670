//! Claims with a simulated clock and a store that answers at once.

mod ended_jobs;
mod lost_records;

use std::{collections::BTreeSet, iter, time::Duration};

use ragent_rendezvous::{
    heir::Successor,
    ids::{JobUid, Round},
    message::{self, JobResult},
    settings::NodeRange,
};

use super::*;
use crate::{election::NewLeadership, limits::CHANGES_UNDER_WAY_MAX};

/// Processes that share a store.
struct Job {
    now: Instant,
    store: Store,
    processes: Vec<Claim>,
    /// The effects other than changes, by process.
    seen: Vec<Vec<Effect>>,
    /// Processes whose changes the store neither makes nor answers.
    are_unreachable: Vec<bool>,
    /// Processes whose changes are made, but not answered.
    are_unanswered: Vec<bool>,
}

fn outcome() -> message::Outcome {
    message::Outcome {
        result: JobResult::Succeeded,
        first_failure: None,
        other_failures: 0,
        further_failures: Vec::new(),
        restarts_used: 0,
        complete_step: None,
    }
}

/// A store with one key.
#[derive(Clone, Default)]
struct Store {
    revision: u64,
    entry: Option<Entry>,
    /// The identity of a value that is not a record.
    garbage: Option<Stamp>,
    /// The lease of all records.
    lease: i64,
}

impl Store {
    fn change(&mut self, expected: Stamp, record: Box<Record>) -> ChangeOutcome {
        if self.value().stamp().unwrap_or_default() != expected {
            return ChangeOutcome::Refused(Box::new(self.value()));
        }
        self.revision += 1;
        let stamp = Stamp { revision: Revision(self.revision), lease: self.lease };
        self.entry = Some(Entry { stamp, record: *record });
        self.garbage = None;
        ChangeOutcome::Made(stamp)
    }

    fn value(&self) -> KeyContent {
        let (revision, garbage) = (Revision(self.revision), self.garbage);
        KeyContent { revision, entry: self.entry.clone(), garbage }
    }

    /// Writes a value that is not a record.
    fn spoil(&mut self) {
        self.revision += 1;
        self.entry = None;
        self.garbage = Some(Stamp { revision: Revision(self.revision), lease: 0 });
    }

    /// Deletes the key.
    fn delete(&mut self) {
        self.revision += 1;
        (self.entry, self.garbage) = (None, None);
    }
}

fn process(index: usize) -> NodeId {
    NodeId::new(format!("process{index}"))
}

fn job_state(round: u64) -> JobState {
    JobState { round: Round(round), ..JobState::new(JobUid::new("job")) }
}

fn successor(index: usize) -> Successor {
    Successor { process: process(index), endpoint: format!("h{index}:1") }
}

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

impl Job {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
    fn new(count: usize) -> Self {
        let now = Instant::now();
        let claim = |index: usize| {
            let (process, endpoint) = (process(index), format!("h{index}:1"));
            let (timers, seed) = (ClaimTimers::default(), index as u64);
            Claim::new(now, ClaimSettings { process, endpoint, timers, seed })
        };
        Self {
            now,
            store: Store { revision: 7, ..Store::default() },
            processes: (0..count).map(claim).collect(),
            seen: vec![Vec::new(); count],
            are_unreachable: vec![false; count],
            are_unanswered: vec![false; count],
        }
    }

    /// Starts the job: the first process that is reachable leads.
    fn started(count: usize) -> (Self, usize) {
        let mut job = Self::new(count);
        job.watch();
        job.pass(ClaimTimers::default().silence + SECOND);
        let leader = job.leader().expect("one process leads");
        (job, leader)
    }

    /// Starts the job, and ends it: its leader marks the record and leaves.
    fn ended(count: usize) -> (Self, usize) {
        let (mut job, leader) = Self::started(count);
        job.remember(leader, 1, &[1 - leader]);
        let closed = JobState { closed: Some(outcome()), ..job_state(1) };
        job.processes[leader].handle_remember(job.now, closed);
        job.carry_out();
        let term = job.led(leader)[0].term;
        job.processes[leader].handle_job_over(job.now, term);
        job.processes[leader].handle_leaving(job.now);
        job.carry_out();
        (job, leader)
    }

    /// Lets `time` pass. Deadlines are handled when they are due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let processes = self.processes.iter().enumerate();
            let next =
                processes.filter_map(|(index, claim)| Some((claim.poll_timeout()?, index))).min();
            let Some((at, index)) = next.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            self.processes[index].handle_timeout(self.now);
            self.carry_out();
        }
        self.now = end;
    }

    /// Carries out all effects, and reports each change to all processes that are reachable.
    fn carry_out(&mut self) {
        let mut again = true;
        while again {
            again = false;
            for index in 0..self.processes.len() {
                for effect in iter::from_fn(|| self.processes[index].poll_effect()) {
                    let Effect::Change { number, expected, record } = effect else {
                        self.seen[index].push(effect);
                        continue;
                    };
                    again = true;
                    let mut outcome = ChangeOutcome::Unknown;
                    if !self.are_unreachable[index] {
                        outcome = self.store.change(expected, record);
                    }
                    if self.are_unanswered[index] {
                        outcome = ChangeOutcome::Unknown;
                    }
                    self.processes[index].handle_outcome(self.now, number, outcome);
                    // The next one is sent after the others have received this one.
                    break;
                }
            }
            self.watch();
        }
    }

    /// Carries out the next change of one process, and reports it to no other one. Other effects before it are recorded.
    #[track_caller]
    fn answer(&mut self, index: usize) {
        loop {
            match self.processes[index].poll_effect().expect("it requests a change") {
                Effect::Change { number, expected, record } => {
                    let outcome = self.store.change(expected, record);
                    return self.processes[index].handle_outcome(self.now, number, outcome);
                }
                effect => self.seen[index].push(effect),
            }
        }
    }

    fn watch(&mut self) {
        for index in 0..self.processes.len() {
            if !self.are_unreachable[index] && !self.are_unanswered[index] {
                let value = self.store.value();
                self.processes[index].handle_value(self.now, value);
            }
        }
    }

    /// The record in the store.
    #[track_caller]
    fn written(&self) -> &Record {
        &self.store.entry.as_ref().expect("the key has a record").record
    }

    fn leader(&self) -> Option<usize> {
        let leads = |index: &usize| {
            self.processes[*index].leads_until().is_some_and(|until| self.now < until)
        };
        let leaders: Vec<usize> = (0..self.processes.len()).filter(leads).collect();
        assert!(leaders.len() < 2, "{leaders:?} lead");
        leaders.first().copied()
    }

    fn led(&self, index: usize) -> Vec<NewLeadership> {
        let leadership = |effect: &Effect| match effect {
            Effect::Lead(leadership) => Some((**leadership).clone()),
            _ => None,
        };
        self.seen[index].iter().filter_map(leadership).collect()
    }

    fn set_unreachable(&mut self, indexes: &[usize], is_unreachable: bool) {
        for index in indexes {
            self.are_unreachable[*index] = is_unreachable;
        }
        self.watch();
        self.carry_out();
    }

    /// Makes the leader remember `round`, with these successors.
    fn remember(&mut self, leader: usize, round: u64, successors: &[usize]) -> u64 {
        let successors = successors.iter().copied().map(successor).collect();
        self.processes[leader].handle_successors(self.now, successors);
        let number = self.processes[leader].handle_remember(self.now, job_state(round)).unwrap();
        self.carry_out();
        number
    }
}

/// One process creates the key and leads. Its term is above the revisions of the store. The others redirect to it.
#[test]
fn one_process_leads() {
    let (mut job, leader) = Job::started(3);
    let [leadership] = &job.led(leader)[..] else { panic!("it leads once") };
    assert_eq!((leadership.former.clone(), leadership.job_state.clone()), (None, None));
    assert!(leadership.term > Term(7 << 16));
    assert_eq!(leadership.workers_until, leadership.workers_until.min(job.now));
    let follows = Effect::Follow { leader: Some((format!("h{leader}:1"), leadership.term)) };
    for other in (0..3).filter(|other| *other != leader) {
        assert_eq!(job.seen[other], std::slice::from_ref(&follows));
    }
    // The first two changes are the placeholder and the claim; renewals follow it at their interval.
    let timers = ClaimTimers::default();
    let leads_for = job.now - (leadership.until - timers.leader_lease);
    let renewals = leads_for.div_duration_f64(timers.renewal).floor() as u64;
    assert_eq!(job.store.revision - 9, renewals);
    job.pass(60 * SECOND);
    assert_eq!(job.leader(), Some(leader));
    let writes = job.store.revision - 9;
    assert!((100..=130).contains(&writes), "{writes} renewals in a minute");
}

/// A leader that cannot reach the store leads until its lease is over, counted from the sending of its last change.
/// The first successor replaces its record after the silence, with its state, and when all workers have ended.
#[test]
fn lost_leader_is_replaced() {
    let (mut job, leader) = Job::started(5);
    let others: Vec<usize> = (0..5).filter(|other| *other != leader).collect();
    job.remember(leader, 3, &[others[2], others[0]]);
    let (lost, timers) = (job.now, ClaimTimers::default());
    job.set_unreachable(&[leader], true);
    job.pass(timers.leader_lease + timers.renewal);
    assert_eq!(job.leader(), None);
    assert!(job.seen[leader].contains(&Effect::Follow { leader: None }));
    job.pass(2 * SECOND);
    assert_eq!(job.leader(), Some(others[2]));
    let [leadership] = &job.led(others[2])[..] else { panic!("it leads once") };
    assert_eq!(leadership.former, Some(process(leader)));
    assert_eq!(leadership.job_state, Some(job_state(3)));
    assert!(leadership.workers_until <= job.now);
    assert!(leadership.workers_until >= lost + timers.silence);
    assert!(leadership.term > job.led(leader)[0].term);
    assert_eq!(job.written().successors, [successor(others[0])], "without the new leader itself");
    job.set_unreachable(&[leader], false);
    job.pass(60 * SECOND);
    assert_eq!(job.leader(), Some(others[2]), "leadership does not move back");
}

/// Processes that are not successors wait for a further silence.
#[test]
fn others_follow_the_successors() {
    let (mut job, leader) = Job::started(4);
    let others: Vec<usize> = (0..4).filter(|other| *other != leader).collect();
    job.remember(leader, 1, &others[..2]);
    job.set_unreachable(&[leader, others[0], others[1]], true);
    let timers = ClaimTimers::default();
    job.pass(2 * timers.silence - MS);
    assert_eq!(job.leader(), None);
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(others[2]));
}

/// The second successor leads between one and two staggers after the leader has resigned.
#[test]
fn successors_stand_one_after_the_other() {
    let (mut job, leader) = Job::started(3);
    let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
    job.remember(leader, 1, &others);
    job.set_unreachable(&[others[0]], true);
    job.processes[leader].handle_leaving(job.now);
    job.carry_out();
    let stagger = ClaimTimers::default().stagger;
    job.pass(stagger - MS);
    assert_eq!(job.leader(), None);
    job.pass(stagger + MS);
    assert_eq!(job.leader(), Some(others[1]));
}

/// A leader that resigns is replaced at once, but the successor knows that workers may still run. The
/// leader itself comes last.
#[test]
fn resignation_is_followed_at_once() {
    let (mut job, leader) = Job::started(3);
    let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
    job.remember(leader, 1, &others);
    job.processes[leader].handle_leaving(job.now);
    job.carry_out();
    assert_eq!(job.seen[leader].last(), Some(&Effect::Released));
    let resigned = job.now;
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(others[0]));
    let timers = ClaimTimers::default();
    assert!(job.led(others[0])[0].workers_until >= resigned + timers.leader_lease);
    job.set_unreachable(&others, true);
    job.pass(60 * SECOND);
    assert_eq!(job.leader(), None, "a process that leaves is not a candidate");
}

/// A leader whose coordinator has ended resigns, and another process leads at once. A request for an earlier term has no effect.
#[test]
fn ended_coordinator_is_replaced_at_once() {
    let (mut job, leader) = Job::started(2);
    job.remember(leader, 1, &[1 - leader]);
    let term = job.led(leader)[0].term;
    for (term, next) in [(Term(term.0 - 1), leader), (term, 1 - leader)] {
        job.processes[leader].handle_resigned(job.now, term);
        job.carry_out();
        job.pass(SECOND);
        assert_eq!(job.leader(), Some(next));
    }
}

/// A process that does not reach the store redirects nobody to a leader that may have been replaced.
#[test]
fn silent_leader_is_forgotten() {
    let (mut job, leader) = Job::started(2);
    // It is no candidate any more, so only this deadline is left.
    job.processes[1 - leader].handle_leaving(job.now);
    job.set_unreachable(&[0, 1], true);
    job.pass(ClaimTimers::default().silence + SECOND);
    assert_eq!(job.seen[1 - leader].last(), Some(&Effect::Follow { leader: None }));
}

/// The death notice of the leader's process has the same effect. The leader itself ignores it. A death notice of another process or of a
/// former leader is ignored, too.
#[test]
fn death_notice_is_followed_at_once() {
    let (mut job, leader) = Job::started(3);
    let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
    job.remember(leader, 1, &others);
    job.processes[others[0]].handle_death_notice(job.now, &process(others[1]));
    job.processes[leader].handle_death_notice(job.now, &process(leader));
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(leader));
    assert!(!job.seen[leader].contains(&Effect::Follow { leader: None }));
    job.set_unreachable(&[leader], true);
    let ended = job.now;
    job.processes[others[0]].handle_death_notice(job.now, &process(leader));
    // In the meantime the leader leads by its own clock. Its process has ended.
    job.processes[leader] = Job::new(3).processes.remove(leader);
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(others[0]));
    assert!(job.led(others[0])[0].workers_until >= ended + ClaimTimers::default().leader_lease);
    job.processes[others[1]].handle_death_notice(job.now, &process(leader));
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(others[0]));
}

/// A change of the state is reported once the store has it. A leader whose record was replaced reports
/// none.
#[test]
fn job_state_is_stored() {
    let (mut job, leader) = Job::started(2);
    let number = job.remember(leader, 1, &[]);
    job.pass(5 * SECOND);
    let stored = job.seen[leader].iter().filter(|effect| matches!(effect, Effect::Stored(_)));
    assert_eq!(stored.collect::<Vec<_>>(), [&Effect::Stored(number)]);
    let follower = &job.processes[1 - leader];
    assert_eq!(follower.record().unwrap().job_state, Some(job_state(1)));
    assert_eq!(follower.highest(), follower.record().unwrap().term);
    job.set_unreachable(&[leader], true);
    let number = job.remember(leader, 2, &[]);
    job.pass(20 * SECOND);
    assert!(!job.seen[leader].contains(&Effect::Stored(number)));
    assert_eq!(job.led(1 - leader)[0].job_state, Some(job_state(1)));
    assert_eq!(job.processes[leader].handle_remember(job.now, job_state(3)), None);
}

/// The answers to the claim and to renewals are lost: the process finds its own record, and leads from the sending of
/// the change that has written it.
#[test]
fn lost_answers_are_resolved() {
    let mut job = Job::new(1);
    job.watch();
    job.pass(SECOND);
    job.now += ClaimTimers::default().silence;
    job.are_unanswered[0] = true;
    let began = job.now;
    job.pass(Duration::from_millis(100));
    assert!(job.written().kind != RecordKind::Placeholder && job.leader().is_none());
    job.are_unanswered[0] = false;
    job.pass(SECOND);
    let [leadership] = &job.led(0)[..] else { panic!("it leads once") };
    let lease = ClaimTimers::default().leader_lease;
    assert!(leadership.until <= began + Duration::from_millis(100) + lease);
    for _ in 0..20 {
        job.are_unanswered[0] = true;
        let number = job.remember(0, 1, &[]);
        assert!(!job.seen[0].contains(&Effect::Stored(number)));
        job.pass(Duration::from_millis(10));
        job.are_unanswered[0] = false;
        job.pass(SECOND);
        assert!(job.seen[0].contains(&Effect::Stored(number)));
    }
    assert_eq!(job.led(0).len(), 1);
}

/// A claim whose answer arrives after the lease would be over is not led on. The process claims again.
#[test]
fn late_answer_is_no_leadership() {
    let mut job = Job::new(1);
    job.watch();
    job.pass(SECOND);
    job.now += ClaimTimers::default().silence;
    job.processes[0].handle_timeout(job.now);
    let Some(Effect::Change { number, expected, record }) = job.processes[0].poll_effect() else {
        panic!("it claims")
    };
    let outcome = job.store.change(expected, record);
    job.now += ClaimTimers::default().leader_lease;
    job.processes[0].handle_outcome(job.now, number, outcome);
    assert_eq!(job.processes[0].leads_until(), None);
    job.carry_out();
    assert_eq!(job.leader(), Some(0));
    assert_eq!(job.led(0)[0].former, Some(process(0)));
}

/// The store is away for longer than the lease: the leadership ends, and the same process leads again in a higher term
/// when it is back.
#[test]
fn outage_of_the_store_ends_the_leadership() {
    let (mut job, leader) = Job::started(2);
    job.remember(leader, 1, &[1 - leader]);
    job.set_unreachable(&[0, 1], true);
    job.pass(5 * SECOND);
    assert_eq!(job.leader(), None);
    job.pass(20 * SECOND);
    assert_eq!(job.leader(), None);
    job.set_unreachable(&[0, 1], false);
    job.pass(5 * SECOND);
    let again = job.leader().expect("one of them leads again");
    let leadership = job.led(again).pop().unwrap();
    assert_eq!(leadership.former, Some(process(leader)));
    assert!(leadership.term > job.led(leader)[0].term);
    assert_eq!(leadership.job_state, Some(job_state(1)));
}

/// The leases leave time for keepers, whose workers are dead before the record may be replaced. In a large job they last longer, and
/// contain as many renewals.
#[test]
fn leases_leave_time_for_keepers() {
    let large = ClaimTimers::for_nodes(NodeRange::new(1, 10_000).expect("a range"));
    for (timers, lease) in [(ClaimTimers::default(), 4_800), (large, 44_000)] {
        let ClaimTimers { renewal, leader_lease, silence, .. } = timers;
        let keeper = Duration::from_millis(500);
        assert!((leader_lease + keeper).mul_f64(1.01) <= silence.mul_f64(0.99));
        assert_eq!(leader_lease, Duration::from_millis(lease));
        assert_eq!(leader_lease.div_duration_f64(renewal).round(), 10.0);
    }
}

/// The changes of a process that is unreachable are repeated after pauses that grow to two seconds.
#[test]
fn retries_back_off() {
    let mut job = Job::new(1);
    job.watch();
    job.set_unreachable(&[0], true);
    job.pass(60 * SECOND);
    let numbers = job.processes[0].number;
    assert!((30..90).contains(&numbers), "{numbers} changes in a minute");
}

/// A process that has reached the store begins with short pauses again.
#[test]
fn pauses_are_short_after_a_success() {
    let (mut job, leader) = Job::started(1);
    job.set_unreachable(&[leader], true);
    job.pass(60 * SECOND);
    job.set_unreachable(&[leader], false);
    job.pass(20 * SECOND);
    job.processes[leader].handle_highest(job.now, Term(1_000_000 << 16));
    job.carry_out();
    job.set_unreachable(&[leader], true);
    job.pass(ClaimTimers::default().silence - MS);
    let before = job.processes[leader].number;
    job.pass(SECOND);
    let tries = job.processes[leader].number - before;
    assert!(tries >= 3, "{tries} changes in the first second");
}

/// A leader remembers a bounded number of changes without an answer.
#[test]
fn changes_that_count_are_bounded() {
    let (mut job, leader) = Job::started(1);
    job.are_unanswered[leader] = true;
    // A state that the store does not confirm is written again after each pause.
    job.remember(leader, 1, &[]);
    job.pass(ClaimTimers::default().leader_lease - SECOND);
    assert_eq!(job.leader(), Some(leader));
    assert_eq!(job.processes[leader].sent.len(), CHANGES_UNDER_WAY_MAX);
}

/// Processes that stand at the same time propose different terms.
#[test]
fn terms_differ_between_processes() {
    let terms: BTreeSet<Term> = (0..3)
        .map(|index| {
            let mut job = Job::new(3);
            job.processes.swap(0, index);
            job.processes.truncate(1);
            job.watch();
            job.pass(10 * SECOND);
            job.led(0)[0].term
        })
        .collect();
    assert_eq!(terms.len(), 3);
}

/// A leader stops leading if the key has another process's record with the same or a higher term. If that record has a lower term, the
/// leader replaces it at once.
#[test]
fn leader_yields_to_a_newer_record() {
    for (change, leads) in [(-1, true), (0, false), (1, false)] {
        let (mut job, leader) = Job::started(1);
        let term = job.written().term;
        let record = Record {
            process: process(9),
            term: Term(term.0.strict_add_signed(change)),
            ..job.written().clone()
        };
        let expected = job.store.value().stamp().unwrap();
        job.store.change(expected, Box::new(record));
        job.watch();
        job.carry_out();
        assert_eq!(
            (job.leader() == Some(leader), job.written().term == term),
            (leads, leads || change == 0)
        );
        assert_eq!(job.written().process == process(leader), leads);
    }
}

/// A leader that learns of a higher term resigns, and the next term is above it.
#[test]
fn higher_term_ends_the_leadership() {
    let (mut job, leader) = Job::started(1);
    let term = Term(AGENT_TERM_MAX);
    job.processes[leader].handle_highest(job.now, Term(AGENT_TERM_MAX + 1));
    assert_eq!(job.leader(), Some(leader), "no agent knows such a term");
    job.processes[leader].handle_highest(job.now, term);
    job.carry_out();
    assert_eq!(job.leader(), None);
    job.pass(10 * SECOND);
    assert!(job.led(leader).pop().unwrap().term > term);
}

/// The record of a job that is over shows it. A process that took part in no round begins another job, at
/// once.
#[test]
fn record_stays_after_the_end() {
    let (mut job, leader) = Job::started(2);
    let term = job.led(leader)[0].term;
    job.processes[leader].handle_job_over(job.now, Term(1));
    assert_eq!(job.leader(), Some(leader), "of another term");
    job.processes[leader].handle_job_over(job.now, term);
    job.processes[leader].handle_leaving(job.now);
    job.carry_out();
    assert_eq!(job.written().kind, RecordKind::JobOver);
    assert_eq!(job.seen[leader].last(), Some(&Effect::Released));
    assert_eq!(job.seen[1 - leader].last(), Some(&Effect::Follow { leader: None }));
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(1 - leader));
    let leadership = job.led(1 - leader).pop().unwrap();
    assert_eq!((leadership.former, leadership.job_state), (None, None));
    let ended = job.now - SECOND;
    assert!(leadership.workers_until >= ended + ClaimTimers::default().silence);
}

/// A process that leaves during its candidacy releases the record that it still gets.
#[test]
fn candidate_that_leaves_releases_its_record() {
    let mut job = Job::new(1);
    job.watch();
    job.pass(SECOND);
    job.now += ClaimTimers::default().silence;
    job.processes[0].handle_timeout(job.now);
    let Some(Effect::Change { number, expected, record }) = job.processes[0].poll_effect() else {
        panic!("it claims")
    };
    job.processes[0].handle_leaving(job.now);
    let outcome = job.store.change(expected, record);
    job.processes[0].handle_outcome(job.now, number, outcome);
    job.carry_out();
    assert!(job.store.entry.as_ref().unwrap().record.kind == RecordKind::Resigned);
    assert_eq!(job.leader(), None);
}

/// A process with a shorter silence of its own waits for that of the leader.
#[test]
fn longer_silence_counts() {
    let (mut job, leader) = Job::started(2);
    let short = Duration::from_secs(2);
    job.processes[1 - leader].settings.timers.silence = short;
    job.remember(leader, 1, &[1 - leader]);
    job.set_unreachable(&[leader], true);
    job.pass(ClaimTimers::default().silence - Duration::from_millis(600));
    assert_eq!(job.led(1 - leader), []);
    job.pass(2 * SECOND);
    assert_eq!(job.leader(), Some(1 - leader));
}
