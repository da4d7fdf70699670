//! The meaning of the flags: a [`ManifestSpec`] that is valid for Kubernetes, or all mistakes at
//! once.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use ragent_rendezvous::settings::NodeRange;

use super::{
    ManifestError, Method, SharedVolume,
    method::{job_path, method},
    names::{self, Rule},
    typed::{check, checked, number, pairs, required, wrong},
    variables,
};
use crate::{
    cli::K8sArgs,
    limits,
    spec::{Errors, one_node},
    sys::host::Host,
};

/// A job for Kubernetes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ManifestSpec {
    /// The name of the Kubernetes Job and of its service, and the run id.
    pub name: String,
    /// The namespace; `None` for the default at the time when the manifest is applied.
    pub namespace: Option<String>,
    /// The image of the pods.
    pub image: String,
    /// The policy for pulling the image; `None` for Kubernetes' default.
    pub image_pull_policy: Option<String>,
    /// The secrets for pulling the image.
    pub image_pull_secrets: Vec<String>,
    /// The number of pods.
    pub nodes: NodeRange,
    /// `--nproc-per-node`: a number, or a word that is resolved in the pod.
    pub workers_per_pod: String,
    /// The resources of a pod.
    pub resources: BTreeMap<String, String>,
    /// The labels of machines that pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// The volumes that all pods share.
    pub volumes: Vec<SharedVolume>,
    /// The user's variables.
    pub env: BTreeMap<String, String>,
    /// The number of failures of the job that are followed by a new round.
    pub max_restarts: u32,
    /// The number of times that a pod is replaced after its agent has failed.
    pub pod_restarts: u32,
    /// The time that workers have to end.
    pub shutdown_timeout: Duration,
    /// The launch method.
    pub method: Method,
    /// `--save-path`, in ragent's form.
    pub save_path: Option<String>,
    /// `--checkpoint-path`, in ragent's form.
    pub checkpoint_path: Option<String>,
    /// The kind of the script.
    pub kind: ScriptKind,
    /// The script and its arguments.
    pub script: Vec<String>,
    /// The agent's program.
    pub ragent: String,
}

/// The kind of a script.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum ScriptKind {
    /// `--module`.
    Module,
    /// `--no-python`.
    Program,
    /// A Python file.
    #[default]
    Script,
}

/// The pull policies of Kubernetes.
const PULL_POLICY: Rule = Rule {
    expected: "`Always`, `IfNotPresent` or `Never`",
    holds: |text| ["Always", "IfNotPresent", "Never"].contains(&text),
};
const WORKERS: Rule = Rule {
    expected: "a positive number, nor `auto`, `cpu`, `gpu` or `xpu`",
    holds: |text| {
        let number = text.parse().is_ok_and(|n| (1..=limits::MAX_LOCAL_WORLD_SIZE).contains(&n));
        number || ["auto", "cpu", "gpu", "xpu"].contains(&text)
    },
};
const GPUS: Rule = Rule {
    expected: "a positive number; for shares of a GPU, use `--resource`",
    holds: |text| text.parse::<u32>().is_ok_and(|n| n > 0),
};
const PATH: Rule = Rule { expected: "a path", holds: |text| !text.is_empty() };

