//! Opens the port of the metrics: its annotations, and the connections to it.

use std::net::SocketAddr;

use ragent_base::net::DEFAULT_PORT;
use ragent_options::spec::{Argument, UsageError};
use serde_json::{Value, json};

use super::ManifestSpec;

/// The name of the port.
const NAME: &str = "metrics";

/// Returns the address of `--metrics-listen`. It is all addresses of a pod, since the pod's own address is not known yet. No other protocol
/// of the pod uses the port.
pub(super) fn address(typed: &Option<String>) -> Result<Option<SocketAddr>, UsageError> {
    let Some(given) = Argument::of_flag("--metrics-listen", typed) else { return Ok(None) };
    let address = given.listen_address()?;
    if !address.ip().is_unspecified() || [0, DEFAULT_PORT].contains(&address.port()) {
        let problem = "cannot be scraped in a pod";
        let hint = "give all addresses and a port other than 0 and 29400, as in `0.0.0.0:9400`";
        return Err(given.invalid(problem).with_hint(hint));
    }
    Ok(Some(address))
}

/// Returns the port of the container.
pub(super) fn container_port(spec: &ManifestSpec) -> Option<Value> {
    Some(json!({ "containerPort": spec.metrics_listen?.port(), "name": NAME }))
}

/// Returns the annotations by which Prometheus finds the port of a pod.
pub(super) fn annotations(spec: &ManifestSpec) -> Option<Value> {
    Some(json!({
        "prometheus.io/scrape": "true",
        "prometheus.io/port": spec.metrics_listen?.port().to_string(),
        "prometheus.io/path": "/metrics",
    }))
}

/// Returns the rule that admits all pods of the cluster to the port. If the user has named namespaces, only these may connect, and there is
/// no such rule.
pub(super) fn ingress(spec: &ManifestSpec) -> Option<Value> {
    let address = spec.metrics_listen.filter(|_| spec.allow_from.is_empty())?;
    Some(json!({
        "from": [{ "namespaceSelector": {} }],
        "ports": [{ "port": address.port(), "protocol": "TCP" }],
    }))
}
