//! Builds the document of the page: one file without a reference to any other.

use std::sync::{Arc, LazyLock};

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::{
    limits,
    pages::{
        cache::Collected,
        relay::{Reason, unavailable},
        status::StatusPage,
    },
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const BODY: &str = include_str!("page.html");

/// The document, with the style and the script in it.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    BODY.replace("{style}", STYLE)
        .replace("{script}", SCRIPT)
        .replace("{version}", env!("CARGO_PKG_VERSION"))
});

/// The content security policy: only the document's own style and script, and events of its own server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
});

fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text))
}

/// The document of one process, with the state of its job as text.
pub(crate) struct Document {
    /// The state, for browsers without scripts.
    status: Arc<StatusPage>,
    text: Collected<Result<String, Reason>>,
    has_metrics: bool,
}

impl Document {
    /// Creates the document, with a link to the metrics if `has_metrics` is true.
    pub(crate) fn new(status: Arc<StatusPage>, has_metrics: bool) -> Self {
        Self { status, text: Collected::default(), has_metrics }
    }

    /// Returns the document and the HTTP status. Without an answer of the coordinator, the document is still whole: its script waits for
    /// one.
    async fn html(&self) -> (StatusCode, String) {
        let text = timeout(limits::PAGE_TEXT_PATIENCE, self.text.get(self.status.text())).await;
        let text = text.unwrap_or_else(|_| Err(unavailable("the coordinator has not answered")));
        let (status, text) = match text {
            Ok(text) => (StatusCode::OK, text),
            Err((status, why)) => (status, format!("{why}; reload this page to try again")),
        };
        (status, html(&text, self.has_metrics))
    }
}

/// Returns the document with the state of the job as text.
fn html(text: &str, has_metrics: bool) -> String {
    let metrics = if has_metrics { r#"<a href="metrics">metrics</a>"# } else { "" };
    // The state comes last, so that no placeholder in it is replaced.
    DOCUMENT.replace("{metrics}", metrics).replace("{status}", &escape(text))
}

/// Returns a text as HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Answers a request for the document.
pub(super) async fn document(State(document): State<Arc<Document>>) -> Response {
    let policy = HeaderValue::from_str(&POLICY).expect("it is ASCII");
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    let (status, html) = document.html().await;
    (status, headers, Html(html)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document is small and names no other server. Each `{name}` is replaced, and markup in the state is escaped.
    #[test]
    fn document_stands_alone() {
        let document = html("job </noscript><script>alert(1)</script>", true);
        assert!(document.len() < 64 << 10, "{}", document.len());
        for foreign in ["http:", "https:", "//cdn", "@import", "url("] {
            assert!(!document.contains(foreign), "{foreign}");
        }
        for name in ["{style}", "{script}", "{version}", "{metrics}", "{status}"] {
            assert!(!document.contains(name), "{name}");
        }
        for end in ["</style>", "</script>", "</noscript>"] {
            assert_eq!(document.matches(end).count(), 1, "{end}");
        }
        assert!(document.contains("job &lt;/noscript&gt;&lt;script&gt;alert(1)"));
    }
}
