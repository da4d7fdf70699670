//! Interprets the flags. They become a [`ManifestSpec`] that is valid for Kubernetes, or all mistakes in them are returned at once.

use std::{collections::BTreeMap, ffi::OsString, net::SocketAddr, time::Duration};

use ragent_base::{limits, sys::host::Host};
use ragent_options::{
    cli::K8sArgs,
    spec::{
        Argument, LaunchMethod, MethodArguments, NO_SCRIPT, ScriptKind, UsageError, UsageErrors,
        asked_voters, one_node, read_deepspeed_config, voters_among,
    },
};
use ragent_rendezvous::{settings::NodeRange, voter_count::VoterCount};

use super::{
    SharedVolume,
    access::{JobSecret, RunAs},
    flag_values::{HELP, check, checked, missing, number, pairs, required, twice},
    metrics,
    names::{self, Rule},
    variables,
};

/// The number of pods of a job. ragent supports no more agents.
const MAX_PODS: u32 = 10_000;

/// A job for Kubernetes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ManifestSpec {
    /// The name of the Kubernetes Job and of its service, and the run id.
    pub name: String,
    /// The namespace. `None` for the current one when the manifest is applied.
    pub namespace: Option<String>,
    /// The image of the pods.
    pub image: String,
    /// The policy for pulling the image; `None` for Kubernetes' default.
    pub image_pull_policy: Option<String>,
    /// The secrets for pulling the image.
    pub image_pull_secrets: Vec<String>,
    /// The number of pods.
    pub nodes: NodeRange,
    /// The number of voters, which are the first pods. One with etcd.
    pub voters: VoterCount,
    /// `--nproc-per-node`: a number, or a word whose meaning depends on the pod.
    pub workers_per_pod: String,
    /// The resources of a pod.
    pub resources: BTreeMap<String, String>,
    /// The labels of machines that pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// The volumes that all pods share.
    pub volumes: Vec<SharedVolume>,
    /// The backend of etcd and its members, if pods find their coordinator through it.
    pub etcd: Option<(String, String)>,
    /// The user's variables.
    pub env: BTreeMap<String, String>,
    /// `--max-restarts`: the number of failures after which the job is restarted.
    pub max_restarts: u32,
    /// The number of times that a pod is replaced after its agent has failed.
    pub pod_restarts: u32,
    /// The time that workers have to end.
    pub shutdown_timeout: Duration,
    /// The longest time for a checkpoint after a notice.
    pub notice: Duration,
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
    /// The secret that the pods share.
    pub secret: JobSecret,
    /// The user of the pods. `None` for the user of the image.
    pub run_as: Option<RunAs>,
    /// The namespaces whose pods may connect to those of the job.
    pub allow_from: Vec<String>,
    /// The address at which each pod serves the metrics; `None` if it does not.
    pub metrics_listen: Option<SocketAddr>,
}

/// The launch method, with paths in ragent's form and the text of DeepSpeed's configuration.
pub(crate) type Method = LaunchMethod<String, String>;

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
const BACKEND: Rule = Rule {
    expected: "`etcd` or `etcd-v2`; without it, one of the first pods runs the coordinator",
    holds: |text| ["etcd", "etcd-v2"].contains(&text),
};
const PATH: Rule = Rule { expected: "a path", holds: |text| !text.is_empty() };

