//! Tests agents that know no address, on networks of namespaces. They find each other by multicast, or by a list of hosts.

use nix::sys::signal::Signal;
use ragent_base::sys::clock;
use support::{
    Authority, Issue, Network, PATIENCE, Program, Sandbox, Start, Stream, field, may_make_networks,
    tls_flags, write_certificates,
};

mod datagrams;
#[path = "../support/mod.rs"]
mod support;

/// An agent of the job `name` without the addresses of the others.
fn agent(network: &Network, sandbox: &Sandbox, node: u32, name: &str, words: &str) -> Start {
    let words = format!("--rdzv-endpoint auto --rdzv-id {name} {words} --no-python stay.sh");
    network.ragent(sandbox, node, &words)
}

fn start_all(network: &Network, sandbox: &Sandbox, name: &str, words: &str) -> [Program; 3] {
    [1, 2, 3].map(|node| agent(network, sandbox, node, name, words).start())
}

#[track_caller]
fn assert_admitted(agents: &mut [Program]) {
    let nodes = agents.len();
    for agent in agents {
        agent.logs(&format!("nodes={nodes} world_size={nodes} master=10.77.0."));
    }
}

/// Waits until all agents know the three voters of the job.
#[track_caller]
fn assert_voters_known(agents: &mut [Program]) {
    for agent in agents {
        loop {
            let line = agent.logs("received the list of voters");
            let list = line.rsplit('=').next().unwrap_or_default();
            if list.split(',').count() == 3 {
                break;
            }
        }
    }
}

/// Agents that start at the same time form one job, with one coordinator.
#[test]
fn agents_find_each_other() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("auto", 3), Sandbox::new());
    let mut agents = start_all(&network, &sandbox, "job", "--nnodes 3");
    assert_admitted(&mut agents);
    let hosts =
        agents.iter().filter(|agent| agent.text(Stream::Stderr).contains("coordinating the job"));
    assert_eq!(hosts.count(), 1);
}

/// Agents with certificates find each other, and connect only to agents with an accepted one. An agent of the same job without a
/// certificate exits with the reason.
#[test]
fn agents_with_certificates_find_each_other() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("ctls", 4), Sandbox::new());
    let authority = Authority::new("ca");
    let issued = authority.issue(&Issue::with_names(&["job.example"]));
    let files = write_certificates(&sandbox.path("tls"), &[&authority], &issued);
    let words = format!("--nnodes 3 {}", tls_flags(&files));
    let mut agents = start_all(&network, &sandbox, "job", &words);
    assert_admitted(&mut agents);
    let stranger = agent(&network, &sandbox, 4, "job", "--nnodes 3 --rdzv-conf is_host=0").run();
    stranger.assert_code(9);
    stranger.assert_stderr(&["requires a certificate, and this one has none", "--tls-ca"]);
}

/// An agent that finds no other agent prints that by default. If it may host, it does so once it hosts. If it may not, it does so after a
/// few seconds.
#[test]
fn lonely_agent_is_reported() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("lone", 2), Sandbox::new());
    let start =
        |node, name, words| agent(&network, &sandbox, node, name, words).default_lines().start();
    let mut host = start(1, "one", "--nnodes 2");
    let mut guest = start(2, "other", "--nnodes 2 --rdzv-conf is_host=0,join_timeout=8");
    let line = host.logs("no other agent of job one was found on ");
    assert!(line.contains("this agent hosts the coordinator"), "{line}");
    let line = guest.logs("waiting for the host of job other");
    let others =
        "no other agent of this job found yet, but agents of other jobs search on this port";
    assert!(line.contains(others), "{line}");
    let end = guest.end();
    end.assert_code(1);
    end.assert_stderr(&["no host of the job was found within 8 s", "hint: check that the other"]);
    assert!(!end.stderr.contains("firewall"), "{}", end.stderr);
}

/// Jobs with different names on the same nodes do not affect each other.
#[test]
fn jobs_do_not_find_each_other() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("jobs", 3), Sandbox::new());
    let mut one = start_all(&network, &sandbox, "one", "--nnodes 3");
    let mut other = start_all(&network, &sandbox, "other", "--nnodes 3");
    assert_admitted(&mut one);
    assert_admitted(&mut other);
}

