//! Builds the container of a pod, which runs one agent.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
        EnvVarSource, HostPathVolumeSource, ObjectFieldSelector, PersistentVolumeClaimVolumeSource,
        ResourceRequirements, Volume, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use ragent_base::spec::{DEFAULT_PORT, ScriptKind};

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

pub(super) fn container(spec: &ManifestSpec) -> Container {
    let port = ContainerPort {
        container_port: DEFAULT_PORT.into(),
        name: Some(PORT_NAME.to_owned()),
        ..ContainerPort::default()
    };
    let container = Container {
        name: AGENT.to_owned(),
        image: Some(spec.image.clone()),
        image_pull_policy: spec.image_pull_policy.clone(),
        command: Some(vec![literal(&spec.ragent)]),
        args: Some(agent_args(spec).iter().map(|arg| literal(arg)).collect()),
        env: Some(env(spec)),
        ports: Some([port].into_iter().chain(metrics::container_port(spec)).collect()),
        resources: resources(&spec.resources),
        volume_mounts: Some(mounts(spec)),
        ..Container::default()
    };
    access::restrict_container(spec, container)
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

fn env(spec: &ManifestSpec) -> Vec<EnvVar> {
    let own = OF_THE_POD.iter().filter(|(name, _)| !spec.env.contains_key(*name));
    let own = own.map(|(name, path)| EnvVar {
        name: (*name).to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: (*path).to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    });
    let users = spec.env.iter().map(|(name, value)| EnvVar {
        name: name.clone(),
        value: Some(literal(value)),
        ..EnvVar::default()
    });
    own.chain(users).collect()
}

/// Returns the resource limits. Kubernetes uses them as requests too.
fn resources(resources: &BTreeMap<String, String>) -> Option<ResourceRequirements> {
    let amounts = resources.iter().map(|(name, amount)| (name.clone(), Quantity(amount.clone())));
    (!resources.is_empty()).then(|| ResourceRequirements {
        limits: Some(amounts.collect()),
        ..ResourceRequirements::default()
    })
}

/// The volumes that the user has asked for, with their names.
fn shared(spec: &ManifestSpec) -> impl Iterator<Item = (String, &SharedVolume)> {
    spec.volumes.iter().enumerate().map(|(at, volume)| (format!("volume-{at}"), volume))
}

fn mounts(spec: &ManifestSpec) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    };
    let mut mounts = vec![mount("shm", "/dev/shm")];
    if let Method::DeepSpeed { config: Some(_) } = spec.method {
        mounts.push(VolumeMount { read_only: Some(true), ..mount("deepspeed", CONFIG_FOLDER) });
    }
    mounts.extend(spec.secret.mount());
    mounts.extend(shared(spec).map(|(name, volume)| mount(&name, &volume.mount_path)));
    mounts
}

pub(super) fn volumes(spec: &ManifestSpec) -> Vec<Volume> {
    // Data loaders and NCCL use more of it than the 64 MiB that a container has by default.
    let shm = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        ..EmptyDirVolumeSource::default()
    };
    let mut volumes =
        vec![Volume { name: "shm".to_owned(), empty_dir: Some(shm), ..Volume::default() }];
    if let Method::DeepSpeed { config: Some(_) } = spec.method {
        let name = metadata::config_name(spec);
        let config_map = ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() };
        volumes.push(Volume {
            name: "deepspeed".to_owned(),
            config_map: Some(config_map),
            ..Volume::default()
        });
    }
    volumes.extend(spec.secret.volume());
    volumes.extend(shared(spec).map(|(name, shared)| volume(name, &shared.source)));
    volumes
}

fn volume(name: String, source: &VolumeSource) -> Volume {
    let volume = Volume { name, ..Volume::default() };
    match source {
        VolumeSource::Claim(claim_name) => {
            let claim = PersistentVolumeClaimVolumeSource {
                claim_name: claim_name.clone(),
                ..PersistentVolumeClaimVolumeSource::default()
            };
            Volume { persistent_volume_claim: Some(claim), ..volume }
        }
        VolumeSource::HostFolder(path) => {
            // If the folder does not exist, its file system is not mounted there.
            let type_ = Some("Directory".to_owned());
            let folder = HostPathVolumeSource { path: path.clone(), type_ };
            Volume { host_path: Some(folder), ..volume }
        }
    }
}
