//! Tests what serves the loss of a node: the copies on another one.

use nix::sys::signal::Signal;

use crate::{
    WORKER, assert_loaded, change_a_byte, give, prints_of_all,
    support::{
        Network, Orders, Program, Sandbox, Start, children, keeper_of, kill, may_make_networks,
    },
};

/// A job of nodes with one worker each. Each node has a host name and a network of its own.
struct Job<'a> {
    sandbox: &'a Sandbox,
    network: Network,
    flags: String,
}

impl<'a> Job<'a> {
    fn new(sandbox: &'a Sandbox, name: &str, nodes: u32, flags: &str) -> Self {
        Self { sandbox, network: Network::new(name, nodes), flags: flags.to_owned() }
    }

    fn agent(&self, node: u32) -> Start {
        let Self { sandbox, network, flags } = self;
        let address = Network::address(node);
        let words = format!("--rdzv-id memory --local-addr {address} {flags} {WORKER}");
        network.named_ragent(sandbox, node, &words)
    }

    fn host(&self) -> Program {
        let mut host = self.agent(1).start();
        host.endpoint();
        host
    }
}

fn secret(sandbox: &Sandbox) -> String {
    let path = sandbox.path("secret");
    std::fs::write(&path, "0123456789abcdef".repeat(4)).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    format!("--secret-file {}", path.display())
}

/// Starts agents, and returns them by rank.
fn start(job: &Job<'_>, nodes: u32, host: Option<Program>) -> Vec<Program> {
    let mut agents: Vec<Program> = host.into_iter().collect();
    let first = 1 + agents.len() as u32;
    agents.extend((first..=nodes).map(|node| job.agent(node).start()));
    agents
}

/// Waits for the worker of a rank on any of these agents, and returns the agents by rank.
#[track_caller]
fn by_rank(agents: Vec<Program>) -> Vec<Program> {
    let mut ranked: Vec<(u32, Program)> = agents
        .into_iter()
        .map(|mut agent| {
            let line = agent.prints(" pid=");
            let rank = line.split(['=', ' ']).nth(1).unwrap().parse().unwrap();
            (rank, agent)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, agent)| agent).collect()
}

const ENDPOINT: &str = "--rdzv-endpoint 10.77.0.1:29400 --rdzv-conf last_call_timeout=3600";

/// Waits until the workers of a job learn that a step is whole.
#[track_caller]
fn wait_until_whole(agents: &mut [Program], orders: &[Orders], step: u64) {
    give(orders, &format!("while ask(ask='newest')[0]['step'] != {step}: time.sleep(0.01)"));
    give(orders, "newest()");
    for (rank, agent) in agents.iter_mut().enumerate() {
        agent.prints(&format!("rank={rank} newest={step}"));
    }
}

/// A node is lost, and a spare takes its rank. It fetches the part of that rank from the node that keeps the copy.
#[test]
fn spare_fetches_the_part() {
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let orders: Vec<Orders> = (0..3).map(|rank| sandbox.orders(rank)).collect();
    let flags = format!("--nnodes 3 --max-restarts 3 {ENDPOINT} {}", secret(&sandbox));
    let job = Job::new(&sandbox, "memspare", 4, &flags);
    let host = job.host();
    let mut agents = by_rank(start(&job, 3, Some(host)));
    let mut spare = job.agent(4).start();
    spare.logs("this node is a spare");
    give(&orders, "save(10)");
    wait_until_whole(&mut agents, &orders, 10);
    // Also of a step that is not whole yet, the parts of the others are newer. Then nobody uses it.
    orders[0].give("save(20)");
    agents[0].prints("rank=0 saved=20");
    let mut lost = agents.remove(2);
    lost.signal(Signal::SIGKILL);
    lost.wait_until_silent();
    spare.prints(" pid=");
    agents.push(spare);
    agents[..2].iter_mut().for_each(|agent| drop(agent.prints(" pid=")));
    give(&orders, "load(); save(20)");
    // The survivors have kept their ranks.
    for (rank, agent) in (0..).zip(&mut agents) {
        assert_loaded(agent, 10, &[rank]);
    }
    wait_until_whole(&mut agents, &orders, 20);
    // The same for the death of a worker afterwards.
    kill(children(keeper_of(agents[1].pid()))[0], Signal::SIGKILL);
    agents.iter_mut().for_each(|agent| drop(agent.prints("restart=1")));
    give(&orders, "load()");
    for (rank, agent) in (0..).zip(&mut agents) {
        assert_loaded(agent, 20, &[rank]);
    }
}

/// A byte of all that a node keeps changes. The content comes from the node with the copy. If it has changed there too, all ranks begin
/// from disk. No failure is charged for that.
#[test]
fn changed_byte_at_one_of_two_holders() {
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let orders: Vec<Orders> = (0..2).map(|rank| sandbox.orders(rank)).collect();
    let flags = format!("--nnodes 2 --max-restarts 2 {ENDPOINT} {}", secret(&sandbox));
    let job = Job::new(&sandbox, "membyte", 2, &flags);
    let host = job.host();
    let mut agents = by_rank(start(&job, 2, Some(host)));
    give(&orders, "save(10)");
    wait_until_whole(&mut agents, &orders, 10);
    change_a_byte(&agents[1]);
    kill(children(keeper_of(agents[1].pid()))[0], Signal::SIGKILL);
    agents.iter_mut().for_each(|agent| drop(agent.prints("restart=1")));
    give(&orders, "load(); save(20)");
    for (rank, agent) in (0..).zip(&mut agents) {
        assert_loaded(agent, 10, &[rank]);
    }
    wait_until_whole(&mut agents, &orders, 20);
    agents.iter().for_each(change_a_byte);
    kill(children(keeper_of(agents[1].pid()))[0], Signal::SIGKILL);
    agents[0].logs("cannot use step 20 from memory");
    agents[0].logs("round admitted round=1.4");
    give(&orders, "load(); save(5)");
    for (rank, agent) in (0..).zip(&mut agents) {
        prints_of_all(agent, &[rank], "loaded=nothing");
        prints_of_all(agent, &[rank], "saved=5");
    }
}

