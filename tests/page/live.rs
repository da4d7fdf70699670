//! Tests the page of jobs with real processes.

use nix::sys::signal::Signal;

use crate::{
    browser::{Browser, has_browser},
    support::{Program, Sandbox, field, free_port},
};

/// Two agents with a worker each, and the endpoint of their job.
struct Pair {
    host: Program,
    guest: Program,
    origin: String,
}

impl Pair {
    #[track_caller]
    fn start(sandbox: &Sandbox, flags: &str) -> Self {
        let endpoint = format!("127.0.0.1:{}", free_port());
        let agent = |rank| {
            sandbox.ragent(&format!(
                "--nnodes 2 --rdzv-id run7 --rdzv-endpoint {endpoint} --node-rank {rank} \
                 --max-restarts 5 {flags} --no-python stay.sh"
            ))
        };
        let host = agent(0).start();
        let guest = agent(1).start();
        Self { host, guest, origin: format!("http://{endpoint}") }
    }
}

/// A worker is killed, three times. The page shows each of these failures and the next round. It reports no error, and sends no request to
/// another server.
#[test]
#[expect(clippy::print_stderr, reason = "shows the time with `--nocapture`")]
fn killed_worker_is_shown() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut job = Pair::start(&sandbox, "");
    let browser = Browser::start(&sandbox);
    let mut worker = job.guest.worker();
    job.host.worker();
    browser.open(&format!("{}/", job.origin));
    browser.shows("round 1 · 2 of 2 nodes · 2 workers · restarts 0/5");
    browser.shows("live");
    let mut fastest = f64::INFINITY;
    for round in 2..5 {
        let failures = round - 1;
        let begun = browser.evaluate("Date.now()").as_f64().expect("a time");
        worker.signal(Signal::SIGKILL);
        // The failure, and the end of the round that it has caused.
        browser.wait_until(&format!(
            "document.getElementById('events').innerText.split('killed by SIGKILL').length > 2 * {failures}"
        ));
        let shown = browser.evaluate("Date.now()").as_f64().expect("a time");
        fastest = fastest.min(shown - begun);
        browser.shows(&format!("round {round} · 2 of 2 nodes · 2 workers · restarts {failures}/5"));
        worker = job.guest.worker();
    }
    eprintln!("a killed worker is on the page after {fastest} ms, in the fastest of three times");
    assert!(browser.text().contains("failure of a worker"), "{}", browser.text());
    browser.assert_clean(&job.origin);
}

/// While the coordinator does not answer, another agent serves the document all the same. The page connects when there is a coordinator
/// again.
#[test]
fn document_needs_no_coordinator() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut job = Pair::start(&sandbox, "");
    let browser = Browser::start(&sandbox);
    job.guest.worker();
    job.host.worker();
    browser.open(&format!("{}/", job.origin));
    let other = format!(
        "fetch('status').then((answer) => answer.json())
            .then((status) => status.nodes.find((node) => node.agent_port != {}).agent_port)",
        job.origin.rsplit(':').next().expect("a port")
    );
    let port = browser.evaluate(&other);
    job.host.signal(Signal::SIGSTOP);
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.shows("connecting");
    job.host.signal(Signal::SIGCONT);
    browser.shows("2 of 2 nodes");
    browser.shows("live");
}

/// Three agents that elect the coordinator.
pub(crate) struct Voters {
    pub(crate) agents: [Program; 3],
    /// The endpoints of the agents.
    endpoints: [String; 3],
    /// The list of the endpoints.
    pub(crate) voters: String,
}

impl Voters {
    /// Returns the index of the agent that coordinates, by the status in the browser's page.
    #[track_caller]
    pub(crate) fn leader(&self, browser: &Browser) -> usize {
        let leader =
            "fetch('status').then((answer) => answer.json()).then((status) => status.leader)";
        let leader = browser.evaluate(leader);
        let place = self.endpoints.iter().position(|endpoint| leader == **endpoint);
        place.unwrap_or_else(|| panic!("{leader} is none of them"))
    }
}

/// Starts three agents that elect the coordinator, and waits until their workers run.
#[track_caller]
pub(crate) fn start_voters(sandbox: &Sandbox) -> Voters {
    let voters = [(); 3].map(|()| format!("127.0.0.1:{}", free_port())).join(",");
    let mut agents = [(); 3].map(|()| {
        let flags = "--nnodes 2:3 --rdzv-id run7 --rdzv-conf last_call_timeout=2 --max-restarts 5";
        let command = format!("{flags} --rdzv-endpoint {voters} --no-python stay.sh");
        sandbox.ragent(&command).start()
    });
    // The agents of one machine have the endpoints of the list in any order.
    let endpoints = agents.each_mut().map(|agent| {
        agent.worker();
        field(&agent.logs("voter started"), "endpoint")
    });
    Voters { agents, endpoints, voters }
}

/// The page of an agent that does not coordinate shows the job, and goes on when another agent takes over.
#[test]
fn page_survives_a_takeover() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let job = start_voters(&sandbox);
    let browser = Browser::start(&sandbox);
    browser.open(&format!("http://{}", job.endpoints[0]));
    let leader = job.leader(&browser);
    browser.open(&format!("http://{}", job.endpoints[(leader + 1) % 3]));
    browser.shows("round 1 · 3 of 2:3 nodes");
    job.agents[leader].signal(Signal::SIGKILL);
    browser.shows("round 2 · 2 of 2:3 nodes");
    browser.shows("loss of the coordinator");
    browser.shows("live");
}

/// The page shows how a job has ended, with the first failure and its last output. It does not show the end of the connection as an error.
#[test]
fn end_is_shown() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let command = format!(
        "--nnodes 1 --rdzv-id run7 --rdzv-endpoint {endpoint} --max-restarts 0 -t 3 --log-dir logs --no-python obey.sh"
    );
    let orders = sandbox.orders(0);
    let mut agent = sandbox.ragent(&command).start();
    agent.worker();
    let browser = Browser::start(&sandbox);
    let origin = format!("http://{endpoint}");
    browser.open(&origin);
    browser.shows("round 1 · 1 of 1 nodes");
    orders.give("echo the disk is full >&2; exit 3");
    browser.shows("First failure: rank 0");
    browser.shows("the disk is full");
    browser.shows("the job has ended");
    agent.end().assert_code(1);
    browser.assert_clean(&origin);
}
