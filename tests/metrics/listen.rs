//! Tests the port of `--metrics-listen`.

use std::net::TcpStream;

use nix::sys::signal::Signal;
use ragent_base::secret::{Secret, file};

use crate::{
    page::{address_of, answer, metrics_at, start_pair},
    support::{Sandbox, free_port},
};

/// In a job with a secret, the port serves the metrics to a client without any proof, by any name of this machine. It serves nothing else.
#[test]
fn only_the_metrics_are_served() {
    let sandbox = Sandbox::new();
    let secret = sandbox.path("secret");
    file::create(&secret, &Secret::random().unwrap()).unwrap();
    let flags = format!("--secret-file {}", secret.display());
    let ([mut host, mut guest], [of_host, of_guest]) =
        start_pair(&sandbox, &flags, "--no-python stay.sh");
    host.worker();
    guest.worker();
    let text = metrics_at(of_host);
    for line in ["ragent_round 1", "ragent_nodes{state=\"running\"} 2"] {
        assert!(text.lines().any(|written| written == line), "{line}: {text}");
    }
    let text = metrics_at(of_guest);
    assert!(
        text.contains("process_cpu_seconds_total ") && !text.contains("ragent_round"),
        "{text}"
    );
    assert_eq!(answer(of_host, "GET /metrics", "prometheus.example:1").0, 200);
    for path in ["/", "/status", "/v1/identity", "/v1/reach", "/metrics/x"] {
        assert_eq!(answer(of_host, &format!("GET {path}"), "localhost").0, 404, "{path}");
    }
    for path in ["/v1/death-notice", "/ragent.v1.Coordination/Status"] {
        assert_eq!(answer(of_host, &format!("POST {path}"), "localhost").0, 404, "{path}");
    }
    assert_eq!(answer(of_host, "POST /metrics", "localhost").0, 405);
}

/// An agent that has not found its job has metrics of its process.
#[test]
fn process_has_metrics_before_its_job() {
    let sandbox = Sandbox::new();
    let words = format!(
        "--nnodes 2 --rdzv-endpoint 127.0.0.1:{} --rdzv-conf is_host=0 --metrics-listen \
         127.0.0.1:0 --no-python stay.sh",
        free_port()
    );
    let mut agent = sandbox.ragent(&words).start();
    let text = metrics_at(address_of(&mut agent));
    assert!(text.contains("process_open_fds ") && !text.contains("ragent_job"), "{text}");
}

/// `ragent coordinator` has the same flag.
#[test]
fn coordinator_serves_metrics() {
    let sandbox = Sandbox::new();
    let list = format!("127.0.0.1,127.0.0.2,127.0.0.3:{}", free_port());
    let words = format!("--nnodes 3 --rdzv-endpoint {list} --metrics-listen 127.0.0.1:0");
    let mut coordinator = sandbox.ragent(&format!("coordinator {words}")).start();
    let address = address_of(&mut coordinator);
    coordinator.prints("127.0.0.1:");
    coordinator.logs("voter started");
    let text = metrics_at(address);
    assert!(text.contains("process_open_fds "), "{text}");
    coordinator.signal(Signal::SIGTERM);
    coordinator.end().assert_code(0);
}

/// The second agent of a machine with the same address reports that another agent has it.
#[test]
fn address_of_another_agent() {
    let sandbox = Sandbox::new();
    let words = format!("--metrics-listen 127.0.0.1:{} --no-python stay.sh", free_port());
    let mut first = sandbox.ragent(&words).start();
    first.worker();
    let second = sandbox.ragent(&words).run();
    second.assert_code(10);
    let by = format!("another agent of this machine, process {} (ragent), has", first.pid());
    for part in ["for the metrics", &by, "hint: give each agent of a machine its own port"] {
        assert!(second.stderr.contains(part), "{part}: {}", second.stderr);
    }
    first.signal(Signal::SIGTERM);
    first.end().assert_code(8);
}

/// Connections without a request are closed after a time, so that they do not lock others out.
#[test]
fn idle_connections_are_closed() {
    let sandbox = Sandbox::new();
    let words = "--metrics-listen 127.0.0.1:0 --no-python stay.sh";
    let mut agent = sandbox.ragent(words).start();
    let address = address_of(&mut agent);
    agent.worker();
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    metrics_at(address);
    drop(idle);
}
