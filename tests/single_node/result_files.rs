//! Tests files that programs read: the report of a job, events, and torch's error file for the process that has started the agent.

use std::fs;

use serde_json::Value;

use crate::support::Sandbox;

fn json_file(sandbox: &Sandbox, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(sandbox.path(name)).unwrap()).unwrap()
}

/// The report file of a failure has the same content as the printed report.
#[test]
fn report_of_a_failure() {
    let sandbox = Sandbox::new();
    let worker = "echo oh no >&2; exit 3";
    let words = "--nproc-per-node 2 --report report.json --no-python bash -c";
    let end = sandbox.ragent(words).arg(format!("[ $RANK = 0 ] && exit 0; {worker}")).run();
    end.assert_code(1);
    let report = json_file(&sandbox, "report.json");
    assert_eq!(report["result"], "budget_spent");
    assert_eq!(report["exit_code"], 1);
    assert_eq!(report["script"], "bash");
    let failure = &report["first_failure"];
    assert_eq!(failure["global_rank"], 1);
    assert_eq!(failure["exit_code"], 3);
    assert_eq!(failure["ended"], "exited with code 3");
    assert_eq!(failure["stderr_tail"], "oh no");
    assert!(report["text"].as_str().unwrap().contains("bash FAILED"), "{report}");
}

/// The report of a success replaces an older one.
#[test]
fn report_of_a_success() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("report.json"), "old").unwrap();
    sandbox.ragent("--report report.json --no-python true").run().assert_code(0);
    let report = json_file(&sandbox, "report.json");
    assert_eq!(report["result"], "succeeded");
    assert_eq!(report["exit_code"], 0);
    assert_eq!(report["first_failure"], Value::Null);
}

/// Events of workers and of the agent have torchrun's names, one JSON object a line.
#[test]
fn events_of_a_restart() {
    let sandbox = Sandbox::new();
    let worker = "[ $RANK$TORCHELASTIC_RESTART_COUNT = 00 ] && exit 3; \
                  [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep infinity";
    let words = "--nproc-per-node 2 --max-restarts 1 --role trainer \
                 --event-log-handler console --no-python bash -c";
    let end = sandbox.ragent(words).arg(worker).run();
    end.assert_code(0);
    let lines = end.stderr.lines().filter(|line| line.starts_with('{'));
    let events: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut names: Vec<String> = events
        .iter()
        .map(|event| {
            let metadata = &event["metadata"];
            assert_eq!(metadata["role"], "trainer");
            format!(
                "{} {} {} {}",
                metadata["agent_restarts"],
                event["source"].as_str().unwrap(),
                metadata["state"].as_str().unwrap(),
                metadata["global_rank"]
            )
        })
        .collect();
    names.sort();
    let mut expected = vec![
        "0 AGENT ASSIGN_WORKER_RANKS null",
        "0 AGENT FAILED null",
        "0 AGENT RENDEZVOUS null",
        "0 WORKER FAILED 0",
        "0 WORKER START 0",
        "0 WORKER START 1",
        "0 WORKER TERMINATED 1",
        "1 AGENT ASSIGN_WORKER_RANKS null",
        "1 AGENT RENDEZVOUS null",
        "1 AGENT SUCCEEDED null",
        "1 WORKER START 0",
        "1 WORKER START 1",
        "1 WORKER SUCCEEDED 0",
        "1 WORKER SUCCEEDED 1",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    let failed = events.iter().find(|event| event["name"] == "torchelastic.worker.status.FAILED");
    let details = failed.unwrap()["metadata"]["metadata"].as_str().unwrap();
    let details: Value = serde_json::from_str(details).unwrap();
    assert_eq!(details["exit_code"], serde_json::json!([3]));
    assert_eq!(details["entry_point"], "bash");
}

/// No event is lost, even if many happen at once.
#[test]
fn events_of_many_workers() {
    let sandbox = Sandbox::new();
    let words = "--nproc-per-node 100 --event-log-handler console --no-python true";
    let end = sandbox.ragent(words).run();
    end.assert_code(0);
    let count = |state: &str| end.stderr.matches(&format!("worker.status.{state}\"")).count();
    assert_eq!((count("START"), count("SUCCEEDED")), (100, 101));
}
