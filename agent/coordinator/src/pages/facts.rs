//! Serves `GET /v1/facts`: the hardware of this node, and what it has reported. Nothing is read for a request.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use ragent_base::sys::clock;
use serde::{Deserialize, Serialize};

use super::metrics::MetricsPage;
use crate::limits;

/// The path of the page.
pub const FACTS_PATH: &str = "/v1/facts";

/// The hardware of one node.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeFacts {
    /// The devices, such as `8 GPUs, 2 ports`; `None` if none was found.
    pub devices: Option<String>,
    /// What is wrong with them, and what they have reported, the worst first.
    pub facts: Vec<String>,
}

/// Returns the route of the page.
pub(crate) fn route(page: Arc<MetricsPage>) -> Router {
    Router::new().route(FACTS_PATH, get(answer).with_state(page))
}

async fn answer(State(page): State<Arc<MetricsPage>>) -> Response {
    let Some(node) = page.node() else {
        return (StatusCode::NOT_FOUND, "this process has no workers\n").into_response();
    };
    let hardware = node.hardware();
    let (devices, mut facts) = (hardware.devices(), hardware.lines(clock::now()));
    drop(hardware);
    facts.truncate(limits::FACTS_LINES);
    Json(NodeFacts { devices, facts }).into_response()
}
