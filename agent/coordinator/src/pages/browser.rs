//! Serves `GET /`, a page that shows the job, and `GET /v1/watch`, the server-sent events that keep it up to date.
//!
//! An agent that does not coordinate relays the events of the coordinator.

mod document;
mod view;

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};

pub(crate) use self::{document::Document, view::PageView};
use super::{
    publisher::Publisher,
    readers,
    relay::{Asker, PageRelay},
    states::States,
};
use crate::client::{JobPage, WATCH_PATH};

/// The events of the page, for a limited number of readers.
struct Page {
    publisher: Arc<Publisher<PageView>>,
    relay: PageRelay,
}

/// Returns the routes of the page.
pub(crate) fn routes(states: Arc<States>, relay: PageRelay, document: Document) -> Router {
    let page = Arc::new(Page { publisher: Arc::new(Publisher::new(states)), relay });
    Router::new()
        .route("/", get(document::document).with_state(Arc::new(document)))
        .route(WATCH_PATH, get(watch).with_state(page))
}

async fn watch(State(page): State<Arc<Page>>, asker: Asker) -> Response {
    let opened = page.publisher.open(&page.relay, JobPage::Watch, asker).await;
    let answer = |parts| readers::answer("text/event-stream", parts);
    opened.map_or_else(IntoResponse::into_response, answer)
}