/// The host of the coordinator is lost, and another voter takes over. The job goes on from the newest whole step.
#[test]
fn takeover_goes_on_from_memory() {
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let orders: Vec<Orders> = (0..3).map(|rank| sandbox.orders(rank)).collect();
    let flags = format!(
        "--nnodes 3 --max-restarts 3 --rdzv-endpoint 10.77.0.1,10.77.0.2,10.77.0.3 {} \
         --rdzv-conf last_call_timeout=3600",
        secret(&sandbox)
    );
    let job = Job::new(&sandbox, "memvoters", 4, &flags);
    let agents = start(&job, 3, None);
    let mut agents = by_rank(agents);
    let mut spare = job.agent(4).start();
    spare.logs("this node is a spare");
    give(&orders, "save(10)");
    wait_until_whole(&mut agents, &orders, 10);
    let leader = agents.iter_mut().position(|agent| {
        agent.receive_pending();
        agent.text(crate::support::Stream::Stderr).contains("coordinating the job")
    });
    let mut lost = agents.remove(leader.unwrap());
    lost.signal(Signal::SIGKILL);
    lost.wait_until_silent();
    agents.push(spare);
    let mut agents = by_rank(agents);
    give(&orders, "load()");
    let loaded = |agent: &mut Program| agent.prints("loaded=10 of=");
    let lines: Vec<String> = agents.iter_mut().map(loaded).collect();
    for (rank, line) in lines.iter().enumerate() {
        assert!(line.ends_with(&format!("rank={rank} loaded=10 of={rank}")), "{line}");
    }
}

/// Without a secret, nothing crosses the network: a worker's death is served by the nodes' own parts, and after the loss of a node all
/// ranks begin from disk.
#[test]
fn without_a_secret_only_own_parts_serve() {
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let orders: Vec<Orders> = (0..2).map(|rank| sandbox.orders(rank)).collect();
    let job = Job::new(&sandbox, "memopen", 3, &format!("--nnodes 2 --max-restarts 3 {ENDPOINT}"));
    let host = job.host();
    let mut agents = by_rank(start(&job, 2, Some(host)));
    let mut spare = job.agent(3).start();
    spare.logs("this node is a spare");
    give(&orders, "save(10)");
    wait_until_whole(&mut agents, &orders, 10);
    kill(children(keeper_of(agents[1].pid()))[0], Signal::SIGKILL);
    agents.iter_mut().for_each(|agent| drop(agent.prints("restart=1")));
    give(&orders, "load(); save(20)");
    for (rank, agent) in (0..).zip(&mut agents) {
        assert_loaded(agent, 10, &[rank]);
    }
    wait_until_whole(&mut agents, &orders, 20);
    let mut lost = agents.remove(1);
    lost.signal(Signal::SIGKILL);
    lost.wait_until_silent();
    agents.push(spare);
    agents.iter_mut().for_each(|agent| drop(agent.prints(" pid=")));
    give(&orders, "load()");
    for (rank, agent) in (0..).zip(&mut agents) {
        prints_of_all(agent, &[rank], "loaded=nothing");
    }
}

/// A firewall lets nothing through to the node that shall keep a copy: `status` says so after a minute, the workers save on, and their
/// own parts serve the death of a worker.
#[test]
fn firewall_leaves_own_parts() {
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let orders: Vec<Orders> = (0..2).map(|rank| sandbox.orders(rank)).collect();
    let secret = secret(&sandbox);
    let flags = format!("--nnodes 2 --max-restarts 3 {ENDPOINT} {secret}");
    let job = Job::new(&sandbox, "memwall", 2, &flags);
    job.network.open_only(2, 29400);
    let host = job.host();
    let mut agents = by_rank(start(&job, 2, Some(host)));
    // The third one waits until the copy of the first one is given up.
    give(&orders, "save(10); save(20); save(30)");
    for (rank, agent) in agents.iter_mut().enumerate() {
        agent.prints(&format!("rank={rank} saved=30"));
    }
    let words = format!("status --watch --json --rdzv-endpoint 10.77.0.1:29400 {secret}");
    let mut status = job.network.ragent(&sandbox, 1, &words).start();
    status.prints("not copied from node1: node2 (10.77.0.2:");
    kill(children(keeper_of(agents[1].pid()))[0], Signal::SIGKILL);
    agents.iter_mut().for_each(|agent| drop(agent.prints("restart=1")));
    give(&orders, "load()");
    // The node's report of the newest step may be on its way when the worker dies.
    let first = agents[0].prints("rank=0 loaded=");
    let step = if first.contains("loaded=30") { 30 } else { 20 };
    assert_eq!(first, format!("rank=0 loaded={step} of=0"));
    assert_loaded(&mut agents[1], step, &[1]);
}
