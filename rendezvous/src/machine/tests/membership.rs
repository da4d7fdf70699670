//! Nodes are lost, replaced and added; members succeed.

use std::{net::Ipv4Addr, time::Duration};

use super::fixture::{Did, Fixture, SECOND, describe, keep_alive, ready};
use crate::message::{
    EvictReason, FromNode, JobResult, NodeState, REFUSED_CLIENTS_MAX, RefuseReason, RefusedClients,
    StandbyCounts, WaitReason,
};
use crate::{
    member_reports::MemberReports,
    snapshot::{NodeCounts, NodeStateName},
};

/// A death notice proves a death at once, regardless of the lease. A spare fills the gap at once.
#[test]
fn spare_takes_the_hole_of_a_dead_member() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.join("x"), [Did::Welcome("x"), Did::Wait("x", WaitReason::Spare)]);
    assert_eq!(t.die("a"), [Did::Restart("b", 1), Did::Wait("x", WaitReason::Gathering)]);
    let complete = [Did::Remember(2, 0), Did::Admit("b", 2, 0), Did::Admit("x", 2, 1)];
    assert_eq!(t.back("b"), complete);
}

/// A node that still prepares waits for the next round if that has room for it, and is not called a
/// spare.
#[test]
fn preparing_node_waits_for_a_round_with_room() {
    let mut t = Fixture::new(2, 3);
    t.run(&["a", "b"]);
    let wait = |reason| Did::Wait("x", reason);
    let did = t.register("x", NodeState::Preparing);
    assert_eq!(did, [Did::Welcome("x"), wait(WaitReason::NextRound)]);
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    let did = t.register("x", NodeState::Preparing);
    assert_eq!(did, [Did::Welcome("x"), wait(WaitReason::Spare)]);
}

/// An agent that is alive although its death was reported is evicted on its stream: it kills its
/// workers at once, not at the end of its lease.
#[test]
fn death_notice_of_the_living_evicts_it() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    let did = t.death_notice("b");
    assert_eq!(did, [Did::Evict("b", EvictReason::DeathNotice), Did::Restart("a", 1)]);
}

/// A silent member is lost exactly when its lease has passed, and is evicted.
#[test]
fn silent_member_is_lost_when_its_lease_has_passed() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.advance(3 * SECOND - SECOND / 1000), []);
    t.keep_alive(&["a"]);
    let lost = [Did::Evict("b", EvictReason::Silent), Did::Restart("a", 1)];
    assert_eq!(t.advance(SECOND / 1000), lost);
}

/// The end of a stream proves nothing.
#[test]
fn ended_stream_proves_nothing() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.machine.handle_detached(t.now, t.peer("b"));
    assert_eq!(t.drain(), []);
    assert_eq!(t.register("b", NodeState::Running), [Did::Welcome("b"), Did::Admit("b", 1, 1)]);
}

/// A message on an earlier stream of a node is dropped, and renews nothing.
#[test]
fn earlier_stream_is_dropped_unread() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    let old = t.peer("b");
    t.register("b", NodeState::Running);
    t.machine.handle_message(t.now, old, keep_alive(false, None, None));
    assert_eq!(t.drain(), []);
    let mut late = t.registration_of("b", ready());
    late.stream.0 = 1;
    t.machine.handle_registration(t.now, late);
    assert_eq!(t.machine.poll_effect(), None);
}

/// Delayed messages do not revive a node whose keeper has reported its death; if the node is alive
/// after all, it comes back on a later stream, as a newcomer.
#[test]
fn dead_node_stays_dead() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    let late = t.registration_of("b", NodeState::Running);
    t.register_with(late.clone());
    t.die("b");
    t.machine.handle_registration(t.now, late);
    assert_eq!(t.drain(), []);
    assert_eq!(t.report("b", NodeState::Running), []);
    assert_eq!(t.join("b"), [Did::Welcome("b"), Did::Wait("b", WaitReason::Gathering)]);
}

/// A group that would shrink waits 5 s from the loss for a replacement.
#[test]
fn shrinking_waits_for_a_replacement() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.die("b");
    t.back("a");
    assert_eq!(t.live(&["a"], 4 * SECOND), []);
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b2", 2, 1)];
    assert_eq!(t.join("b2"), [&[Did::Welcome("b2")][..], &complete].concat());
}

/// With `shrink_timeout` 0 a group shrinks at once.
#[test]
fn shrink_timeout_zero_shrinks_at_once() {
    let mut t = Fixture::with(1, 2, |shared| shared.timeouts.shrink = Duration::ZERO);
    t.run(&["a", "b"]);
    t.die("b");
    assert_eq!(t.back("a"), [Did::Remember(2, 0), Did::Admit("a", 2, 0)]);
}

