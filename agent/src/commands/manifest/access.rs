//! Protects a job: its secret, the network policy, and the restrictions of its pods.

use std::collections::BTreeMap;

use ragent_base::secret::Secret;
use ragent_options::{
    cli::K8sArgs,
    spec::{Argument, UsageError},
};
use serde_json::{Value, json};

use super::{
    ManifestSpec,
    flag_values::check,
    metadata::{metadata, of_job},
    metrics, names,
};

/// The folder in which pods find the secret.
pub(super) const SECRET_FOLDER: &str = "/etc/ragent-secret";
/// The key of the secret in its object, which is also the name of its file in that folder.
const KEY: &str = "secret";
const VOLUME: &str = "secret";

/// The secret that the pods share.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum JobSecret {
    /// The secret of an existing object, which the user makes.
    Named {
        /// The name of the object.
        name: String,
        /// True if this name is the default.
        is_default: bool,
    },
    /// A new secret, which the manifest contains in an object with this name.
    New(String, Secret),
    /// The user wants no secret.
    Declined,
    /// The manifest contains no secret, because the job has one pod, or because `--env` selects the authentication.
    NotNeeded,
}

/// The user and the group of the agent and its workers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RunAs {
    uid: i64,
    gid: i64,
}

/// The variables from which agents read their authentication.
const VARIABLES: [&str; 6] =
    ["PET_SECRET_FILE", "PET_AUTH", "PET_TLS_CA", "PET_TLS_CERT", "PET_TLS_KEY", "PET_TLS_PEER"];

impl JobSecret {
    /// Resolves `--secret` for a job with this name.
    pub(super) fn resolve(
        args: &K8sArgs,
        name: &str,
        pods: u32,
        env: &BTreeMap<String, String>,
    ) -> Result<Self, UsageError> {
        let own = || format!("{name}-ragent");
        let given = env.keys().find(|name| VARIABLES.contains(&name.as_str()));
        match (args.secret.as_deref(), given) {
            (Some(_), Some(variable)) => Err(UsageError::new(format!(
                "`--secret` and `--env {variable}` both select the authentication"
            ))
            .with_hint("give only one of them")),
            (None, Some(_)) => Ok(Self::NotNeeded),
            (None, None) if pods == 1 => Ok(Self::NotNeeded),
            (None, None) => Ok(Self::Named { name: own(), is_default: true }),
            (Some("none"), None) => Ok(Self::Declined),
            (Some("new"), None) => {
                let secret = Secret::random().map_err(|error| {
                    UsageError::new(format!("failed to make a secret: {error}"))
                        .with_hint("make one elsewhere, and name its object with `--secret NAME`")
                })?;
                Ok(Self::New(own(), secret))
            }
            (Some(name), None) => {
                check("--secret", name, &names::SECRET)?;
                Ok(Self::Named { name: name.to_owned(), is_default: false })
            }
        }
    }

    fn object(&self) -> Option<&str> {
        match self {
            Self::Named { name, .. } | Self::New(name, _) => Some(name),
            Self::Declined | Self::NotNeeded => None,
        }
    }

    /// Returns the flags of the agents.
    pub(super) fn flags(&self) -> [(&'static str, Option<String>); 2] {
        let file = self.object().map(|_| format!("{SECRET_FOLDER}/{KEY}"));
        let is_declined = matches!(self, Self::Declined);
        [("auth", is_declined.then(|| "none".to_owned())), ("secret-file", file)]
    }

    /// Returns a note about a default name, with the command that makes the object.
    pub(super) fn note(&self, namespace: Option<&str>) -> Option<String> {
        let Self::Named { name, is_default: true } = self else { return None };
        let namespace = namespace.map(|name| format!(" --namespace {name}")).unwrap_or_default();
        Some(format!(
            "the pods wait for the Secret `{name}`; make it once: ragent secret | kubectl create secret generic \
             {name} --from-file={KEY}=/dev/stdin{namespace} (or give `--secret new` or `--secret none`)"
        ))
    }

    /// Returns the mount of the secret.
    pub(super) fn mount(&self) -> Option<Value> {
        self.object()?;
        Some(json!({ "name": VOLUME, "mountPath": SECRET_FOLDER, "readOnly": true }))
    }

    /// Returns the volume of the secret. Agents accept its mode, also with `fsGroup`.
    pub(super) fn volume(&self) -> Option<Value> {
        let secret = json!({ "secretName": self.object()?, "defaultMode": 0o440 });
        Some(json!({ "name": VOLUME, "secret": secret }))
    }
}

impl RunAs {
    /// Parses `UID` or `UID:GID`. Without a group, its number is that of the user.
    pub(super) fn resolve(args: &K8sArgs) -> Result<Option<Self>, UsageError> {
        let Some(given) = Argument::of_flag("--run-as", &args.run_as) else { return Ok(None) };
        let (uid, gid) = given.text.split_once(':').unwrap_or((&given.text, &given.text));
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id > 0).map(i64::from);
        match (number(uid), number(gid)) {
            (Some(uid), Some(gid)) => Ok(Some(Self { uid, gid })),
            _ => Err(given.is_not("`UID` or `UID:GID`, two positive numbers")),
        }
    }
}

/// Returns the object of a new secret. It is immutable, because a second secret would divide the job.
pub(super) fn secret(spec: &ManifestSpec) -> Option<Value> {
    let JobSecret::New(name, secret) = &spec.secret else { return None };
    Some(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(spec, name),
        "immutable": true,
        "stringData": { KEY: format!("{}\n", secret.text()) },
        "type": "Opaque",
    }))
}

/// Returns the policy that admits connections only from pods of the job, and from the namespaces that the user names.
pub(super) fn network_policy(spec: &ManifestSpec) -> Value {
    let own_pods = json!({ "podSelector": { "matchLabels": of_job(spec) } });
    let namespaces = spec.allow_from.iter().map(|name| {
        json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } } })
    });
    let from: Vec<_> = [own_pods].into_iter().chain(namespaces).collect();
    let ingress: Vec<_> =
        [json!({ "from": from })].into_iter().chain(metrics::ingress(spec)).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(spec, &spec.name),
        "spec": {
            "podSelector": { "matchLabels": of_job(spec) },
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    })
}

/// Restricts a pod to what an agent and its workers need. With a user other than root, it complies with Kubernetes' profile `restricted`.
pub(super) fn pod_context(spec: &ManifestSpec) -> Value {
    json!({
        "seccompProfile": { "type": "RuntimeDefault" },
        "runAsNonRoot": spec.run_as.map(|_| true),
        "runAsUser": spec.run_as.map(|run_as| run_as.uid),
        "runAsGroup": spec.run_as.map(|run_as| run_as.gid),
        // The group must be able to read the secret and the volumes.
        "fsGroup": spec.run_as.map(|run_as| run_as.gid),
    })
}

/// Restricts the container in the same way. Root keeps its capabilities, because some network drivers need them.
pub(super) fn container_context(spec: &ManifestSpec) -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": spec.run_as.map(|_| json!({ "drop": ["ALL"] })),
    })
}
