//! The record was deleted, the store was emptied, or comes back as an older copy.

use super::*;

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
    let follows = Effect::Follow { leader: Some((record.endpoint.clone(), record.term)) };
    let entry = Some(Entry { stamp, record });
    job.store = Store { revision: stamp.revision.0, entry, lease: 1, garbage: None };
    job.are_unreachable[1 - leader] = false;
    job.now += 2 * SECOND;
    job.processes[1 - leader].handle_timeout(job.now);
    job.answer(1 - leader);
    assert_eq!(job.processes[1 - leader].poll_effect(), Some(follows));
    job.watch();
    job.carry_out();
    assert_eq!(job.led(1 - leader), []);
    job.pass(20 * SECOND);
    assert_eq!((job.leader(), job.led(leader).len()), (Some(leader), 1));
}

/// A leader that reaches the store writes a lost record again within a renewal interval. So another process waits for this time before it
/// writes a placeholder.
#[test]
fn placeholder_waits_for_the_leader() {
    let (mut job, leader) = Job::started(2);
    job.remember(leader, 1, &[]);
    job.set_unreachable(&[leader], true);
    job.store.delete();
    job.watch();
    let timers = ClaimTimers::default();
    job.pass(timers.renewal - MS);
    assert_eq!(job.store.entry, None);
    job.pass(timers.spread + MS);
    assert_eq!(job.written().kind, RecordKind::Placeholder);
}

/// The store refuses a change, and its revision is lower than before: the store was emptied. The leader's next change
/// creates the key, even if the watch reports nothing.
#[test]
fn refusal_shows_an_empty_store() {
    let (mut job, leader) = Job::started(1);
    job.store = Store { revision: 1, lease: 1, ..Store::default() };
    job.now += ClaimTimers::default().renewal;
    job.processes[leader].handle_timeout(job.now);
    job.answer(leader);
    job.answer(leader);
    assert_eq!(job.written().process, process(leader));
}

/// A leader whose store comes back with a record of its own earlier term writes its present one at once.
#[test]
fn own_older_record_is_replaced() {
    let (mut job, leader) = Job::started(1);
    let copy = job.store.clone();
    job.processes[leader].handle_highest(job.now, Term(1_000_000 << 16));
    job.pass(20 * SECOND);
    let term = job.written().term;
    assert!(term > copy.entry.as_ref().unwrap().record.term);
    job.store = Store { lease: 1, ..copy };
    job.watch();
    job.carry_out();
    assert_eq!((job.written().term, job.leader()), (term, Some(leader)));
}

/// The store may create the key late, after another process has led. So a follower that finds its own record from such a change waits for
/// a silence before it stands. With a later record it stands at once, because no other process has led.
#[test]
fn own_late_record_is_not_trusted() {
    let timers = ClaimTimers::default();
    for (created, waits) in [(5, timers.silence), (4, Duration::ZERO)] {
        let (mut job, leader) = Job::started(1);
        let stamp = Stamp { revision: Revision(99), lease: 0 };
        let entry = Entry { stamp, record: Record { number: 5, ..job.written().clone() } };
        let mut follower = Job::new(1).processes.remove(leader);
        follower.created = created;
        job.now += SECOND;
        let value = KeyContent { revision: Revision(99), entry: Some(entry), garbage: None };
        follower.handle_value(job.now, value);
        let stands = iter::from_fn(|| follower.poll_effect())
            .any(|effect| matches!(effect, Effect::Change { .. }));
        assert_eq!(stands, waits.is_zero());
        assert!(stands || follower.poll_timeout() == Some(job.now + waits));
    }
}
