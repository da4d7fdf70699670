//! Serves `GET /status`: the state of the job as JSON. With `?follow`, the state is sent again after each change.
//!
//! An agent that does not coordinate asks the coordinator.

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::Bytes,
    extract::{RawQuery, State as Shared},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
    routing::get,
};
use ragent_base::report::status_text::{self, Rows};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::snapshot::Snapshot;

use super::{
    cache::{Collected, JsonState},
    publisher::{Frame, Publisher, View},
    readers,
    relay::{Asker, PageRelay, Reason, Refusal},
    states::States,
};
use crate::client::{self, Asked, JobPage, STATUS_PATH};

/// The job's state as JSON.
pub(crate) struct StatusPage {
    states: Arc<States>,
    publisher: Arc<Publisher<Changes>>,
    relay: PageRelay,
    /// The state from the coordinator on another node, fetched at most ten times a second for all clients.
    elsewhere: Collected<Result<Arc<JsonState>, Reason>>,
}

impl StatusPage {
    pub(crate) fn new(states: Arc<States>, relay: PageRelay) -> Self {
        let publisher = Arc::new(Publisher::new(Arc::clone(&states)));
        Self { states, publisher, relay, elsewhere: Collected::default() }
    }

    /// Returns the state as text.
    pub(super) async fn text(&self) -> Result<String, Reason> {
        let state = match self.states.get().await {
            Ok(state) => state,
            Err(Refusal::Elsewhere(elsewhere)) => self.elsewhere(elsewhere).await?,
            Err(Refusal::Other(reason)) => return Err(reason),
        };
        Ok(status_text::text(&state.snapshot, Rows::Folded))
    }

    /// Returns the state. Unless the request is direct, it may come from another process.
    async fn state(&self, is_direct: bool) -> Result<Arc<JsonState>, Refusal> {
        match self.states.get().await {
            Err(Refusal::Elsewhere(elsewhere)) if !is_direct => {
                Ok(self.elsewhere(elsewhere).await?)
            }
            state => state,
        }
    }

    async fn elsewhere(&self, elsewhere: CoordinatorAddress) -> Result<Arc<JsonState>, Reason> {
        let ask = |endpoint| async move {
            Ok(match client::state(&endpoint, &self.relay.credentials).await? {
                Asked::Here(snapshot) => Asked::Here(Arc::new(JsonState::new(*snapshot))),
                Asked::Elsewhere(named) => Asked::Elsewhere(named),
            })
        };
        self.elsewhere.get(self.relay.ask(elsewhere, JobPage::State.what(), ask)).await
    }
}

/// Returns the route of the page.
pub(crate) fn route(page: Arc<StatusPage>) -> Router {
    Router::new().route(STATUS_PATH, get(answer).with_state(page))
}

/// Answers a request for the state.
async fn answer(
    Shared(page): Shared<Arc<StatusPage>>,
    asker: Asker,
    RawQuery(query): RawQuery,
) -> Response {
    if matches!(query.as_deref(), Some("follow" | "follow=1" | "follow=true")) {
        let opened = page.publisher.open(&page.relay, JobPage::States, asker).await;
        return opened.map_or_else(IntoResponse::into_response, readers::answer_lines);
    }
    match page.state(asker.is_direct).await {
        Ok(state) => ([(CONTENT_TYPE, "application/json")], state.json()).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// The states of the job as lines of JSON. States that differ only in ages count as the same.
#[derive(Debug, Default)]
pub(super) struct Changes {
    number: u64,
    last: Option<Snapshot>,
}

/// One of these states.
#[derive(Debug)]
pub(super) struct Change {
    number: u64,
    state: Arc<JsonState>,
    line: OnceLock<[Bytes; 2]>,
}

impl View for Changes {
    type Frame = Change;

    fn apply(&mut self, state: &Arc<JsonState>, _new_events: &[Arc<str>]) -> Change {
        let ageless = state.snapshot.without_ages();
        if self.last.as_ref() != Some(&ageless) {
            self.last = Some(ageless);
            self.number += 1;
        }
        Change { number: self.number, state: Arc::clone(state), line: OnceLock::new() }
    }
}

impl Frame for Change {
    fn number(&self) -> u64 {
        self.number
    }

    fn after(&self, _last: Option<u64>) -> &[Bytes] {
        self.line.get_or_init(|| [self.state.json(), Bytes::from_static(b"\n")])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{body::Body, extract::Request, http::StatusCode};
    use ragent_base::testing::empty_snapshot;
    use ragent_base::{
        secret::{Credentials, Unsecured},
        sys::clock,
    };
    use tokio::sync::mpsc;
    use tower::ServiceExt;

    use super::*;
    use crate::{driver::Input, role::Role};

    async fn get_status(router: Router) -> StatusCode {
        let request = Request::get("/status").body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap().status()
    }

    /// For any number of clients, the state is collected at most ten times a second. An answer is
    /// never older than its request.
    #[tokio::test(start_paused = true)]
    async fn status_is_collected_rarely() {
        let (inputs, mut asked) = mpsc::channel(crate::limits::COORDINATOR_QUEUE);
        let role = Arc::new(Role::of(inputs, "10.0.0.1:1").0);
        let credentials = Credentials::unsecured(Unsecured::Chosen);
        let relay = PageRelay { credentials, readers: Default::default() };
        let states = Arc::new(States::new(role, Arc::default()));
        let router = route(Arc::new(StatusPage::new(states, relay)));
        let begun = clock::now();
        let answering = tokio::spawn(async move {
            let mut times = Vec::new();
            while let Some(input) = asked.recv().await {
                let Input::Snapshot(answer) = input else { panic!("{input:?}") };
                times.push((clock::now() - begun).as_millis());
                let _ = answer.send(empty_snapshot().into());
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

    /// A state that differs from the previous one only in ages is not sent again.
    #[test]
    fn ages_are_no_change() {
        let mut changes = Changes::default();
        let mut sent = |phase_ms, max_restarts| {
            let state = JsonState::new(Snapshot { phase_ms, max_restarts, ..empty_snapshot() });
            changes.apply(&Arc::new(state), &[]).number()
        };
        assert_eq!([sent(1, 0), sent(2, 0), sent(3, 1), sent(4, 1)], [1, 1, 2, 2]);
    }
}
