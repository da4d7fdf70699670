//! Tests jobs while etcd, or a part of it, is away.

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
