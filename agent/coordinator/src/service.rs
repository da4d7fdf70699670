//! Serves gRPC and HTTP on an agent's port.
//!
//! There is one router for each kind of client, so that no page can forget to check who asks:
//!
//! - Processes of the job get all routes.
//! - The same user on this machine gets the pages that only read.
//! - All other clients get the identity page, and may report the death of a node.
//!
//! Without a secret, every client counts as a process of the job. A port on a loopback address is the exception: it serves this user only.

use std::{pin::Pin, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request as HttpRequest, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{IntoResponse, Response as HttpResponse},
    routing::{any, get, post},
};
use nix::unistd::geteuid;
use ragent_base::{
    net::{connection::PeerAddress, http::BodyRead, port::Routers, refusals::Refusals},
    report::outcome_text::differences,
    secret::Credentials,
};
use ragent_leadership::state_file::{self, DEATH_NOTICE_PATH};
use ragent_proto::{
    Proof,
    convert::{CoordinatorAddress, FromAgent, FromCoordinator},
    v1::{
        AgentMessage, CoordinatorMessage,
        coordination_server::{Coordination, CoordinationServer},
    },
};
use ragent_rendezvous::{
    ids::{Peer, RunId, Term},
    message::{RefuseReason, Registration, ToNode},
    settings::SharedSettings,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, service::Routes};
use tracing::warn;

use crate::{
    driver::{Input, Inputs},
    limits,
    pages::{
        browser::{self, Document},
        events, facts,
        guard::{self, Guard},
        identity::{self, IDENTITY_PATH, IdentityPage, ShownStanding},
        logs::{self, LogsPage},
        metrics::{self, MetricsPage},
        reachability::{self, PORT_PATH, REACH_PATH, ReachMeasurement},
        readers::Readers,
        relay::{Asker, PageRelay},
        states::States,
        status::{self, StatusPage},
    },
    role::{Elsewhere, Role},
};

/// The parts of the routes that other parts of the process use.
pub struct Shared {
    /// The page of the metrics.
    pub metrics: Arc<MetricsPage>,
    /// The clients that read for a long time.
    pub readers: Readers,
    /// The part of this agent in a job that others search.
    pub standing: ShownStanding,
}

/// Creates the routes of an agent's port, one router for each kind of client.
pub fn routers(run_id: &RunId, role: Role, credentials: &Credentials) -> (Routers, Shared) {
    let role = Arc::new(role);
    let refusals = Arc::new(Refusals::default());
    let states = Arc::new(States::new(Arc::clone(&role), Arc::clone(&refusals)));
    let metrics = Arc::new(MetricsPage::of_job(Arc::clone(&states)));
    let readers = Readers::default();
    let relay = PageRelay { credentials: credentials.clone(), readers: readers.clone() };
    let status = pages(states, relay, true)
        .merge(metrics::route(Arc::clone(&metrics)))
        .merge(facts::route(Arc::clone(&metrics)));
    let logs = logs::route(LogsPage {
        node: Arc::clone(&metrics),
        readers: readers.clone(),
        is_secured: credentials.is_secured(),
    });
    let death_notices =
        Router::new().route(DEATH_NOTICE_PATH, post(death_notice)).with_state(Arc::clone(&role));
    let death_notices = death_notices.layer(DefaultBodyLimit::max(limits::MAX_DEATH_NOTICE));
    let standing = ShownStanding::default();
    let identity = |run_id: Option<RunId>| {
        let (credentials, standing) = (credentials.clone(), Arc::clone(&standing));
        let page = IdentityPage { run_id, credentials, standing };
        death_notices.clone().route(IDENTITY_PATH, get(identity::page).with_state(page))
    };
    let reach = ReachMeasurement { role: Arc::clone(&role), credentials: credentials.clone() };
    let reach = Router::new().route(REACH_PATH, get(reachability::report).with_state(reach));
    let reach = reach.route(PORT_PATH, get(reachability::open_port));
    let guard = Arc::new(Guard::new(Arc::clone(&role)));
    let guarded = |router: Router| {
        router.layer(middleware::from_fn_with_state(Arc::clone(&guard), guard::check))
    };
    let service = Service { role, refusals: Arc::clone(&refusals) };
    let grpc =
        CoordinationServer::new(service).max_decoding_message_size(limits::MAX_AGENT_MESSAGE);
    let grpc = Routes::new(grpc).into_axum_router();
    let refused =
        RefusedRequest { credentials: credentials.clone(), refusals: Arc::clone(&refusals) };
    let routers = Routers {
        members: guarded(
            grpc.merge(identity(Some(run_id.clone())))
                .merge(status.clone())
                .merge(logs.clone())
                .merge(reach)
                .fallback(not_found),
        ),
        own_user: guarded(
            identity(None)
                .merge(status.layer(middleware::from_fn_with_state(refused.clone(), check_direct)))
                .merge(logs)
                .fallback_service(any(refuse).with_state(refused.clone())),
        ),
        strangers: guarded(identity(None).fallback_service(any(refuse).with_state(refused))),
        refusals,
    };
    (routers, Shared { metrics, readers, standing })
}