/// Below `min` the members wait for the join timeout, counted from the loss. Then the job closes.
#[test]
fn below_min_closes_after_the_join_timeout() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.die("b");
    t.live(&["a"], 10 * SECOND);
    t.back("a");
    assert_eq!(t.live(&["a"], 589 * SECOND), []);
    assert_eq!(t.live(&["a"], SECOND), [Did::Remember(1, 0), Did::Close("a")]);
}

/// A new agent waits until the old one of the same node is proved dead. Then it fills the gap.
#[test]
fn new_agent_does_not_supersede_the_old_one() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.join("b2"), [Did::Welcome("b2"), Did::Wait("b2", WaitReason::Spare)]);
    assert_eq!(t.live(&["a", "b", "b2"], 60 * SECOND), [Did::Remember(1, 0)]);
    t.die("b");
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b2", 2, 1)];
    assert_eq!(t.back("a"), complete);
}

/// A member that is not back in time is evicted and counts as lost until it joins.
#[test]
fn member_that_is_not_back_is_evicted() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b", "c"]);
    t.die("c");
    t.back("a");
    assert_eq!(t.live(&["a", "b"], 34 * SECOND), []);
    assert_eq!(t.why(), "waiting for b to stop and be ready for the next round, 1 s left");
    assert_eq!(t.live(&["a", "b"], SECOND), [Did::Evict("b", EvictReason::NotBack)]);
    assert_eq!(t.live(&["a", "b"], 5 * SECOND), [Did::Remember(2, 0), Did::Admit("a", 2, 0)]);
    assert_eq!(t.back("b"), [Did::Wait("b", WaitReason::NextRound)]);
}

/// A member that has reported nothing since its admission is no candidate once it is evicted: its last report is from before that round,
/// and names the store that the round may have used.
#[test]
fn silent_member_that_is_evicted_gets_no_place() {
    let mut t = Fixture::new(1, 2);
    t.join("a");
    t.join("b");
    t.report("a", NodeState::Running);
    t.fail("a", Duration::ZERO);
    t.back("a");
    let did = t.live(&["a", "b"], 40 * SECOND);
    assert!(did.iter().any(|did| matches!(did, Did::Admit("a", ..))), "{did:?}");
    assert!(!did.iter().any(|did| matches!(did, Did::Admit("b", ..))), "{did:?}");
}

/// Nodes that wait while there is room cause one round together, `join_settle` after the first.
#[test]
fn newcomers_cause_one_round_together() {
    let mut t = Fixture::new(1, 4);
    t.run(&["a"]);
    assert_eq!(t.join("b"), [Did::Welcome("b"), Did::Wait("b", WaitReason::NextRound)]);
    t.live(&["a", "b"], 2 * SECOND);
    t.join("c");
    assert_eq!(t.why(), "2 nodes are waiting: a new round begins in 1 s");
    let did = t.live(&["a", "b", "c"], SECOND);
    let gathering = [Did::Wait("b", WaitReason::Gathering), Did::Wait("c", WaitReason::Gathering)];
    assert_eq!(did, [&[Did::Restart("a", 1)][..], &gathering].concat());
    assert_eq!(t.back("a").len(), 4);
}

/// The second voluntary round comes at least twice `join_settle` after the first.
#[test]
fn trickle_of_newcomers_is_spaced() {
    let mut t = Fixture::new(1, 4);
    t.run(&["a"]);
    t.join("b");
    t.live(&["a", "b"], 3 * SECOND);
    t.back("a");
    t.join("c");
    assert_eq!(t.live(&["a", "b", "c"], 5 * SECOND), []);
    assert_eq!(t.live(&["a", "b", "c"], SECOND).len(), 3);
}

/// After the first success, waiting nodes do not interrupt the round; when all members have
/// succeeded, so has the job.
#[test]
fn success_is_not_interrupted() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b"]);
    assert_eq!(t.report("a", NodeState::Succeeded), []);
    t.join("c");
    assert_eq!(t.live(&["a", "b", "c"], 60 * SECOND), [Did::Remember(1, 0)]);
    let close = [Did::Remember(1, 0), Did::Close("a"), Did::Close("b"), Did::Close("c")];
    assert_eq!(t.report("b", NodeState::Succeeded), close);
    assert_eq!(t.outcome().expect("closed").result, JobResult::Succeeded);
    assert_eq!(t.message("a", FromNode::Goodbye), []);
    assert_eq!(t.message("c", FromNode::Goodbye), []);
    assert_eq!(t.advance(3 * SECOND), [Did::Evict("b", EvictReason::Silent), Did::Finish]);
}

