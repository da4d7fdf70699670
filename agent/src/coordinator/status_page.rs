//! `GET /status`: the state of the job as JSON.

use std::{sync::Arc, time::Instant};

use axum::{
    body::Bytes,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::snapshot::Snapshot;
use tokio::sync::Mutex;

use super::{
    driver::{self, Inputs},
    role::Role,
};
use crate::{coordinator::limits, net::refusals::Refusals, sys::clock};

/// The job's state as JSON, rendered at most ten times a second for all clients.
pub(super) struct StatusPage {
    role: Arc<Role>,
    refusals: Arc<Refusals>,
    last: Mutex<Option<Written>>,
}

/// A rendered state, and the start of its rendering.
struct Written {
    begun: Instant,
    text: Bytes,
}

impl StatusPage {
    pub(super) fn new(role: Arc<Role>, refusals: Arc<Refusals>) -> Self {
        Self { role, refusals, last: Mutex::default() }
    }

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
        let snapshot = snapshot(inputs, &self.refusals).await?;
        let text = Bytes::from(serde_json::to_vec(&snapshot).ok()?);
        *last = Some(Written { begun, text: text.clone() });
        Some(text)
    }
}

/// Returns the state of the job, with the processes that the port of its coordinator has refused; `None` if the job has ended.
pub(super) async fn snapshot(inputs: &Inputs, refusals: &Refusals) -> Option<Snapshot> {
    let snapshot = driver::snapshot(inputs).await?;
    Some(Snapshot { refused_peers: refusals.list(), ..snapshot })
}

/// Answers a request for the state.
pub(super) async fn status_page(State(page): State<Arc<StatusPage>>) -> Response {
    match page.role.coordinator_to_read() {
        Err(NotHere { endpoint, .. }) if endpoint.is_empty() => {
            (StatusCode::SERVICE_UNAVAILABLE, "no coordinator is elected at present\n")
                .into_response()
        }
        Err(NotHere { endpoint, .. }) => {
            (StatusCode::MISDIRECTED_REQUEST, format!("ask the coordinator at {endpoint}\n"))
                .into_response()
        }
        Ok(inputs) => match page.text(&inputs).await {
            Some(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
            None => (StatusCode::SERVICE_UNAVAILABLE, "the job has ended\n").into_response(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{Router, body::Body, extract::Request, routing::get};
    use ragent_rendezvous::ids::Term;
    use tokio::sync::{mpsc, watch};
    use tower::ServiceExt;

    use super::*;
    use crate::coordinator::driver::{Input, tests::empty_snapshot};

    async fn get_status(router: Router) -> StatusCode {
        let request = Request::get("/status").body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap().status()
    }

    /// With any number of clients the state is rendered at most ten times a second, and an answer is
    /// never older than its request.
    #[tokio::test(start_paused = true)]
    async fn status_is_written_out_rarely() {
        let (inputs, mut asked) = mpsc::channel(crate::limits::COORDINATOR_QUEUE);
        let (endpoint, term) = ("10.0.0.1:1".to_owned(), Term(0));
        let (_known, known) = watch::channel(NotHere { term, endpoint: endpoint.clone() });
        let page = Arc::new(StatusPage::new(
            Arc::new(Role::Coordinator { inputs, endpoint, known }),
            Arc::default(),
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
}
