//! Tests the record of what has happened in a job: `ragent events`, `ragent explain`, `--journal`, and `GET /v1/events`.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    job::{Job, page, pages, workers},
    support::{Program, Sandbox, free_port, listening_ports},
};

/// Reads events. They are in the order of their ids.
#[track_caller]
fn events(lines: &str) -> Vec<Value> {
    let read = |line| serde_json::from_str::<Value>(line).expect("an event is JSON");
    lines.lines().map(read).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().expect("an event has a kind")).collect()
}

/// The kind of the event that caused the only one of `kind`.
#[track_caller]
fn cause_of<'a>(events: &'a [Value], kind: &str) -> &'a str {
    let of_kind: Vec<&Value> = events.iter().filter(|event| event["kind"] == kind).collect();
    let [event] = of_kind[..] else { panic!("one `{kind}` was expected: {events:?}") };
    let cause = events.iter().find(|other| other["id"] == event["cause"]);
    cause.and_then(|cause| cause["kind"].as_str()).expect("it has a cause")
}

/// A failure is the cause of the restart. Every agent, the file and a reader that follows have the same events.
#[test]
fn failure_is_explained() {
    let sandbox = Sandbox::new();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let file = sandbox.path("journal");
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let words = format!("--journal {} --no-python obey.sh", file.display());
    let mut host = job.host(&words);
    let mut guest = job.guest(&words);
    workers([&mut host, &mut guest]);
    let follow = format!("events --follow --rdzv-endpoint {}", job.endpoint);
    let mut follower = sandbox.ragent(&follow).start();
    follower.prints("all workers of round 1 run");
    orders[1].give("exit 7");
    workers([&mut host, &mut guest]);
    follower.prints("all workers of round 2 run");

    let explained = sandbox.ragent("explain").run();
    explained.assert_code(0);
    for part in [
        "j has been running round 2 for ",
        "Round 1 has ended:\n",
        "exited with code 7\n",
        "round 1 has ended: rank 1 on ",
        "no process of round 1 is left\n",
        "round 2 begins with 2 nodes and 2 workers; no node is new\n",
        "the restart took ",
        "  1 × first start: ",
        "  1 × failure of a worker: ",
        "how much of it was productive is unknown: the workers report no progress",
    ] {
        assert!(explained.stdout.contains(part), "no `{part}` in:\n{}", explained.stdout);
    }
    let json = sandbox.ragent("explain --json").run().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["restarts"][0]["round"], 1, "{json}");
    for (topic, part) in [
        ("restart", "round 1 has ended: rank 1 on "),
        ("time", "  unknown  "),
        ("wait", "  it does not wait for nodes\n"),
        ("rank 1", "Rank 1 of j: local rank 0 on "),
        ("rank 1", "exited with code 7\n"),
        ("node n7", "j has no node on n7\n"),
    ] {
        let explained = sandbox.ragent(&format!("explain {topic}")).run();
        explained.assert_code(0);
        assert!(explained.stdout.contains(part), "no `{part}` in:\n{}", explained.stdout);
    }
    let json = sandbox.ragent("explain rank 1 --json").run().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["events"][0]["kind"], "worker_failed", "{json}");
    let json_of_restarts = sandbox.ragent("explain restart --json").run().stdout;
    let wrong = sandbox.ragent("explain hang").run();
    wrong.assert_code(2);
    wrong.assert_stderr(&["unknown topic 'hang'", "hint: topics are `restart`"]);

    let printed = sandbox.ragent("events --json").run();
    printed.assert_code(0);
    let read = events(&printed.stdout);
    assert_eq!(cause_of(&read, "failure_charged"), "worker_failed");
    let ended = read.iter().find(|event| event["kind"] == "round_ended").unwrap();
    assert_eq!(ended["data"]["reason"], "worker_failed");
    let failed = read.iter().find(|event| event["id"] == ended["cause"]).unwrap();
    assert_eq!((&failed["kind"], &failed["rank"]), (&"worker_failed".into(), &1.into()));
    assert_eq!(failed["data"]["end"], serde_json::json!({ "exited": 7 }));
    let status = job.status();
    assert_eq!(status["last_restart"]["why"], "worker_failed", "{status}");
    let states = status["time"]["states"].as_array().unwrap();
    assert_eq!(states.len(), 8, "{status}");

    // Every agent answers with the journal of the coordinator.
    let everywhere = pages(&status, "/v1/events");
    assert_eq!(everywhere.len(), 2);
    assert!(everywhere.iter().all(|page| events(page) == read), "{everywhere:?}");
    let last = failed["id"].as_str().unwrap();
    let later = pages(&status, &format!("/v1/events?since={last}"));
    assert_eq!(kinds(&events(&later[0]))[0], "round_ended");
    let port: u16 = job.endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let (head, body) = page(port, "/v1/events?since=x");
    assert!(head.contains(" 400 ") && body.contains("must be the id of an event"), "{head} {body}");

    orders.iter().for_each(|orders| orders.give("exit 0"));
    host.end().assert_code(0);
    guest.end().assert_code(0);
    let followed = follower.end();
    followed.assert_code(0);
    assert!(followed.stdout.contains("the job is closed: succeeded\n"), "{}", followed.stdout);
    let filed = events(&fs::read_to_string(&file).unwrap());
    assert_eq!(filed[..read.len()], read);
    assert!(kinds(&filed).contains(&"job_closed"), "{filed:?}");

    // The file is explained after the end of the job.
    let from_file = |command: &str| {
        let end = sandbox.ragent(&format!("{command} --journal {}", file.display())).run();
        end.assert_code(0);
        end.stdout
    };
    assert_eq!(events(&from_file("events --json")), filed);
    assert!(from_file("events").contains("the job is closed: succeeded\n"));
    let explained = from_file("explain");
    for part in [
        "at round 2: the journal ends there.\n",
        "Round 1 has ended:\n",
        "exited with code 7\n",
        "the restart took ",
        "  1 × first start: ",
        "  1 × failure of a worker: ",
    ] {
        assert!(explained.contains(part), "no `{part}` in:\n{explained}");
    }
    assert!(from_file("explain rank 1").contains("exited with code 7\n"));
    let before: Value = serde_json::from_str(&json_of_restarts).unwrap();
    let after: Value = serde_json::from_str(&from_file("explain restart --json")).unwrap();
    assert_eq!(after["by_cause"], before["by_cause"]);
    assert_eq!(after["restarts"][0]["cost"], before["restarts"][0]["cost"]);
    let wait = sandbox.ragent(&format!("explain wait --journal {}", file.display())).run();
    wait.assert_code(2);
    wait.assert_stderr(&["needs the current state of the job", "hint: with `--journal`"]);
}

