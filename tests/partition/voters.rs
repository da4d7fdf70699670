//! Tests connections between voters on a network with failures. In each test, no two rounds of the job run at the same time.

use nix::sys::signal::Signal;

use crate::{
    elected_job::{ElectedJob, WITNESS},
    support::may_make_networks,
};

/// A job with one endpoint does not depend on its host. When the host is lost, a member leads. The host returns without its state while the
/// job runs, and joins it as a member. Once another voter has replaced the lost one, the next leader can be lost.
#[test]
fn host_of_the_only_endpoint_is_lost() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start_at_one_endpoint("vone");
    let leader = job.leader(WITNESS);
    assert_eq!(leader.node, 1);
    job.agent(1).logs("the voters have changed");
    job.network.cut(1);
    let next = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[1]));
    job.lose_host(1);
    job.network.heal(1);
    job.start_agent(1);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(WITNESS), next);
    job.agent(next.node).logs("the voters have changed");
    let witness = if next.node == WITNESS { WITNESS - 1 } else { WITNESS };
    job.network.cut(next.node);
    job.next_leader(witness, next);
    job.runs_on(&ElectedJob::without(&[next.node]));
}

/// The leader's packets are lost, but it receives those of the others. Another voter leads.
#[test]
fn leader_is_mute() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vmute");
    let leader = job.leader(WITNESS);
    job.network.mute(leader.node);
    let successor = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    ElectedJob::assert_dead(&round, &[leader.node]);
    job.network.unmute(leader.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(leader.node), successor);
    job.end();
}

/// The records reveal that workers of two rounds have run at the same time. Here the keeper, which would kill the workers after the lease,
/// is stopped as well.
#[test]
fn overlap_is_found() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("voverlap");
    let leader = job.leader(WITNESS);
    job.stop_all_but_the_worker(leader.node);
    let next = job.runs_on(&ElectedJob::without(&[leader.node]));
    job.wait_for_record(&round, leader.node, next.complete);
    let violations = job.violations();
    assert!(violations.iter().any(|what| what.contains(" overlap by ")), "{violations:?}");
}

/// Voters that share a secret elect the next leader, and a host that is back joins them. Without the secret, no node
/// joins and no status is printed.
#[test]
fn voters_share_a_secret() {
    if may_make_networks() {
        authenticated(ElectedJob::start_secured("vsec").0, "requires a secret");
    }
}

/// The same for voters with certificates.
#[test]
fn voters_have_certificates() {
    if may_make_networks() {
        authenticated(ElectedJob::start_certified("vtls").0, "requires a certificate");
    }
}

fn authenticated(mut job: ElectedJob, needed: &str) {
    let leader = job.leader(WITNESS);
    job.network.cut(leader.node);
    job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    job.network.heal(leader.node);
    job.runs_on(&ElectedJob::all());
    job.status(WITNESS, "").assert_code(0);
    let stranger = job.status(WITNESS, "--auth none");
    stranger.assert_code(1);
    stranger.assert_stderr(&[needed, "--auth none"]);
    // Its own agent has ended, and the next one has no secret.
    job.agent(WITNESS).signal(Signal::SIGTERM);
    job.wait_for_end(WITNESS);
    let words = "--nnodes 2:5 --auth none --rdzv-endpoint 10.77.0.1,10.77.0.2,10.77.0.3:29400 \
                 --no-python true";
    let refused = job.run_on(WITNESS, words);
    refused.assert_code(9);
    refused.assert_stderr(&[needed, "was started with `--auth none`"]);
    job.end();
}