impl ManifestSpec {
    /// Resolves the arguments.
    ///
    /// # Errors
    ///
    /// Returns all mistakes, in the order of the flags.
    pub(crate) fn resolve(args: K8sArgs, host: &impl Host) -> Result<Self, Vec<UsageError>> {
        let mut errors = UsageErrors::default();
        let nodes = errors.or(nodes(&args), one_node());
        let name = errors.or_default(name(&args, nodes));
        let image = checked("--image", &args.image, &names::IMAGE);
        let image = errors.or_default(image.and_then(|image| required("--image", image)));
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
        let workers = checked("--nproc-per-node", &args.job.nproc_per_node, &WORKERS);
        let labels = [&names::LABEL, &names::LABEL_VALUE];
        let node_selector = pairs("--node-selector", &args.node_selector, labels);
        let node_selector = errors.or_default(node_selector);
        let volumes = errors.or_default(SharedVolume::parse_all(&args.volume));
        let env = pairs("--env", &args.env, [&names::VARIABLE, &names::ANYTHING]);
        let env = errors.or_default(env);
        let etcd = errors.or_default(etcd(&args));
        let voters = match etcd {
            // Any pod can lead. The agents' own parser refuses `voters` later.
            Some(_) => VoterCount::One,
            None => errors.or_default(voters(&env, nodes)),
        };
        let secret =
            errors.or(JobSecret::resolve(&args, &name, nodes.max(), &env), JobSecret::NotNeeded);
        let run_as = errors.or_default(RunAs::resolve(&args));
        let namespaces = args.allow_from.iter().map(|name| {
            check("--allow-from", name, &names::NAMESPACE)?;
            Ok(name.clone())
        });
        let allow_from = errors.or_default(namespaces.collect());
        let path = |flag, typed, errors: &mut UsageErrors| {
            errors.ok(job_path(&not_empty(flag, typed)?, &volumes))
        };
        let spec = Self {
            name,
            namespace,
            image,
            image_pull_policy,
            image_pull_secrets,
            nodes,
            voters,
            workers_per_pod: errors.or_default(workers).or(gpus).unwrap_or_else(|| "1".to_owned()),
            resources,
            node_selector,
            etcd,
            env,
            max_restarts: errors.or_default(number("--max-restarts", &args.job.max_restarts, 0)),
            pod_restarts: errors.or_default(number("--pod-restarts", &args.pod_restarts, 3)),
            shutdown_timeout: Duration::from_secs(
                errors
                    .or_default(number("--shutdown-timeout", &args.job.shutdown_timeout, 30))
                    .into(),
            ),
            notice: Duration::from_secs(
                errors.or_default(number("--notice", &args.job.notice, 0)).into(),
            ),
            method: method(&args, &volumes, host, &mut errors),
            save_path: path("--save-path", &args.job.save_path, &mut errors),
            checkpoint_path: path("--checkpoint-path", &args.job.checkpoint_path, &mut errors),
            kind: errors.or_default(ScriptKind::of(args.job.module, args.job.no_python)),
            ragent: errors
                .or_default(checked("--ragent", &args.ragent, &PATH))
                .unwrap_or_else(|| "ragent".to_owned()),
            script: errors.or_default(script(args.job.script)),
            secret,
            run_as,
            allow_from,
            metrics_listen: errors.or_default(metrics::address(&args.metrics_listen)),
            volumes,
        };
        // Mistakes in variables depend on all other flags.
        if errors.is_empty() {
            variables::mistakes(&spec).into_iter().for_each(|error| errors.add(error));
        }
        errors.into_result(spec)
    }
}

fn nodes(args: &K8sArgs) -> Result<NodeRange, UsageError> {
    let Some(given) = Argument::of_flag("--nnodes", &args.job.nnodes) else {
        return Ok(one_node());
    };
    let nodes = given.nodes()?;
    if nodes.max() > MAX_PODS {
        return Err(given.is_not("a number of pods up to 10000"));
    }
    Ok(nodes)
}

/// Returns the number of voters. The variable for the settings of the rendezvous may ask for one.
fn voters(env: &BTreeMap<String, String>, nodes: NodeRange) -> Result<VoterCount, UsageError> {
    let conf = env.get(CONF).map_or("", String::as_str);
    let pods = nodes.max() as usize;
    let voters = voters_among(asked_voters(conf)?, nodes, pods);
    if voters.number() > pods {
        let message = format!("`--env {CONF}` has `voters={voters}`, but `--nnodes` is {nodes}");
        let hint = "omit `voters`, or ask for at least as many pods";
        return Err(UsageError::new(message).with_hint(hint));
    }
    Ok(voters)
}

/// The variable with the value of `--rdzv-conf` for agents.
const CONF: &str = "PET_RDZV_CONF";

