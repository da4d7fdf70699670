//! The gRPC and HTTP service on an agent's port.

use std::{pin::Pin, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    middleware,
    response::{IntoResponse, Response as HttpResponse},
    routing::{get, post},
};
use ragent_proto::{
    convert::{FromAgent, FromCoordinator, StatusAnswer},
    v1::{
        AgentMessage, CoordinatorMessage, StatusReply, StatusRequest,
        coordination_server::{Coordination, CoordinationServer},
    },
};
use ragent_rendezvous::ids::{Peer, RunId};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};
use tracing::warn;

use super::{
    browser_guard::{self, Guard},
    driver::{self, Input, Inputs},
    identity::{self, IDENTITY_PATH},
    reachability::{self, REACH_PATH},
    role::Role,
    state_file,
    status_page::{StatusPage, status_page},
};
use crate::{
    coordinator::limits,
    net::{connection::PeerAddress, http::BodyRead},
};

/// The path for obituaries.
pub(crate) const OBITUARY_PATH: &str = "/v1/obituary";

/// Creates the routes of an agent's port, for gRPC and HTTP.
pub(crate) fn router(run_id: &RunId, role: Role) -> Router {
    let role = Arc::new(role);
    let status = Arc::new(StatusPage::new(Arc::clone(&role)));
    let run_id = run_id.clone();
    let pages = Router::new()
        .route(REACH_PATH, get(reachability::report))
        .route(OBITUARY_PATH, post(obituary))
        .with_state(Arc::clone(&role))
        .route("/status", get(status_page).with_state(status))
        .route(IDENTITY_PATH, get(identity::page).with_state(run_id));
    let guard = Guard::new(Arc::clone(&role));
    let grpc = CoordinationServer::new(Service { role });
    let routes = Routes::new(grpc).into_axum_router().merge(pages).fallback(not_found);
    routes.layer(middleware::from_fn_with_state(Arc::new(guard), browser_guard::check))
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
                let snapshot = driver::snapshot(inputs).await;
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
    use axum::{body::Body, extract::Request};
    use ragent_proto::convert::NotHere;
    use ragent_rendezvous::ids::Term;
    use tokio::sync::watch;
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
        let router = router(&RunId::new("job"), elsewhere());
        for path in ["/", "/v1", "/v2/identity", "/ragent"] {
            assert_eq!(get_status(router.clone(), path).await, StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(get_status(router, IDENTITY_PATH).await, StatusCode::OK);
    }
}