/// If nodes have ranks, the first one hosts, even if it starts last.
#[test]
fn first_rank_hosts_and_may_be_last() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("last", 3), Sandbox::new());
    let ranked = |node: u32| {
        let words = format!("--nnodes 3 --node-rank {}", node - 1);
        agent(&network, &sandbox, node, "job", &words).start()
    };
    let (mut second, mut third) = (ranked(2), ranked(3));
    second.logs("searching for the job's other agents");
    third.logs("searching for the job's other agents");
    let mut first = ranked(1);
    first.logs("coordinating the job");
    for agent in [&mut first, &mut second, &mut third] {
        agent.logs("nodes=3 world_size=3 master=10.77.0.1:");
    }
}

/// A host that is killed and started again learns its previous endpoint from the other agents, and the job goes on.
#[test]
fn restarted_host_is_found_again() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("again", 3), Sandbox::new());
    let words = "--nnodes 3 --rdzv-conf voters=1";
    let mut agents = start_all(&network, &sandbox, "job", words);
    assert_admitted(&mut agents);
    let is_host = |agent: &Program| agent.text(Stream::Stderr).contains("coordinating the job");
    let host = agents.iter().position(is_host).expect("one hosts");
    let mut agents = Vec::from(agents);
    let killed = agents.remove(host);
    killed.signal(Signal::SIGKILL);
    let mut again = agent(&network, &sandbox, host as u32 + 1, "job", words).start();
    again.logs("continuing the coordinator");
    again.logs("coordinating the job");
    agents.push(again);
    for agent in &mut agents {
        agent.logs("round=2.2 ");
    }
}

/// Parts of the network, each with its own first voter, become one job with voters from all parts. The job does not depend on the host that
/// was left.
#[test]
fn parts_become_one_job_with_voters() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("vparts", 4), Sandbox::new());
    let words = "--nnodes 3:4 --rdzv-conf join_settle=0.1";
    let (mut agents, host) = united(&network, &sandbox, words);
    agents[host].logs("the voters have changed");
    assert_voters_known(&mut agents);
    let node = host as u32 + 1;
    network.kill_all(node);
    agents.remove(host).end();
    for agent in &mut agents {
        agent.logs("nodes=3 world_size=3 ");
    }
    agents.push(agent(&network, &sandbox, node, "job", words).start());
    assert_admitted(&mut agents);
}

/// Starts agents on four nodes. The first two reach no other. Waits until all are one job after they do. Returns the agents and the place
/// of the host.
fn united(network: &Network, sandbox: &Sandbox, words: &str) -> (Vec<Program>, usize) {
    let settled = |node: u32| {
        let mut agent = agent(network, sandbox, node, "job", words).start();
        agent.logs("registered endpoint=");
        agent
    };
    network.block(1);
    network.block(2);
    // Two agents on their own, and two that have found each other.
    let mut agents = Vec::from([1, 2, 3, 4].map(settled));
    network.unblock(1);
    network.unblock(2);
    assert_admitted(&mut agents);
    // A host steps down for another one, or for a job that has begun.
    let gave_way = |agent: &Program| {
        let text = agent.text(Stream::Stderr);
        text.contains("joining it there") || text.contains("another process leads the job")
    };
    assert_eq!(agents.iter().filter(|agent| gave_way(agent)).count(), 2);
    for agent in &agents {
        let stderr = agent.text(Stream::Stderr);
        assert!(!stderr.contains("hosts a different job with the same name"), "{stderr}");
    }
    for node in 1..=4 {
        let status = network.ragent(sandbox, node, "status --nodes").run();
        status.assert_code(0);
        assert!(status.stdout.contains("10.77.0.4"), "{}", status.stdout);
    }
    let host = |agent: &Program| {
        agent.text(Stream::Stderr).contains("coordinating the job") && !gave_way(agent)
    };
    let host = agents.iter().position(host).expect("one hosts");
    (agents, host)
}

/// All processes of all nodes are killed. The next agents continue the job after its last round, and find each other although not all of
/// them were voters.
#[test]
fn killed_job_continues() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("allkilled", 5), Sandbox::new());
    // Each node finds its own state file again, as on machines of their own.
    let folder = |node: u32| sandbox.path(&format!("node{node}"));
    let start = |node: u32| {
        let agent = agent(&network, &sandbox, node, "job", "--nnodes 2:5");
        agent.env("XDG_RUNTIME_DIR", folder(node)).start()
    };
    let mut agents = [1, 2, 3, 4, 5].map(start);
    assert_admitted(&mut agents);
    let is_host = |agent: &Program| agent.text(Stream::Stderr).contains("coordinating the job");
    let host = agents.iter().position(is_host).expect("one hosts");
    agents[host].logs("the voters have changed");
    for node in 1..=5 {
        network.kill_all(node);
    }
    for agent in agents {
        agent.end();
    }
    let mut agents = [1, 2, 3, 4, 5].map(start);
    for agent in &mut agents {
        let line = agent.logs("nodes=5 world_size=5 ");
        let round = field(&line, "round");
        assert!(round.ends_with(".2"), "{line}");
    }
}

