//! Claims with a simulated clock and a store that answers at once.

use std::{iter, time::Duration};

use ragent_rendezvous::{
    heir::Successor,
    ids::{JobUid, Round},
    message::{self, JobResult},
    settings::NodeRange,
};

use super::*;
use crate::election::NewLeadership;

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
    job.pass(timers.silence + SECOND);
    assert_eq!(job.leader(), None);
    job.pass(timers.silence);
    assert_eq!(job.leader(), Some(others[2]));
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

/// The death notice of the leader's process has the same effect; that of another process, or of a former leader, has
/// none.
#[test]
fn death_notice_is_followed_at_once() {
    let (mut job, leader) = Job::started(3);
    let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
    job.remember(leader, 1, &others);
    job.processes[others[0]].handle_death_notice(job.now, &process(others[1]));
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(leader));
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

/// A leader that learns of a higher term resigns, and the next term is above it.
#[test]
fn higher_term_ends_the_leadership() {
    let (mut job, leader) = Job::started(1);
    let term = Term(1_000_000 << 16);
    job.processes[leader].handle_highest(job.now, Term(u64::MAX));
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

/// A store that was restored from a copy has lower revisions and an older record: the leader writes its record again,
/// and the others accept it.
#[test]
fn restored_store_is_accepted() {
    let (mut job, leader) = Job::started(2);
    let copy = (job.store.revision, job.store.entry.clone());
    job.remember(leader, 1, &[1 - leader]);
    job.pass(20 * SECOND);
    (job.store.revision, job.store.entry) = copy;
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(leader));
    job.pass(10 * SECOND);
    assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
    job.set_unreachable(&[leader], true);
    job.pass(10 * SECOND);
    assert_eq!(job.leader(), Some(1 - leader));
    assert_eq!(job.led(1 - leader)[0].job_state, Some(job_state(1)));
}

/// A store that comes back empty does not end the leadership: the leader writes its record again at once. If it is lost
/// afterwards, its state is not.
#[test]
fn empty_store_is_accepted() {
    let (mut job, leader) = Job::started(2);
    job.remember(leader, 1, &[1 - leader]);
    job.pass(20 * SECOND);
    job.store = Store { revision: 1, lease: 1, ..Store::default() };
    job.watch();
    job.carry_out();
    assert_eq!(job.written().job_state, Some(job_state(1)));
    job.pass(20 * SECOND);
    assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
    job.set_unreachable(&[leader], true);
    job.pass(10 * SECOND);
    assert_eq!(job.leader(), Some(1 - leader));
    assert_eq!(job.led(1 - leader)[0].job_state, Some(job_state(1)));
}

/// A leader whose record is deleted writes it again at once, as often as that happens, and leads in the same term. The
/// others follow it.
#[test]
fn deleted_record_is_written_again() {
    let (mut job, leader) = Job::started(3);
    job.remember(leader, 1, &[]);
    for _ in 0..3 {
        job.store.delete();
        job.watch();
        job.carry_out();
        assert_eq!(job.written().job_state, Some(job_state(1)));
        assert!(job.written().kind != RecordKind::Placeholder);
        job.pass(10 * SECOND);
        assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
    }
    let term = job.led(leader)[0].term;
    let follows = Effect::Follow { leader: Some((format!("h{leader}:1"), term)) };
    for other in (0..3).filter(|other| *other != leader) {
        assert_eq!(job.seen[other].last(), Some(&follows));
    }
}

