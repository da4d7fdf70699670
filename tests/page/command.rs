//! Tests `ragent page`: the page of a job on this machine, for one browser.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    browser::{Browser, has_browser},
    live::start_voters,
    server::ask,
    support::{Program, Sandbox, free_port},
};

/// Starts `ragent page` and returns its address and its token.
#[track_caller]
fn start_page(sandbox: &Sandbox, words: &str) -> (Program, SocketAddr, String) {
    let mut program = sandbox.ragent(&format!("page {words}")).start();
    let line = program.prints("http://");
    let (_, url) = line.split_once("http://").expect("an address");
    let (address, token) = url.trim().split_once("/?token=").expect("a token");
    (program, address.parse().expect("an address"), token.to_owned())
}

/// 22: the token opens the page once. Nothing is readable without the cookie that follows, with a used token, or with the name of another
/// host. No request changes anything.
#[test]
fn page_opens_once() {
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let secret = sandbox.path("secret");
    let made = sandbox.ragent(&format!("secret --init --secret-file {}", secret.display())).run();
    made.assert_code(0);
    let flags = format!("--rdzv-endpoint {endpoint} --secret-file {}", secret.display());
    let mut agent =
        sandbox.ragent(&format!("--nnodes 1 --rdzv-id run7 {flags} --no-python stay.sh")).start();
    agent.worker();
    let (page, address, token) = start_page(&sandbox, &flags);
    let host = format!("Host: {address}");
    for path in ["/", "/status", "/v1/watch", "/v1/events", "/unknown", "/?token=", "/?token=x"] {
        let (head, body) = ask(address, &format!("GET {path}"), &[&host]);
        assert!(head.starts_with("HTTP/1.0 403 "), "{path}: {head}");
        assert!(body.contains("`ragent page`"), "{path}: {body}");
        assert!(!body.contains("run7"), "{path}: {body}");
    }
    let open = format!("GET /?token={token}");
    let (head, _) = ask(address, &open, &[&host]);
    assert!(head.starts_with("HTTP/1.0 303 "), "{head}");
    assert!(head.contains("\r\nlocation: /\r\n"), "{head}");
    let cookie = head.split_once("\r\nset-cookie: ").expect("a cookie").1;
    let (cookie, flags) = cookie.split_once("; ").expect("a cookie with flags");
    assert!(flags.starts_with("HttpOnly; SameSite=Lax; Path=/\r\n"), "{flags}");
    let (head, body) = ask(address, &open, &[&host]);
    assert!(head.starts_with("HTTP/1.0 403 "), "{head}");
    assert!(body.contains("in another browser before"), "{body}");
    let cookie = format!("Cookie: {cookie}");
    let (head, body) = ask(address, "GET /status", &[&host, &cookie]);
    assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
    let status: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status["run_id"], "run7");
    let (head, _) = ask(address, "GET /", &[&host, &cookie]);
    assert!(head.contains("\r\ncontent-security-policy: default-src 'none'; "), "{head}");
    let (head, _) = ask(address, "GET /status", &["Host: evil.example", &cookie]);
    assert!(head.starts_with("HTTP/1.0 421 "), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let (head, _) = ask(address, &format!("{method} /v1/death-notice"), &[&host, &cookie]);
        assert!(head.starts_with("HTTP/1.0 405 "), "{method}: {head}");
    }
    page.signal(Signal::SIGINT);
    page.end().assert_code(0);
}

/// Without a job, or with a port that is in use, the command fails with the reason.
#[test]
fn failures_are_explained() {
    let sandbox = Sandbox::new();
    let port = free_port();
    let end = sandbox.ragent(&format!("page --rdzv-endpoint 127.0.0.1:{port}")).run();
    end.assert_code(1);
    end.assert_stderr(&["cannot connect to"]);
    let endpoint = format!("127.0.0.1:{port}");
    let command = format!("--nnodes 1 --rdzv-endpoint {endpoint} --no-python stay.sh");
    let mut agent = sandbox.ragent(&command).start();
    agent.worker();
    let end = sandbox.ragent(&format!("page --rdzv-endpoint {endpoint} --port {port}")).run();
    end.assert_code(10);
    end.assert_stderr(&[&port.to_string(), "in use"]);
}

/// A browser opens the address that was printed. The page goes on when another agent takes over, and a reload needs no token.
#[test]
fn page_follows_the_coordinator() {
    if !has_browser() {
        return;
    }
    let sandbox = Sandbox::new();
    let browser = Browser::start(&sandbox);
    let job = start_voters(&sandbox);
    let (_page, address, token) = start_page(&sandbox, &format!("--rdzv-endpoint {}", job.voters));
    browser.open(&format!("http://{address}/?token={token}"));
    browser.shows("round 1 · 3 of 2:3 nodes");
    let leader = job.leader(&browser);
    job.agents[leader].signal(Signal::SIGKILL);
    browser.shows("round 2 · 2 of 2:3 nodes");
    browser.shows("live");
    browser.open(&format!("http://{address}/"));
    browser.shows("round 2 · 2 of 2:3 nodes");
    assert_eq!(browser.evaluate("document.cookie"), "", "the cookie is not for scripts");
}
