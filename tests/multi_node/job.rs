//! Runs one job: its endpoint, the flags that all its nodes share, and its agents.

use std::{
    cell::Cell,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use serde_json::Value;

use crate::support::{Program, Sandbox, Start, Worker, free_port};

/// The settings that the agents of a job share.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    sandbox: &'a Sandbox,
    pub(crate) endpoint: String,
    flags: String,
    agents: Cell<u32>,
}

impl<'a> Job<'a> {
    /// A job with these flags on all nodes.
    pub(crate) fn new(sandbox: &'a Sandbox, flags: &str) -> Self {
        Self::at(sandbox, format!("127.0.0.1:{}", free_port()), flags)
    }

    /// A job with these flags on all nodes, at an endpoint of this machine.
    pub(crate) fn at(sandbox: &'a Sandbox, endpoint: String, flags: &str) -> Self {
        Self { sandbox, endpoint, flags: flags.to_owned(), agents: Cell::new(0) }
    }

    /// An agent that is not started yet. `words` are its own flags and its worker. Agents of the first round get their ranks in the order
    /// of these calls.
    pub(crate) fn agent(&self, words: &str) -> Start {
        let Self { endpoint, flags, agents, .. } = self;
        let rank = agents.replace(agents.get() + 1);
        self.sandbox.ragent(&format!(
            "--rdzv-backend c10d --rdzv-id j --rdzv-endpoint {endpoint} --node-rank {rank} {flags} \
             {words}"
        ))
    }

    /// Starts the agent that hosts the coordinator.
    #[track_caller]
    pub(crate) fn host(&self, words: &str) -> Program {
        hosting(self.agent(words))
    }

    /// Starts an agent of another node.
    pub(crate) fn guest(&self, words: &str) -> Program {
        self.agent(words).start()
    }

    /// The status of the job, in JSON.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        let words = format!("status --json --rdzv-endpoint {}", self.endpoint);
        let end = self.sandbox.ragent(&words).run();
        end.assert_code(0);
        serde_json::from_str(&end.stdout).unwrap()
    }
}

/// Reads a page of each agent that is not lost over HTTP, without TLS.
#[track_caller]
pub(crate) fn pages(status: &Value, path: &str) -> Vec<String> {
    let nodes = status["nodes"].as_array().expect("the nodes are listed");
    let present = nodes.iter().filter(|node| node["state"] != "lost");
    let pages = present.map(|node| {
        let port = node["agent_port"].as_u64().and_then(|port| port.try_into().ok());
        let (head, body) = page(port.expect("a port"), path);
        assert!(head.contains(" 200 "), "{head}: {body}");
        body
    });
    pages.collect()
}

/// Reads a page at a port of this machine over HTTP, and returns its header and its body.
#[track_caller]
pub(crate) fn page(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // In this version, the body of a page that is written in parts ends with the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Reads a page of lines at a port of this machine until its end, apart from empty lines.
#[track_caller]
pub(crate) fn follow(port: u16, path: &str, mut each: impl FnMut(&str)) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let body = lines.skip_while(|line| !line.is_empty());
    body.filter(|line| !line.is_empty()).for_each(|line| each(&line));
}

/// Reads the state of the job at the port of each agent. Each must serve it.
#[track_caller]
pub(crate) fn assert_served_everywhere(status: &Value) {
    for body in pages(status, "/status") {
        let body: Value = serde_json::from_str(&body).unwrap();
        for field in ["job_uid", "round", "world_size", "term"] {
            assert_eq!(body[field], status[field], "{body}");
        }
    }
}

/// Starts an agent and waits until it hosts the coordinator.
#[track_caller]
pub(crate) fn hosting(agent: Start) -> Program {
    let mut host = agent.start();
    host.endpoint();
    host
}

/// Waits for the next worker of each agent.
#[track_caller]
pub(crate) fn workers<const N: usize>(agents: [&mut Program; N]) -> [Worker; N] {
    agents.map(Program::worker)
}

/// A number of each worker, by name.
#[track_caller]
pub(crate) fn numbers<const N: usize>(workers: &[Worker; N], name: &str) -> [u32; N] {
    workers.each_ref().map(|worker| worker.number(name))
}
