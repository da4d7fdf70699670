//! Makes the plan of a launch, without network access.
//!
//! It derives the command line of each agent from the arguments, the list of hosts and this host's environment.

use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, time::Duration};

use nix::sys::signal::Signal;
use ragent_base::{
    net::Endpoint,
    secret::{CertificateRequest, Credentials, Origin, Secret, WrittenSecret},
    sys::host::Host,
};
use ragent_leadership::state_file::{RunningAgent, Stage};
use ragent_options::{
    cli::{AuthArgs, LaunchOverSshArgs},
    spec::{
        Argument, JobSpec, RendezvousMethod, UsageError, UsageErrors, asked_voters, log_format,
    },
};

use super::{
    filters::{self, ChosenHost},
    hostfile::{HostList, HostListError},
    order::{HostAddress, HostJob, HostNumber, SharedJob},
    output,
    rendezvous::{Conf, RendezvousPlan},
    shell_words,
    ssh_command::Way,
    variables,
};
use crate::{commands::assumed_host::AssumedHost, commands::ssh::limits};

/// The input of a plan besides the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct Here {
    /// The text of the hostfile.
    pub(super) hostfile: String,
    /// The paths of the files of variables, with their texts.
    pub(super) env_files: Vec<(String, String)>,
    /// The current folder.
    pub(super) folder: PathBuf,
    /// The path of this program.
    pub(super) program: PathBuf,
    /// A unique name for the job.
    pub(super) generated_id: String,
    /// The secret of the job.
    pub(super) secret: LaunchSecret,
}

/// The secret of the agents of a launch.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum LaunchSecret {
    /// The agents have certificates, in these files on their own hosts.
    Certificates(CertificateRequest),
    /// The user wants none.
    #[default]
    Declined,
    /// This launch has made it.
    Generated(Secret),
    /// The user has given it.
    Given(Secret),
}

impl LaunchSecret {
    /// Returns the secret to send to agents. If their variables name another one, there is none to send.
    fn sent(&self, env: &[variables::Variable]) -> Option<WrittenSecret> {
        let is_auth = |(name, _): &variables::Variable| AUTH_VARIABLES.contains(&name.as_str());
        match self {
            Self::Given(secret) => Some(WrittenSecret(secret.clone())),
            Self::Generated(secret) if !env.iter().any(is_auth) => {
                Some(WrittenSecret(secret.clone()))
            }
            Self::Generated(_) | Self::Certificates(_) | Self::Declined => None,
        }
    }

    /// Replaces the launch's flags for authentication by the flags for its agents.
    fn replace_flags(&self, flags: &mut Vec<OsString>, is_declined_by_flag: bool) {
        // The file is read on this host, and its secret is sent to the others.
        flags.retain(|flag| !flag.as_encoded_bytes().starts_with(b"--secret-file="));
        match self {
            Self::Declined if !is_declined_by_flag => flags.push("--auth=none".into()),
            Self::Declined | Self::Generated(_) | Self::Given(_) => {}
            Self::Certificates(request) => {
                let is_auth = |flag: &OsString| {
                    let flag = flag.as_encoded_bytes();
                    flag.starts_with(b"--auth=") || flag.starts_with(b"--tls-")
                };
                flags.retain(|flag| !is_auth(flag));
                flags.push("--auth=tls".into());
                let CertificateRequest { authorities, certificate, key, peer } = request;
                let files = [("ca", authorities), ("cert", certificate), ("key", key)];
                flags.extend(files.map(|(name, path)| {
                    let mut flag = OsString::from(format!("--tls-{name}="));
                    flag.push(path);
                    flag
                }));
                flags.extend(peer.as_ref().map(|name| format!("--tls-peer={name}").into()));
            }
        }
    }
}

/// Variables that give agents other credentials than the secret of the launch.
const AUTH_VARIABLES: [&str; 6] =
    ["PET_AUTH", "PET_SECRET_FILE", "PET_TLS_CA", "PET_TLS_CERT", "PET_TLS_KEY", "PET_TLS_PEER"];