/// After a takeover, the journal begins with the loss of the coordinator, which is the cause of the restart. The time account goes on. A
/// reader that follows the journal reads on at the new coordinator.
#[test]
fn journal_goes_on_after_a_takeover() {
    let sandbox = Sandbox::new();
    let list = [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",");
    let job =
        Job::at(&sandbox, list, "--nnodes 2:3 --rdzv-conf shrink_timeout=0,last_call_timeout=3600");
    let mut agents: Vec<Program> = (0..3).map(|_| job.guest("--no-python stay.sh")).collect();
    agents.iter_mut().for_each(|agent| drop(agent.worker()));
    let before = job.status();
    let follow = format!("events --follow --rdzv-endpoint {}", job.endpoint);
    let mut follower = sandbox.ragent(&follow).start();
    follower.prints("all workers of round 1 run");
    let leader = before["leader"].as_str().unwrap();
    let port: u16 = leader.rsplit(':').next().unwrap().parse().unwrap();
    let serves = |agent: &Program| listening_ports(agent.pid()).contains(&port);
    let lost = agents.remove(agents.iter().position(serves).unwrap());
    lost.signal(Signal::SIGKILL);
    agents.iter_mut().for_each(|agent| drop(agent.worker()));
    follower.prints("another process has taken over the job");
    follower.prints("all workers of round 2 run");
    let printed = sandbox.ragent(&format!("events --json --rdzv-endpoint {}", job.endpoint)).run();
    let read = events(&printed.stdout);
    assert_eq!(kinds(&read)[..2], ["coordinator_took_over", "recovering"]);
    assert_eq!(cause_of(&read, "workers_started"), "round_admitted");
    let after = job.status();
    assert_eq!(after["last_restart"]["why"], "coordinator_lost", "{after}");
    let first = after["restarts"].as_array().unwrap();
    assert!(first.iter().any(|sum| sum["cause"] == "first_start"), "{after}");
    // The job is not closed, so the reader would wait for another coordinator.
    follower.signal(Signal::SIGTERM);
    follower.end();
}