/// Creates the routes of a process that relays the page, the status and the events of a job. `known` names a process of the job.
pub fn relayed_pages(
    known: watch::Receiver<CoordinatorAddress>,
    credentials: &Credentials,
) -> Router {
    let role = Arc::new(Role::Elsewhere(known));
    let states = Arc::new(States::new(Arc::clone(&role), Arc::default()));
    let relay = PageRelay { credentials: credentials.clone(), readers: Readers::default() };
    let guard = Arc::new(Guard::new(role));
    pages(states, relay, false).layer(middleware::from_fn_with_state(guard, guard::check))
}

/// Creates the routes of the pages that only the coordinator has. The page for browsers has a link to the metrics if
/// `has_metrics` is true.
fn pages(states: Arc<States>, relay: PageRelay, has_metrics: bool) -> Router {
    let status = Arc::new(StatusPage::new(Arc::clone(&states), relay.clone()));
    let document = Document::new(Arc::clone(&status), has_metrics);
    status::route(status)
        .merge(events::route(Arc::clone(&states), relay.clone()))
        .merge(browser::routes(states, relay, document))
}

/// The data for the refusal of a request.
#[derive(Clone)]
struct RefusedRequest {
    credentials: Credentials,
    refusals: Arc<Refusals>,
}

/// Refuses commands and other agents, which must prove that they belong to the job.
async fn check_direct(
    State(refused): State<RefusedRequest>,
    request: HttpRequest,
    next: middleware::Next,
) -> HttpResponse {
    if Asker::is_direct(request.headers()) {
        refuse(State(refused), request).await
    } else {
        next.run(request).await
    }
}

/// Refuses a request, with the reason.
async fn refuse(State(refused): State<RefusedRequest>, request: HttpRequest) -> HttpResponse {
    let RefusedRequest { credentials, refusals } = refused;
    let ids: Vec<_> = credentials.ids().iter().map(ToString::to_string).collect();
    let (why, reason) = if credentials.has_certificate() {
        let why = "this job requires a certificate: give it with `--tls-ca`, `--tls-cert` and `--tls-key`";
        (why.to_owned(), "it has sent no certificate")
    } else if ids.is_empty() {
        let why = format!(
            "this port serves uid {} of this machine only; give its agents a secret, or `--auth none`",
            geteuid()
        );
        (why, "it belongs to another user of this machine")
    } else {
        let ids = ids.join(", ");
        let why = format!("this job requires its secret ({ids}): give it with `--secret-file`");
        (why, "it has not proven that it knows the secret")
    };
    if let Some(PeerAddress { ip, .. }) = request.extensions().get() {
        refusals.handle_refused(*ip, reason);
    }
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"application/grpc") {
        Status::unauthenticated(why).into_http()
    } else {
        (StatusCode::FORBIDDEN, why + "\n").into_response()
    }
}

/// Answers an unknown path with 404. The gRPC routes would answer it with 200.
async fn not_found() -> StatusCode {
    StatusCode::NOT_FOUND
}