/// The plan of a launch.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The hosts, by number.
    pub(super) hosts: Vec<ChosenHost>,
    /// The way to reach them.
    pub(super) way: Way,
    /// The part of the agents' commands that is the same on all hosts.
    pub(super) job: SharedJob,
    /// The job, as it is on a machine that has everything.
    pub(super) spec: JobSpec,
    /// The way in which agents find each other.
    pub(super) rendezvous: RendezvousPlan,
    /// The endpoint that the user has given.
    endpoint: Option<String>,
    /// True if an agent has as many workers as its host has slots.
    counts_slots: bool,
    /// True if workers' lines begin with host and rank.
    pub(super) marks_workers: bool,
    /// The signals that end the launch.
    pub(super) signals: Vec<Signal>,
}

/// The signals that end a program at a terminal. They end a launch too, with any value of `--signals-to-handle`.
const SIGNALS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

impl Plan {
    /// Makes the plan.
    ///
    /// # Errors
    ///
    /// Returns all mistakes in the arguments.
    pub(super) fn resolve(
        args: &LaunchOverSshArgs,
        here: &Here,
        host: &impl Host,
    ) -> Result<Self, Vec<UsageError>> {
        let mut errors = UsageErrors::default();
        let hosts = errors.or_default(chosen_hosts(args, here));
        let way = errors.ok(way(args, here, host));
        let env = variables_of(args, here, host, &mut errors);
        let text = conf_text(args, &env);
        // A mistake in it is reported with the mistakes of the job.
        let conf = Conf::new(&text, asked_voters(&text).ok().flatten());
        let spec = errors.all_ok(job_spec(args, here, &env, (hosts.len(), &conf)));
        check_meaning(args, hosts.len(), &mut errors);
        errors.ok(log_format(&args.launch));
        if let Some(spec) = &spec {
            let (hosts, min) = (hosts.len(), spec.shared.nodes.min());
            // Without any host, a mistake in the list is already reported.
            if hosts > 0 && hosts < min as usize {
                let message =
                    format!("{hosts} hosts are fewer than the {min} that `--nnodes` needs");
                let hint = "list more hosts, or lower MIN in `--nnodes`";
                errors.add(UsageError::new(message).with_hint(hint));
            }
        }
        let rendezvous = spec.as_ref().map(|spec| {
            let (nodes, hosts) = (spec.shared.nodes, hosts.len());
            let (launch, id) = (&args.launch, &here.generated_id);
            RendezvousPlan::of(launch, &spec.rendezvous, (nodes, hosts), conf.clone(), id)
        });
        if let (Some(spec), Some(rendezvous)) = (&spec, &rendezvous) {
            if rendezvous.chooses_voters() {
                errors.ok(check_voters(&conf, &spec.rendezvous, hosts.len()));
            } else if conf.voters.is_some() {
                // `voters` has a meaning for the agents, or contradicts other flags.
                let whole = Conf { without_voters: text.clone(), voters: None };
                errors.all_ok(job_spec(args, here, &env, (hosts.len(), &whole)));
            }
        }
        let (way, (spec, rendezvous)) =
            errors.into_result(way.zip(spec.zip(rendezvous)))?.ok_or_else(Vec::new)?;
        let plan = Self::new(args, here, (hosts, way, env), spec, rendezvous);
        let len = plan.job.len() + HOST_WORDS + text.len();
        // Each byte may take four bytes in JSON.
        if len > limits::MAX_RELAY_FRAME / 4 {
            return Err(vec![too_long(len)]);
        }
        Ok(plan)
    }