/// The key is deleted while the leader does not reach the store. Another process puts the state back, and leads with it
/// when the key has not changed for a silence: the leader's lease is over, and so are its workers.
#[test]
fn job_state_outlives_a_deleted_key() {
    let (mut job, leader) = Job::started(3);
    let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
    job.remember(leader, 3, &[others[1], others[0]]);
    job.set_unreachable(&[leader], true);
    let until = job.processes[leader].leads_until().unwrap();
    job.store.delete();
    job.watch();
    job.carry_out();
    job.pass(SECOND);
    let placeholder = job.written().clone();
    assert!(placeholder.kind == RecordKind::Placeholder);
    assert_eq!((placeholder.process, placeholder.job_state), (process(leader), Some(job_state(3))));
    let timers = ClaimTimers::default();
    job.pass(timers.silence - SECOND);
    assert_eq!(job.leader(), None);
    job.pass(2 * SECOND);
    assert_eq!(job.leader(), Some(others[1]), "the first successor");
    let [leadership] = &job.led(others[1])[..] else { panic!("it leads once") };
    assert_eq!(leadership.former, Some(process(leader)));
    assert_eq!(leadership.job_state, Some(job_state(3)));
    assert!(leadership.term > job.led(leader)[0].term);
    assert!(leadership.workers_until <= job.now);
    assert!(leadership.workers_until >= until + (timers.silence - timers.leader_lease));
}

/// A leader replaces the placeholder of another process, because that one does not lead.
#[test]
fn placeholder_does_not_end_the_leadership() {
    let (mut job, leader) = Job::started(2);
    job.remember(leader, 1, &[]);
    job.set_unreachable(&[leader], true);
    job.store.delete();
    job.watch();
    job.carry_out();
    job.pass(SECOND);
    assert_eq!(job.written().kind, RecordKind::Placeholder);
    job.set_unreachable(&[leader], false);
    job.pass(20 * SECOND);
    assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
    assert!(job.written().kind != RecordKind::Placeholder);
}

/// A process that has never seen a record does not know whether one was deleted just before. It leads when the key that
/// it has created has not changed for a silence, with neither state nor former leader. If it is lost, another one does.
#[test]
fn founder_waits_for_a_silence() {
    let mut job = Job::new(2);
    job.watch();
    job.pass(SECOND);
    let placeholder = job.written().clone();
    assert!(placeholder.kind == RecordKind::Placeholder);
    assert_eq!((placeholder.term, placeholder.job_state), (Term(0), None));
    let silence = ClaimTimers::default().silence;
    job.pass(silence - SECOND);
    assert_eq!(job.leader(), None);
    let founder = usize::from(placeholder.process == process(1));
    job.set_unreachable(&[founder], true);
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(1 - founder));
    let [leadership] = &job.led(1 - founder)[..] else { panic!("it leads once") };
    assert_eq!((leadership.former.clone(), leadership.job_state.clone()), (None, None));
    assert!(leadership.workers_until <= job.now);
}

/// A founder begins no other job while a second process knows one: this process puts the state into the key.
#[test]
fn founder_receives_the_job_state_of_others() {
    let (mut job, leader) = Job::started(3);
    let others: Vec<usize> = (0..3).filter(|other| *other != leader).collect();
    job.remember(leader, 4, &[others[0]]);
    job.set_unreachable(&[0, 1, 2], true);
    job.store.delete();
    job.processes[others[0]] = Job::new(3).processes.remove(others[0]);
    job.set_unreachable(&[others[0]], false);
    job.pass(SECOND);
    assert_eq!((job.written().term, job.written().kind), (Term(0), RecordKind::Placeholder));
    job.set_unreachable(&[others[1]], false);
    job.pass(SECOND);
    assert_eq!(
        (job.written().job_state.clone(), job.written().kind),
        (Some(job_state(4)), RecordKind::Placeholder)
    );
    job.pass(20 * SECOND);
    let next = job.leader().expect("one of them leads");
    assert_eq!(job.led(next)[0].job_state, Some(job_state(4)));
}

