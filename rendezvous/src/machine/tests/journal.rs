//! The journal: the events of a job, their causes, and the cost of a restart.

use std::{collections::BTreeSet, mem, time::Duration};

use super::{
    fixture::{Fixture, NAMES, SECOND},
    stalling::keep_alive_at,
};
use crate::{
    account::TimeState,
    event::{Event, EventId, EventKind, RestartCause, RestartStages, RestartSum},
    ids::Term,
    message::NodeState,
    snapshot::{RestartsByCause, Snapshot},
};

/// Returns each event since the last call with its node, and the kind of its cause, if it is one of them.
fn recorded(t: &mut Fixture) -> Vec<String> {
    let events = mem::take(&mut t.events);
    let cause = |event: &Event| events.iter().find(|other| Some(other.id) == event.cause);
    let describe = |event: &Event| {
        let node = event.node.as_ref().map(|node| format!(" {}", node.host_name));
        let cause = cause(event).map(|cause| format!(" <- {}", cause.kind.name()));
        format!("{}{}{}", event.kind.name(), node.unwrap_or_default(), cause.unwrap_or_default())
    };
    events.iter().map(describe).collect()
}

fn snapshot(t: &Fixture) -> Snapshot {
    t.machine.snapshot(t.now)
}

/// The failure of a worker is the cause of all that follows it, until the workers run again; that is its cost.
#[test]
fn failure_is_the_cause_of_what_follows() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    let begin = [
        "coordinator_started",
        "gathering <- coordinator_started",
        "round_admitted <- coordinator_started",
        "workers_started <- round_admitted",
        "restart_cost <- coordinator_started",
    ];
    assert_eq!(recorded(&mut t), begin);
    t.live(&["a", "b"], 100 * SECOND);
    t.fail("b", Duration::ZERO);
    t.alive("a");
    t.live(&["a", "b"], 3 * SECOND);
    t.report("b", NodeState::Preparing);
    t.report("a", NodeState::Preparing);
    t.live(&["a", "b"], 2 * SECOND);
    t.back("a");
    t.back("b");
    t.live(&["a", "b"], SECOND);
    t.report("a", NodeState::Running);
    assert_eq!(snapshot(&t).last_restart.unwrap().why, RestartCause::FirstStart);
    t.report("b", NodeState::Running);
    let failed = [
        "worker_failed b",
        "round_ended <- worker_failed",
        "failure_charged b <- worker_failed",
        "round_stopped <- round_ended",
        "round_admitted <- round_ended",
        "workers_started <- round_admitted",
        "restart_cost <- round_ended",
    ];
    assert_eq!(recorded(&mut t), failed);
    let Snapshot { last_restart, restarts, time, .. } = snapshot(&t);
    let cost = last_restart.unwrap();
    let stages = RestartStages {
        saving_ms: 0,
        stopping_ms: 3_000,
        waiting_ms: 0,
        rendezvous_ms: 2_000,
        starting_ms: 1_000,
    };
    assert_eq!((cost.why, cost.stages), (RestartCause::WorkerFailed, stages));
    assert!(cost.is_complete && cost.redone_steps.is_none());
    let sum = RestartSum { count: 1, cost_ms: 6_000, redone_steps: 0 };
    assert_eq!(restarts[1], RestartsByCause { cause: RestartCause::WorkerFailed, sum });
    assert!(
        time.productive_ratio().is_none()
            && time.of("unknown") == 100_000
            && time.of("stopping") == 3_000
    );
}

/// A lost node is the cause of the end of the round, and the wait for another one is counted apart.
#[test]
fn wait_for_a_node_is_counted() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    recorded(&mut t);
    t.die("b");
    t.report("a", NodeState::Preparing);
    t.back("a");
    t.live(&["a"], 2 * SECOND);
    t.join("c");
    t.report("a", NodeState::Running);
    t.report("c", NodeState::Running);
    let lost = [
        "node_lost b",
        "round_ended <- node_lost",
        "round_stopped <- round_ended",
        "round_admitted <- round_ended",
        "workers_started <- round_admitted",
        "restart_cost <- round_ended",
    ];
    assert_eq!(recorded(&mut t), lost);
    assert_eq!(snapshot(&t).last_restart.unwrap().stages.waiting_ms, 2_000);
}

/// The account and the costs of restarts continue after a restart of the coordinator, which costs at most the last minute.
#[test]
fn account_survives_the_coordinator() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.live(&["a", "b"], 150 * SECOND);
    let before = snapshot(&t);
    assert_eq!(before.time.of("unknown"), 150_000);
    t.restart_coordinator();
    let after = snapshot(&t);
    assert_eq!(after.time.of("unknown"), 120_000);
    assert_eq!(after.restarts, before.restarts);
    recorded(&mut t);
    t.register("a", NodeState::Running);
    t.register("b", NodeState::Running);
    assert_eq!(recorded(&mut t)[0], "recovered");
    let last = t.machine.snapshot(t.now + 7 * SECOND).time;
    assert_eq!(last.now.as_deref(), Some(TimeState::Stopping.name()));
    assert_eq!(last.of("stopping"), 7_000);
}

/// A member that has processes of a stopped round after all is recorded, and the end of these processes again.
#[test]
fn round_that_still_stops_is_recorded() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.fail("a", Duration::ZERO);
    for name in ["a", "b"] {
        t.report(name, NodeState::Preparing);
    }
    recorded(&mut t);
    t.register("b", NodeState::Stopping);
    t.report("b", NodeState::Preparing);
    assert_eq!(recorded(&mut t), ["round_still_stopping", "round_stopped"]);
}

