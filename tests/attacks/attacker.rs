//! Provides the attacker's tools.

use std::{
    fs::File,
    io::Write,
    net::TcpStream,
    process::{Command, Output},
    thread,
};

use nix::sched::{CloneFlags, setns};
use ragent_proto::v1::{
    self, AgentMessage, CoordinatorMessage, agent_message::Message,
    coordination_client::CoordinationClient,
};
use tokio_stream::StreamExt;

use crate::support::{Network, PATIENCE};

/// The attacker's uid as another user of the same host.
pub(crate) const OTHER: u32 = 12_002;

/// Runs a closure on a node of a network.
pub(crate) fn here<T: Send>(network: &Network, node: u32, act: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{}", network.namespace(node))).unwrap();
    thread::scope(|scope| {
        let acting = scope.spawn(|| {
            // The namespace changes for this thread only.
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            act()
        });
        acting.join().unwrap()
    })
}

/// Sends a request.
pub(crate) fn http(stream: &mut TcpStream, request: &str) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
}

/// Runs a Python program on a node as a user, and returns its output.
pub(crate) fn python(network: &Network, node: u32, uid: u32, script: &str) -> String {
    let uid = uid.to_string();
    let output: Output = Command::new("ip")
        .args([
            "netns",
            "exec",
            &network.namespace(node),
            "setpriv",
            "--reuid",
            &uid,
            "--regid",
            &uid,
        ])
        .args(["--clear-groups", "/usr/bin/python3", "-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The registration of a made-up node.
pub(crate) fn registration(node_id: &str, address: &str, agent_port: u32) -> v1::Registration {
    let round = || Some(v1::RoundId { term: 0, round: 0 });
    v1::Registration {
        ended: Vec::new(),
        protocol_version: ragent_rendezvous::message::PROTOCOL_VERSION,
        run_id: "job".to_owned(),
        job: None,
        waited_ms: 600_000,
        job_uid: String::new(),
        stream: 1,
        node: Some(v1::Node {
            node_id: node_id.to_owned(),
            host_name: "evil".to_owned(),
            address: address.to_owned(),
            addresses: Vec::new(),
            agent_port,
            role: "default".to_owned(),
            script: String::new(),
            load: String::new(),
            failure_domain: String::new(),
            local_world_size: 1,
            node_rank: None,
            voter: None,
            voter_address: String::new(),
        }),
        settings: Some(v1::SharedSettings {
            min_nodes: 2,
            max_nodes: 2,
            max_restarts: 3,
            join_timeout_ms: 600_000,
            last_call_timeout_ms: 600_000,
            join_settle_ms: 100,
            shrink_timeout_ms: 0,
            stop_grace_ms: 30_000,
            fixed_ranks: false,
            node_unit: 1,
            store_access_any: false,
            no_progress_limit: 3,
            ..v1::SharedSettings::default()
        }),
        known_round: Some(v1::KnownRound { round: round(), size: 0, group_rank: None }),
        restarts_used: 0,
        charged_through: 0,
        report: Some(v1::NodeReport {
            round: round(),
            state: Some(v1::node_report::State::Preparing(v1::node_report::Preparing {})),
            failure: None,
            lease_expired: false,
            ..v1::NodeReport::default()
        }),
        proof: Vec::new(),
        lost_term: 0,
        memory: None,
    }
}

/// Registers, and runs a closure with the first answer while the stream is open.
pub(crate) fn while_registered<T>(
    endpoint: &str,
    registration: v1::Registration,
    act: impl FnOnce(CoordinatorMessage) -> T,
) -> T {
    while_registered_with(endpoint, registration, Vec::new(), act)
}

/// Like [`while_registered`], with more messages right after the registration.
pub(crate) fn while_registered_with<T>(
    endpoint: &str,
    registration: v1::Registration,
    more: Vec<Message>,
    act: impl FnOnce(CoordinatorMessage) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{endpoint}"));
        let channel = channel.unwrap().connect().await.unwrap();
        let messages = [Message::Registration(registration)].into_iter().chain(more);
        let messages = messages.map(|message| AgentMessage { message: Some(message) });
        let stream = tokio_stream::iter(messages).chain(tokio_stream::pending());
        let mut client = CoordinationClient::new(channel);
        let answers = tokio::time::timeout(PATIENCE, client.attend(stream)).await.unwrap();
        let mut answers = answers.unwrap().into_inner();
        let answer = tokio::time::timeout(PATIENCE, answers.message()).await.unwrap();
        act(answer.unwrap().unwrap())
    })
}
