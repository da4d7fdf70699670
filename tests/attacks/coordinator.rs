//! Attacks nodes by fake coordinators.

use std::{net::SocketAddr, pin::Pin, sync::mpsc, thread};

use axum::{Json, routing::get};
use ragent_proto::v1::{
    self, AgentMessage, CoordinatorMessage,
    coordination_server::{Coordination, CoordinationServer},
    coordinator_message::Message,
};
use ragent_rendezvous::message::PROTOCOL_VERSION;
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};
use tonic::{
    Request, Response, Status, Streaming,
    service::Routes,
    transport::{Server, server::TcpIncoming},
};

use crate::{support::Sandbox, victim::make_secret};

/// Accepts every agent with these leases, or refuses it, and reports a job whose texts contain control characters.
pub(crate) struct Fake {
    /// The protocol version that it names when it refuses an agent.
    refuses_as: Option<u32>,
    agent_lease_ms: u64,
    coordinator_lease_ms: u64,
}

const CURSED: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}";

type Answers = Pin<Box<dyn Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Coordination for Fake {
    type AttendStream = Answers;

    async fn attend(
        &self,
        _: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Answers>, Status> {
        if let Some(ours) = self.refuses_as {
            let version = v1::refusal::ProtocolVersion { ours };
            let reason = Some(v1::refusal::Reason::ProtocolVersion(version));
            let message = Some(Message::Refusal(v1::Refusal { reason }));
            let answer = tokio_stream::once(Ok(CoordinatorMessage { message }));
            return Ok(Response::new(Box::pin(answer)));
        }
        let round = Some(v1::RoundId { term: 1, round: 1 });
        let welcome = v1::Welcome {
            term: 1,
            job_uid: "u".to_owned(),
            coordinator: "fake".to_owned(),
            keep_alive_interval_ms: 300,
            agent_lease_ms: self.agent_lease_ms,
            coordinator_lease_ms: self.coordinator_lease_ms,
            voters: Vec::new(),
            proof: vec![7; 16],
            lease_left_ms: None,
        };
        let admission = v1::Admission {
            round,
            group_world_size: 1,
            world_size: 1,
            role_world_size: 1,
            master_address: "198.51.100.66".to_owned(),
            master_port: 6666,
            ..v1::Admission::default()
        };
        let admission =
            v1::Assignment { assignment: Some(v1::assignment::Assignment::Admit(admission)) };
        let messages = [Message::Welcome(welcome), Message::Assignment(admission)];
        let messages = messages.map(|message| Ok(CoordinatorMessage { message: Some(message) }));
        let answers = tokio_stream::iter(messages).chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Returns the state of a job as JSON, with texts that contain control characters.
fn cursed_state() -> serde_json::Value {
    serde_json::json!({
        "run_id": "job", "job_uid": "u", "term": 1, "round": 1, "phase": "gathering", "phase_ms": 0,
        "min_nodes": 1, "max_nodes": 1, "restarts_used": 0, "max_restarts": 0, "world_size": 0,
        "time": {"states": [], "redone_ms": 0, "now": null}, "last_restart": null, "restarts": [],
        "nodes": [], "incomplete": {"kind": "x", "text": CURSED}, "refused_clients": [],
        "refused_peers": [], "unreached": [], "progress": null, "outcome": null, "leader": null,
        "voters": [],
    })
}

/// A fake coordinator whose leases are valid.
pub(crate) fn short_lease() -> Fake {
    Fake { agent_lease_ms: 2400, coordinator_lease_ms: 3000, refuses_as: None }
}

/// A fake coordinator that refuses every agent, as its protocol has this version.
pub(crate) fn refusal(version: u32) -> Fake {
    Fake { refuses_as: Some(version), ..short_lease() }
}

/// Serves a fake coordinator until the tests end.
pub(crate) fn serve(fake: Fake) -> SocketAddr {
    serve_as(fake, serde_json::json!({}))
}

/// Serves a fake coordinator whose identity has further fields.
pub(crate) fn serve_as(fake: Fake, more: serde_json::Value) -> SocketAddr {
    let (bound, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            let mut identity = serde_json::json!({
                "ragent": env!("CARGO_PKG_VERSION"), "protocol": PROTOCOL_VERSION, "run_id": "job",
            });
            let more = more.as_object().unwrap().clone();
            identity.as_object_mut().unwrap().extend(more);
            let identity = get(|| async move { Json(identity) });
            let routes = Routes::new(CoordinationServer::new(fake));
            let routes = routes
                .into_axum_router()
                .route("/v1/identity", identity)
                .route("/status", get(|| async { Json(cursed_state()) }))
                .route("/v1/events", get(|| async { CURSED }));
            let server = Server::builder().accept_http1(true).add_routes(Routes::from(routes));
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
    });
    address.recv().unwrap()
}

/// 6, 8: a process that has taken the endpoint starts no worker on a node with a secret. It may deny that there is a secret, or name it.
#[test]
fn impostor_without_the_secret() {
    let sandbox = Sandbox::new();
    let path = make_secret(&sandbox);
    let id = ragent_base::secret::file::read(&path).unwrap()[0].id().to_string();
    let run = |identity| {
        let address = serve_as(short_lease(), identity);
        let words = format!(
            "--nnodes 2 --rdzv-id job --rdzv-endpoint {address} --rdzv-conf is_host=0,join_timeout=3 \
             --secret-file {} --no-python stay.sh",
            path.display()
        );
        let end = sandbox.ragent(&words).run();
        assert!(matches!(end.code, Some(1 | 9)), "{:?}", end.code);
        assert_eq!(end.stdout, "", "a worker was started");
        end
    };
    let denied = run(serde_json::json!({ "auth": "none" }));
    denied.assert_stderr(&["has no secret; this one has one", "--auth none"]);
    let named = run(serde_json::json!({ "auth": "secret", "ids": [id] }));
    named.assert_stderr(&["has not authenticated itself"]);
    // Without a secret it would have success, as the master's address shows.
    let address = serve(short_lease());
    let words = format!(
        "--nnodes 1 --auth none --rdzv-id job --rdzv-endpoint {address} --rdzv-conf is_host=0 \
         --no-python stay.sh"
    );
    let mut agent = sandbox.ragent(&words).start();
    agent.logs("198.51.100.66");
}

/// 19: control characters from a coordinator do not reach the terminal.
#[test]
fn cursed_status() {
    let address = serve(Fake { agent_lease_ms: 1, coordinator_lease_ms: 2, refuses_as: None });
    let sandbox = Sandbox::new();
    let end = sandbox.ragent(&format!("status --rdzv-endpoint {address}")).run();
    for text in [&end.stdout, &end.stderr] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}

/// 19: control characters in the output of a worker do not get into the report of its failure.
#[test]
fn cursed_worker() {
    let sandbox = Sandbox::new();
    let words = "--nnodes 1 --rdzv-endpoint 127.0.0.1:0 --rdzv-id job --report report.json \
                 --redirects 2 --log-dir logs --no-python bash -c";
    let script = format!("printf '%s' '{CURSED}\u{202e}words' >&2; exit 1");
    let end = sandbox.ragent(words).arg(script).run();
    end.assert_code(1);
    let report = end.report();
    assert!(report.contains("words"), "{report}");
    assert!(
        !report.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'),
        "{report:?}"
    );
}
