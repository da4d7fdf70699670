//! Hosts that lose their state, leave and return, in a job with one endpoint: they find their job again, and begin no second one.

use nix::sys::signal::Signal;

use crate::{
    elected_job::{ElectedJob, Leader, WITNESS},
    support::{Network, may_make_networks},
};

/// The node of the only endpoint.
const HOST: u32 = 1;

/// Starts a job with one endpoint, and waits until members have become voters. Returns it with its leader, and a node that is neither
/// a voter nor the witness.
fn job_with_voters(name: &str) -> (ElectedJob, Leader, u32) {
    let (mut job, _) = ElectedJob::start_at_one_endpoint(name);
    let leader = job.leader(WITNESS);
    let voters = job.agent(leader.node).logs("the voters have changed");
    let is_other = |node: &u32| !voters.contains(&format!("{}:", Network::address(*node)));
    let others = ElectedJob::without(&[HOST, WITNESS]);
    let other = others.into_iter().find(is_other).expect("there are more nodes than voters");
    (job, leader, other)
}

/// Takes the host of the endpoint and another one away, without their state, and starts them again at once. They are MIN nodes.
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

/// The host of the endpoint, which leads, and another one lose their state and return at once: they join their job, although they
/// could begin another one.
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
