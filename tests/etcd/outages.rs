//! Tests jobs while etcd, or a part of it, is away.

use std::fs;

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    job::Job,
    support::{Sandbox, Stream, free_port},
    takeovers::FLAGS,
};

/// Any one of three members may be lost. The leader renews its record through another one, and no worker notices.
#[test]
fn member_is_lost() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 3) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    for member in 0..3 {
        etcd.kill(member);
        // More than twice as long as the lease of the leader.
        etcd.wait_for_writes(20);
        etcd.restart(member);
    }
    assert_eq!(job.count_leaderships(), 1);
    for agent in &mut job.agents {
        agent.receive_pending();
        let log = agent.text(Stream::Stderr);
        assert_eq!(log.matches("worker started").count(), 1, "{log}");
        assert!(!log.contains("lease has ended"), "{log}");
    }
    job.end();
}

/// The leader's agent no longer reaches etcd, but reaches the other agents. Its lease ends, another agent leads, and none of its own
/// workers runs at the same time. It joins again when it reaches etcd.
#[test]
fn leader_loses_etcd() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 3) else { return };
    let others = format!("{},{}", etcd.endpoint(1), etcd.endpoint(2));
    let mut job = Job::new(&sandbox, others, FLAGS);
    job.start_agent_at(&etcd.endpoint(0));
    job.agents[0].logs("elected; coordinating the job");
    job.run(2);
    etcd.kill(0);
    let mut leader = job.agents.remove(0);
    leader.logs("etcd has confirmed no change for 4.8 s");
    leader.logs("killing the workers of this node");
    job.runs();
    etcd.restart(0);
    job.agents.push(leader);
    job.runs();
    assert_eq!(job.status()["restarts_used"], 0);
    assert_eq!(job.count_leaderships(), 2);
    job.end();
}

/// The majority of etcd is lost. The workers of all nodes are stopped. They start again without a charge when one of the lost members is
/// back.
#[test]
fn majority_is_lost() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 3) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    etcd.kill(0);
    etcd.kill(1);
    for agent in &mut job.agents {
        agent.logs("killing the workers of this node");
    }
    etcd.restart(1);
    job.runs();
    assert_eq!(job.status()["restarts_used"], 0);
    job.end();
}

/// etcd does not answer (SIGSTOP), and later is killed and started again. Each time, the workers are stopped when the leader's lease has
/// ended, which the leader reports. They start again when etcd answers.
#[test]
fn etcd_is_away() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 1) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    etcd.signal(Signal::SIGSTOP);
    for agent in &mut job.agents {
        agent.logs("killing the workers of this node");
    }
    etcd.signal(Signal::SIGCONT);
    job.runs();
    etcd.kill(0);
    for agent in &mut job.agents {
        agent.logs("killing the workers of this node");
    }
    etcd.restart(0);
    job.runs();
    assert_eq!(job.status()["restarts_used"], 0);
    let logs: String = job.agents.iter().map(|agent| agent.text(Stream::Stderr)).collect();
    assert_eq!(logs.matches("etcd has confirmed no change for 4.8 s").count(), 2, "{logs}");
    job.end();
}

/// A notice that ends the job comes to one node while etcd does not answer. The job ends on all nodes when etcd is back.
#[test]
fn end_of_the_job_waits_for_etcd() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let own = sandbox.path("run-of-one");
    fs::create_dir(&own).unwrap();
    let own = own.display().to_string();
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS).env("XDG_RUNTIME_DIR", own.clone());
    job.start_agent();
    job = job.env("XDG_RUNTIME_DIR", sandbox.path("run").display().to_string());
    job.run(2);
    etcd.signal(Signal::SIGSTOP);
    for agent in &mut job.agents {
        agent.logs("killing the workers of this node");
    }
    let notice = sandbox.ragent("notice end").env("XDG_RUNTIME_DIR", own);
    notice.run().assert_code(0);
    etcd.signal(Signal::SIGCONT);
    for agent in std::mem::take(&mut job.agents) {
        job.end_of(agent).assert_code(8);
    }
    job.end();
}

/// If etcd stays away, the agents end after `join_timeout`. Their exit code is the one after which a restart helps.
#[test]
fn etcd_stays_away() {
    let sandbox = Sandbox::new();
    let Some(mut etcd) = Cluster::start(&sandbox, 1) else { return };
    let flags = format!("{FLAGS},join_timeout=8");
    let mut job = Job::new(&sandbox, etcd.endpoints(), &flags);
    job.run(3);
    etcd.kill(0);
    for agent in std::mem::take(&mut job.agents) {
        let end = job.end_of(agent);
        end.assert_code(3);
        let expected = format!("no coordinator was reached through etcd ({})", etcd.endpoints());
        end.assert_stderr(&[&expected, "a majority of etcd's members"]);
    }
    job.end();
}

/// The first coordinator of a job leads after a silence. That time does not count for `join_timeout`.
#[test]
fn silence_is_no_part_of_join_timeout() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let words = etcd.words("--rdzv-conf join_timeout=5 --no-python true");
    let agents: Vec<_> = (0..2).map(|_| sandbox.ragent(&words).start()).collect();
    for agent in agents {
        agent.end().assert_code(0);
    }
}

/// An agent that reaches no member of etcd ends after `join_timeout` and names the cause. Its exit code is the one after which a restart
/// helps.
#[test]
fn etcd_is_not_there() {
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = format!(
        "--nnodes 2 --rdzv-backend etcd --rdzv-id j --rdzv-endpoint {endpoint} --rdzv-conf join_timeout=1 \
         --no-python true"
    );
    let end = sandbox.ragent(&words).run();
    end.assert_code(3);
    let cause = format!("cannot connect to etcd at {endpoint}: Connection refused");
    end.assert_stderr(&["no member of etcd answered within 1 s", &cause, "hint: "]);
}