/// A node that has succeeded and is lost is not waited for.
#[test]
fn lost_success_counts() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.report("a", NodeState::Succeeded);
    assert_eq!(t.die("a"), []);
    let closed = [Did::Remember(1, 0), Did::Close("b")];
    assert_eq!(t.report("b", NodeState::Succeeded), closed);
    assert_eq!(t.outcome().expect("closed").result, JobResult::Succeeded);
}

/// The coordinator of a job that has succeeded stays for a member that was unreachable after its
/// success, so that it receives the result when it is back.
#[test]
fn unreachable_success_receives_the_outcome() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.report("b", NodeState::Succeeded);
    t.live(&["a"], 4 * SECOND);
    t.report("a", NodeState::Succeeded);
    assert_eq!(t.message("a", FromNode::Goodbye), []);
    assert_eq!(t.advance(20 * SECOND), []);
    let outcome = t.outcome().expect("closed");
    let refused = Did::Refuse("b", RefuseReason::Closed(outcome));
    assert_eq!(t.register("b", NodeState::Succeeded), [refused]);
    assert_eq!(t.advance(15 * SECOND), [Did::Finish]);
}

/// Nodes that had succeeded take part again when a failure ends the round.
#[test]
fn success_is_repeated_after_a_failure() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.report("a", NodeState::Succeeded);
    let did = t.fail("b", Duration::ZERO);
    assert_eq!(did, [Did::Probe("a"), Did::Restart("a", 1)]);
    assert_eq!(t.back("a"), [Did::Wait("a", WaitReason::Gathering)]);
    assert_eq!(t.back("b").len(), 3);
}

/// A node that runs workers in a round of which it is not a member is evicted, and joins again.
#[test]
fn straggler_is_evicted_and_joins_again() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.live(&["a"], 4 * SECOND);
    let evicted = [Did::Welcome("b"), Did::Evict("b", EvictReason::Silent)];
    assert_eq!(t.register("b", NodeState::Running), evicted);
    let wait = Did::Wait("b", WaitReason::Gathering);
    assert_eq!(t.back("b"), [wait]);
    assert_eq!(t.back("a").len(), 3);
}

/// A machine whose agent is lost three times shortly after a start is quarantined with its next
/// agent.
#[test]
fn new_agent_inherits_being_quarantined() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    for (old, new) in [("b", "b2"), ("b2", "b3"), ("b3", "b4")] {
        t.die(old);
        t.join(new);
        t.back("a");
    }
    assert_eq!(t.state_of("b4"), NodeStateName::Quarantined);
}

/// A group that is large enough is not given up, even if it waits long before it may shrink.
#[test]
fn shrinking_may_take_longer_than_joining() {
    let mut t = Fixture::with(1, 2, |shared| shared.timeouts.shrink = 3600 * SECOND);
    t.run(&["a", "b"]);
    t.die("b");
    t.back("a");
    assert_eq!(t.live(&["a"], 700 * SECOND), []);
    let wait = Did::Wait("b2", WaitReason::Gathering);
    assert_eq!(t.register("b2", NodeState::Preparing), [Did::Welcome("b2"), wait]);
    assert_eq!(t.outcome(), None);
}

/// A report on a stream that is newer than the admission counts, though it refers to an older
/// round: the member never received the admission. Workers of other members may have used its store, so it opens another one first.
#[test]
fn lost_admission_does_not_hold_up_the_next_round() {
    let mut t = Fixture::with(2, 3, |shared| shared.timeouts.shrink = Duration::ZERO);
    t.join("a");
    t.join("b");
    t.join("c");
    t.rounds.remove("b");
    t.report("a", NodeState::Running);
    t.report("c", NodeState::Running);
    t.die("c");
    t.back("a");
    assert_eq!(t.join("b"), [Did::Welcome("b"), Did::Restart("b", 1)]);
    assert_eq!(t.back("b"), [Did::Evict("b", EvictReason::Silent)]);
    let complete = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
    assert_eq!(t.reopen("b"), [&[Did::Restart("b", 1)][..], &complete].concat());
}

