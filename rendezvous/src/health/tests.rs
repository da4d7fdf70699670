//! Which unhealthy and excluded nodes get a place, which failures are free, and which rounds end.

use std::time::Duration;

use HealthClass::{Gone, Replace, Reset};

use super::*;
use crate::{fixture::TestJob, limits::SET_ASIDE_TIME, message::Unhealthy};

/// Lets a node report that its machine has this need.
fn ail(t: &mut TestJob, name: &str, class: HealthClass, kind: &str) {
    let (kind, reason) = (kind.to_owned(), format!("GPU 3: {kind}"));
    t.report(name, |report| report.unhealthy = Some(Box::new(Unhealthy { class, kind, reason })));
}

fn heal(t: &mut TestJob, name: &str) {
    t.report(name, |report| report.unhealthy = None);
}

fn set_aside(t: &mut TestJob, health: &JobHealth) {
    let aside = health.aside(&t.job, t.shared()).expect("it is decided");
    for id in t.job.roster.unfit().clone() {
        t.job.roster.get_mut(&id).expect("a known node").is_aside = aside.contains(&id);
        t.job.roster.index_readiness(&id, false);
    }
}

/// Forms the next round of all nodes that are not set aside. Returns its members.
fn next_round(t: &mut TestJob, health: &mut JobHealth) -> Vec<String> {
    if t.job.phase.running().is_some() {
        t.end_round();
    }
    set_aside(t, health);
    let placed: Vec<NodeId> = t.job.roster.ready().iter().cloned().collect();
    health.begin_round(&t.job, &placed, &mut t.out);
    let names: Vec<String> = placed.iter().map(ToString::to_string).collect();
    t.begin_round(&names);
    names
}

/// A failure is free if its machine needs a reset or a replacement, and the others are enough. Without a GPU it is charged: the
/// reason may be the script's.
#[test]
fn failures_of_dispensable_machines_are_free() {
    let is_free = |min, max, names: &[&str], class| {
        let mut t = TestJob::new(min, max, names);
        t.begin_round(&names[..names.len().min(max as usize)]);
        ail(&mut t, "b", class, "xid_79");
        JobHealth::default().why_free(&t.job, &NodeId::new("b")).is_some()
    };
    assert!(is_free(1, 2, &["a", "b"], Reset) && is_free(1, 2, &["a", "b"], Replace));
    assert!(!is_free(1, 2, &["a", "b"], Gone));
    assert!(!is_free(2, 2, &["a", "b"], Replace) && !is_free(2, 3, &["a", "b"], Replace));
    assert!(is_free(2, 2, &["a", "b", "spare"], Replace));
}

/// A machine that the job needs keeps its place. An event names it once, and another one once it is healthy again.
#[test]
fn needed_machine_keeps_its_place() {
    for class in [Reset, Replace, Gone] {
        let (mut t, mut health) = (TestJob::new(2, 2, &["a", "b"]), JobHealth::default());
        ail(&mut t, "b", class, "xid_79");
        for _ in 0..2 {
            assert_eq!(next_round(&mut t, &mut health), ["a", "b"]);
        }
        heal(&mut t, "b");
        for _ in 0..2 {
            health.note_recovery(&t.job, &NodeId::new("b"), &mut t.out);
        }
        let reason = "GPU 3: xid_79".to_owned();
        let shown = EventKind::NodeUnhealthy { class, reason, is_set_aside: false };
        assert_eq!(t.events(), [shown, EventKind::NodeHealthy]);
    }
}

/// If the others do not reach MIN, as many bad machines get a place as are needed, those that need least first. A machine
/// whose GPU is gone does not help. Neither does an excluded host.
#[test]
fn job_uses_the_best_of_the_bad_machines() {
    let mut t = TestJob::new(3, 9, &["a", "b", "c", "d", "e", "f"]);
    t.job.roster.exclude([("f".to_owned(), "drained".to_owned())].into());
    for (name, class) in [("b", Gone), ("c", Replace), ("d", Reset), ("e", Replace)] {
        ail(&mut t, name, class, &format!("{class:?}"));
    }
    t.report("f", |_| {});
    assert_eq!(next_round(&mut t, &mut JobHealth::default()), ["a", "c", "d"]);
}

/// One kind of reason sets aside at most MAX - MIN nodes in ten minutes, and another kind as many. Beyond that, the nodes
/// keep their places.
#[test]
fn same_reason_on_many_nodes_is_not_believed() {
    let (mut t, mut health) = (TestJob::new(2, 4, &["a", "b", "c", "d"]), JobHealth::default());
    ["b", "c", "d"].iter().for_each(|name| ail(&mut t, name, Reset, "xid_119"));
    assert_eq!(next_round(&mut t, &mut health), ["a", "d"], "two of three are set aside");
    ["b", "c", "d"].iter().for_each(|name| heal(&mut t, name));
    assert_eq!(next_round(&mut t, &mut health), ["a", "b", "c", "d"]);
    ail(&mut t, "a", Reset, "xid_119");
    assert_eq!(next_round(&mut t, &mut health), ["a", "b", "c", "d"], "the valve is closed");
    ail(&mut t, "d", Reset, "xid_48");
    assert_eq!(next_round(&mut t, &mut health), ["a", "b", "c"]);
    heal(&mut t, "d");
    t.pass(SET_ASIDE_TIME);
    assert_eq!(next_round(&mut t, &mut health), ["b", "c", "d"], "it is open again");
}

