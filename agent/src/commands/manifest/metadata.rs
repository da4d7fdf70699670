//! Names and labels the objects of a job.

use serde_json::{Value, json};

use super::ManifestSpec;

/// The label by which users find the objects of a job.
const LABEL: &str = "app.kubernetes.io/name";

pub(super) fn labels(spec: &ManifestSpec) -> Value {
    json!({ LABEL: spec.name })
}

/// The label that Kubernetes sets on the pods of a job.
const JOB_LABEL: &str = "batch.kubernetes.io/job-name";

/// Returns the label that selects the pods of the job.
pub(super) fn of_job(spec: &ManifestSpec) -> Value {
    json!({ JOB_LABEL: spec.name })
}

pub(super) fn metadata(spec: &ManifestSpec, name: &str) -> Value {
    json!({ "name": name, "namespace": spec.namespace, "labels": labels(spec) })
}

/// The name of the object with DeepSpeed's configuration.
pub(super) fn config_name(spec: &ManifestSpec) -> String {
    format!("{}-deepspeed", spec.name)
}
