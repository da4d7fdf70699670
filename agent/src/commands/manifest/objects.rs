//! Writes the objects of a job as YAML documents.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use ragent_base::spec::DEFAULT_PORT;
use serde::Serialize;
use serde_saphyr::ser::Error;

use super::{
    ManifestSpec, Method, access,
    container::{CONFIG_FILE, PORT_NAME},
    job,
    metadata::{config_name, metadata, of_job},
};

/// Returns the manifest. The job comes last, after the objects that it needs.
pub(super) fn text(spec: &ManifestSpec) -> Result<String, Error> {
    let config = config_map(spec).map(|config| yaml(&config)).transpose()?;
    let secret = access::secret(spec).map(|secret| yaml(&secret)).transpose()?;
    let policy = yaml(&access::network_policy(spec))?;
    let service = yaml(&service(spec))?;
    let job = yaml(&job::job(spec))?;
    let first = config.into_iter().chain(secret);
    let documents: Vec<String> = first.chain([policy, service, job]).collect();
    Ok(documents.iter().map(|text| format!("---\n{}\n", text.trim_end())).collect())
}

/// Returns the text of an object. It is converted to an untyped value first: serializing each type of Kubernetes as YAML would add 200 KB
/// to the program.
fn yaml(object: &impl Serialize) -> Result<String, Error> {
    let value = serde_json::to_value(object).expect("objects have no odd keys");
    serde_saphyr::to_string(&value)
}

fn config_map(spec: &ManifestSpec) -> Option<ConfigMap> {
    let Method::DeepSpeed { config: Some(text) } = &spec.method else { return None };
    Some(ConfigMap {
        metadata: metadata(spec, config_name(spec)),
        data: Some(BTreeMap::from([(CONFIG_FILE.to_owned(), text.clone())])),
        ..ConfigMap::default()
    })
}

/// Returns the service. It gives each pod a name as soon as the pod exists, because agents must find the first pod before it can be ready.
fn service(spec: &ManifestSpec) -> Service {
    let port = ServicePort {
        name: Some(PORT_NAME.to_owned()),
        port: DEFAULT_PORT.into(),
        target_port: Some(IntOrString::String(PORT_NAME.to_owned())),
        ..ServicePort::default()
    };
    let service = ServiceSpec {
        // A headless service: the name of a pod resolves to the pod's own address.
        cluster_ip: Some("None".to_owned()),
        publish_not_ready_addresses: Some(true),
        selector: Some(of_job(spec)),
        ports: Some(vec![port]),
        ..ServiceSpec::default()
    };
    Service { metadata: metadata(spec, spec.name.clone()), spec: Some(service), status: None }
}
