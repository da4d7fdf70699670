//! Tests the requests to etcd after the key of the job was overwritten, or after etcd has come back empty.

use nix::sys::signal::Signal;

use crate::{
    cluster::{Cluster, KEY},
    job::Job,
    support::{Sandbox, Stream},
    takeovers::FLAGS,
};

/// The number of renewals that take longer than a leader's lease, and longer than a silence.
const LONG: usize = 16;

/// The warning about a value that is not a record.
const WARNING: &str = "the key /ragent/j/leader in etcd had a value that is not a record";

/// Fails unless the first leader still leads, and the first workers still run. On a machine that pauses, a node may have lost
/// its lease to the leader.
#[track_caller]
fn assert_undisturbed(job: &mut Job<'_>) {
    assert_eq!(job.count_leaderships(), 1);
    let logs: Vec<_> = job.agents.iter().map(|agent| agent.text(Stream::Stderr)).collect();
    let is_lost = logs.iter().any(|log| log.contains("it sent no message within its lease"));
    for log in logs {
        assert!(is_lost || log.matches("worker started").count() == 1, "{log}");
    }
}

/// Waits for the next round. It follows the last one, because its coordinator has the state of the job.
#[track_caller]
fn continues(job: &mut Job<'_>) {
    let before = job.round.number;
    job.runs();
    assert!(job.round.number > before, "round {} follows {before}", job.round.number);
}

/// Kills the leader; the others continue with the state of the job.
#[track_caller]
fn replace_leader(job: &mut Job<'_>) {
    let leader = job.take_leader();
    leader.signal(Signal::SIGKILL);
    job.end_of(leader);
    continues(job);
    assert_eq!(job.status()["restarts_used"], 0);
    let logs: String = job.agents.iter().map(|agent| agent.text(Stream::Stderr)).collect();
    assert!(!logs.contains("began elsewhere"), "{logs}");
}

/// etcd comes back empty, once before the leader's lease is over, and once afterwards. The job goes on with its state, and the restarts are
/// not charged.
#[test]
fn etcd_comes_back_empty() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 1) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    etcd.kill(0);
    etcd.empty(0);
    etcd.restart(0);
    etcd.wait_for_writes(LONG);
    assert_eq!(job.status()["restarts_used"], 0);
    etcd.kill(0);
    etcd.empty(0);
    for agent in &mut job.agents {
        agent.logs("killing the workers of this node");
    }
    etcd.restart(0);
    continues(&mut job);
    replace_leader(&mut job);
    job.end();
}

/// The leader replaces a value that is not a record, even a large one, and reports that once. No worker notices.
#[test]
fn garbage_is_replaced() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    etcd.control(&format!("put {KEY} odd"));
    etcd.wait_for_writes(LONG);
    etcd.put_file(&vec![b'x'; 600 * 1024]);
    etcd.wait_for_writes(LONG);
    assert_undisturbed(&mut job);
    let logs: String = job.agents.iter().map(|agent| agent.text(Stream::Stderr)).collect();
    assert_eq!(logs.matches(WARNING).count(), 2, "{logs}");
    replace_leader(&mut job);
    job.end();
}

/// The record of another version of ragent is not replaced, because that version may lead the job. A job that runs stops, and ends after
/// `join_timeout`.
#[test]
fn record_of_another_version_is_kept() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    // The first field of a record is the version of the protocol.
    let record = "\u{8}c";
    etcd.control(&format!("put {KEY} {record}"));
    let end = sandbox.ragent(&etcd.words("--no-python true")).run();
    end.assert_code(1);
    end.assert_stderr(&["a value that is not of this version of ragent", "hint: "]);
    assert!(etcd.control(&format!("get {KEY}")).contains(record));
    etcd.control(&format!("del {KEY}"));
    let mut job = Job::new(&sandbox, etcd.endpoints(), &format!("{FLAGS},join_timeout=8"));
    job.run(3);
    etcd.control(&format!("put {KEY} {record}"));
    for agent in std::mem::take(&mut job.agents) {
        let end = job.end_of(agent);
        end.assert_code(3);
        end.assert_stderr(&["a value that is not of this version of ragent"]);
    }
    assert!(etcd.control(&format!("get {KEY}")).contains(record));
    job.end();
}