/// A value that is not a record is replaced: by the leader at once, otherwise by one process, which puts the state back.
/// The replacement is reported once.
#[test]
fn garbage_is_replaced() {
    let (mut job, leader) = Job::started(3);
    job.remember(leader, 1, &[]);
    let replaced = |job: &Job| {
        job.seen.iter().flatten().filter(|effect| **effect == Effect::GarbageReplaced).count()
    };
    job.store.spoil();
    job.watch();
    job.carry_out();
    assert_eq!((job.written().job_state.clone(), replaced(&job)), (Some(job_state(1)), 1));
    job.pass(20 * SECOND);
    assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
    job.set_unreachable(&[leader], true);
    job.store.spoil();
    job.watch();
    job.carry_out();
    job.pass(ClaimTimers::default().silence);
    assert_eq!((job.leader(), replaced(&job)), (None, 2));
    job.pass(20 * SECOND);
    let next = job.leader().expect("one of them leads");
    assert_eq!((job.led(next)[0].job_state.clone(), replaced(&job)), (Some(job_state(1)), 2));
}

/// An older record than the newest known record is replaced, and its leader does not lead again because of
/// it.
#[test]
fn older_record_is_replaced() {
    let (mut job, first) = Job::started(3);
    job.remember(first, 1, &[]);
    let copy = job.store.clone();
    job.processes[first].handle_highest(job.now, Term(1_000_000 << 16));
    job.pass(10 * SECOND);
    let second = job.leader().expect("one of them leads");
    job.remember(second, 2, &[first]);
    job.pass(SECOND);
    job.set_unreachable(&[second], true);
    job.store = Store { lease: 1, ..copy };
    job.watch();
    job.carry_out();
    assert!(job.leader().is_none_or(|leader| leader == second));
    job.pass(SECOND);
    assert_eq!(
        (job.written().job_state.clone(), job.written().kind),
        (Some(job_state(2)), RecordKind::Placeholder)
    );
    job.pass(20 * SECOND);
    let third = job.leader().expect("one of them leads");
    assert_eq!(job.led(third).pop().unwrap().job_state, Some(job_state(2)));
}

/// The store was emptied, and its new record has the revision that a process knows from before. This is not taken for the
/// record that it has seen.
#[test]
fn same_revision_after_a_reset_is_another_record() {
    let (mut job, leader) = Job::started(2);
    job.remember(leader, 1, &[1 - leader]);
    job.set_unreachable(&[1 - leader], true);
    let stamp = Stamp { revision: Revision(job.store.revision), lease: 1 };
    job.pass(ClaimTimers::default().silence - SECOND);
    let record = job.written().clone();
    let entry = Some(Entry { stamp, record });
    job.store = Store { revision: stamp.revision.0, entry, lease: 1, garbage: None };
    job.are_unreachable[1 - leader] = false;
    job.now += 2 * SECOND;
    job.processes[1 - leader].handle_timeout(job.now);
    job.carry_out();
    assert_eq!(job.led(1 - leader), []);
    job.pass(20 * SECOND);
    assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
}

/// After the store was emptied, another job has lower terms than an ended job. A process that knows the end
/// does not replace its record.
#[test]
fn ended_job_does_not_replace_another_one() {
    let mut known = Known::default();
    let record = |term: u64, uid: &str| Record {
        process: process(0),
        endpoint: "h0:1".to_owned(),
        term: Term(term),
        number: 1,
        silence: Duration::ZERO,
        kind: RecordKind::Leads,
        successors: Vec::new(),
        job_state: Some(JobState::new(JobUid::new(uid))),
    };
    let mut ended = record(9, "a");
    if let Some(job_state) = &mut ended.job_state {
        job_state.closed = Some(outcome());
    }
    known.keep(&ended);
    assert!(known.is_outdated(&record(3, "a")));
    known.keep(&record(3, "b"));
    assert!(!known.is_outdated(&record(3, "b")) && !known.has_ended());
    // The placeholder of a process that has seen no record is not one to be kept.
    let mut known = Known::default();
    known.keep(&record(0, "c"));
    assert!(known.newest.is_none());
}

