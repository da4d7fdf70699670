//! The comparison of this process's credentials with those that another process names, so that two nodes with different
//! secrets get an error that names both sides. Nothing else depends on it: the names are public and not proven.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    credentials::{Credentials, Unsecured},
    form::SecretId,
    limits,
};

/// The authentication of a process, as its identity names it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct NamedAuth {
    /// `secret` or `none`; processes of earlier versions name nothing.
    #[serde(default)]
    auth: String,
    /// The public names of its secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ids: Vec<String>,
}

const SECRET: &str = "secret";

impl NamedAuth {
    /// Returns what this process names.
    pub(crate) fn of(credentials: &Credentials) -> Self {
        let auth = if credentials.is_secured() { SECRET } else { "none" };
        let ids = credentials.ids().iter().map(ToString::to_string).collect();
        Self { auth: auth.to_owned(), ids }
    }

    /// Returns the valid names of secrets.
    pub(crate) fn ids(&self) -> Vec<SecretId> {
        let ids = self.ids.iter().filter_map(|id| SecretId::parse(id));
        ids.take(limits::MAX_SECRETS).collect()
    }

    fn is_secured(&self) -> bool {
        self.auth == SECRET
    }
}

/// The reason for which two processes cannot authenticate each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch(Box<Sides>);

#[derive(Clone, Debug, Eq, PartialEq)]
struct Sides {
    /// The address or the endpoint of the other process.
    place: String,
    kind: Kind,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Kind {
    /// The other process has another secret.
    OtherSecret { theirs: String, ours: String, origin: String },
    /// The other process has a secret, and this one has none.
    NoneHere { theirs: String, reason: Unsecured },
    /// This process has a secret, and the other one has none.
    NoneThere { ours: String, origin: String },
}

impl Credentials {
    /// Compares these credentials with those of the process at `place`.
    pub(crate) fn compare(&self, place: &str, theirs: &NamedAuth) -> Result<(), Mismatch> {
        let mismatch = |kind| Err(Mismatch(Box::new(Sides { place: place.to_owned(), kind })));
        let (ours, origin) = (self.ids(), self.origin().map(ToString::to_string));
        match (self.unsecured_reason(), theirs.is_secured()) {
            (Some(_), false) => Ok(()),
            (Some(reason), true) => {
                mismatch(Kind::NoneHere { theirs: list(&theirs.ids()), reason: reason.clone() })
            }
            (None, false) => {
                mismatch(Kind::NoneThere { ours: list(&ours), origin: origin.unwrap_or_default() })
            }
            (None, true) if theirs.ids().iter().any(|id| ours.contains(id)) => Ok(()),
            (None, true) => mismatch(Kind::OtherSecret {
                theirs: list(&theirs.ids()),
                ours: list(&ours),
                origin: origin.unwrap_or_default(),
            }),
        }
    }
}

fn list(ids: &[SecretId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sides { place, kind } = &*self.0;
        match kind {
            Kind::OtherSecret { theirs, ours, origin } => write!(
                f,
                "the process at {place} has another secret ({theirs}) than this one ({ours}, from \
                 {origin})"
            ),
            Kind::NoneHere { theirs, reason: Unsecured::Chosen } => write!(
                f,
                "the process at {place} requires a secret ({theirs}), and this one was started with \
                 `--auth none`"
            ),
            Kind::NoneHere { theirs, reason: Unsecured::NotFound { searched } } => write!(
                f,
                "the process at {place} requires a secret ({theirs}), and this one has none (searched: \
                 {})",
                searched.join(", ")
            ),
            Kind::NoneThere { ours, origin } => write!(
                f,
                "the process at {place} has no secret; this one has one ({ours}, from {origin}) and does \
                 not communicate without it"
            ),
        }
    }
}

impl std::error::Error for Mismatch {}

impl Mismatch {
    /// Returns true if both processes have secrets: one of them may not have read its file again.
    pub(crate) fn is_of_secrets(&self) -> bool {
        matches!(self.0.kind, Kind::OtherSecret { .. })
    }

