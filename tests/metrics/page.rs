//! Sends requests to the port of the metrics.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use ragent_base::sys::clock;

use crate::support::{PATIENCE, Program, Sandbox, free_port, let_pass};

/// Returns the address of `--metrics-listen` with port 0, which the program logs.
#[track_caller]
pub(crate) fn address_of(program: &mut Program) -> SocketAddr {
    let line = program.logs("serving the metrics at http://");
    let (_, url) = line.split_once("http://").expect("an address follows");
    let (address, _) = url.split_once('/').expect("a path follows");
    address.parse().expect("an address")
}

/// Sends a request, in the version of HTTP without chunks in answers. Returns the status and the body of the answer.
#[track_caller]
pub(crate) fn answer(address: SocketAddr, request: &str, host: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the port is open");
    let headers = format!("Host: {host}\r\nContent-Length: 0\r\nConnection: close");
    let request = format!("{request} HTTP/1.0\r\n{headers}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), body.to_owned())
}

/// Returns the metrics at this address.
#[track_caller]
pub(crate) fn metrics_at(address: SocketAddr) -> String {
    let (status, body) = answer(address, "GET /metrics", &address.to_string());
    assert_eq!(status, 200, "{body}");
    body
}

/// Starts a job of two nodes, the host of the coordinator first, and returns the addresses of their metrics. `flags` are those of
/// the job.
#[track_caller]
pub(crate) fn start_pair(
    sandbox: &Sandbox,
    flags: &str,
    worker: &str,
) -> ([Program; 2], [SocketAddr; 2]) {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let agent = |rank| {
        sandbox.ragent(&format!(
            "--nnodes 2 --rdzv-backend c10d --rdzv-id j --rdzv-endpoint {endpoint} --node-rank {rank} \
             --metrics-listen 127.0.0.1:0 {flags} {worker}"
        ))
    };
    let mut host = agent(0).start();
    let of_host = address_of(&mut host);
    host.endpoint();
    let mut guest = agent(1).start();
    let of_guest = address_of(&mut guest);
    ([host, guest], [of_host, of_guest])
}

/// Waits until the metrics of one of these processes contain the usual time of a training step.
#[track_caller]
pub(crate) fn wait_for_steps(addresses: &[SocketAddr]) {
    let deadline = clock::now_blocking() + PATIENCE;
    let has_steps = |address: &SocketAddr| metrics_at(*address).contains("\nragent_step_seconds ");
    while !addresses.iter().any(has_steps) {
        assert!(clock::now_blocking() < deadline, "the metrics have no time of a step");
        // Steps arrive with keep-alives, and nothing reports their arrival.
        let_pass(Duration::from_millis(50));
    }
}

/// The metrics of a process at one moment.
#[derive(Debug)]
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    #[track_caller]
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self(metrics_at(address))
    }

    /// Returns the value of a series, given as its line has it.
    pub(crate) fn find(&self, series: &str) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        values.filter_map(|value| value.parse().ok()).next()
    }

    #[track_caller]
    pub(crate) fn value(&self, series: &str) -> f64 {
        self.find(series).unwrap_or_else(|| panic!("no {series}: {self:?}"))
    }
}
