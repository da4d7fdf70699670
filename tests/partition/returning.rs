//! Tests hosts that lose their state, leave and return, in a job with one endpoint. They find their job again, and begin no second one.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    elected_job::{ElectedJob, Leader, WITNESS},
    support::{Network, let_pass, may_make_networks},
};

/// The node of the only endpoint.
const HOST: u32 = 1;

/// Starts a job with one endpoint, and waits until members have become voters. Returns it with its leader, and a node that is neither a
/// voter nor the witness.
fn job_with_voters(name: &str) -> (ElectedJob, Leader, u32) {
    let (mut job, _) = ElectedJob::start_at_one_endpoint(name);
    let leader = job.leader(WITNESS);
    let voters = job.agent(leader.node).logs("the voters have changed");
    let is_other = |node: &u32| !voters.contains(&format!("{}:", Network::address(*node)));
    let others = ElectedJob::without(&[HOST, WITNESS]);
    let other = others.into_iter().find(is_other).expect("there are more nodes than voters");
    (job, leader, other)
}

/// Takes away the host of the endpoint and another one, with their state, and starts them again at once. They are MIN nodes.
fn two_hosts_lose_their_state(mut job: ElectedJob, other: u32) {
    for node in [HOST, other] {
        job.lose_host(node);
    }
    for node in [HOST, other] {
        job.start_agent(node);
    }
    job.runs_on(&ElectedJob::all());
    job.end();
}

/// The host of the endpoint, which leads, and another one lose their state and return at once. They join their job, although they could
/// begin another one.
#[test]
fn leader_at_the_endpoint_loses_its_state() {
    if !may_make_networks() {
        return;
    }
    let (job, leader, other) = job_with_voters("rleader");
    assert_eq!(leader.node, HOST);
    two_hosts_lose_their_state(job, other);
}

/// The same, if that host is a voter that does not lead.
#[test]
fn follower_at_the_endpoint_loses_its_state() {
    if !may_make_networks() {
        return;
    }
    let (mut job, leader, other) = job_with_voters("rfollower");
    job.kill_agent(HOST);
    job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[HOST]));
    job.replace_agent(HOST);
    job.runs_on(&ElectedJob::all());
    two_hosts_lose_their_state(job, other);
}

/// The agents at all nodes receive SIGTERM, one after the other, and are started again at once. Each of them is back in the job before
/// the next one leaves.
#[test]
fn agents_are_restarted_one_after_another() {
    if !may_make_networks() {
        return;
    }
    let (mut job, ..) = job_with_voters("rrolling");
    for node in ElectedJob::all() {
        job.agent(node).signal(Signal::SIGTERM);
        job.runs_on(&ElectedJob::without(&[node]));
        job.replace_agent(node);
        job.runs_on(&ElectedJob::all());
    }
    job.end();
}

/// The host of the endpoint loses its state while another voter is away, so one of three voters is left. The host begins no job, although
/// it and other nodes are MIN nodes. All of them go on with their job when the other voter returns.
#[test]
fn host_loses_its_state_while_one_voter_is_left() {
    if !may_make_networks() {
        return;
    }
    let (mut job, leader, other) = job_with_voters("rone");
    assert_eq!(leader.node, HOST);
    let voters = ElectedJob::without(&[HOST, WITNESS, other]);
    let [away, left] = voters[..] else { panic!("{voters:?} are not two voters") };
    job.kill_agent(away);
    job.wait_for_end(away);
    job.lose_host(HOST);
    job.start_agent(HOST);
    job.agent(HOST).logs("another process knows a job of this name");
    // By then, the host has waited for longer than the 3 s before a first round.
    job.agent(left).logs("no coordinator was elected for 10 s");
    job.start_agent(away);
    job.runs_on(&ElectedJob::all());
    job.end();
}

/// All agents receive SIGTERM, one after another with pauses. Then the same command runs again on all nodes.
#[test]
fn agents_leave_one_after_another_and_return_together() {
    if !may_make_networks() {
        return;
    }
    let (mut job, ..) = job_with_voters("rleave");
    for pause in [10, 1_000, 3_000] {
        for node in ElectedJob::all() {
            job.agent(node).signal(Signal::SIGTERM);
            let_pass(Duration::from_millis(pause));
        }
        for node in ElectedJob::all() {
            job.wait_for_end(node).assert_code(8);
        }
        // The job has ended, so the next one may begin with round 1.
        job.forget_records();
        for node in ElectedJob::all() {
            job.start_agent(node);
        }
        job.runs_on(&ElectedJob::all());
    }
    job.end();
}

/// The host of the endpoint is separated from its job, has lost its state, and begins another job with a new node. When the network is
/// repaired, the younger job closes with exit code 3. Its agents join the elder job when they are started again.
#[test]
fn two_jobs_meet() {
    if !may_make_networks() {
        return;
    }
    let elder = [2, 3];
    let younger = [HOST, 4];
    let (mut job, _) = ElectedJob::start_at_one_endpoint_on("rmeet", &[HOST, 2, 3]);
    let uid = job.uid();
    let leader = job.leader(2);
    job.agent(leader.node).logs("the voters have changed");
    job.network.split(&younger);
    job.lose_host(HOST);
    job.runs_on(&elder);
    job.forget_round();
    for node in younger {
        job.start_agent(node);
    }
    job.runs_on(&younger);
    job.network.unite(&younger);
    for node in younger {
        let end = job.wait_for_end(node);
        end.assert_code(3);
        end.assert_stderr(&["another job of this name", "hint: start the agents again"]);
    }
    for node in younger {
        job.start_agent(node);
    }
    job.forget_round();
    job.runs_on(&[HOST, 2, 3, 4]);
    assert_eq!(job.uid(), uid);
    // No rule holds for the records of two jobs.
    job.kill_agents();
}
