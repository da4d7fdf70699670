//! Checks the secret of this node, and that the process at an endpoint has the same one.

use std::net::SocketAddr;

use super::Finding;
use crate::{
    coordinator::identity::Identity,
    secret::{Credentials, Unsecured},
};

/// Names the secret that an agent of this user would use. Without one, a job of several nodes has a problem.
pub(super) fn own(credentials: &Credentials, has_job: bool) -> Finding {
    let ids: Vec<String> = credentials.ids().iter().map(ToString::to_string).collect();
    match (credentials.origin(), credentials.unsecured_reason()) {
        (Some(origin), _) => {
            let further = match ids.len() {
                0 | 1 => String::new(),
                len => format!(", and {} older", len - 1),
            };
            let newest = ids.first().map_or("", String::as_str);
            Finding::pass("secret", format!("the secret {newest} from {origin}{further}"))
        }
        (None, Some(Unsecured::NotFound { searched })) if has_job => Finding::warn(
            "secret",
            format!("there is no secret (searched: {})", searched.join(", ")),
            "connections between nodes are neither authenticated nor encrypted; for a job of several \
             nodes, run `ragent secret --init` and copy the file to all of them",
        ),
        (None, _) => Finding::pass("secret", "no secret is used"),
    }
}

/// Compares the secret of this node with that of the process at `address`.
pub(super) fn of_peer(
    credentials: &Credentials,
    address: SocketAddr,
    theirs: &Identity,
) -> Option<Finding> {
    match credentials.compare(&address.to_string(), &theirs.auth) {
        Ok(()) if credentials.is_secured() => {
            Some(Finding::pass("secret", format!("the process at {address} has the same secret")))
        }
        Ok(()) => None,
        Err(mismatch) => Some(Finding::fail("secret", mismatch.to_string(), mismatch.hint())),
    }
}
