//! Refuses requests that a web page may have caused in a browser.
//!
//! A page of any site can make a browser send requests to this machine and its networks. There are two attacks:
//!
//! - **DNS rebinding.** If a name of the site resolves to our address, the page can read the answers. So the `Host` of
//!   a request must be a name or an address of this host.
//! - **Requests with effects.** A page need not read the answer to do harm. So pages may only send GET, and may not
//!   make this process open connections.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use ragent_base::{net::Endpoint, sys::host::ThisHost};

use super::reachability::REACH_PATH;
use crate::role::Role;

/// The host names that requests to a port may use.
#[derive(Debug)]
pub(crate) struct Guard {
    role: Arc<Role>,
    host_name: String,
}

impl Guard {
    pub(crate) fn new(role: Arc<Role>) -> Self {
        Self { role, host_name: ThisHost.name() }
    }

    fn is_ours(&self, host: &str) -> bool {
        let endpoint = self.role.endpoint().parse::<Endpoint>();
        let endpoint = endpoint.map(|endpoint| endpoint.host).unwrap_or_default();
        let names = ["localhost", RAGENT, &self.host_name, &endpoint];
        names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// The authority that agents of version 0.1 send over gRPC, for any address of the coordinator.
const RAGENT: &str = "ragent";

/// Passes a request on unless a web page may have caused it.
pub(crate) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let authority = request.uri().authority().map(ToString::to_string);
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    // HTTP/2 has the authority in the URI. A request without any does not come from a browser.
    let named = authority.as_deref().or(host);
    let is_ours = named.is_none_or(|named| {
        let host = host_of(named);
        host.parse::<IpAddr>().is_ok() || guard.is_ours(host)
    });
    if !is_ours {
        return (StatusCode::MISDIRECTED_REQUEST, "unknown host name\n").into_response();
    }
    let has_effects =
        request.method() != Method::GET || request.uri().path().starts_with(REACH_PATH);
    if has_effects && is_of_a_page(request.headers()) {
        return (StatusCode::FORBIDDEN, "requests from web pages are refused\n").into_response();
    }
    next.run(request).await
}

/// Returns true if a browser sent the request on behalf of a page.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(axum::http::HeaderValue::as_bytes);
    headers.contains_key(header::ORIGIN) || site == Some(b"cross-site")
}

/// Returns the host in `HOST[:PORT]`, without brackets.
fn host_of(authority: &str) -> &str {
    if authority.parse::<SocketAddr>().is_ok() || !authority.starts_with('[') {
        let (host, _) = authority.rsplit_once(':').unwrap_or((authority, ""));
        return host.trim_start_matches('[').trim_end_matches(']');
    }
    authority.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, routing::any};
    use ragent_proto::convert::CoordinatorAddress;
    use ragent_rendezvous::ids::Term;
    use tokio::sync::watch;
    use tower::ServiceExt;

    use super::*;

    async fn status(request: axum::http::request::Builder) -> u16 {
        let endpoint = "node0.cluster:29400".to_owned();
        let role =
            Role::Elsewhere(watch::channel(CoordinatorAddress { term: Term(0), endpoint }).1);
        let guard = Guard { role: Arc::new(role), host_name: "node7".to_owned() };
        let layer = axum::middleware::from_fn_with_state(Arc::new(guard), check);
        let router: Router = Router::new().route("/", any(|| async {})).layer(layer);
        let request = request.body(Body::empty()).unwrap();
        router.oneshot(request).await.unwrap().status().as_u16()
    }

    /// A foreign name is answered as misdirected, because it may belong to a site that resolves to our address.
    #[tokio::test]
    async fn foreign_names_are_refused() {
        for host in [
            "10.0.0.1",
            "10.0.0.1:29400",
            "[::1]",
            "[::1]:1",
            "localhost:29400",
            "LocalHost",
            "node7",
            "node7:1",
            "node0.cluster:29400",
            "ragent",
        ] {
            assert_eq!(status(Request::get("/").header("host", host)).await, 200, "{host}");
            let uri = format!("http://{host}/");
            assert_eq!(status(Request::get(uri)).await, 200, "{host}");
        }
        for host in
            ["evil.example", "evil.example:29400", "node7.evil.example", "10.0.0.1.evil", "[", ""]
        {
            assert_eq!(status(Request::get("/").header("host", host)).await, 421, "{host}");
        }
        assert_eq!(status(Request::get("http://evil.example/")).await, 421);
        assert_eq!(status(Request::get("/")).await, 200, "HTTP/1.0 needs no name");
    }

    /// A request that a page makes a browser send changes nothing.
    #[tokio::test]
    async fn pages_may_only_ask() {
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
        ] {
            for method in [Method::POST, Method::PUT, Method::OPTIONS, Method::HEAD] {
                let request = Request::builder().method(method).uri("/").header(name, value);
                assert_eq!(status(request).await, 403, "{name}");
            }
            assert_eq!(status(Request::get("/").header(name, value)).await, 200);
        }
        assert_eq!(status(Request::post("/").header("sec-fetch-site", "none")).await, 200);
    }
}
