//! Builds the Job: an agent in each pod, and the policies for pods that end.

use std::time::Duration;

use k8s_openapi::{
    api::{
        batch::v1::{
            Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
            PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule, SuccessPolicy,
            SuccessPolicyRule,
        },
        core::v1::{LocalObjectReference, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use ragent_core::agent::{NO_PROGRESS, SAVED};

use super::{ManifestSpec, access, container, metadata, metrics};

/// The time that an agent may need after its own workers and those of the other nodes have stopped: for leases, last messages, and a
/// reserve.
const STOP_MARGIN: Duration = Duration::from_secs(30);

pub(super) fn job(spec: &ManifestSpec) -> Job {
    let pods = count(spec.nodes.max());
    let labels = metadata::labels(spec);
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: metrics::annotations(spec),
            ..ObjectMeta::default()
        }),
        spec: Some(pod(spec)),
    };
    let job = JobSpec {
        completion_mode: Some("Indexed".to_owned()),
        completions: Some(pods),
        parallelism: Some(pods),
        backoff_limit_per_index: Some(count(spec.pod_restarts)),
        // The job goes on without the pods above its minimum.
        max_failed_indexes: Some(count(spec.nodes.max() - spec.nodes.min())),
        pod_failure_policy: Some(failure_policy()),
        success_policy: Some(success_policy(spec)),
        template,
        ..JobSpec::default()
    };
    Job { metadata: metadata::metadata(spec, spec.name.clone()), spec: Some(job), status: None }
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Returns the policy for failed pods. The job fails at once if the agent's command line is wrong (2), its job is closed (4) or makes no
/// progress (6), because the next pod would end the same way. A pod that the cluster removes, or whose agent has saved (5), does not count
/// as failed.
fn failure_policy() -> PodFailurePolicy {
    let codes = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(container::AGENT.to_owned()),
        operator: "In".to_owned(),
        values: vec![2, 4, i32::from(NO_PROGRESS)],
    };
    let saved = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(container::AGENT.to_owned()),
        operator: "In".to_owned(),
        values: vec![i32::from(SAVED)],
    };
    let disruption = PodFailurePolicyOnPodConditionsPattern {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
    };
    PodFailurePolicy {
        rules: vec![
            PodFailurePolicyRule {
                action: "FailJob".to_owned(),
                on_exit_codes: Some(codes),
                ..PodFailurePolicyRule::default()
            },
            PodFailurePolicyRule {
                action: "Ignore".to_owned(),
                on_exit_codes: Some(saved),
                ..PodFailurePolicyRule::default()
            },
            PodFailurePolicyRule {
                action: "Ignore".to_owned(),
                on_pod_conditions: Some(vec![disruption]),
                ..PodFailurePolicyRule::default()
            },
        ],
    }
}

/// Returns the policy for success. It counts one agent that exits with 0, which an agent does only if the workers of all nodes have
/// succeeded.
///
/// - Without voters and etcd, it is the agent in the first pod. It hosts the coordinator, and exits once all agents know the outcome.
/// - With voters, it is the agent of any voter.
/// - With etcd, it is any agent.
///
/// So the Job does not wait for pods that were never scheduled.
fn success_policy(spec: &ManifestSpec) -> SuccessPolicy {
    let rule = match spec.voters.number() - 1 {
        _ if spec.etcd.is_some() => {
            SuccessPolicyRule { succeeded_count: Some(1), ..SuccessPolicyRule::default() }
        }
        0 => SuccessPolicyRule {
            succeeded_indexes: Some("0".to_owned()),
            ..SuccessPolicyRule::default()
        },
        last => SuccessPolicyRule {
            succeeded_count: Some(1),
            succeeded_indexes: Some(format!("0-{last}")),
        },
    };
    SuccessPolicy { rules: vec![rule] }
}

fn pod(spec: &ManifestSpec) -> PodSpec {
    let secrets =
        spec.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    let secrets: Vec<_> = secrets.collect();
    // A host that leaves waits for its own workers, and then for the workers of the other nodes.
    let stop_time = spec.notice + spec.shutdown_timeout * 2 + STOP_MARGIN;
    let pod = PodSpec {
        containers: vec![container::container(spec)],
        volumes: Some(container::volumes(spec)),
        // The domain of the service. Pods find each other as NAME-NUMBER.NAME.
        subdomain: Some(spec.name.clone()),
        // The policies for exit codes require it. Kubernetes replaces a failed pod by a new one.
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: i64::try_from(stop_time.as_secs()).ok(),
        // A service named `master` would set MASTER_PORT.
        enable_service_links: Some(false),
        // An agent does not use the cluster's API.
        automount_service_account_token: Some(false),
        image_pull_secrets: (!secrets.is_empty()).then_some(secrets),
        node_selector: (!spec.node_selector.is_empty()).then(|| spec.node_selector.clone()),
        ..PodSpec::default()
    };
    access::restrict(spec, pod)
}