    fn new(
        args: &LaunchOverSshArgs,
        here: &Here,
        (mut hosts, way, env): (Vec<ChosenHost>, Way, Vec<variables::Variable>),
        spec: JobSpec,
        rendezvous: RendezvousPlan,
    ) -> Self {
        let launch = &args.launch;
        let nodes = spec.shared.nodes;
        if rendezvous.has_fixed_ranks() {
            // With fixed ranks there are no spares.
            hosts.truncate(nodes.max() as usize);
        }
        let is_default = |typed: &Option<String>| typed.is_none();
        let marks_workers = is_default(&launch.tee)
            && is_default(&launch.redirects)
            && is_default(&launch.log_line_prefix_template);
        let mut flags = args.forwarded_flags.clone();
        here.secret.replace_flags(&mut flags, args.launch.auth.auth.is_some());
        if launch.job.nnodes.is_none() {
            flags.push(format!("--nnodes={nodes}").into());
        }
        flags.push("--first-node-lines".into());
        if marks_workers {
            flags.push("--mark-lines".into());
        }
        flags.extend(rendezvous.common_flags());
        let script = launch.job.script.clone();
        let handled = spec.signals.signals.iter().chain(&SIGNALS).copied();
        let signals: BTreeSet<Signal> =
            handled.filter(|signal| !spec.forwarded.contains(signal)).collect();
        let timeouts = &spec.shared.timeouts;
        // Time for a checkpoint, and for the agent's workers. Then time for the coordinator that it may host, which waits for the other agents to end.
        let stop = spec.shared.notice
            + timeouts.stop_grace
            + timeouts.rejoin()
            + limits::COORDINATOR_END_MARGIN;
        Self {
            hosts,
            way,
            job: SharedJob {
                secret: here.secret.sent(&env),
                env,
                folder: match &args.chdir {
                    Some(folder) => here.folder.join(folder),
                    None => here.folder.clone(),
                },
                flags,
                script,
                stop_ms: u64::try_from(stop.as_millis()).unwrap_or(u64::MAX),
            },
            spec,
            rendezvous,
            endpoint: launch.rdzv_endpoint.clone().filter(|text| !text.is_empty()),
            counts_slots: launch.job.nproc_per_node.is_none(),
            marks_workers,
            signals: signals.into_iter().collect(),
        }
    }

    /// Returns the part of the agents' commands that is the same on all hosts, for their first start. `--dry-run` prints commands without
    /// that flag, because you may run these again.
    pub(super) fn first_job(&self) -> SharedJob {
        let flag = self.rendezvous.has_new_name().then(|| "--first-start".into());
        let flags = self.job.flags.iter().cloned().chain(flag).collect();
        SharedJob { flags, ..self.job.clone() }
    }

    /// Returns the time that agents may take to end.
    pub(super) fn stop(&self) -> Duration {
        Duration::from_millis(self.job.stop_ms)
    }

    /// Returns the content of this launch's file. With it, `ragent status` on this host finds the job and its secret. Returns `None` if
    /// the launch sends no secret.
    pub(super) fn status_file(
        &self,
        reached: &[(HostNumber, HostAddress)],
    ) -> Option<RunningAgent> {
        let WrittenSecret(secret) = self.job.secret.clone()?;
        let chosen = || {
            let endpoints = self.endpoints(reached);
            endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
        };
        let given = self.endpoint.as_ref().map(|text| {
            // A name for a search is not an endpoint of a job. Neither are members of etcd.
            let is_of_job = !self.rendezvous.is_in_etcd() && !text.trim().starts_with("auto");
            if is_of_job { text.clone() } else { String::new() }
        });
        let endpoint = given.unwrap_or_else(chosen);
        let credentials = Credentials::new(vec![secret], Origin::Registrations);
        Some(RunningAgent::this(&self.spec.run_id, endpoint, Stage::Launching, &credentials))
    }

    /// Returns the endpoints of the coordinator or the voters that the launch chooses.
    fn endpoints(&self, reached: &[(HostNumber, HostAddress)]) -> Vec<Endpoint> {
        let coordinators = self.rendezvous.coordinators(reached);
        let host_addresses = reached.iter().filter(|(host, _)| coordinators.contains(host));
        let endpoint = |(host, host_address): &(HostNumber, HostAddress)| {
            let name = &self.hosts[*host as usize].name;
            self.rendezvous.endpoint(name, host_address, reached)
        };
        host_addresses.map(endpoint).collect()
    }

