//! Tests voters on a network with failures. In each test, no two rounds of the job run at the same time.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    elected_job::{ElectedJob, WITNESS},
    support::{Network, Stream, is_there, let_pass, may_make_networks},
};

/// The leader's host is lost without a message. Another voter leads, and the other nodes run without the host once its workers are dead.
/// When the host is back, its node is admitted again, and its voter is a follower.
#[test]
fn leaders_host_is_lost() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vlost");
    let leader = job.leader(WITNESS);
    job.network.cut(leader.node);
    let successor = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    ElectedJob::assert_dead(&round, &[leader.node]);
    job.agent(leader.node).logs("the lease has ended");
    job.network.heal(leader.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(leader.node), successor);
    job.end();
}

/// The leader's agent is killed. Another voter leads, and the node is admitted again with a new agent. That agent is a voter, so it may
/// lead when the successor is lost.
#[test]
fn leaders_agent_is_killed() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start("vkill");
    let mut leader = job.leader(WITNESS);
    for _ in 0..2 {
        job.kill_agent(leader.node);
        let successor = job.next_leader(WITNESS, leader);
        job.runs_on(&ElectedJob::without(&[leader.node]));
        job.replace_agent(leader.node);
        job.runs_on(&ElectedJob::all());
        assert_eq!(job.leader(leader.node), successor);
        leader = successor;
    }
    job.end();
}

/// All processes of the leader's host are killed at once. Its connections end, but no process reports that its workers are dead, so another
/// voter leads after the lease.
#[test]
fn leaders_processes_are_killed() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vall");
    let leader = job.leader(WITNESS);
    job.kill_processes(leader.node, &round);
    let successor = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    job.replace_agent(leader.node);
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

/// A voter is absent when the job starts. A member replaces it after the first round, and it is a member itself when it comes later. So two
/// of three voters are left when another one is lost, which is a majority.
#[test]
fn voter_is_absent_at_the_start() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start_on("vabsent", &[1, 2, 4, 5]);
    let leader = job.leader(WITNESS);
    job.agent(leader.node).logs("the voters have changed");
    job.start_agent(3);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(3), leader);
    let [other, _] = ElectedJob::followers(leader);
    job.network.cut(other);
    job.runs_on(&ElectedJob::without(&[other]));
    assert_eq!(job.leader(WITNESS), leader);
    assert_eq!(job.count_elections(), 1);
    job.end();
}

/// Hosts are lost one after another, each time the leader's, until MIN nodes are left. Each loss costs one restart, because members have
/// replaced the voters that were lost before.
#[test]
fn hosts_are_lost_one_after_another() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start("vhosts");
    let mut lost = Vec::new();
    for elections in 1..=3 {
        let witness = ElectedJob::without(&lost)[ElectedJob::without(&lost).len() - 1];
        let leader = job.leader(witness);
        job.network.cut(leader.node);
        lost.push(leader.node);
        let left = ElectedJob::without(&lost);
        let witness = left[left.len() - 1];
        let next = job.next_leader(witness, leader);
        job.runs_on(&left);
        assert_eq!(job.count_elections(), elections + 1);
        if lost.len() < 3 {
            job.agent(next.node).logs("the voters have changed");
        }
    }
}

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

/// The agents find each other by a search, and the job does not depend on the host that was found. When it is lost, another member leads.
/// The host returns without its state, finds the job by a search, and joins it as a member.
#[test]
fn host_found_by_search_is_lost() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start_by_search("vauto", &ElectedJob::all());
    let leader = job.leader(WITNESS);
    let [witness, ..] = ElectedJob::without(&[leader.node])[..] else { panic!("others are left") };
    job.knows_voters(leader, &ElectedJob::all());
    job.network.cut(leader.node);
    let next = job.next_leader(witness, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    ElectedJob::assert_dead(&round, &[leader.node]);
    job.lose_host(leader.node);
    job.network.heal(leader.node);
    job.start_agent(leader.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(leader.node), next);
    assert_eq!(job.count_elections(), 2);
    job.end();
}