impl ManifestSpec {
    /// Resolves the arguments.
    ///
    /// # Errors
    ///
    /// Returns all mistakes, in the order of the flags.
    pub(crate) fn resolve(args: K8sArgs, host: &impl Host) -> Result<Self, Vec<ManifestError>> {
        let mut errors: Errors<ManifestError> = Errors::default();
        let nodes = errors.or(nodes(&args), one_node());
        let name = errors.or_default(name(&args, nodes));
        let image = checked("--image", &args.image, &names::IMAGE);
        let image = errors.or_default(image.and_then(required("--image")));
        let namespace = checked("--namespace", &args.namespace, &names::NAMESPACE);
        let policy = checked("--image-pull-policy", &args.image_pull_policy, &PULL_POLICY);
        let secrets = args.image_pull_secret.iter().map(|name| {
            check("--image-pull-secret", name, &names::SECRET)?;
            Ok(name.clone())
        });
        let (namespace, image_pull_policy) =
            (errors.or_default(namespace), errors.or_default(policy));
        let image_pull_secrets = errors.or_default(secrets.collect());
        let (gpus, resources) = errors.or_default(resources(&args));
        let workers = checked("--nproc-per-node", &args.nproc_per_node, &WORKERS);
        let labels = [&names::LABEL, &names::LABEL_VALUE];
        let node_selector = pairs("--node-selector", &args.node_selector, labels);
        let node_selector = errors.or_default(node_selector);
        let volumes = errors.or_default(SharedVolume::parse_all(&args.volume));
        let env = pairs("--env", &args.env, [&names::VARIABLE, &names::ANYTHING]);
        let spec = Self {
            name,
            namespace,
            image,
            image_pull_policy,
            image_pull_secrets,
            nodes,
            workers_per_pod: errors.or_default(workers).or(gpus).unwrap_or_else(|| "1".to_owned()),
            resources,
            node_selector,
            env: errors.or_default(env),
            max_restarts: errors.or_default(number("--max-restarts", &args.max_restarts, 0)),
            pod_restarts: errors.or_default(number("--pod-restarts", &args.pod_restarts, 3)),
            shutdown_timeout: Duration::from_secs(
                errors.or_default(number("--shutdown-timeout", &args.shutdown_timeout, 30)).into(),
            ),
            method: method(&args, &volumes, host, &mut errors),
            save_path: errors.or_default(job_path("--save-path", &args.save_path, &volumes)),
            checkpoint_path: errors.or_default(job_path(
                "--checkpoint-path",
                &args.checkpoint_path,
                &volumes,
            )),
            volumes,
            kind: errors.or_default(kind(&args)),
            ragent: errors
                .or_default(checked("--ragent", &args.ragent, &PATH))
                .unwrap_or_else(|| "ragent".to_owned()),
            script: errors.or_default(script(args.script, args.args)),
        };
        // The mistakes in variables depend on all other flags.
        if errors.0.is_empty() {
            errors.0 = variables::mistakes(&spec);
        }
        if errors.0.is_empty() { Ok(spec) } else { Err(errors.0) }
    }
}

fn nodes(args: &K8sArgs) -> Result<NodeRange, ManifestError> {
    let Some(text) = &args.nnodes else { return Ok(one_node()) };
    let nodes: NodeRange =
        text.parse().map_err(|error| ManifestError::Nodes { value: text.clone(), error })?;
    if nodes.max() > limits::MAX_PODS {
        return Err(wrong("--nnodes", text, "a number of pods up to 10000"));
    }
    Ok(nodes)
}

/// Returns the name of the job. Pods use it with their number appended, also as host names; the
/// service uses it as a domain.
fn name(args: &K8sArgs, nodes: NodeRange) -> Result<String, ManifestError> {
    const EXPECTED: &str = "a valid name of pods and of a service: lowercase letters, digits and \
                            `-`, beginning with a letter, not ending with `-`, at most 63 \
                            characters with the number of the pod";
    let name = required("--name")(args.name.clone())?;
    let longest = format!("{name}-{}", nodes.max() - 1);
    if names::is_service(&name) && longest.len() <= names::MAX_LABEL {
        Ok(name)
    } else {
        Err(wrong("--name", &name, EXPECTED))
    }
}

/// Returns the number of whole GPUs per pod, and all resources of a pod.
fn resources(args: &K8sArgs) -> Result<(Option<String>, BTreeMap<String, String>), ManifestError> {
    let flag = "--resource";
    let mut resources = pairs(flag, &args.resource, [&names::RESOURCE, &names::QUANTITY])?;
    for (_, amount) in resources.iter().filter(|(name, _)| name.contains('/')) {
        check(flag, amount, &names::WHOLE)?;
    }
    let gpus = checked("--gpus-per-pod", &args.gpus_per_pod, &GPUS)?;
    // Without a sign and leading zeros.
    let gpus = gpus.and_then(|gpus| Some(gpus.parse::<u32>().ok()?.to_string()));
    let name = checked("--gpu-resource", &args.gpu_resource, &names::RESOURCE)?;
    if gpus.is_none() && name.is_some() {
        return Err(ManifestError::Missing { flag: "--gpus-per-pod" });
    }
    let name = name.unwrap_or_else(|| "nvidia.com/gpu".to_owned());
    if let Some(gpus) = &gpus
        && resources.insert(name.clone(), gpus.clone()).is_some()
    {
        return Err(ManifestError::Twice { flag, name });
    }
    Ok((gpus, resources))
}

fn kind(args: &K8sArgs) -> Result<ScriptKind, ManifestError> {
    match (args.module, args.no_python) {
        (true, true) => Err(ManifestError::ModuleWithoutPython),
        (true, false) => Ok(ScriptKind::Module),
        (false, true) => Ok(ScriptKind::Program),
        (false, false) => Ok(ScriptKind::Script),
    }
}

fn script(script: Option<OsString>, args: Vec<OsString>) -> Result<Vec<String>, ManifestError> {
    let script = script.ok_or(ManifestError::NoScript)?;
    let text = |word: OsString| {
        word.into_string()
            .map_err(|word| ManifestError::NotText { word: word.to_string_lossy().into_owned() })
    };
    [script].into_iter().chain(args).map(text).collect()
}