    /// Returns the names of the hosts, by number.
    pub(super) fn names(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.name.clone()).collect()
    }

    /// Returns the specific parts of the commands for the hosts that were reached.
    pub(super) fn host_jobs(&self, reached: &[(HostNumber, HostAddress)]) -> Vec<HostJob> {
        let coordinators = self.rendezvous.coordinators(reached);
        let endpoints = self.endpoints(reached);
        let job = |(rank, (number, _)): (usize, &(HostNumber, HostAddress))| {
            let is_coordinator = coordinators.contains(number);
            let len = reached.len();
            let rendezvous = self.rendezvous.own_flags(rank, is_coordinator, len, &endpoints);
            self.host_job(*number, rendezvous)
        };
        reached.iter().enumerate().map(job).collect()
    }

    fn host_job(&self, number: HostNumber, mut flags: Vec<OsString>) -> HostJob {
        let host = &self.hosts[number as usize];
        if let Some(workers) = host.workers.filter(|_| self.counts_slots) {
            flags.push(format!("--nproc-per-node={workers}").into());
        }
        if self.marks_workers {
            let template = output::template(&host.name);
            flags.push(format!("--log-line-prefix-template={template}").into());
        }
        let devices = host.devices.as_ref().map(|devices| {
            let devices: Vec<String> = devices.iter().map(u32::to_string).collect();
            ("CUDA_VISIBLE_DEVICES".to_owned(), devices.join(",").into())
        });
        HostJob { number, flags, env: devices.into_iter().collect() }
    }
}

impl SharedJob {
    /// Returns the number of bytes of the job.
    fn len(&self) -> usize {
        let env = self.env.iter().map(|(name, value)| name.len() + value.len());
        let words = self.flags.iter().chain(&self.script).map(|word| word.len());
        env.chain(words).sum()
    }
}

fn too_long(len: usize) -> UsageError {
    UsageError::new(format!(
        "the environment and the arguments have {len} bytes, more than can be sent to a host"
    ))
    .with_hint("pass fewer variables, or let the program read them from a file on each host")
}

/// Reports flags of a job that have no meaning for `hosts` hosts.
fn check_meaning(args: &LaunchOverSshArgs, hosts: usize, errors: &mut UsageErrors) {
    if args.launch.node_rank.is_some() {
        let message = "`--node-rank` cannot be used with `ragent launch`: each host gets its own \
                       rank";
        let hint = "omit the flag: ranks follow the order of the hostfile";
        errors.add(UsageError::new(message).with_hint(hint));
    }
    if args.launch.print_completion.is_some() {
        let message = "`--print-completion` cannot be used with `ragent launch`";
        let hint = "use `ragent --print-completion SHELL`";
        errors.add(UsageError::new(message).with_hint(hint));
    }
    if args.launch.standalone && hosts > 1 {
        let message = format!("`--standalone` runs one node, but there are {hosts} hosts");
        errors.add(UsageError::new(message).with_hint("omit the flag"));
    }
}

fn chosen_hosts(args: &LaunchOverSshArgs, here: &Here) -> Result<Vec<ChosenHost>, UsageError> {
    let list: HostList = here.hostfile.parse().map_err(|error: HostListError| {
        UsageError::new(format!("`--hostfile {}`: {error}", args.hostfile)).with_hint(error.hint())
    })?;
    let hosts = filters::choose(&list, args.include.as_deref(), args.exclude.as_deref())?;
    if hosts.len() > limits::MAX_HOSTS {
        let message = format!(
            "{} hosts are more than the {} that `ragent launch` can connect to",
            hosts.len(),
            limits::MAX_HOSTS
        );
        let hint = "start `ragent` on each host with Slurm, MPI or a systemd unit, or choose fewer hosts with `--include`";
        return Err(UsageError::new(message).with_hint(hint));
    }
    Ok(hosts)
}

fn way(args: &LaunchOverSshArgs, here: &Here, host: &impl Host) -> Result<Way, UsageError> {
    let text = args.ssh.as_deref().unwrap_or("ssh");
    let ssh = shell_words::split(text).ok_or_else(|| variables::open_quote("--ssh", text))?;
    let program = ssh.first().ok_or_else(|| UsageError::new("`--ssh` is empty"))?;
    if host.find_program(program.as_ref()).is_none() {
        let hint = "install OpenSSH's client, or give another one with `--ssh`";
        let message = format!("`{program}` was not found in PATH");
        return Err(UsageError::new(message).with_hint(hint));
    }
    let fanout = Argument::of_flag("--fanout", &args.fanout);
    let fanout = fanout.map(|given| given.number(1..=limits::MAX_FANOUT)).transpose()?;
    let timeout = Argument::of_flag("--connect-timeout", &args.connect_timeout);
    let timeout =
        timeout.map(|given| given.whole_seconds(1..=MAX_CONNECT_TIMEOUT_S)).transpose()?;
    let here = || here.program.to_string_lossy().into_owned();
    Ok(Way {
        ssh,
        ragent: args.remote_ragent.clone().unwrap_or_else(here),
        connect_timeout_s: timeout.map_or(limits::DEFAULT_CONNECT_TIMEOUT.as_secs(), u64::from),
        fanout: fanout.unwrap_or(limits::DEFAULT_FANOUT),
    })
}