/// A job that has begun is kept. Another host brings the nodes that it has gathered to that job.
#[test]
fn running_job_takes_in_what_another_host_has_gathered() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("begun", 4), Sandbox::new());
    let words = "--nnodes 2:4:2 --rdzv-conf last_call_timeout=0.1,join_settle=0.1,voters=3";
    let start = |node: u32| agent(&network, &sandbox, node, "job", words).start();
    network.block(1);
    let mut alone = start(1);
    alone.logs("coordinating the job");
    let mut agents = vec![start(2), start(3)];
    for agent in &mut agents {
        agent.logs("nodes=2 world_size=2");
    }
    network.unblock(1);
    agents.extend([alone, start(4)]);
    assert_admitted(&mut agents);
    // The endpoint of the former host redirects to the job, once its voter knows who leads.
    let ask =
        || network.ragent(&sandbox, 4, "status --nodes --rdzv-endpoint 10.77.0.1:29400").run();
    let until = clock::now_blocking() + PATIENCE;
    let mut status = ask();
    while status.stderr.contains("no elected coordinator") && clock::now_blocking() < until {
        status = ask();
    }
    status.assert_code(0);
    let lists = |node| status.stdout.contains(&Network::address(node));
    assert!((1..=4).all(lists), "{}", status.stdout);
}

/// Two jobs with voters have begun in two parts of the network. They find each other when the network is whole again. The younger one
/// closes, and its agents join the elder one when they are started again.
#[test]
fn younger_job_with_voters_closes() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("vmeet", 4), Sandbox::new());
    let words = "--nnodes 2:4 --rdzv-conf last_call_timeout=0.1,join_settle=0.1";
    let start = |node: u32| agent(&network, &sandbox, node, "job", words).start();
    network.split(&[3, 4]);
    let mut elder = [1, 2].map(start);
    assert_admitted(&mut elder);
    let mut younger = [3, 4].map(start);
    assert_admitted(&mut younger);
    network.unite(&[3, 4]);
    for agent in younger {
        let end = agent.end();
        end.assert_code(3);
        end.assert_stderr(&["another job of this name", "hint: start the agents again"]);
    }
    let mut agents = Vec::from(elder);
    agents.extend([3, 4].map(start));
    assert_admitted(&mut agents);
}

/// IPv6 is sufficient.
#[test]
fn without_ipv4() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("v6", 3), Sandbox::new());
    for node in 1..=3 {
        network.ip(node, &format!("addr add fd00:77::{node}/64 dev eth0 nodad"));
        network.ip(node, &format!("addr del {}/24 dev eth0", Network::address(node)));
    }
    let mut agents = start_all(&network, &sandbox, "job", "--nnodes 3");
    for agent in &mut agents {
        agent.logs("nodes=3 world_size=3 master=[fd00:77::");
    }
}

/// If the network has no multicast, a list of hosts is sufficient. Without a list the agent fails at once.
#[test]
fn list_of_hosts_does_without_multicast() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("list", 3), Sandbox::new());
    for node in 1..=3 {
        network.ip(node, "link set eth0 multicast off");
        network.ip(node, "link set lo down");
    }
    let end = agent(&network, &sandbox, 1, "job", "--nnodes 3").run();
    end.assert_code(1);
    end.assert_stderr(&[
        "no network interface of this machine supports multicast",
        "--discover-hosts",
    ]);
    for node in 1..=3 {
        network.ip(node, "link set lo up");
    }
    for (name, hosts) in [("all", "10.77.0.1,10.77.0.2,10.77.0.3"), ("one", "10.77.0.2")] {
        let words = format!("--nnodes 3 --discover-hosts {hosts}");
        let mut agents = start_all(&network, &sandbox, name, &words);
        assert_admitted(&mut agents);
        for agent in agents {
            agent.signal(Signal::SIGTERM);
            agent.end();
        }
    }
}

/// An interface that this machine does not have is reported before anything is sent.
#[test]
fn interface_must_exist() {
    let sandbox = Sandbox::new();
    let words = "--rdzv-endpoint auto --rdzv-id x --rdzv-conf discover_interface=no9";
    let end = sandbox.ragent(&format!("{words} --no-python true")).run();
    end.assert_code(2);
    end.assert_stderr(&["no such interface"]);
}