/// If one kind of reason sets aside one of two nodes, it is the worse one, although the other one has had no place so far.
#[test]
fn worst_machine_is_set_aside_first() {
    let (mut t, mut health) = (TestJob::new(3, 4, &["a", "b", "c"]), JobHealth::default());
    next_round(&mut t, &mut health);
    t.join("d");
    ail(&mut t, "d", Replace, "xid_119");
    set_aside(&mut t, &health);
    assert!(t.job.roster.ready().is_empty(), "no round is interrupted for it");
    ail(&mut t, "b", Gone, "xid_119");
    assert_eq!(next_round(&mut t, &mut health), ["a", "c", "d"]);
}

/// If all nodes report a reason, they keep their places. A job with fixed ranks needs all its nodes.
#[test]
fn nobody_is_set_aside_without_others() {
    for is_fixed in [false, true] {
        let (min, sick) = if is_fixed { (3, 1) } else { (1, 3) };
        let names = ["a", "b", "c"];
        let mut t = TestJob::with(min, 3, &names, |shared| shared.fixed_ranks = is_fixed);
        names[..sick].iter().for_each(|name| ail(&mut t, name, Replace, "xid_79"));
        if is_fixed {
            t.join("spare");
        }
        let aside = JobHealth::default().aside(&t.job, t.shared());
        assert_eq!(aside, Some(BTreeSet::new()), "{is_fixed}");
    }
}

/// A node that is set aside counts for as long as it is, also after ten minutes. Otherwise the places of two such nodes would
/// change again and again.
#[test]
fn places_do_not_change_again_and_again() {
    let (mut t, mut health) = (TestJob::new(1, 2, &["a", "b"]), JobHealth::default());
    next_round(&mut t, &mut health);
    t.join("c");
    ail(&mut t, "b", Replace, "xid_79");
    assert!(health.why_free(&t.job, &NodeId::new("b")).is_some());
    assert_eq!(next_round(&mut t, &mut health), ["a", "c"]);
    ail(&mut t, "c", Replace, "xid_79");
    for _ in 0..2 {
        t.pass(SET_ASIDE_TIME);
        assert_eq!(health.why_free(&t.job, &NodeId::new("c")), None, "it keeps its place");
        assert_eq!(next_round(&mut t, &mut health), ["a", "c"]);
    }
}

/// A late check ends the round only if the machine must be replaced, the job can go on, and no work would be saved in vain or done again.
#[test]
fn late_check_ends_the_round() {
    let ends = |min, class, is_saving, succeeds| {
        let mut t = TestJob::new(min, 2, &["a", "b"]);
        t.begin_round(&["a", "b"]);
        ail(&mut t, "b", class, "xid_79");
        if succeeds {
            t.group().set_succeeded(&NodeId::new("a"));
        }
        JobHealth::default().why_end(&t.job, &NodeId::new("b"), is_saving).is_some()
    };
    assert!(ends(1, Replace, false, false) && ends(1, Gone, false, false));
    assert!(!ends(1, Reset, false, false) && !ends(2, Gone, false, false), "it is needed");
    assert!(!ends(1, Replace, true, false) && !ends(1, Replace, false, true));
}

/// A node does not end the round if it reports the same as when it got its place. A worse report does.
#[test]
fn known_reason_does_not_end_the_round() {
    let (mut t, mut health) = (TestJob::new(2, 3, &["a", "b"]), JobHealth::default());
    let ends = |t: &TestJob, health: &JobHealth| health.why_end(&t.job, &NodeId::new("b"), false);
    ail(&mut t, "b", Replace, "xid_79");
    next_round(&mut t, &mut health);
    t.join("c");
    assert_eq!(ends(&t, &health), None);
    ail(&mut t, "b", Gone, "xid_79");
    assert!(ends(&t, &health).is_some());
    t.report("b", |report| report.state = NodeState::Succeeded);
    assert_eq!(ends(&t, &health), None, "a node whose workers have succeeded");
}

/// A member on an excluded host is replaced if all ranks can save first, and a ready node takes its place.
#[test]
fn excluded_member_is_replaced_after_a_save() {
    let is_possible = |names: &[&str], excluded: &str, notice: u64, has_saved: bool| {
        let notice = Duration::from_secs(notice);
        let mut t = TestJob::with(1, 2, names, |shared| shared.notice = notice);
        t.begin_round(&["a", "b"]);
        t.job.roster.exclude([(excluded.to_owned(), "slow".to_owned())].into());
        t.report("b", |_| {});
        let group = t.job.phase.group().expect("a round");
        JobHealth::default().can_replace_excluded(&t.job, group, has_saved)
    };
    assert!(is_possible(&["a", "b", "c"], "b", 60, true));
    assert!(!is_possible(&["a", "b", "c"], "b", 60, false), "not saved");
    assert!(!is_possible(&["a", "b", "c"], "b", 0, true), "no time to save");
    assert!(!is_possible(&["a", "b"], "b", 60, true), "no other node");
    assert!(!is_possible(&["a", "b", "c"], "x", 60, true), "no member");
}

/// A node that was lost is forgotten: its reason is an event again if it returns with it.
#[test]
fn lost_node_is_forgotten() {
    let (mut t, mut health) = (TestJob::new(2, 2, &["a", "b"]), JobHealth::default());
    ail(&mut t, "b", Reset, "xid_79");
    for events in [1, 0] {
        next_round(&mut t, &mut health);
        assert_eq!(t.events().len(), events);
    }
    health.forget(&NodeId::new("b"));
    next_round(&mut t, &mut health);
    assert_eq!(t.events().len(), 1);
}

/// The first list of excluded hosts is awaited once.
#[test]
fn list_is_awaited_once() {
    let (mut health, now) = (JobHealth::default(), crate::fixture::some_instant());
    assert!(!health.note_list(), "nobody waits for it");
    health.await_list_until(now);
    assert!(health.note_list() && !health.note_list());
}
