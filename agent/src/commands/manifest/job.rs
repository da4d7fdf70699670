//! Builds the Job: an agent in each pod, and the policies for pods that end.

use std::time::Duration;

use ragent_core::agent::{NO_PROGRESS, SAVED};
use serde_json::{Value, json};

use super::{ManifestSpec, access, container, metadata, metrics};

/// The time that an agent may need after its own workers and those of the other nodes have stopped: for leases, last messages, and a
/// reserve.
const STOP_MARGIN: Duration = Duration::from_secs(30);

pub(super) fn job(spec: &ManifestSpec) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata::metadata(spec, &spec.name),
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes.max(),
            "parallelism": spec.nodes.max(),
            "backoffLimitPerIndex": spec.pod_restarts,
            // The job goes on without the pods above its minimum.
            "maxFailedIndexes": spec.nodes.max() - spec.nodes.min(),
            "podFailurePolicy": failure_policy(),
            "successPolicy": success_policy(spec),
            "template": {
                "metadata": {
                    "labels": metadata::labels(spec),
                    "annotations": metrics::annotations(spec),
                },
                "spec": pod(spec),
            },
        },
    })
}

/// Returns the policy for failed pods. The job fails at once if the agent's command line is wrong (2), its job is closed (4) or makes no
/// progress (6), because the next pod would end the same way. A pod that the cluster removes, or whose agent has saved (5), does not count
/// as failed.
fn failure_policy() -> Value {
    let ended_with = |codes: &[u8]| json!({ "containerName": container::AGENT, "operator": "In", "values": codes });
    let disruption = json!({ "type": "DisruptionTarget", "status": "True" });
    json!({ "rules": [
        { "action": "FailJob", "onExitCodes": ended_with(&[2, 4, NO_PROGRESS]) },
        { "action": "Ignore", "onExitCodes": ended_with(&[SAVED]) },
        { "action": "Ignore", "onPodConditions": [disruption] },
    ] })
}

/// Returns the policy for success. It counts one agent that exits with 0, which an agent does only if the workers of all nodes have
/// succeeded.
///
/// - Without voters and etcd, it is the agent in the first pod. It hosts the coordinator, and exits once all agents know the outcome.
/// - With voters, it is the agent of any voter.
/// - With etcd, it is any agent.
///
/// So the Job does not wait for pods that were never scheduled.
fn success_policy(spec: &ManifestSpec) -> Value {
    let rule = match spec.voters.number() - 1 {
        _ if spec.etcd.is_some() => json!({ "succeededCount": 1 }),
        0 => json!({ "succeededIndexes": "0" }),
        last => json!({ "succeededCount": 1, "succeededIndexes": format!("0-{last}") }),
    };
    json!({ "rules": [rule] })
}

fn pod(spec: &ManifestSpec) -> Value {
    let secrets: Vec<_> =
        spec.image_pull_secrets.iter().map(|name| json!({ "name": name })).collect();
    // A host that leaves waits for its own workers, and then for the workers of the other nodes.
    let stop_time = spec.notice + spec.shutdown_timeout * 2 + STOP_MARGIN;
    json!({
        "containers": [container::container(spec)],
        "volumes": container::volumes(spec),
        // The domain of the service. Pods find each other as NAME-NUMBER.NAME.
        "subdomain": spec.name,
        // The policies for exit codes require it. Kubernetes replaces a failed pod by a new one.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": stop_time.as_secs(),
        // A service named `master` would set MASTER_PORT.
        "enableServiceLinks": false,
        // An agent does not use the cluster's API.
        "automountServiceAccountToken": false,
        "imagePullSecrets": (!secrets.is_empty()).then_some(secrets),
        "nodeSelector": (!spec.node_selector.is_empty()).then_some(&spec.node_selector),
        "securityContext": access::pod_context(spec),
    })
}
