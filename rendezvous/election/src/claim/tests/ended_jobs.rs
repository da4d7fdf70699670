//! The job is over: its record shows it, and another job of the same name may begin.

use super::*;

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
    known.keep(&record(3, "a"));
    assert!(known.has_ended(), "an older record of the same job");
    known.keep(&record(3, "b"));
    assert!(!known.is_outdated(&record(3, "b")) && !known.has_ended());
    // The placeholder of a process that has seen no record begins another job, and is not one to be kept.
    let mut known = Known::default();
    known.keep(&ended);
    known.keep(&record(0, "a"));
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

/// A process that leaves does not report `Outlived`. Its agent ends already.
#[test]
fn leaving_process_does_not_outlive_its_job() {
    let (mut job, leader) = Job::started(2);
    let (other, uid) = (1 - leader, job_state(1).job_uid);
    job.remember(leader, 1, &[other]);
    job.processes[other].handle_registered(job.now, uid);
    job.processes[other].handle_leaving(job.now);
    let closed = JobState { closed: Some(outcome()), ..job_state(1) };
    job.processes[leader].handle_remember(job.now, closed);
    job.carry_out();
    let term = job.led(leader)[0].term;
    job.processes[leader].handle_job_over(job.now, term);
    job.carry_out();
    assert_eq!(job.written().kind, RecordKind::JobOver);
    assert!(!job.seen[other].contains(&Effect::Outlived(Box::new(outcome()))));
}

/// The key is deleted after the end of the job. A process that knows the end begins another job after a silence, and not before: until
/// then, the leader of another one may write its record again.
#[test]
fn deleted_end_is_followed_by_another_job() {
    let (mut job, leader) = Job::ended(2);
    job.set_unreachable(&[leader], true);
    job.store.delete();
    job.watch();
    let timers = ClaimTimers::default();
    job.pass(timers.silence - MS);
    assert_eq!(job.store.entry, None);
    job.pass(timers.spread + MS);
    assert_eq!((job.written().term, job.written().job_state.clone()), (Term(0), None));
}
