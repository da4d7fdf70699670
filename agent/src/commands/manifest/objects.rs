//! Writes the objects of a job as YAML documents.

use ragent_base::net::DEFAULT_PORT;
use serde_json::{Value, json};
use serde_saphyr::ser::Error;

use super::{
    ManifestSpec, Method, access,
    container::{CONFIG_FILE, PORT_NAME},
    job,
    metadata::{config_name, metadata, of_job},
};

/// Returns the manifest. The job comes last, after the objects that it needs.
pub(super) fn text(spec: &ManifestSpec) -> Result<String, Error> {
    let first = config_map(spec).into_iter().chain(access::secret(spec));
    first
        .chain([access::network_policy(spec), service(spec), job::job(spec)])
        .map(document)
        .collect()
}

/// Returns the text of an object, without the fields that have no value.
fn document(mut object: Value) -> Result<String, Error> {
    remove_nulls(&mut object);
    Ok(format!("---\n{}\n", serde_saphyr::to_string(&object)?.trim_end()))
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn config_map(spec: &ManifestSpec) -> Option<Value> {
    let Method::DeepSpeed { config: Some(text) } = &spec.method else { return None };
    Some(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec, &config_name(spec)),
        "data": { CONFIG_FILE: text },
    }))
}

/// Returns the service. It gives each pod a name as soon as the pod exists, because agents must find the first pod before it can be ready.
fn service(spec: &ManifestSpec) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(spec, &spec.name),
        "spec": {
            // A headless service: the name of a pod resolves to the pod's own address.
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": of_job(spec),
            "ports": [{ "name": PORT_NAME, "port": DEFAULT_PORT, "targetPort": PORT_NAME }],
        },
    })
}