/// The agent of the host that was found by a search is killed. Another member leads. A new agent of that host is the same voter as the
/// first one, and may lead when the successor is lost.
#[test]
fn agent_of_the_host_found_by_search_is_killed() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start_by_search("vautokill", &ElectedJob::all());
    let mut leader = job.leader(WITNESS);
    job.knows_voters(leader, &ElectedJob::all());
    for _ in 0..2 {
        job.kill_agent(leader.node);
        let others = ElectedJob::without(&[leader.node]);
        let successor = job.next_leader(others[0], leader);
        job.runs_on(&others);
        job.replace_agent(leader.node);
        job.runs_on(&ElectedJob::all());
        assert_eq!(job.leader(leader.node), successor);
        assert!(!job.agent(leader.node).text(Stream::Stderr).contains("found the coordinator"));
        leader = successor;
    }
    job.end();
}

/// The host that was found first is lost. An agent that is started later finds the present leader by a search.
#[test]
fn agent_searches_after_a_takeover() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start_by_search("vautolate", &[1, 2, 3, 4]);
    let leader = job.leader(1);
    job.knows_voters(leader, &[1, 2, 3, 4]);
    let left = ElectedJob::without(&[leader.node, 5]);
    job.network.cut(leader.node);
    let next = job.next_leader(left[0], leader);
    job.runs_on(&left);
    job.start_agent(5);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    assert_eq!(job.leader(5), next);
    job.network.heal(leader.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(leader.node), next);
    assert_eq!(job.count_elections(), 2);
    job.end();
}

/// The leader's agent leaves the job. Another voter leads, and another agent of that host is admitted later.
#[test]
fn leader_leaves() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start("vleave");
    let leader = job.leader(WITNESS);
    job.agent(leader.node).signal(Signal::SIGTERM);
    job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    job.replace_agent(leader.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.count_elections(), 2);
    job.end();
}

/// The leader's agent is stopped. Its keeper kills its workers, another voter leads, and the agent does not lead when it continues.
#[test]
fn leaders_agent_is_stopped() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vstop");
    let leader = job.leader(WITNESS);
    job.agent(leader.node).signal(Signal::SIGSTOP);
    let successor = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    ElectedJob::assert_dead(&round, &[leader.node]);
    job.agent(leader.node).signal(Signal::SIGCONT);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(leader.node), successor);
    job.end();
}

/// A follower is unreachable. Its node is lost and admitted again like any other node, and no election takes place.
#[test]
fn follower_is_unreachable() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vcut");
    let leader = job.leader(WITNESS);
    let [follower, _] = ElectedJob::followers(leader);
    job.network.cut(follower);
    job.runs_on(&ElectedJob::without(&[follower]));
    ElectedJob::assert_dead(&round, &[follower]);
    job.network.heal(follower);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(WITNESS), leader);
    assert_eq!(job.leader(follower), leader);
    assert_eq!(job.count_elections(), 1);
    job.end();
}

/// The network is divided. The leader and another node, enough for a round, are on the side without a majority of the voters. Only the
/// other side continues.
#[test]
fn network_is_divided() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vsplit");
    let leader = job.leader(WITNESS);
    let minority = [leader.node, 4];
    job.network.split(&minority);
    let successor = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&minority));
    ElectedJob::assert_dead(&round, &minority);
    for node in minority {
        job.agent(node).logs("the lease has ended");
    }
    job.network.unite(&minority);
    job.runs_on(&ElectedJob::all());
    for node in minority {
        assert_eq!(job.leader(node), successor);
        let log = job.agent(node).text(Stream::Stderr);
        assert!(!log.contains("nodes=2 "), "the minority has run a round:\n{log}");
    }
    job.end();
}