/// A process that took part in a job and finds the record of its end has the outcome from there, once, and never leads. A process
/// that knows the outcome finds no key any more, because it was deleted: the same.
#[test]
fn process_outlives_its_job() {
    for is_deleted in [false, true] {
        let (mut job, leader) = Job::started(3);
        let other = (leader + 1) % 3;
        job.remember(leader, 1, &[other]);
        let closed = JobState { closed: Some(outcome()), ..job_state(1) };
        let term = job.led(leader)[0].term;
        for process in &mut job.processes {
            process.handle_registered(job.now, job_state(1).job_uid);
        }
        // One process knows the outcome, one is unreachable before it.
        job.set_unreachable(&[(leader + 2) % 3], true);
        job.processes[leader].handle_remember(job.now, closed);
        job.carry_out();
        if is_deleted {
            job.store.delete();
            job.processes.remove(leader);
            job.processes.insert(leader, Job::new(3).processes.remove(leader));
            job.set_unreachable(&[leader], true);
        } else {
            job.processes[leader].handle_job_over(job.now, term);
            job.processes[leader].handle_leaving(job.now);
            job.carry_out();
            job.set_unreachable(&[(leader + 2) % 3], false);
        }
        job.pass(60 * SECOND);
        let outlived = |index: usize| {
            let is_end = |effect: &&Effect| **effect == Effect::Outlived(Box::new(outcome()));
            job.seen[index].iter().filter(is_end).count()
        };
        assert_eq!(outlived(other), 1, "{is_deleted}");
        assert_eq!(outlived((leader + 2) % 3), usize::from(!is_deleted));
        assert_eq!((outlived(leader), job.leader()), (0, None));
    }
}

/// A process that was not registered for a job that is over begins another one, at once and without anything of it, although the record
/// names processes that were to succeed its leader.
#[test]
fn another_job_replaces_one_that_is_over() {
    let (mut job, leader) = Job::ended(2);
    let other = 1 - leader;
    job.processes[other] = Job::new(3).processes.remove(2);
    job.watch();
    job.pass(SECOND);
    assert_eq!(job.leader(), Some(other));
    let leadership = job.led(other).pop().unwrap();
    assert_eq!((leadership.former, leadership.job_state), (None, None));
}

/// The leader is lost after the end of the job, before all nodes have the outcome. A process that was not registered for that job begins
/// another one when the record may be replaced.
#[test]
fn another_job_replaces_one_whose_leader_is_lost() {
    let (mut job, leader) = Job::started(2);
    let other = 1 - leader;
    job.remember(leader, 1, &[other]);
    let closed = JobState { closed: Some(outcome()), ..job_state(1) };
    job.processes[leader].handle_remember(job.now, closed);
    job.carry_out();
    job.set_unreachable(&[leader], true);
    job.processes[other] = Job::new(3).processes.remove(2);
    job.watch();
    job.pass(ClaimTimers::default().leader_lease);
    assert_eq!(job.leader(), None);
    job.pass(20 * SECOND);
    assert_eq!(job.leader(), Some(other));
    let leadership = job.led(other).pop().unwrap();
    assert_eq!((leadership.former, leadership.job_state), (None, None));
}

/// The store comes back from a copy that was made after the end of an earlier job. The state of the present job is put back.
#[test]
fn older_record_of_a_job_that_is_over_is_replaced() {
    let (mut job, _) = Job::ended(2);
    let copy = job.store.clone();
    job.processes = Job::new(2).processes;
    job.watch();
    job.pass(20 * SECOND);
    let leader = job.leader().expect("one process leads");
    job.remember(leader, 4, &[1 - leader]);
    job.set_unreachable(&[leader], true);
    job.store = Store { lease: copy.lease + 1, ..copy };
    job.watch();
    job.carry_out();
    job.pass(ClaimTimers::default().silence / 2);
    assert_eq!(job.written().kind, RecordKind::Placeholder);
    assert_eq!(job.written().job_state, Some(job_state(4)));
    job.pass(20 * SECOND);
    assert_eq!(job.leader(), Some(1 - leader));
    let leadership = job.led(1 - leader).pop().unwrap();
    assert_eq!(leadership.job_state, Some(job_state(4)));
}
