//! Builds the container of a pod, which runs one agent.

use ragent_base::net::DEFAULT_PORT;
use ragent_options::spec::ScriptKind;
use serde_json::{Value, json};

use super::{ManifestSpec, Method, SharedVolume, VolumeSource, access, metadata, metrics};

/// The name of the container and of its program.
pub(super) const AGENT: &str = "ragent";
/// The folder at which pods find the files of the manifest.
pub(super) const CONFIG_FOLDER: &str = "/etc/ragent";
/// The file in it that contains DeepSpeed's configuration.
pub(super) const CONFIG_FILE: &str = "deepspeed.json";

/// Variables whose values only the pod knows, and the fields that have them.
const OF_THE_POD: [(&str, &str); 2] =
    [("NODE_NAME", "spec.nodeName"), ("POD_NAME", "metadata.name")];

pub(super) fn container(spec: &ManifestSpec) -> Value {
    let port = json!({ "containerPort": DEFAULT_PORT, "name": PORT_NAME });
    let ports: Vec<_> = [port].into_iter().chain(metrics::container_port(spec)).collect();
    let args: Vec<_> = agent_args(spec).iter().map(|arg| literal(arg)).collect();
    // Kubernetes uses limits as requests too.
    let resources = (!spec.resources.is_empty()).then(|| json!({ "limits": spec.resources }));
    json!({
        "name": AGENT,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": [literal(&spec.ragent)],
        "args": args,
        "env": env(spec),
        "ports": ports,
        "resources": resources,
        "volumeMounts": mounts(spec),
        "securityContext": access::container_context(spec),
    })
}

/// The name of the coordinator's port; at most 15 characters.
pub(super) const PORT_NAME: &str = "rdzv";

/// Returns the agent's flags that have a value.
pub(super) fn agent_flags(spec: &ManifestSpec) -> Vec<(&'static str, String)> {
    let ManifestSpec { name, nodes, .. } = spec;
    let (shared_file, config) = match &spec.method {
        Method::Basic { shared_file } => (shared_file.clone(), None),
        Method::DeepSpeed { config } => {
            (None, config.as_ref().map(|_| format!("{CONFIG_FOLDER}/{CONFIG_FILE}")))
        }
        Method::Torchrun => (None, None),
    };
    let (backend, endpoint) = match &spec.etcd {
        Some((backend, members)) => (Some(backend.clone()), members.clone()),
        None => (None, first_pods(spec)),
    };
    let method = Some(spec.method.name()).filter(|_| spec.method != Method::Torchrun);
    let [auth, secret_file] = spec.secret.flags();
    let flags = [
        ("nnodes", Some(nodes.to_string())),
        ("nproc-per-node", Some(spec.workers_per_pod.clone())),
        ("rdzv-backend", backend),
        ("rdzv-endpoint", Some(endpoint)),
        ("rdzv-id", Some(name.clone())),
        ("max-restarts", Some(spec.max_restarts.to_string())),
        ("shutdown-timeout", Some(spec.shutdown_timeout.as_secs().to_string())),
        ("notice", (!spec.notice.is_zero()).then(|| spec.notice.as_secs().to_string())),
        ("launch-method", method.map(str::to_owned)),
        ("shared-file", shared_file),
        ("deepspeed-config", config),
        ("save-path", spec.save_path.clone()),
        ("checkpoint-path", spec.checkpoint_path.clone()),
        auth,
        secret_file,
        ("metrics-listen", spec.metrics_listen.map(|address| address.to_string())),
    ];
    flags.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Returns the names of the first pods in the service: of all voters, or of the only pod that hosts the coordinator.
fn first_pods(spec: &ManifestSpec) -> String {
    let name = &spec.name;
    let pods: Vec<_> =
        (0..spec.voters.number()).map(|pod| format!("{name}-{pod}.{name}")).collect();
    format!("{}:{DEFAULT_PORT}", pods.join(","))
}

/// Returns the arguments of the agent's command line.
pub(super) fn agent_args(spec: &ManifestSpec) -> Vec<String> {
    let flags = agent_flags(spec).into_iter().map(|(name, value)| format!("--{name}={value}"));
    let switch = match spec.kind {
        ScriptKind::Module => Some("--module"),
        ScriptKind::Program => Some("--no-python"),
        ScriptKind::Script => None,
    };
    // The agent takes no argument after `--` as its own flag.
    let rest = switch.into_iter().chain(["--"]).map(str::to_owned);
    flags.chain(rest).chain(spec.script.iter().cloned()).collect()
}

/// Escapes a text in which Kubernetes would replace `$(NAME)`, and turn `$$` into a dollar sign.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn env(spec: &ManifestSpec) -> Vec<Value> {
    let own = OF_THE_POD.iter().filter(|(name, _)| !spec.env.contains_key(*name));
    let own = own.map(
        |(name, path)| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } }),
    );
    let users =
        spec.env.iter().map(|(name, value)| json!({ "name": name, "value": literal(value) }));
    own.chain(users).collect()
}

/// The volumes that the user has asked for, with their names.
fn shared(spec: &ManifestSpec) -> impl Iterator<Item = (String, &SharedVolume)> {
    spec.volumes.iter().enumerate().map(|(at, volume)| (format!("volume-{at}"), volume))
}

fn mounts(spec: &ManifestSpec) -> Vec<Value> {
    let mut mounts = vec![json!({ "name": "shm", "mountPath": "/dev/shm" })];
    if let Method::DeepSpeed { config: Some(_) } = spec.method {
        mounts.push(json!({ "name": "deepspeed", "mountPath": CONFIG_FOLDER, "readOnly": true }));
    }
    mounts.extend(spec.secret.mount());
    let shared =
        shared(spec).map(|(name, volume)| json!({ "name": name, "mountPath": volume.mount_path }));
    mounts.extend(shared);
    mounts
}

pub(super) fn volumes(spec: &ManifestSpec) -> Vec<Value> {
    // Data loaders and NCCL use more of it than the 64 MiB that a container has by default.
    let mut volumes = vec![json!({ "name": "shm", "emptyDir": { "medium": "Memory" } })];
    if let Method::DeepSpeed { config: Some(_) } = spec.method {
        let config_map = json!({ "name": metadata::config_name(spec) });
        volumes.push(json!({ "name": "deepspeed", "configMap": config_map }));
    }
    volumes.extend(spec.secret.volume());
    volumes.extend(shared(spec).map(|(name, shared)| volume(&name, &shared.source)));
    volumes
}

fn volume(name: &str, source: &VolumeSource) -> Value {
    match source {
        VolumeSource::Claim(claim) => {
            json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } })
        }
        // If the folder does not exist, its file system is not mounted there.
        VolumeSource::HostFolder(path) => {
            json!({ "name": name, "hostPath": { "path": path, "type": "Directory" } })
        }
    }
}
