//! `GET /status`: the state of the job as JSON. An agent that does not coordinate asks the coordinator.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use ragent_proto::convert::{NotHere, StatusAnswer};
use ragent_rendezvous::snapshot::Snapshot;

use super::{
    client::{self, AttendError},
    collected::Collected,
    driver::{self, Inputs},
    role::Role,
};
use crate::{
    coordinator::limits,
    net::refusals::Refusals,
    report::status_text::{self, Rows},
    secret::Credentials,
    spec::Endpoint,
};

/// The job's state as JSON, collected at most ten times a second for all clients.
pub(super) struct StatusPage {
    role: Arc<Role>,
    refusals: Arc<Refusals>,
    credentials: Credentials,
    last: Collected<Answer>,
}

/// The state as JSON, or the reason for its absence.
type Answer = Result<Bytes, (StatusCode, String)>;

impl StatusPage {
    pub(super) fn new(role: Arc<Role>, refusals: Arc<Refusals>, credentials: Credentials) -> Self {
        Self { role, refusals, credentials, last: Collected::default() }
    }

    /// Returns the state as text.
    pub(super) async fn text(&self) -> Result<String, (StatusCode, String)> {
        self.snapshot().await.map(|snapshot| status_text::text(&snapshot, Rows::Folded))
    }

    async fn snapshot(&self) -> Result<Snapshot, (StatusCode, String)> {
        match self.role.coordinator_to_read() {
            Ok(inputs) => {
                let snapshot = snapshot(&inputs, &self.refusals).await;
                snapshot.ok_or_else(|| unavailable("the job has ended"))
            }
            Err(not_here) => self.ask(not_here).await,
        }
    }

    /// Returns the state as JSON.
    async fn answer(&self) -> Answer {
        self.snapshot().await.and_then(|snapshot| {
            let text = serde_json::to_vec(&snapshot);
            text.map(Bytes::from).map_err(|error| unavailable(error.to_string()))
        })
    }

    /// Asks the coordinator on another node, as a member of the job.
    async fn ask(&self, mut not_here: NotHere) -> Result<Snapshot, (StatusCode, String)> {
        let mut trail = Trail::default();
        loop {
            let endpoint = trail.next(not_here)?;
            match client::status(&endpoint, &self.credentials).await {
                Ok(StatusAnswer::Snapshot(snapshot)) => return Ok(*snapshot),
                Ok(StatusAnswer::NotHere(other)) => not_here = other,
                Err(error) => {
                    return Err(bad_gateway("the state of the job", &endpoint, &error));
                }
            }
        }
    }
}

/// The processes that were asked for the state, each of which named the next one: the job may have another coordinator meanwhile.
#[derive(Debug, Default)]
pub(super) struct Trail {
    asked: Vec<String>,
}

impl Trail {
    /// Returns the endpoint to ask next, which `not_here` names.
    pub(super) fn next(&mut self, not_here: NotHere) -> Result<Endpoint, (StatusCode, String)> {
        let named = not_here.endpoint;
        if named.is_empty() {
            return Err(unavailable("no coordinator is elected at present"));
        }
        let Ok(endpoint) = named.parse::<Endpoint>() else {
            return Err(unavailable(format!(
                "the endpoint of the coordinator, `{named}`, is not valid"
            )));
        };
        let is_new = !self.asked.contains(&named);
        self.asked.push(named);
        if is_new && self.asked.len() <= limits::STATUS_HOPS {
            return Ok(endpoint);
        }
        let asked = self.asked.join(", ");
        Err(unavailable(format!(
            "no process coordinates the job at present (each names the next: {asked}); try again"
        )))
    }
}

pub(super) fn unavailable(why: impl Into<String>) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, why.into())
}

/// Returns the answer to a request for `what` if the coordinator at `endpoint` cannot be asked.
pub(super) fn bad_gateway(
    what: &str,
    endpoint: &Endpoint,
    error: &AttendError,
) -> (StatusCode, String) {
    let why = format!("cannot read {what} from the coordinator at {endpoint}: {error}");
    (StatusCode::BAD_GATEWAY, why)
}

/// Returns the state of the job, with the processes that the port of its coordinator has refused; `None` if the job has ended.
pub(super) async fn snapshot(inputs: &Inputs, refusals: &Refusals) -> Option<Snapshot> {
    let snapshot = driver::snapshot(inputs).await?;
    Some(Snapshot { refused_peers: refusals.list(), ..snapshot })
}

/// Answers a request for the state.
pub(super) async fn status_page(State(page): State<Arc<StatusPage>>) -> Response {
    match page.last.get(page.answer()).await {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err((status, why)) => (status, why + "\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{Router, body::Body, extract::Request, routing::get};
    use ragent_rendezvous::ids::Term;
    use tokio::sync::mpsc;
    use tower::ServiceExt;

    use super::*;
    use crate::{
        coordinator::driver::{Input, tests::empty_snapshot},
        sys::clock,
    };

    async fn get_status(router: Router) -> StatusCode {
        let request = Request::get("/status").body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap().status()
    }

    /// With any number of clients the state is rendered at most ten times a second, and an answer is
    /// never older than its request.
    #[tokio::test(start_paused = true)]
    async fn status_is_written_out_rarely() {
        let (inputs, mut asked) = mpsc::channel(crate::limits::COORDINATOR_QUEUE);
        let page = Arc::new(StatusPage::new(
            Arc::new(Role::of(inputs, "10.0.0.1:1").0),
            Arc::default(),
            Credentials::unsecured(crate::secret::Unsecured::Chosen),
        ));
        let router = Router::new().route("/status", get(status_page).with_state(page));
        let begun = clock::now();
        let answering = tokio::spawn(async move {
            let mut times = Vec::new();
            while let Some(input) = asked.recv().await {
                let Input::Snapshot(answer) = input else { panic!("{input:?}") };
                times.push((clock::now() - begun).as_millis());
                let _ = answer.send(empty_snapshot());
            }
            times
        });
        for _ in 0..3 {
            clock::until(Some(clock::now() + Duration::from_millis(1))).await;
            let some = (0..50).map(|_| tokio::spawn(get_status(router.clone())));
            for answered in some.collect::<Vec<_>>() {
                assert_eq!(answered.await.unwrap(), StatusCode::OK);
            }
        }
        drop(router);
        assert_eq!(answering.await.unwrap(), [1, 101, 201]);
    }

    /// A few processes are asked, one after the other: none twice, and none at an endpoint that is not valid.
    #[test]
    fn coordinator_is_followed() {
        let follow = |named: &[&str]| {
            let mut trail = Trail::default();
            let mut ends = named.iter().map(|endpoint| {
                let term = Term(1);
                trail.next(NotHere { term, endpoint: (*endpoint).to_owned() }).err()
            });
            ends.find_map(|end| end).map(|(status, why)| {
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
                why
            })
        };
        assert_eq!(follow(&["a:1", "b:1", "c:1"]), None);
        let circle = follow(&["a:1", "b:1", "a:1"]).unwrap();
        assert!(circle.contains("(each names the next: a:1, b:1, a:1)"), "{circle}");
        assert!(follow(&["a:1", "b:1", "c:1", "d:1"]).unwrap().contains("c:1, d:1)"));
        assert!(follow(&["a:1", "not valid"]).unwrap().contains("`not valid`, is not valid"));
        assert_eq!(follow(&[""]).unwrap(), "no coordinator is elected at present");
    }
}