struct Service {
    role: Arc<Role>,
    refusals: Arc<Refusals>,
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
        if let Some(elsewhere) = self.role.redirect() {
            return Ok(redirect(elsewhere));
        }
        let first = messages.message().await?;
        let first = first
            .ok_or_else(|| Status::invalid_argument("the stream has ended without a message"))?;
        let FromAgent::Registration { registration, proof, lost_term } = first.try_into()? else {
            return Err(Status::failed_precondition("the first message is not a registration"));
        };
        read.notify();
        let (answers, queue) = mpsc::channel(limits::STREAM_QUEUE);
        let refusals = Arc::clone(&self.refusals);
        let (settings, script) = (registration.settings, registration.node.script.clone());
        let protocol = registration.protocol_version;
        let pending = PendingRegistration { registration, proof, from, answers };
        // The answer starts before the coordinator decides, so that the agent can distinguish this process from a stopped one.
        tokio::spawn(pass_on(Arc::clone(&self.role), lost_term, pending, messages));
        let answers = ReceiverStream::new(queue).map(move |message| {
            if let (FromCoordinator::Message(ToNode::Refuse(reason)), Some(from)) = (&message, from)
                && let Some(why) = why_refused(reason, &settings, &script, protocol)
            {
                refusals.handle_refused_node(from.ip, &why);
            }
            Ok(message.into())
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Describes why an agent is refused, for the log of the coordinator. Returns `None` if nothing is wrong with the agent.
fn why_refused(
    reason: &RefuseReason,
    settings: &SharedSettings,
    own_script: &str,
    protocol: u32,
) -> Option<String> {
    Some(match reason {
        RefuseReason::Closed(_) | RefuseReason::EarlierRun => return None,
        RefuseReason::Settings { ours } => differences(ours, settings),
        RefuseReason::RunId { .. } => "it has another `--rdzv-id`".to_owned(),
        RefuseReason::ProtocolVersion { ours } => {
            format!("it has protocol {protocol}, this job has {ours}: install one version")
        }
        RefuseReason::LoopbackAddress { .. } => "its address is a loopback address".to_owned(),
        RefuseReason::NodeRankTaken { node_rank, host_name } => {
            format!("{host_name} already has `--node-rank {node_rank}`")
        }
        RefuseReason::NodeRankTooHigh { node_rank, .. } => {
            format!("`--node-rank {node_rank}` is too high")
        }
        RefuseReason::OtherScript { script, host_name } => {
            format!("its script is `{own_script}`, but {host_name} runs `{script}` in this job")
        }
        RefuseReason::TooManyNodes { limit } => format!("{limit} nodes are here already"),
    })
}

/// Answers a registration with the endpoint of the coordinator.
fn redirect(elsewhere: CoordinatorAddress) -> Response<Answers> {
    let elsewhere = FromCoordinator::Elsewhere(elsewhere);
    Response::new(Box::pin(tokio_stream::once(Ok(elsewhere.into()))))
}

/// A registration for the coordinator.
struct PendingRegistration {
    registration: Box<Registration>,
    proof: Option<Proof>,
    from: Option<PeerAddress>,
    answers: mpsc::Sender<FromCoordinator>,
}

/// A registration that was sent to the coordinator.
struct Taken {
    peer: Peer,
    is_taken: oneshot::Receiver<()>,
}

impl PendingRegistration {
    /// Sends the registration to a coordinator.
    async fn send(self, inputs: &Inputs) -> Result<Taken, Status> {
        let Self { registration, proof, from, answers } = self;
        let peer = registration.peer();
        let (taken, is_taken) = oneshot::channel();
        let input = Input::Registration { registration, proof, from, answers, taken };
        inputs.send(input).await.map_err(|_| Status::unavailable("the job has ended"))?;
        Ok(Taken { peer, is_taken })
    }
}

impl Taken {
    /// Passes the messages of the stream to the coordinator.
    async fn forward(self, messages: Streaming<AgentMessage>, inputs: Inputs) {
        // The coordinator must have taken this stream. Otherwise its messages would count for another stream of the same name.
        if self.is_taken.await.is_ok() {
            forward(messages, self.peer, inputs).await;
        }
    }
}

/// Passes a registration to the coordinator in this process. If no coordinator was elected in a term after `lost`, the registration is held
/// until
///
/// - one is elected,
/// - the coordinator turns out to be another process,
/// - [`limits::HELD_TIMEOUT`] is over, or
/// - the agent ends the stream.
async fn pass_on(
    role: Arc<Role>,
    lost: Term,
    pending: PendingRegistration,
    messages: Streaming<AgentMessage>,
) {
    if let Some(elsewhere) = role.elsewhere(&pending.registration) {
        return send_elsewhere(&role, elsewhere, &pending).await;
    }
    let lost = role.comparable(&pending.registration, lost);
    let coordinator = tokio::select! {
        coordinator = timeout(limits::HELD_TIMEOUT, role.wait_for_coordinator(lost)) => coordinator,
        elsewhere = role.wait_for_elsewhere() => {
            return send_elsewhere(&role, elsewhere, &pending).await;
        }
        () = pending.answers.closed() => return,
    };
    match coordinator.unwrap_or_else(|_| Err(CoordinatorAddress::unknown())) {
        Ok(inputs) => {
            // The job may have ended.
            if let Ok(taken) = pending.send(&inputs).await {
                taken.forward(messages, inputs).await;
            }
        }
        Err(elsewhere) => {
            // The agent may have ended the stream.
            let _ = pending.answers.send(FromCoordinator::Elsewhere(elsewhere)).await;
        }
    }
}

/// Redirects a registration: to the voters of the job, to the leader of another job, or to the coordinator of this process's own agent.
async fn send_elsewhere(role: &Role, elsewhere: Elsewhere, pending: &PendingRegistration) {
    let PendingRegistration { registration, answers, .. } = pending;
    let elsewhere = match elsewhere {
        Elsewhere::Leader(leader) => leader,
        // A node that knows a job with a round finds its leader through the voters of that job instead.
        Elsewhere::Voters(voters) if voters.is_empty() && registration.job.is_none() => {
            role.registered_elsewhere().unwrap_or_else(CoordinatorAddress::unknown)
        }
        Elsewhere::Voters(voters) => {
            if !voters.is_empty() {
                let _ = answers.send(FromCoordinator::Message(ToNode::Voters(voters))).await;
            }
            CoordinatorAddress::unknown()
        }
    };
    let _ = answers.send(FromCoordinator::Elsewhere(elsewhere)).await;
}

/// Passes an agent's messages on until its stream ends.
async fn forward(mut messages: Streaming<AgentMessage>, peer: Peer, inputs: Inputs) {
    while let Ok(Some(message)) = messages.message().await {
        let message = match FromAgent::try_from(message) {
            Ok(FromAgent::Message(message)) => message,
            Ok(FromAgent::Registration { .. }) => {
                warn!(node = %peer.node, "stream closed: second registration");
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
    // The coordinator may have ended before this stream.
    let _ = inputs.send(Input::Detached(peer)).await;
}

async fn death_notice(State(role): State<Arc<Role>>, text: String) -> HttpResponse {
    let death_notice = state_file::parse_death_notice(&text);
    let is_taken = match (&*role, death_notice) {
        (_, None) => return StatusCode::BAD_REQUEST.into_response(),
        (Role::Host { death_notices, .. }, Some(death_notice)) => {
            death_notices.send(death_notice).await.is_ok()
        }
        (Role::Elsewhere(_), Some(_)) => return StatusCode::MISDIRECTED_REQUEST.into_response(),
    };
    let status = if is_taken { StatusCode::NO_CONTENT } else { StatusCode::SERVICE_UNAVAILABLE };
    status.into_response()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, extract::Request, http::header::MAX_FORWARDS};
    use ragent_base::secret::{Origin, Secret, Unsecured};
    use ragent_rendezvous::ids::Term;
    use tower::ServiceExt;

    use super::*;
    use crate::{
        client::{EVENTS_PATH, STATUS_PATH, WATCH_PATH},
        pages::facts::FACTS_PATH,
    };

    fn elsewhere() -> Role {
        // No coordinator is known.
        let endpoint = String::new();
        Role::Elsewhere(watch::channel(CoordinatorAddress { term: Term(0), endpoint }).1)
    }

    async fn get_status(router: Router, path: &str) -> StatusCode {
        let unknown = ragent_base::net::connection_quota::ConnectionOrigin::Unknown;
        let request = Request::get(path).extension(unknown).body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap().status()
    }

    /// An unknown path has the status of HTTP, not of an unknown gRPC call.
    #[tokio::test]
    async fn unknown_paths_are_not_found() {
        let open = Credentials::unsecured(Unsecured::Chosen);
        let router = routers(&RunId::new("job"), elsewhere(), &open).0.members;
        for path in ["/v1", "/v2/identity", "/ragent", "/index.html"] {
            assert_eq!(get_status(router.clone(), path).await, StatusCode::NOT_FOUND, "{path}");
        }
        assert_eq!(get_status(router, IDENTITY_PATH).await, StatusCode::OK);
    }

    /// A stranger may ask for the identity and report a death. The user of this machine may also read the status. All else needs the
    /// secret.
    #[tokio::test]
    async fn strangers_have_two_pages() {
        let secret = Secret::new(&"k".repeat(43)).unwrap();
        let id = secret.id().to_string();
        let secured = Credentials::new(vec![secret], Origin::Stdin);
        let Routers { own_user, strangers, .. } =
            routers(&RunId::new("job"), elsewhere(), &secured).0;
        let grpc = "/ragent.v1.Coordination/Attend";
        for (router, status) in
            [(&own_user, StatusCode::SERVICE_UNAVAILABLE), (&strangers, StatusCode::FORBIDDEN)]
        {
            assert_eq!(get_status(router.clone(), IDENTITY_PATH).await, StatusCode::OK);
            assert_eq!(get_status(router.clone(), "/status").await, status);
            let is_read = status != StatusCode::FORBIDDEN;
            assert_eq!(get_status(router.clone(), WATCH_PATH).await, status);
            let metrics = if is_read { StatusCode::OK } else { status };
            assert_eq!(get_status(router.clone(), "/metrics").await, metrics);
            // The process of this test has no workers.
            let facts = if is_read { StatusCode::NOT_FOUND } else { status };
            assert_eq!(get_status(router.clone(), FACTS_PATH).await, facts);
            assert_eq!(get_status(router.clone(), "/").await, status);
            for path in [REACH_PATH, PORT_PATH, "/unknown", grpc] {
                let status = get_status(router.clone(), path).await;
                assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
            }
            let call = Request::post(grpc).header(CONTENT_TYPE, "application/grpc");
            let answer = router.clone().oneshot(call.body(Body::empty()).unwrap()).await.unwrap();
            let status = Status::from_header_map(answer.headers()).unwrap();
            assert_eq!(status.code(), tonic::Code::Unauthenticated);
            assert!(status.message().contains(&id), "{status}");
            let death_notice = Request::post(DEATH_NOTICE_PATH).body(Body::from("?")).unwrap();
            let answer = router.clone().oneshot(death_notice).await.unwrap();
            assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "it is read");
        }
    }

    /// Commands, and agents that relay a page, must prove that they belong to the job, even as this machine's user.
    #[tokio::test]
    async fn direct_requests_need_the_secret() {
        let secured = Credentials::new(vec![Secret::new(&"k".repeat(43)).unwrap()], Origin::Stdin);
        let Routers { own_user, members, .. } =
            routers(&RunId::new("job"), elsewhere(), &secured).0;
        for path in [STATUS_PATH, "/status?follow", EVENTS_PATH, WATCH_PATH] {
            for (router, expected) in
                [(&own_user, StatusCode::FORBIDDEN), (&members, StatusCode::MISDIRECTED_REQUEST)]
            {
                let unknown = ragent_base::net::connection_quota::ConnectionOrigin::Unknown;
                let request = Request::get(path).extension(unknown).header(MAX_FORWARDS, "0");
                let request = request.body(Body::empty()).unwrap();
                let answer = router.clone().oneshot(request).await.unwrap();
                assert_eq!(answer.status(), expected, "{path}");
            }
        }
    }

    /// Strangers do not receive the name of the job.
    #[tokio::test]
    async fn strangers_do_not_learn_the_job() {
        let secured = Credentials::new(vec![Secret::new(&"k".repeat(43)).unwrap()], Origin::Stdin);
        let Routers { members, strangers, .. } =
            routers(&RunId::new("job7"), elsewhere(), &secured).0;
        for (router, is_member) in [(members, true), (strangers, false)] {
            let request = Request::get(IDENTITY_PATH).body(Body::empty()).unwrap();
            let body = router.oneshot(request).await.unwrap().into_body();
            let text = axum::body::to_bytes(body, 4096).await.unwrap();
            let text = str::from_utf8(&text).unwrap();
            assert_eq!(text.contains("job7") && text.contains("unix_ms"), is_member, "{text}");
            let id = secured.ids()[0].to_string();
            assert!(text.contains(r#""auth":"secret""#) && text.contains(&id), "{text}");
        }
    }
}
