//! Names and labels the objects of a job.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::ManifestSpec;

/// The label by which users find the objects of a job.
const LABEL: &str = "app.kubernetes.io/name";

pub(super) fn labels(spec: &ManifestSpec) -> BTreeMap<String, String> {
    BTreeMap::from([(LABEL.to_owned(), spec.name.clone())])
}

/// The label that Kubernetes sets on the pods of a job.
const JOB_LABEL: &str = "batch.kubernetes.io/job-name";

/// Returns the label that selects the pods of the job.
pub(super) fn of_job(spec: &ManifestSpec) -> BTreeMap<String, String> {
    BTreeMap::from([(JOB_LABEL.to_owned(), spec.name.clone())])
}

pub(super) fn metadata(spec: &ManifestSpec, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: spec.namespace.clone(),
        labels: Some(labels(spec)),
        ..ObjectMeta::default()
    }
}

/// The name of the object with DeepSpeed's configuration.
pub(super) fn config_name(spec: &ManifestSpec) -> String {
    format!("{}-deepspeed", spec.name)
}
