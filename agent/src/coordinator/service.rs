//! The gRPC and HTTP service on an agent's port.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Instant,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{IntoResponse, Response as HttpResponse},
    routing::{get, post},
};
use ragent_proto::{
    convert::{FromAgent, FromCoordinator, NotHere, StatusAnswer},
    v1::{
        AgentMessage, CoordinatorMessage, StatusReply, StatusRequest,
        coordination_server::{Coordination, CoordinationServer},
    },
};
use ragent_rendezvous::{ids::Peer, message::PROTOCOL_VERSION, snapshot::Snapshot};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot, watch};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};
use tracing::warn;

use super::{
    client,
    driver::{Input, Inputs},
    guard::{self, Guard},
    reach::{self, REACH_PATH, ReachReport},
    state_file,
};
use crate::{
    limits,
    net::{self, connection::PeerAddress, http::BodyRead},
    spec::Endpoint,
    sys::clock,
};

/// The path of an agent's identity.
pub(crate) const IDENTITY_PATH: &str = "/v1/identity";

/// The path for obituaries.
pub(crate) const OBITUARY_PATH: &str = "/v1/obituary";

/// The identity of the agent on a port.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Identity {
    /// The program's version.
    pub ragent: String,
    /// The version of the attend protocol.
    pub protocol: u32,
    /// The run id of the job.
    pub run_id: String,
    /// The agent's clock, in milliseconds since 1970, for the comparison of clocks; no decision
    /// depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_ms: Option<u64>,
}

/// The coordinator, from the point of view of one port.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// This process coordinates as long as `known` names `endpoint`: it may give way to another
    /// one.
    Coordinator {
        /// The queue of its inputs.
        inputs: Inputs,
        /// The endpoint at which other agents reach it.
        endpoint: String,
        /// The newest known endpoint of the job's coordinator.
        known: watch::Receiver<NotHere>,
    },
    /// Another process coordinates; its newest known endpoint.
    Elsewhere(watch::Receiver<NotHere>),
}

impl Role {
    /// Returns the newest known endpoint of the coordinator.
    pub(super) fn known(&self) -> NotHere {
        match self {
            Self::Coordinator { known, .. } | Self::Elsewhere(known) => known.borrow().clone(),
        }
    }

    /// Returns the inputs of the coordinator, or its endpoint if it is not in this process.
    fn coordinator(&self) -> Result<&Inputs, NotHere> {
        match self {
            Self::Coordinator { inputs, endpoint, known }
                if known.borrow().endpoint == *endpoint =>
            {
                Ok(inputs)
            }
            Self::Coordinator { known, .. } | Self::Elsewhere(known) => Err(known.borrow().clone()),
        }
    }
}

/// Creates the routes of an agent's port, for gRPC and HTTP.
pub(crate) fn router(run_id: &str, role: Role) -> Router {
    let identity = Identity {
        ragent: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL_VERSION,
        run_id: run_id.to_owned(),
        unix_ms: None,
    };
    let now = || u64::try_from(clock::wall_time().as_millis()).ok();
    let identity = move || async move { Json(Identity { unix_ms: now(), ..identity }) };
    let role = Arc::new(role);
    let status = Arc::new(StatusPage { role: Arc::clone(&role), last: Mutex::default() });
    let pages = Router::new()
        .route(REACH_PATH, get(reach))
        .route(OBITUARY_PATH, post(obituary))
        .with_state(Arc::clone(&role))
        .route("/status", get(status_page).with_state(status))
        .route(IDENTITY_PATH, get(identity));
    let guard = Guard::new(Arc::clone(&role));
    let grpc = CoordinationServer::new(Service { role });
    let routes = Routes::new(grpc).into_axum_router().merge(pages).fallback(not_found);
    routes.layer(middleware::from_fn_with_state(Arc::new(guard), guard::check))
}

/// Answers an unknown path with 404; the gRPC routes would answer it with 200.
async fn not_found() -> StatusCode {
    StatusCode::NOT_FOUND
}

struct Service {
    role: Arc<Role>,
}

