//! Checks the secret or the certificate of this node, and whether the process at an endpoint has a matching one.

use std::net::SocketAddr;

use ragent_base::{
    net::authentication,
    secret::{Credentials, OwnCertificate, Unsecured, Validity, utc},
    sys::clock,
};
use ragent_coordinator::pages::identity::Identity;

use super::Finding;

/// Names the secret or the certificate that an agent of this user would use. Without one, a job of several nodes has a
/// problem.
pub(super) fn own(credentials: &Credentials, has_job: bool) -> Finding {
    if let Some(own) = credentials.certificate() {
        return certificate(&own, clock::wall_second());
    }
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
            match searched.as_slice() {
                [] => "there is no secret".to_owned(),
                searched => format!("there is no secret (searched: {})", searched.join(", ")),
            },
            "connections between nodes are neither authenticated nor encrypted; for a job of several \
             nodes, run `ragent secret --init` and copy the file to all of them",
        ),
        (None, _) => Finding::pass("secret", "no secret is used"),
    }
}

/// Names the certificate, which must be valid at `now`, in seconds since 1970.
fn certificate(own: &OwnCertificate, now: i64) -> Finding {
    let text = format!("the certificate {own}; other nodes must have the name {}", own.required);
    match (own.outdated(now), own.facts.validity) {
        (Some(why), _) => {
            let hint = "renew the certificate, or correct the clock";
            Finding::fail("certificate", format!("{text}; {why}"), hint)
        }
        (None, Some(Validity { last, .. })) => {
            Finding::pass("certificate", format!("{text}; valid until {}", utc(last)))
        }
        (None, None) => Finding::pass("certificate", text),
    }
}

/// Compares the credentials of this node with those of the process at `address`. `has_answered` is true if it has answered a request with
/// these credentials.
pub(super) async fn of_peer(
    credentials: &Credentials,
    address: SocketAddr,
    theirs: &Identity,
    has_answered: bool,
) -> Option<Finding> {
    let check = if credentials.has_certificate() { "certificate" } else { "secret" };
    let place = address.to_string();
    match authentication::compare(address, &place, &theirs.auth, credentials).await {
        Ok(()) if credentials.has_certificate() && !has_answered => Some(Finding::warn(
            check,
            format!("the process at {address} has not answered on a connection with certificates"),
            "it may be busy: run `ragent doctor` again",
        )),
        Ok(()) if credentials.has_certificate() => Some(Finding::pass(
            check,
            format!("the process at {address} and this node accept each other's certificates"),
        )),
        Ok(()) if credentials.is_secured() => {
            Some(Finding::pass(check, format!("the process at {address} has the same secret")))
        }
        Ok(()) => None,
        Err(mismatch) => Some(Finding::fail(check, mismatch.to_string(), mismatch.hint())),
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::secret::{CertificateFacts, CertificateRequest, PeerName};

    use super::*;
    use crate::commands::doctor::CheckVerdict;

    /// A certificate fails before and after its time. The finding has the clock of this machine.
    #[test]
    fn certificates_are_judged() {
        let facts = CertificateFacts {
            validity: Some(Validity { first: 100, last: 200 }),
            ..CertificateFacts::default()
        };
        let [authorities, certificate_file, key] = ["/ca", "/cert", "/key"].map(Into::into);
        let request =
            CertificateRequest { authorities, certificate: certificate_file, key, peer: None };
        let required = PeerName::parse("node").unwrap();
        let own = OwnCertificate { facts, request, required };
        let judge = |now| {
            let finding = certificate(&own, now);
            (finding.verdict, finding.text)
        };
        let text = "the certificate no names, from /cert; other nodes must have the name node";
        let valid = format!("{text}; valid until 1970-01-01T00:03:20Z");
        assert_eq!(judge(150), (CheckVerdict::Pass, valid));
        for (now, part) in [(99, "not valid before 1970-01-01T00:01:40Z"), (201, "has expired at")]
        {
            let (verdict, text) = judge(now);
            assert_eq!(verdict, CheckVerdict::Fail);
            assert!(text.contains(part) && text.contains("the clock of this machine"), "{text}");
        }
    }
}