    /// Returns the hint for the user.
    pub(crate) fn hint(&self) -> String {
        match &self.0.kind {
            Kind::OtherSecret { .. } => "copy the secret file of one node to all others, or give the same \
                 file to all with `--secret-file`"
                .to_owned(),
            Kind::NoneHere { reason: Unsecured::Chosen, .. } => {
                "give the secret of the other process with `--secret-file FILE`, or use `--auth none` on all \
                 nodes"
                    .to_owned()
            }
            Kind::NoneHere { reason: Unsecured::NotFound { searched }, .. } => {
                let file = searched.last().filter(|place| place.starts_with('/'));
                let file = file.and_then(|place| place.split(" (").next());
                let copy = file.map_or_else(
                    || "copy its secret file to this machine".to_owned(),
                    |path| format!("copy its secret file to {path} (mode 0600)"),
                );
                format!("{copy}, or name the file with `--secret-file`")
            }
            Kind::NoneThere { origin, .. } => {
                let file = if origin.starts_with('/') { origin } else { "FILE" };
                format!(
                    "start it with the same secret (`--secret-file {file}`), or all nodes with `--auth none`"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Origin, Secret};

    const PLACE: &str = "n0:1";

    fn secured(characters: &[&str]) -> Credentials {
        let secrets = characters.iter().map(|c| Secret::new(&c.repeat(43)).unwrap()).collect();
        Credentials::new(secrets, Origin::File("/s".into()))
    }

    fn unsecured() -> Credentials {
        let searched = vec!["PET_SECRET_FILE".to_owned(), "/h/secret".to_owned()];
        Credentials::unsecured(Unsecured::NotFound { searched })
    }

    fn compare(here: &Credentials, there: &Credentials) -> Result<(), (String, String)> {
        let mismatch = here.compare(PLACE, &NamedAuth::of(there));
        mismatch.map_err(|mismatch| (mismatch.to_string(), mismatch.hint()))
    }

    /// Processes with a common secret agree, and those without one.
    #[test]
    fn same_secrets_agree() {
        assert_eq!(compare(&secured(&["a"]), &secured(&["a"])), Ok(()));
        assert_eq!(compare(&secured(&["b", "a"]), &secured(&["a"])), Ok(()));
        assert_eq!(compare(&secured(&["a"]), &secured(&["b", "a"])), Ok(()));
        let declined = Credentials::unsecured(Unsecured::Chosen);
        assert_eq!(compare(&unsecured(), &declined), Ok(()));
        assert_eq!(unsecured().compare(PLACE, &NamedAuth::default()), Ok(()), "an earlier version");
    }

    /// Each error names both sides, and what to do.
    #[test]
    fn mismatches_are_explained() {
        let id = |credentials: &Credentials| credentials.ids()[0];
        let (a, b) = (secured(&["a"]), secured(&["b"]));
        let (text, hint) = compare(&a, &b).unwrap_err();
        let expected = format!(
            "the process at n0:1 has another secret ({}) than this one ({}, from /s)",
            id(&b),
            id(&a)
        );
        assert_eq!(text, expected);
        assert!(hint.contains("--secret-file"), "{hint}");
        let (text, hint) = compare(&unsecured(), &b).unwrap_err();
        let expected = format!(
            "the process at n0:1 requires a secret ({}), and this one has none (searched: \
             PET_SECRET_FILE, /h/secret)",
            id(&b)
        );
        assert_eq!(text, expected);
        assert!(hint.starts_with("copy its secret file to /h/secret (mode 0600)"), "{hint}");
        let declined = Credentials::unsecured(Unsecured::Chosen);
        assert!(compare(&declined, &b).unwrap_err().0.ends_with("with `--auth none`"));
        let (text, hint) = compare(&a, &unsecured()).unwrap_err();
        let expected = format!(
            "the process at n0:1 has no secret; this one has one ({}, from /s) and does not communicate \
             without it",
            id(&a)
        );
        assert_eq!(text, expected);
        assert!(hint.contains("`--secret-file /s`") && hint.contains("--auth none"), "{hint}");
    }

    /// Names of secrets come from strangers: only valid ones are used, and a limited number of them.
    #[test]
    fn names_are_checked() {
        let text = r#"{"auth":"secret","ids":["\u001b[2J","12345678","0x123456",""]}"#;
        let named: NamedAuth = serde_json::from_str(text).unwrap();
        assert_eq!(list(&named.ids()), "12345678");
        let many = NamedAuth { auth: SECRET.to_owned(), ids: vec!["00000000".to_owned(); 99] };
        assert_eq!(many.ids().len(), limits::MAX_SECRETS);
    }
}