type Answers = Pin<Box<dyn Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Coordination for Service {
    type AttendStream = Answers;

    async fn attend(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Answers>, Status> {
        let from = request.extensions().get::<PeerAddress>().copied();
        let read = request.extensions().get::<BodyRead>().cloned().unwrap_or_default();
        let mut messages = request.into_inner();
        let inputs = match self.role.coordinator() {
            Ok(inputs) => inputs.clone(),
            Err(not_here) => {
                let not_here = FromCoordinator::NotHere(not_here);
                let answers = tokio_stream::once(Ok(not_here.into()));
                return Ok(Response::new(Box::pin(answers)));
            }
        };
        let first = messages.message().await?;
        let first = first
            .ok_or_else(|| Status::invalid_argument("the stream has ended without a message"))?;
        let FromAgent::Attend(attend, proof) = first.try_into()? else {
            return Err(Status::failed_precondition("the first message is not an Attend message"));
        };
        read.notify();
        let peer = attend.peer();
        let (answers, queue) = mpsc::channel(limits::STREAM_QUEUE);
        let (taken, is_taken) = oneshot::channel();
        send(&inputs, Input::Attend { attend, proof, from, answers, taken }).await?;
        tokio::spawn(async move {
            // Otherwise its messages and its end would count for the other stream of the same name.
            if is_taken.await.is_ok() {
                forward(messages, peer, inputs).await;
            }
        });
        let answers = ReceiverStream::new(queue).map(|message| Ok(message.into()));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn status(
        &self,
        _request: Request<StatusRequest>,
    ) -> Result<Response<StatusReply>, Status> {
        let answer = match self.role.coordinator() {
            Err(not_here) => StatusAnswer::NotHere(not_here),
            Ok(inputs) => {
                let snapshot = snapshot(inputs).await;
                let snapshot = snapshot.ok_or_else(|| Status::unavailable("the job has ended"))?;
                StatusAnswer::Snapshot(Box::new(snapshot))
            }
        };
        Ok(Response::new(answer.into()))
    }
}

async fn send(inputs: &Inputs, input: Input) -> Result<(), Status> {
    inputs.send(input).await.map_err(|_| Status::unavailable("the job has ended"))
}

/// Passes an agent's messages on until its stream ends.
async fn forward(mut messages: Streaming<AgentMessage>, peer: Peer, inputs: Inputs) {
    while let Ok(Some(message)) = messages.message().await {
        let message = match FromAgent::try_from(message) {
            Ok(FromAgent::Message(message)) => message,
            Ok(FromAgent::Attend(..)) => {
                warn!(node = %peer.node, "stream closed: second Attend message");
                break;
            }
            Err(error) => {
                warn!(node = %peer.node, %error, "stream closed: malformed message");
                break;
            }
        };
        if inputs.send(Input::Message(peer.clone(), message)).await.is_err() {
            return;
        }
    }
    // The coordinator may have ended before its agents.
    let _ = inputs.send(Input::Detached(peer)).await;
}

async fn snapshot(inputs: &Inputs) -> Option<Snapshot> {
    let (answer, snapshot) = oneshot::channel();
    inputs.send(Input::Snapshot(answer)).await.ok()?;
    snapshot.await.ok()
}

/// The job's state as JSON, rendered at most ten times a second for all clients.
struct StatusPage {
    role: Arc<Role>,
    last: Mutex<Option<Written>>,
}

/// A rendered state, and the start of its rendering.
struct Written {
    begun: Instant,
    text: Bytes,
}

impl StatusPage {
    /// Returns the state at this moment or later; `None` if the job has ended.
    async fn text(&self, inputs: &Inputs) -> Option<Bytes> {
        let asked = clock::now();
        let mut last = self.last.lock().await;
        if let Some(written) = &*last {
            if asked <= written.begun {
                return Some(written.text.clone());
            }
            clock::until(Some(written.begun + limits::STATUS_INTERVAL)).await;
        }
        let begun = clock::now();
        let snapshot = snapshot(inputs).await?;
        let text = Bytes::from(serde_json::to_vec(&snapshot).ok()?);
        *last = Some(Written { begun, text: text.clone() });
        Some(text)
    }
}

async fn status_page(State(page): State<Arc<StatusPage>>) -> HttpResponse {
    match page.role.coordinator() {
        Err(NotHere { endpoint, .. }) => {
            (StatusCode::MISDIRECTED_REQUEST, format!("ask the coordinator at {endpoint}\n"))
                .into_response()
        }
        Ok(inputs) => match page.text(inputs).await {
            Some(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            None => (StatusCode::SERVICE_UNAVAILABLE, "the job has ended\n").into_response(),
        },
    }
}

/// Reports how this agent reaches the other nodes of its job.
async fn reach(State(role): State<Arc<Role>>) -> HttpResponse {
    static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
    let Ok(_turn) = ONE_AT_A_TIME.try_acquire() else {
        return (StatusCode::TOO_MANY_REQUESTS, "another measurement is in progress\n")
            .into_response();
    };
    let (snapshot, endpoint) = match role.coordinator() {
        Ok(inputs) => (snapshot(inputs).await, Vec::new()),
        Err(not_here) => match not_here.endpoint.parse::<Endpoint>() {
            Ok(endpoint) => (snapshot_of(&endpoint).await, addresses_of(&endpoint).await),
            Err(_) => (None, Vec::new()),
        },
    };
    match snapshot {
        Some(snapshot) => {
            let reached = reach::measure(&snapshot).await;
            Json(ReachReport { endpoint, reached }).into_response()
        }
        None => {
            (StatusCode::SERVICE_UNAVAILABLE, "the coordinator does not answer\n").into_response()
        }
    }
}

async fn snapshot_of(endpoint: &Endpoint) -> Option<Snapshot> {
    match client::status(endpoint).await {
        Ok(StatusAnswer::Snapshot(snapshot)) => Some(*snapshot),
        Ok(StatusAnswer::NotHere(_)) | Err(_) => None,
    }
}

async fn addresses_of(endpoint: &Endpoint) -> Vec<IpAddr> {
    let addresses = net::resolve(endpoint).await.unwrap_or_default();
    addresses.iter().map(SocketAddr::ip).collect()
}

async fn obituary(State(role): State<Arc<Role>>, text: String) -> HttpResponse {
    let Ok(inputs) = role.coordinator() else {
        return StatusCode::MISDIRECTED_REQUEST.into_response();
    };
    let Some(obituary) = state_file::parse_obituary(&text) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match inputs.send(Input::Obituary(obituary)).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{body::Body, extract::Request};
    use ragent_rendezvous::ids::Term;
    use tower::ServiceExt;

    use super::*;

    fn elsewhere() -> Role {
        let endpoint = "10.0.0.1:29400".to_owned();
        Role::Elsewhere(watch::channel(NotHere { term: Term(0), endpoint }).1)
    }

    async fn get_status(router: Router, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap().status()
    }

    /// An unknown path has HTTP's status, not that of an unknown gRPC call.
    #[tokio::test]
    async fn unknown_paths_are_not_found() {
        let router = router("job", elsewhere());
        for path in ["/", "/v1", "/v2/identity", "/ragent"] {
            assert_eq!(get_status(router.clone(), path).await, StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(get_status(router, IDENTITY_PATH).await, StatusCode::OK);
    }

    /// With any number of clients the state is rendered at most ten times a second, and an answer is
    /// never older than its request.
    #[tokio::test(start_paused = true)]
    async fn status_is_written_out_rarely() {
        let (inputs, mut asked) = mpsc::channel(limits::COORDINATOR_QUEUE);
        let (endpoint, term) = ("10.0.0.1:1".to_owned(), Term(0));
        let (_known, known) = watch::channel(NotHere { term, endpoint: endpoint.clone() });
        let router = router("job", Role::Coordinator { inputs, endpoint, known });
        let begun = clock::now();
        let answering = tokio::spawn(async move {
            let mut times = Vec::new();
            while let Some(input) = asked.recv().await {
                let Input::Snapshot(answer) = input else { panic!("{input:?}") };
                times.push((clock::now() - begun).as_millis());
                let _ = answer.send(snapshot_of_nothing());
            }
            times
        });
        for _ in 0..3 {
            clock::until(Some(clock::now() + Duration::from_millis(1))).await;
            let some = (0..50).map(|_| tokio::spawn(get_status(router.clone(), "/status")));
            for answered in some.collect::<Vec<_>>() {
                assert_eq!(answered.await.unwrap(), StatusCode::OK);
            }
        }
        drop(router);
        assert_eq!(answering.await.unwrap(), [1, 101, 201]);
    }

    fn snapshot_of_nothing() -> Snapshot {
        Snapshot {
            run_id: ragent_rendezvous::ids::RunId::new("job"),
            job_uid: ragent_rendezvous::ids::JobUid::new("u"),
            term: Term(0),
            round: ragent_rendezvous::ids::Round(0),
            phase: ragent_rendezvous::snapshot::PhaseName::Gathering,
            min_nodes: 1,
            max_nodes: 1,
            restarts_used: 0,
            max_restarts: 0,
            world_size: 0,
            nodes: Vec::new(),
            incomplete: None,
            refused_clients: Vec::new(),
            outcome: None,
        }
    }
}