/// A node that comes back after a round was formed may have been in it without its knowledge. It gets a place once it has opened another
/// store. A node that has known the round, or has never connected before, keeps its store.
#[test]
fn node_that_may_have_been_admitted_opens_another_store() {
    let mut t = Fixture::with(1, 3, |shared| shared.timeouts.join_settle = 3_600 * SECOND);
    t.run(&["a", "b"]);
    assert_eq!(t.join("c"), [Did::Welcome("c"), Did::Wait("c", WaitReason::NextRound)]);
    t.rounds.remove("b");
    t.die("b");
    let waits = || Did::Wait("b", WaitReason::Gathering);
    assert_eq!(t.join("b"), [Did::Welcome("b"), waits()], "it has not reported yet");
    assert_eq!(t.back("b"), [Did::Evict("b", EvictReason::Silent)]);
    assert_eq!(t.back("b"), [], "with the same store");
    // It connects again before it is evicted, and may have another store by now. So the coordinator waits for its report.
    assert_eq!(t.join("b"), [Did::Welcome("b"), waits()]);
    assert_eq!(t.back("b"), [Did::Evict("b", EvictReason::Silent)]);
    assert_eq!(t.report("b", NodeState::Preparing), [waits()]);
    assert_eq!(t.back("b"), []);
    assert_eq!(t.back("a").len(), 4, "a round of three");

    // With a fixed port, its next store has the same one.
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    let round = t.rounds.remove("b").unwrap();
    t.die("b");
    t.join("b");
    assert_eq!(t.back("b"), [Did::Evict("b", EvictReason::Silent)]);
    t.rounds.insert("b".to_owned(), round);
    assert_eq!(t.back("b"), [waits()]);
}

/// A report about an older round on the stream of the admission has crossed it, and is dropped.
#[test]
fn report_that_crosses_the_admission_is_dropped() {
    let mut t = Fixture::with(2, 3, |shared| shared.timeouts.shrink = Duration::ZERO);
    t.join("a");
    t.join("b");
    t.join("c");
    t.die("c");
    t.back("a");
    let round = t.rounds.remove("b").expect("admitted");
    assert_eq!(t.back("b"), []);
    t.rounds.insert("b".to_owned(), round);
    assert_eq!(t.back("b").len(), 3);
}

/// Clients that the round's store has refused are reported to its other members and in the
/// snapshot, and again on a new stream: a bounded number, only from the node that serves the store,
/// and not in the next round.
#[test]
fn refused_clients_are_reported_to_all_members() {
    let refused = |t: &Fixture, name: &str, hosts: u8| {
        let addresses = (1..=hosts).map(|host| Ipv4Addr::new(10, 0, 0, host).into()).collect();
        FromNode::RefusedClients(RefusedClients { round: t.rounds[name], addresses })
    };
    let mut t = Fixture::new(3, 3);
    t.run(&["a", "b", "c"]);
    t.join("x");
    let forwarded = [Did::RefusedClients("b", 1), Did::RefusedClients("c", 1)];
    assert_eq!(t.message("a", refused(&t, "a", 1)), forwarded);
    assert_eq!(t.message("a", refused(&t, "a", 1)), [], "nothing new");
    assert_eq!(t.message("b", refused(&t, "b", 2)), [], "it does not serve the store");
    let again = t.register("c", NodeState::Running);
    assert_eq!(again, [Did::Welcome("c"), Did::Admit("c", 1, 2), Did::RefusedClients("c", 1)]);
    t.message("a", refused(&t, "a", u8::MAX));
    let of_snapshot = |t: &Fixture| t.machine.snapshot(t.now).refused_clients.len();
    assert_eq!(of_snapshot(&t), REFUSED_CLIENTS_MAX);
    let late = refused(&t, "a", 1);
    t.die("b");
    for name in ["a", "c"] {
        t.back(name);
    }
    assert_eq!(of_snapshot(&t), 0);
    assert_eq!(t.message("a", late), [], "of an earlier round");
}

/// The members with the lowest ranks succeed the coordinator, without the node in its own process and without lost
/// members.
#[test]
fn successors_have_the_lowest_ranks() {
    let names = |t: &Fixture| {
        let successors = t.machine.successors();
        successors.iter().map(|one| one.process.to_string()).collect::<Vec<_>>().join(" ")
    };
    let mut t = Fixture::new(2, 5).host("b");
    assert_eq!(names(&t), "");
    t.run(&["a", "b", "c", "d", "e"]);
    assert_eq!(names(&t), "a c d");
    let endpoint = t.machine.successors()[0].endpoint.clone();
    let described = describe("a");
    assert_eq!(endpoint, format!("{}:{}", described.address, described.agent_port));
    t.die("c");
    assert_eq!(names(&t), "a d e");
}

