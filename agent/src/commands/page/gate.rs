//! Keeps other users and programs of this machine from reading the page.
//!
//! 1. The printed address contains a token, which is accepted once.
//! 2. The browser that uses it receives a cookie.
//! 3. All later requests need that cookie.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ragent_base::secret::random_bytes;
use sha2::{Digest, Sha256};

/// The token and the cookie of a page.
pub(super) struct Gate {
    token: String,
    /// True after the token was used.
    is_used: Mutex<bool>,
    /// Browsers send cookies to all ports of a host.
    cookie_name: String,
    cookie: String,
}

/// The answer to a request.
#[derive(Debug, Eq, PartialEq)]
enum GateVerdict {
    /// The request has the cookie.
    Pass,
    /// The request has the token. The browser receives the cookie, and is redirected to the page.
    Enter,
    /// The request has the cookie and also a token. The browser is redirected to the page.
    Return,
    /// The request has neither, for this reason.
    Refuse(&'static str),
}

/// The answer to other users of this machine.
pub(super) const OTHER_USER: &str =
    "cannot open the page: it is for the user who runs `ragent page`; run it as this user\n";
const NO_COOKIE: &str = "cannot open the page: this browser has no cookie for it; open the address that `ragent page` has printed\n";
const USED: &str = "cannot open the page: its address was opened in another browser before; start `ragent page` \
                    again for this one\n";
const WRONG: &str = "cannot open the page: the token in this address is wrong; open the address that `ragent page` has printed\n";

impl Gate {
    /// Makes a gate with a new token, for the page at this port.
    pub(super) fn new(port: u16) -> Result<Self, std::io::Error> {
        Ok(Self {
            token: random_text()?,
            is_used: Mutex::default(),
            cookie_name: format!("ragent_page_{port}"),
            cookie: random_text()?,
        })
    }

    /// Returns the token.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    fn judge(&self, path: &str, query: Option<&str>, headers: &HeaderMap) -> GateVerdict {
        let has_cookie = cookies(headers).any(|cookie| {
            cookie.split_once('=').is_some_and(|(name, value)| {
                name == self.cookie_name && is_same(value, &self.cookie)
            })
        });
        let token = query.filter(|_| path == "/").and_then(|query| query.strip_prefix("token="));
        match (has_cookie, token) {
            (true, None) => GateVerdict::Pass,
            (true, Some(_)) => GateVerdict::Return,
            (false, None) => GateVerdict::Refuse(NO_COOKIE),
            (false, Some(token)) if is_same(token, &self.token) => {
                let mut is_used = self.is_used.lock().unwrap_or_else(PoisonError::into_inner);
                if std::mem::replace(&mut *is_used, true) {
                    GateVerdict::Refuse(USED)
                } else {
                    GateVerdict::Enter
                }
            }
            (false, Some(_)) => GateVerdict::Refuse(WRONG),
        }
    }
}

fn random_text() -> Result<String, std::io::Error> {
    let bytes = random_bytes().map_err(std::io::Error::other)?;
    Ok(URL_SAFE_NO_PAD.encode(*bytes))
}

/// Compares two texts. The time does not depend on where they differ.
fn is_same(left: &str, right: &str) -> bool {
    Sha256::digest(left) == Sha256::digest(right)
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).map(str::trim)
}

/// Passes on only requests that read, and only those of the browser that has opened the page.
pub(super) async fn check(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET")]).into_response();
    }
    let to_page = [(header::LOCATION, "/"), (header::CACHE_CONTROL, "no-store")];
    match gate.judge(request.uri().path(), request.uri().query(), request.headers()) {
        GateVerdict::Pass => next.run(request).await,
        GateVerdict::Return => (StatusCode::SEE_OTHER, to_page).into_response(),
        GateVerdict::Enter => {
            let Gate { cookie_name, cookie, .. } = &*gate;
            // Not `Strict`: the address may be clicked in another page, such as a terminal in the browser, and then the redirect is a part
            // of that navigation. It is safe, because requests only read, and no other site can read the answers.
            let cookie = format!("{cookie_name}={cookie}; HttpOnly; SameSite=Lax; Path=/");
            (StatusCode::SEE_OTHER, to_page, [(header::SET_COOKIE, cookie)]).into_response()
        }
        GateVerdict::Refuse(why) => (StatusCode::FORBIDDEN, why).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cookie(text: String) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, text.parse().unwrap())])
    }

    /// The token opens the page once. The cookie opens it again and again.
    #[test]
    fn token_is_accepted_once() {
        let gate = Gate::new(7).unwrap();
        let none = HeaderMap::new();
        assert_eq!(gate.judge("/", None, &none), GateVerdict::Refuse(NO_COOKIE));
        assert_eq!(gate.judge("/", Some("token="), &none), GateVerdict::Refuse(WRONG));
        let query = format!("token={}", gate.token());
        assert_eq!(gate.judge("/status", Some(&query), &none), GateVerdict::Refuse(NO_COOKIE));
        let longer = format!("{query}x");
        assert_eq!(gate.judge("/", Some(&longer), &none), GateVerdict::Refuse(WRONG));
        assert_eq!(gate.judge("/", Some(&query), &none), GateVerdict::Enter);
        assert_eq!(gate.judge("/", Some(&query), &none), GateVerdict::Refuse(USED));
        let cookie = with_cookie(format!("other=1; ragent_page_7={}", gate.cookie));
        for path in ["/", "/status", "/v1/watch"] {
            assert_eq!(gate.judge(path, None, &cookie), GateVerdict::Pass);
        }
        assert_eq!(gate.judge("/", Some(&query), &cookie), GateVerdict::Return);
        let of_other_port = with_cookie(format!("ragent_page_8={}", gate.cookie));
        assert_eq!(gate.judge("/", None, &of_other_port), GateVerdict::Refuse(NO_COOKIE));
        let wrong = with_cookie("ragent_page_7=".to_owned());
        assert_eq!(gate.judge("/", None, &wrong), GateVerdict::Refuse(NO_COOKIE));
    }

    /// Two gates have nothing in common.
    #[test]
    fn tokens_differ() {
        let (one, other) = (Gate::new(7).unwrap(), Gate::new(7).unwrap());
        assert_ne!(one.token, other.token);
        assert_ne!(one.cookie, other.cookie);
        assert_ne!(one.token, one.cookie);
        assert_eq!(one.token.len(), 43);
    }
}