/// The maximum number of bytes that are specific to a host, without `--rdzv-conf`: above all the
/// addresses of five voters.
const HOST_WORDS: usize = 1024;
/// The maximum of `--connect-timeout`, in seconds.
const MAX_CONNECT_TIMEOUT_S: u32 = 3600;

/// Returns the variables of the files, followed by those of flags, which take precedence.
fn variables_of(
    args: &LaunchOverSshArgs,
    here: &Here,
    host: &impl Host,
    errors: &mut UsageErrors,
) -> Vec<variables::Variable> {
    // The agents print only the lines that the user has selected here.
    let log = host.env("RAGENT_LOG").map(|levels| ("RAGENT_LOG".to_owned(), levels));
    let mut variables: Vec<_> = log.into_iter().collect();
    for (path, text) in &here.env_files {
        variables.extend(variables::of_file(path, text, host, errors));
    }
    variables.extend(variables::of_flags(&args.export, host, errors));
    variables
}

/// Returns the value of `--rdzv-conf` that the agents would have: from the flag, else from its variable.
fn conf_text(args: &LaunchOverSshArgs, env: &[variables::Variable]) -> String {
    let variable = || Some(AssumedHost(env).env("PET_RDZV_CONF")?.to_string_lossy().into_owned());
    args.launch.rdzv_conf.clone().or_else(variable).unwrap_or_default()
}

/// Checks the number of voters that are chosen among `hosts` hosts.
fn check_voters(
    conf: &Conf,
    rendezvous: &RendezvousMethod,
    hosts: usize,
) -> Result<(), UsageError> {
    let Some(voters) = conf.voters.filter(|voters| voters.is_several()) else { return Ok(()) };
    let error =
        |why: String| UsageError::new(format!("`--rdzv-conf` has `voters={voters}`, {why}"));
    if let RendezvousMethod::Endpoint { is_host: Some(_), .. } = rendezvous {
        let why = "whose hosts elect the coordinator, so `is_host` has no meaning".to_owned();
        return Err(error(why).with_hint("omit one of the two"));
    }
    // Without any host, a mistake in the list is already reported.
    if hosts > 0 && hosts < voters.number() {
        let why = format!("but the number of hosts is {hosts}");
        return Err(error(why).with_hint("omit `voters`, or list more hosts"));
    }
    Ok(())
}

/// Resolves the job's flags on a machine that has everything. It does not choose the voters.
fn job_spec(
    args: &LaunchOverSshArgs,
    here: &Here,
    env: &[variables::Variable],
    (hosts, conf): (usize, &Conf),
) -> Result<JobSpec, Vec<UsageError>> {
    let mut launch = args.launch.clone();
    launch.rdzv_conf = Some(conf.without_voters.clone());
    // The name that agents get if the user has given none.
    launch.rdzv_id.get_or_insert_with(|| here.generated_id.clone());
    // The file is on the hosts.
    if launch.job.launch_method.as_deref() == Some("deepspeed") {
        launch.job.deepspeed_config = None;
    }
    launch.job.nnodes.get_or_insert_with(|| hosts.max(1).to_string());
    // Mistakes in these two flags are reported separately.
    launch.standalone = false;
    launch.node_rank = None;
    // The secret is read separately, and certificates are on the hosts.
    launch.auth = AuthArgs::default();
    // The hosts check these by their devices.
    launch.numa_binding = None;
    launch.virtual_local_rank = false;
    let is_gpu = |text: &String| ["gpu", "xpu", "auto", "cpu"].contains(&text.as_str());
    if launch.job.nproc_per_node.as_ref().is_some_and(is_gpu) {
        launch.job.nproc_per_node = None;
    }
    JobSpec::resolve(launch, &AssumedHost(env))
}

#[cfg(test)]
mod tests;