/// Changed members are reported, at most once a second, until a report was sent.
#[test]
fn changed_members_are_reported() {
    let (mut t, mut reports) = (Fixture::new(1, 2), MemberReports::default());
    assert_eq!(reports.poll_timeout(), None);
    t.run(&["a"]);
    let try_to_send = |reports: &mut MemberReports, t: &Fixture, is_sent: bool| {
        let mut tries = 0;
        reports.handle_timeout(t.now, &t.machine, |report| {
            assert_eq!(report, t.machine.members());
            tries += 1;
            is_sent
        });
        tries
    };
    reports.note_change(t.now);
    assert_eq!(reports.poll_timeout(), Some(t.now));
    assert_eq!(try_to_send(&mut reports, &t, false), 1);
    assert_eq!(reports.poll_timeout(), Some(t.now + SECOND), "it is repeated");
    t.now += SECOND;
    assert_eq!(try_to_send(&mut reports, &t, true), 1);
    reports.note_change(t.now);
    assert_eq!(reports.poll_timeout(), Some(t.now + SECOND));
    t.now += 2 * SECOND;
    assert_eq!(try_to_send(&mut reports, &t, true), 0, "nothing has changed");
    assert_eq!(reports.poll_timeout(), None);
    t.now += 2 * SECOND;
    reports.note_change(t.now);
    assert_eq!(reports.poll_timeout(), Some(t.now));
}

/// A snapshot has the members by rank, including lost members, and then all other nodes by id. Each has the
/// age of its own step.
#[test]
fn snapshot_lists_members_and_others() {
    let mut t = Fixture::new(2, 3);
    t.run(&["m", "c", "x"]);
    for name in ["y", "a", "n"] {
        t.join(name);
    }
    let listed = |t: &Fixture| {
        let nodes = t.machine.snapshot(t.now).nodes;
        let facts = nodes.into_iter().map(|node| {
            (node.node_id.as_str().to_owned(), node.group_rank.map(|rank| rank.0), node.state)
        });
        facts.collect::<Vec<_>>()
    };
    let ranks: Vec<u32> = listed(&t).iter().filter_map(|(_, rank, _)| *rank).collect();
    assert_eq!(ranks, [0, 1, 2]);
    let members: Vec<String> = listed(&t).into_iter().take(3).map(|(name, ..)| name).collect();
    let names = |t: &Fixture| listed(t).into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
    let others = ["a", "n", "y"].map(str::to_owned);
    assert_eq!(names(&t), [&members[..], &others].concat());
    t.die("c");
    assert_eq!(names(&t), [&members[..], &others].concat(), "a lost member is listed");
    let lost: Vec<_> = listed(&t).into_iter().filter(|(_, rank, _)| rank.is_none()).collect();
    assert_eq!(lost[0], ("c".to_owned(), None, NodeStateName::Lost));
    assert!(lost[1..].iter().all(|(_, _, state)| *state != NodeStateName::Lost), "{lost:?}");
}

/// The counts are those of the nodes in the snapshot: by state, of standbys, and the longest silence of a node that is not lost.
#[test]
fn counts_are_those_of_the_snapshot() {
    let mut t = Fixture::new(2, 3);
    t.run(&["m", "c", "x"]);
    for (name, size) in [("m", 3), ("x", 4)] {
        let standbys = StandbyCounts { ready: 1, importing: 1, size, obstacle: None };
        t.message(name, FromNode::Standbys(standbys));
    }
    t.join("y");
    t.die("c");
    t.advance(SECOND);
    let counts = t.machine.counts(t.now);
    let nodes = t.machine.snapshot(t.now).nodes;
    let of_snapshot = |state| nodes.iter().filter(|node| node.state == state).count();
    for (state, count) in counts.nodes.states() {
        assert_eq!(count, of_snapshot(state) as u64, "{state:?}");
    }
    assert_eq!((nodes.len(), of_snapshot(NodeStateName::Lost)), (4, 1));
    let there = nodes.iter().filter(|node| node.state != NodeStateName::Lost);
    let longest = there.map(|node| Duration::from_millis(node.last_seen_ms)).max();
    assert_eq!((Some(counts.longest_silence), longest), (longest, Some(SECOND)));
    let NodeCounts { standbys_ready, standbys_importing, standbys_wanted, .. } = counts.nodes;
    assert_eq!((standbys_ready, standbys_importing, standbys_wanted), (2, 2, 7));
    assert_eq!(counts.job, t.machine.snapshot(t.now).without_nodes());
}
