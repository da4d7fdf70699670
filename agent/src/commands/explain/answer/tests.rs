use ragent_base::testing::empty_snapshot;
use ragent_base::testing::nodes;
use ragent_rendezvous::{
    event::{RestartCause, RestartSum},
    ids::Round,
    snapshot::{self, PhaseName, StateTime},
};

use super::*;

fn entry(number: u64, kind: &str, host: Option<&str>, rank: Option<u32>) -> JournalEntry {
    let line = serde_json::json!({
        "schema": 1, "id": format!("2.{number}"), "at": "2026-11-21T20:31:07Z", "round": 7,
        "kind": kind, "host": host, "cause": null, "text": format!("event {number}"),
        "data": rank.map(|rank| serde_json::json!({ "rank": rank })),
    });
    JournalEntry::read(&line.to_string()).expect("an event")
}

/// A job with three members, and a lost node.
fn job() -> Snapshot {
    let mut nodes = nodes(3, 1);
    nodes[3].state = NodeStateName::Lost;
    nodes[3].reason = Some("its agent has ended".to_owned());
    let state = |state: &str, ms| StateTime { state: state.to_owned(), ms, settled_ms: ms };
    Snapshot {
        phase: PhaseName::Running,
        phase_ms: 14_000,
        round: Round(8),
        world_size: 24,
        nodes,
        time: JobTime {
            states: vec![state("productive", 96_000), state("starting", 4_000), state("hung", 0)],
            redone_ms: 1_000,
            now: Some("productive".to_owned()),
        },
        restarts: vec![RestartsByCause {
            cause: RestartCause::WorkerFailed,
            sum: RestartSum { count: 2, cost_ms: 24_000, redone_steps: 80 },
        }],
        ..empty_snapshot()
    }
}

fn text(topic: Topic, snapshot: &Snapshot, entries: &[JournalEntry]) -> String {
    ExplainAnswer::new(&topic, snapshot, entries).text()
}

/// `explain restart` lists more restarts than the short explanation of a job.
#[test]
fn restarts_are_listed() {
    let entries: Vec<JournalEntry> =
        (1..=20).map(|number| entry(number, "round_ended", None, None)).collect();
    let count = |topic| text(topic, &job(), &entries).matches(" has ended:\n").count();
    assert_eq!((count(Topic::Job), count(Topic::Restart)), (3, RESTARTS_MAX));
    let none = text(Topic::Restart, &job(), &[]);
    let expected = "job has been running round 8 for 14.0 s.\nNo round has ended.\nStarts so far, by cause:\n  \
                    2 × failure of a worker: 24.0 s, 80 steps done again\n";
    assert_eq!(none, expected);
}

/// The time account has a row for each state in which time was spent.
#[test]
fn states_have_rows() {
    let expected = "\
job has been running round 8 for 14.0 s.
Time: 1 min 40 s in all, 95.0 % productive; lost: starting 4.0 s, redone 1.0 s
  productive    1 min 36 s   96.0 %
  starting           4.0 s    4.0 %
  1.0 s of the productive time were done again after a failure
  now: productive
";
    assert_eq!(text(Topic::Time, &job(), &[]), expected);
    assert!(text(Topic::Time, &empty_snapshot(), &[]).ends_with("Time: none yet\n"));
}

/// Nodes that delay the next round are listed by state, with the reason why it is not complete.
#[test]
fn missing_nodes_are_listed() {
    let mut snapshot = job();
    snapshot.phase = PhaseName::Gathering;
    snapshot.nodes[0].state = NodeStateName::Preparing;
    snapshot.nodes[1].state = NodeStateName::Preparing;
    snapshot.nodes[2].state = NodeStateName::Joined;
    snapshot.incomplete = Some(snapshot::Explanation {
        kind: "too_few_nodes".to_owned(),
        text: "waiting for 2 more nodes".to_owned(),
    });
    let expected = "\
job has been forming its next round for 14.0 s; the last one was 8.
  not complete: waiting for 2 more nodes
  preparing: n[0-1]
  lost: its agent has ended: n3
";
    assert_eq!(text(Topic::Wait, &snapshot, &[]), expected);
    let running = text(Topic::Wait, &Snapshot { nodes: Vec::new(), ..job() }, &[]);
    assert!(running.ends_with("  it does not wait for nodes\n"), "{running}");
}

/// A stall is explained by what the nodes have found.
#[test]
fn stall_is_explained() {
    let stall = Stall {
        step: Some(48_210),
        for_ms: 250_000,
        text: Some("rank 3 on n1 is stopped".to_owned()),
        facts: vec!["it is in load_batch at data.py:88".to_owned()],
        ..Stall::default()
    };
    let stalled = Snapshot { stall: Some(stall), ..job() };
    let expected = "\
the workers are stalled: no step after 48,210 for 4 min 10 s
rank 3 on n1 is stopped
it is in load_batch at data.py:88
";
    assert_eq!(text(Topic::Stall, &stalled, &[]), expected);
    let whole = text(Topic::Job, &stalled, &[]);
    assert!(expected.lines().all(|line| whole.contains(&format!("\n  {line}\n"))), "{whole}");
    let not_stalled = text(Topic::Stall, &job(), &[]);
    assert!(not_stalled.starts_with("The workers are not stalled. "), "{not_stalled}");
    let mut unknown = job();
    unknown.time.now = Some("unknown".to_owned());
    let text = text(Topic::Stall, &unknown, &[]);
    for part in ["No step of this job is known", "docs/progress.md", "`ragent stacks`"] {
        assert!(text.contains(part), "{text}");
    }
}

/// A worker is explained by its node and its own events. A rank without a worker is explained by its events.
#[test]
fn worker_is_explained() {
    let entries = [
        entry(1, "worker_failed", Some("n1"), Some(11)),
        entry(2, "worker_failed", Some("n1"), Some(12)),
        entry(3, "worker_failed", Some("n9"), Some(70)),
    ];
    let shown = text(Topic::Rank(11), &job(), &entries);
    assert!(
        shown.starts_with("Rank 11 of job: local rank 3 on n1\nstate          running\n"),
        "{shown}"
    );
    assert!(
        shown.contains("\nEvents, newest first:\n") && shown.ends_with("  event 1\n"),
        "{shown}"
    );
    assert!(!shown.contains("event 2"), "{shown}");
    let shown = text(Topic::Rank(70), &job(), &entries);
    assert!(shown.starts_with("job has no rank 70: its newest round has 24 workers\n"), "{shown}");
    assert!(shown.ends_with("  event 3\n"), "{shown}");
    let json =
        serde_json::to_value(ExplainAnswer::new(&Topic::Rank(11), &job(), &entries)).unwrap();
    assert_eq!((&json["local_rank"], &json["node"]["host_name"]), (&3.into(), &"n1".into()));
    assert_eq!(json["events"][0]["id"], "2.1");
}

/// A node is explained by all of its known properties, and its newest events.
#[test]
fn node_is_explained() {
    let entries: Vec<JournalEntry> =
        (1..=30).map(|number| entry(number, "node_lost", Some("n3"), None)).collect();
    let shown = text(Topic::Node("n3".to_owned()), &job(), &entries);
    assert!(
        shown.starts_with("state          lost\nreason         its agent has ended\n"),
        "{shown}"
    );
    assert_eq!(shown.matches("  event ").count(), 20);
    assert!(shown.contains("event 30\n") && !shown.contains("event 10\n"), "{shown}");
    let shown = text(Topic::Node("n8".to_owned()), &job(), &entries);
    assert_eq!(shown, "job has no node on n8\n");
}