/// Many failures of one round are not all recorded.
#[test]
fn failures_of_a_round_are_bounded() {
    let names: Vec<&str> = NAMES.into_iter().filter(|name| name.len() == 1).collect();
    let mut t = Fixture::new(19, 19);
    t.run(&names);
    recorded(&mut t);
    for name in &names {
        t.fail(name, Duration::ZERO);
    }
    for name in &names {
        t.report(name, NodeState::Preparing);
    }
    let is_failure = |event: &&String| event.starts_with("worker_failed");
    let others = t.events.iter().find_map(|event| match &event.kind {
        EventKind::FailureCharged { others, .. } => Some(*others),
        _ => None,
    });
    assert_eq!(others, Some(18));
    assert_eq!(recorded(&mut t).iter().filter(is_failure).count(), 17);
}

/// Until enough nodes are there, a job waits for them. Its last call belongs to the rendezvous.
#[test]
fn last_call_is_no_waiting() {
    let mut t = Fixture::with(2, 3, |shared| shared.timeouts.last_call = 60 * SECOND);
    t.join("a");
    t.live(&["a"], 10 * SECOND);
    t.join("b");
    t.live(&["a", "b"], 5 * SECOND);
    let time = snapshot(&t).time;
    assert_eq!((time.of("waiting"), time.of("rendezvous")), (10_000, 5_000));
}

/// Steps divide the time of the workers: until the first one they start, then they make progress, and steps that are done again
/// after a failure are counted.
#[test]
fn steps_are_accounted_for() {
    let mut t = Fixture::new(1, 1);
    t.run(&["a"]);
    let at_step = |t: &mut Fixture, step| {
        t.live(&["a"], SECOND);
        t.message("a", keep_alive_at(step));
    };
    t.live(&["a"], 9 * SECOND);
    (100..120).for_each(|step| at_step(&mut t, step));
    recorded(&mut t);
    assert_eq!(snapshot(&t).last_restart.unwrap().stages.starting_ms, 10_000);
    t.fail("a", Duration::ZERO);
    t.report("a", NodeState::Preparing);
    t.back("a");
    t.report("a", NodeState::Running);
    t.live(&["a"], 4 * SECOND);
    assert_eq!(snapshot(&t).time.now.as_deref(), Some("starting"));
    at_step(&mut t, 115);
    let after = [
        "worker_failed a",
        "round_ended <- worker_failed",
        "failure_charged a <- worker_failed",
        "round_stopped <- round_ended",
        "round_admitted <- round_ended",
        "workers_started <- round_admitted",
        "first_progress <- round_admitted",
        "restart_cost <- round_ended",
    ];
    assert_eq!(recorded(&mut t), after);
    let Snapshot { last_restart, restarts, time, .. } = snapshot(&t);
    let cost = last_restart.unwrap();
    assert_eq!((cost.stages.starting_ms, cost.redone_steps), (5_000, Some(5)));
    assert_eq!(restarts[1].sum.redone_steps, 5);
    let states = ["starting", "productive", "stopping"].map(|state| time.of(state));
    assert_eq!((states, time.redone_ms), ([15_000, 19_000, 0], 5_000));
    assert!(time.productive_ratio().is_some());
}

/// A voter that stops answering has one event, and one when it answers again, unless it was replaced.
/// Their number is limited.
#[test]
fn silent_voters_are_recorded() {
    let mut t = Fixture::new(1, 1);
    t.join("a");
    t.drain();
    t.events.clear();
    let listed = ["n0:1", "n1:1", "n2:1"].map(str::to_owned).into();
    let mut kinds = |silent: &[&str], listed: &BTreeSet<String>| {
        t.machine.handle_silent_voters(silent.iter().map(|&it| it.to_owned()).collect(), listed);
        t.drain();
        mem::take(&mut t.events).into_iter().map(|event| event.kind).collect::<Vec<_>>()
    };
    let silent = |voter: &str| EventKind::VoterSilent { voter: voter.to_owned() };
    let back = |voter: &str| EventKind::VoterBack { voter: voter.to_owned() };
    assert_eq!(kinds(&[], &listed), []);
    assert_eq!(kinds(&["n1:1"], &listed), [silent("n1:1")]);
    assert_eq!(kinds(&["n1:1"], &listed), []);
    assert_eq!(kinds(&["n2:1"], &listed), [back("n1:1"), silent("n2:1")]);
    assert_eq!(kinds(&[], &["n0:1".to_owned()].into()), [], "it was replaced");
    let all: Vec<EventKind> =
        (0..100).flat_map(|_| [kinds(&["n1:1"], &listed), kinds(&[], &listed)].concat()).collect();
    assert_eq!(all.len(), 2 * 62);
    assert_eq!(all.last(), Some(&back("n1:1")));
    let now: BTreeSet<String> = ["n2:1".to_owned()].into();
    t.machine.handle_silent_voters(now.clone(), &listed);
    assert_eq!(*t.machine.silent_voters(), now);
}

/// The identity of an event is read as it is printed, for `ragent events --since`.
#[test]
fn identities_of_events_are_read() {
    let id = EventId { term: Term(2), number: 118 };
    assert_eq!(id.to_string(), "2.118");
    assert_eq!("2.118".parse(), Ok(id));
    for wrong in ["", "2", "2.", ".118", "2.x", "2.1.1"] {
        assert!(wrong.parse::<EventId>().is_err(), "{wrong}");
    }
}
