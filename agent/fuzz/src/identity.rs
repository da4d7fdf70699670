//! The answer of a program that may be ragent.

use std::sync::LazyLock;

use ragent_base::{
    secret::{Credentials, Origin, Secret, Unsecured},
    testing::{assert_printable, job},
};
use ragent_node::endpoint::identity;

/// The longest description of another program: each byte of its first line may be shown as an escape of a character.
const DESCRIPTION_MAX: usize = 60 * "\\u{fffd}".len() + 32;

/// The secrets that a message names at most, and the text around them.
const MISMATCH_MAX: usize = 1024;

/// Describes the answer of another program.
pub fn identity(input: &[u8]) {
    let description = identity::looks_like(input);
    assert!(description.is_ascii() && description.len() <= DESCRIPTION_MAX, "{description}");
    assert!(!description.contains(|c: char| c.is_ascii_control()), "{description}");
    let Some(found) = identity::identity(input) else { return };
    let ids = found.auth.ids();
    assert!(ids.len() <= 16);
    let json = serde_json::to_string(&found).expect("it was JSON");
    let again = identity::identity(format!("HTTP/1.1 200 OK\r\n\r\n{json}").as_bytes());
    assert_eq!(again.as_ref(), Some(&found));
    for credentials in CREDENTIALS.iter() {
        match credentials.compare("10.0.0.1:29400", &found.auth) {
            Ok(()) if credentials.is_secured() => {
                assert!(credentials.ids().iter().any(|id| ids.contains(id)), "{found:?}");
            }
            Ok(()) => assert_ne!(json_of(&json, "auth"), Some("secret".to_owned())),
            Err(mismatch) => {
                for text in [mismatch.to_string(), mismatch.hint()] {
                    assert_printable(&text);
                    assert!(text.len() <= MISMATCH_MAX && !text.contains('\n'), "{text}");
                }
            }
        }
    }
}

fn json_of(json: &str, field: &str) -> Option<String> {
    let object: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(object.get(field)?.as_str()?.to_owned())
}

static CREDENTIALS: LazyLock<[Credentials; 2]> = LazyLock::new(|| {
    let secret = Secret::new(job::SECRET).expect("a secret");
    [
        Credentials::new(vec![secret], Origin::Stdin),
        Credentials::unsecured(Unsecured::NotFound { searched: vec!["/s".to_owned()] }),
    ]
});
