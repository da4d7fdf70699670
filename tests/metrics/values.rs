//! Tests the values of metrics in a job that restarts.

use std::fs;

use nix::sys::signal::Signal;

use crate::{
    page::{Metrics, address_of, start_pair},
    support::{Program, READY, Sandbox, Start, free_port, is_there, keeper_of, kill},
};

/// Workers are counted by how they were started and how they ended. Keep-alives, requests to the store and inputs of the coordinator are
/// counted at their process.
#[test]
fn restart_is_counted() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let ([mut host, mut guest], [of_host, of_guest]) =
        start_pair(&sandbox, "--max-restarts 3", "--no-python obey.sh");
    // Rank 0 fails, and the other worker is stopped by a signal.
    let start = |agent: &mut Program| {
        agent.worker();
        // The agent has counted it.
        agent.logs("worker started");
    };
    start(&mut host);
    start(&mut guest);
    orders.give("exit 3");
    start(&mut host);
    start(&mut guest);
    let (of_host, of_guest) = (Metrics::at(of_host), Metrics::at(of_guest));
    for (metrics, how) in [(&of_host, "exit_code"), (&of_guest, "signal")] {
        assert_eq!(metrics.value("ragent_workers"), 1.0, "{metrics:?}");
        assert_eq!(metrics.value("ragent_worker_starts_total{how=\"exec\"}"), 2.0, "{metrics:?}");
        let end = format!("ragent_worker_ends_total{{how=\"{how}\"}}");
        assert_eq!(metrics.value(&end), 1.0, "{metrics:?}");
        let echoes = metrics.value("ragent_keep_alive_seconds_count");
        let time = metrics.value("ragent_keep_alive_seconds_sum");
        assert!(echoes >= 1.0 && time > 0.0, "{metrics:?}");
        let margin = metrics.value("ragent_lease_margin_seconds");
        assert!((0.0..60.0).contains(&margin), "{metrics:?}");
    }
    assert!(of_host.value("ragent_coordinator_loop_seconds_count") > 4.0, "{of_host:?}");
    assert_eq!(of_host.value("ragent_restarts_used"), 1.0);
    assert!(of_guest.find("ragent_coordinator_loop_seconds_count").is_none(), "{of_guest:?}");
}

/// A voter that takes over a job counts the takeover. The first leader of the job counts none.
#[test]
fn takeover_is_counted() {
    let sandbox = Sandbox::new();
    let port = free_port();
    let agents = [1, 2, 3].map(|host| {
        sandbox.ragent(&format!(
            "--nnodes 2:3 --rdzv-backend c10d --rdzv-id j --local-addr 127.0.0.{host} \
             --rdzv-endpoint 127.0.0.1,127.0.0.2,127.0.0.3:{port} --metrics-listen 127.0.0.1:0 \
             --no-python stay.sh"
        ))
    });
    let mut agents = agents.map(Start::start);
    let addresses = agents.each_mut().map(address_of);
    agents.iter_mut().for_each(|agent| drop(agent.worker()));
    let takeovers = |address| Metrics::at(address).value("ragent_takeovers_total");
    assert_eq!(addresses.map(takeovers), [0.0; 3]);
    let leads = |address: &_| Metrics::at(*address).find("ragent_term").is_some();
    let leader = addresses.iter().position(leads).expect("one of them leads");
    agents[leader].signal(Signal::SIGKILL);
    let others = [0, 1, 2].into_iter().filter(|agent| *agent != leader);
    let others: Vec<_> = others.collect();
    for other in &others {
        agents[*other].worker();
    }
    let counts = others.iter().map(|other| takeovers(addresses[*other]));
    assert_eq!(counts.sum::<f64>(), 1.0);
}

/// A worker that was a standby is counted as one. Workers that end with their keeper have an end of their own.
#[test]
fn standby_and_keeper_are_counted() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("wait.py"), "import signal\nsignal.pause()\n").unwrap();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let agent = |rank, words: &str| {
        sandbox.ragent(&format!(
            "--nnodes 2 --max-restarts 3 --rdzv-backend c10d --rdzv-id j --rdzv-endpoint {endpoint} \
             --node-rank {rank} --metrics-listen 127.0.0.1:0 {words}"
        ))
    };
    let mut host = agent(0, "--standby=json wait.py").start();
    let address = address_of(&mut host);
    host.logs(READY);
    let starts = |metrics: &Metrics| {
        ["standby", "exec"]
            .map(|how| metrics.value(&format!("ragent_worker_starts_total{{how=\"{how}\"}}")))
    };
    let before = Metrics::at(address);
    assert_eq!((starts(&before), before.value("ragent_workers")), ([0.0, 0.0], 0.0));
    let mut guest = agent(1, "--role other --no-python stay.sh").start();
    host.logs("worker started");
    assert_eq!(starts(&Metrics::at(address)), [1.0, 0.0]);
    guest.worker();
    kill(keeper_of(host.pid()), Signal::SIGKILL);
    host.logs("worker started");
    let after = Metrics::at(address);
    assert_eq!(after.value("ragent_worker_ends_total{how=\"keeper_lost\"}"), 1.0, "{after:?}");
    assert_eq!(after.value("ragent_workers"), 1.0, "{after:?}");
    assert_eq!(starts(&after).iter().sum::<f64>(), 2.0, "{after:?}");
}