/// Returns the backend of etcd and its members, if both are given.
fn etcd(args: &K8sArgs) -> Result<Option<(String, String)>, UsageError> {
    let hint = "give `--rdzv-backend etcd` and the members of etcd as `--rdzv-endpoint`, or neither: \
                then the first pods elect the coordinator from `--nnodes 2:3` up, and in smaller \
                jobs the first pod hosts it";
    match (checked("--rdzv-backend", &args.rdzv_backend, &BACKEND)?, &args.rdzv_endpoint) {
        (Some(backend), Some(members)) => Ok(Some((backend, members.clone()))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(missing("--rdzv-endpoint").with_hint(hint)),
        (None, Some(_)) => Err(missing("--rdzv-backend").with_hint(hint)),
    }
}

/// Returns the name of the job. With a number appended, it is the name of a pod and of its host. It is also the domain of the service.
fn name(args: &K8sArgs, nodes: NodeRange) -> Result<String, UsageError> {
    const EXPECTED: &str = "a valid name of pods and of a service: lowercase letters, digits and \
                            `-`, beginning with a letter, not ending with `-`, at most 63 \
                            characters with the number of the pod";
    let name = required("--name", args.name.clone())?;
    let longest = format!("{name}-{}", nodes.max() - 1);
    if names::is_service(&name) && longest.len() <= names::MAX_LABEL {
        Ok(name)
    } else {
        Err(Argument::new("--name", &name).is_not(EXPECTED))
    }
}

/// Returns the number of whole GPUs per pod, and all resources of a pod.
fn resources(args: &K8sArgs) -> Result<(Option<String>, BTreeMap<String, String>), UsageError> {
    let flag = "--resource";
    let mut resources = pairs(flag, &args.resource, [&names::RESOURCE, &names::QUANTITY])?;
    for (_, amount) in resources.iter().filter(|(name, _)| name.contains('/')) {
        check(flag, amount, &names::WHOLE)?;
    }
    let gpus = checked("--gpus-per-pod", &args.gpus_per_pod, &GPUS)?;
    // Removes a sign and leading zeros.
    let gpus = gpus.and_then(|gpus| Some(gpus.parse::<u32>().ok()?.to_string()));
    let name = checked("--gpu-resource", &args.gpu_resource, &names::RESOURCE)?;
    if gpus.is_none() && name.is_some() {
        return Err(missing("--gpus-per-pod"));
    }
    let name = name.unwrap_or_else(|| "nvidia.com/gpu".to_owned());
    if let Some(gpus) = &gpus
        && resources.insert(name.clone(), gpus.clone()).is_some()
    {
        return Err(twice(flag, &name));
    }
    Ok((gpus, resources))
}

/// Returns a path in ragent's form. `auto` becomes a path on the first volume, because the agent would choose one in the image of the pod.
fn job_path(given: &Argument, volumes: &[SharedVolume]) -> Result<String, UsageError> {
    match (given.text.as_str(), volumes.first()) {
        ("auto", Some(volume)) => Ok(format!("auto:{}", volume.mount_path)),
        ("auto", None) => Err(given
            .invalid("needs a volume that all pods share")
            .with_hint("add a volume with `--volume pvc:CLAIM:/PATH`, or give a path")),
        (path, _) => Ok(path.to_owned()),
    }
}

/// Returns the value of a flag, unless it is empty.
fn not_empty(flag: &str, typed: &Option<String>) -> Option<Argument> {
    Argument::of_flag(flag, typed).filter(|given| !given.text.is_empty())
}

fn method(
    args: &K8sArgs,
    volumes: &[SharedVolume],
    host: &impl Host,
    errors: &mut UsageErrors,
) -> Method {
    let given = MethodArguments {
        name: Argument::of_flag("--launch-method", &args.job.launch_method),
        shared_file: not_empty("--shared-file", &args.job.shared_file),
        config: not_empty("--deepspeed-config", &args.job.deepspeed_config),
    };
    let config = |given: &Argument| {
        let hint = "the flag takes a file of this machine; for a file of the image, give `--env \
                    PET_DEEPSPEED_CONFIG=/PATH`";
        read_deepspeed_config(host, given).map_err(|error| error.with_hint(hint))
    };
    Method::read(given, errors, |given| job_path(given, volumes), config)
}

fn script(words: Vec<OsString>) -> Result<Vec<String>, UsageError> {
    if words.is_empty() {
        return Err(UsageError::new(NO_SCRIPT).with_hint(HELP));
    }
    let not_text = |word: OsString| {
        UsageError::new(format!(
            "`{}` is not valid UTF-8, which a manifest requires",
            word.display()
        ))
    };
    let text = |word: OsString| word.into_string().map_err(not_text);
    words.into_iter().map(text).collect()
}