/// A third of all packets is lost for some time. Rounds may end, but never overlap, and afterwards the job runs as before.
#[test]
fn packets_are_lost() {
    if !may_make_networks() || !is_there("nft") {
        return;
    }
    let (mut job, _) = ElectedJob::start("vloss");
    for node in ElectedJob::all() {
        job.network.lose(node, 30);
    }
    // A node that is lost three times is quarantined. This time is too short for that.
    let_pass(Duration::from_secs(7));
    for node in ElectedJob::all() {
        job.network.lose_nothing(node);
    }
    job.agent(4).signal(Signal::SIGTERM);
    job.runs_on(&ElectedJob::without(&[4]));
    job.replace_agent(4);
    job.runs_on(&ElectedJob::all());
    job.end();
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

/// The leader receives nothing, but the others receive its packets. Another voter leads.
#[test]
fn leader_is_deaf() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vdeaf");
    let leader = job.leader(WITNESS);
    job.network.deafen(leader.node);
    let successor = job.next_leader(WITNESS, leader);
    job.runs_on(&ElectedJob::without(&[leader.node]));
    ElectedJob::assert_dead(&round, &[leader.node]);
    job.network.undeafen(leader.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(leader.node), successor);
    job.end();
}

/// Without a majority of the voters, all workers stop, and the agents log the cause and wait. The job continues when a new agent is started
/// at the address of one of the two lost voters, while the other one is still unreachable.
#[test]
fn two_voters_of_three_are_lost() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start("vtwo");
    let leader = job.leader(WITNESS);
    let [killed, cut] = ElectedJob::followers(leader);
    job.network.cut(cut);
    job.kill_agent(killed);
    for node in [leader.node, 4, 5] {
        job.agent(node).logs("the lease has ended");
    }
    job.agent(leader.node).logs("a majority of the 3 voters is needed; not reached: ");
    ElectedJob::assert_dead(&round, &ElectedJob::all());
    // They may elect one of them, if they return late. It begins no round.
    assert_eq!(job.count_rounds(), 1);
    job.replace_agent(killed);
    job.runs_on(&ElectedJob::without(&[cut]));
    job.network.heal(cut);
    job.runs_on(&ElectedJob::all());
    job.end();
}

/// A voter's host is lost with its state, and a member replaces the voter. When the host returns, it is a member of the
/// running job, and does not begin another one.
#[test]
fn host_returns_without_its_state() {
    if !may_make_networks() {
        return;
    }
    let (mut job, _) = ElectedJob::start("vempty");
    let lost = job.leader(WITNESS);
    job.lose_host(lost.node);
    let leader = job.next_leader(WITNESS, lost);
    job.runs_on(&ElectedJob::without(&[lost.node]));
    let line = job.agent(leader.node).logs("the voters have changed");
    let address = format!("{}:", Network::address(lost.node));
    assert!(!line.contains(&address), "{line}");
    job.start_agent(lost.node);
    job.runs_on(&ElectedJob::all());
    assert_eq!(job.leader(lost.node), leader);
    assert_eq!(job.count_elections(), 2);
    job.end();
}

/// Two of three voters lose their state at the same time. They do not begin another job, although they are MIN nodes. The third one reports
/// that the state is lost, and all agents give up after the join timeout.
#[test]
fn majority_loses_its_state() {
    if !may_make_networks() {
        return;
    }
    let (mut job, round) = ElectedJob::start_with_one_round("vamnesia", 30);
    let leader = job.leader(WITNESS);
    let lost = ElectedJob::followers(leader);
    for node in lost {
        job.lose_host(node);
    }
    for node in lost {
        job.start_agent(node);
    }
    let addresses = lost.map(|node| format!("{}:29400", Network::address(node))).join(", ");
    let loss = format!(
        "no majority of the 3 voters has the state of the job any more: the voters at {addresses} were started \
         without their state files"
    );
    job.agent(leader.node).logs(&loss);
    let end = job.wait_for_end(leader.node);
    end.assert_code(3);
    end.assert_stderr(&[
        "error: no coordinator was reached for 30 s",
        &loss,
        "hint: end all agents",
    ]);
    for node in ElectedJob::without(&[leader.node]) {
        job.wait_for_end(node).assert_code(3);
    }
    ElectedJob::assert_dead(&round, &ElectedJob::all());
    assert_eq!(job.count_elections(), 1);
    job.assert_rules();
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
