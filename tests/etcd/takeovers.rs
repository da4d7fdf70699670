//! Tests signals to the agent that leads through etcd.

use nix::sys::signal::Signal;

use crate::{
    cluster::Cluster,
    job::Job,
    support::{Sandbox, listening_ports},
};

/// The loss of a node is not charged, and is not waited for.
pub(crate) const FLAGS: &str = "--nnodes 2:3 --max-restarts 0 --rdzv-conf \
                                last_call_timeout=3600,shrink_timeout=0,join_settle=0";

/// An agent that is stopped (SIGSTOP) while its job ends finds the outcome in etcd later. Its workers do not run again.
#[test]
fn stopped_agent_finds_the_outcome() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let orders: Vec<_> = (0..3).map(|rank| sandbox.orders(rank)).collect();
    let words = format!(
        "--rdzv-backend etcd --rdzv-id j --rdzv-endpoint {} {FLAGS} --no-python obey.sh",
        etcd.endpoints()
    );
    let mut agents: Vec<_> = (0..3).map(|_| sandbox.ragent(&words).start()).collect();
    for agent in &mut agents {
        agent.logs("worker started");
    }
    let stopped = agents.remove(0);
    stopped.signal(Signal::SIGSTOP);
    for agent in &mut agents {
        agent.logs("worker started");
    }
    for orders in &orders[..2] {
        orders.give("exit 0");
    }
    for agent in agents {
        agent.end().assert_code(0);
    }
    stopped.signal(Signal::SIGCONT);
    let end = stopped.end();
    end.assert_code(0);
    assert_eq!(end.stderr.matches("worker started").count(), 1, "{}", end.stderr);
}

/// The leader's agent is killed. Its keeper reports that to the members with the lowest ranks, and one of them leads. The others continue
/// at once and without a charge, and a new agent joins them.
#[test]
fn leader_is_killed() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    let status = job.status();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3);
    let (endpoint, term) = (status["leader"].as_str().unwrap(), &status["term"]);
    let text = sandbox.ragent("status").run().stdout;
    assert!(text.contains(&format!("leader: {endpoint} (term {term})\n")), "{text}");
    let leader = job.take_leader();
    let port = endpoint.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap();
    assert!(listening_ports(leader.pid()).contains(&port), "another agent leads at {endpoint}");
    leader.signal(Signal::SIGKILL);
    for agent in &mut job.agents {
        agent.logs("the leader's process has ended");
        let line = agent.logs("round has ended");
        assert!(line.contains("was lost, and another"), "{line}");
    }
    job.runs();
    assert_eq!(job.status()["restarts_used"], 0);
    job.end_of(leader);
    job.start_agent();
    job.runs();
    assert_eq!(job.count_leaderships(), 2);
    job.end();
}

/// The leader's agent is stopped (SIGSTOP). Another one leads when its lease must be over. It joins again as a member when it continues.
#[test]
fn leader_is_frozen() {
    let sandbox = Sandbox::new();
    let Some(etcd) = Cluster::start(&sandbox, 1) else { return };
    let mut job = Job::new(&sandbox, etcd.endpoints(), FLAGS);
    job.run(3);
    let frozen = job.take_leader();
    frozen.signal(Signal::SIGSTOP);
    job.runs();
    frozen.signal(Signal::SIGCONT);
    job.agents.push(frozen);
    job.runs();
    assert_eq!(job.status()["restarts_used"], 0);
    assert_eq!(job.count_leaderships(), 2);
    job.end();
}
