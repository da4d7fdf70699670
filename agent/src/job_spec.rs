//! What the flags mean: a [`JobSpec`] that cannot contradict itself, or every mistake at once.

mod command;
mod endpoint;
mod error;
mod rdzv_conf;
mod streams;

use std::{ffi::OsString, net::IpAddr, num::NonZeroU32, path::PathBuf, time::Duration};

use nix::sys::signal::Signal;
use ragent_rendezvous::{
    ids::RunId,
    settings::{NodeRange, SharedSettings},
};

pub use self::{
    command::WorkerCommand,
    endpoint::{DEFAULT_PORT, Endpoint, EndpointError},
    error::JobSpecError,
    rdzv_conf::{RdzvConf, StorePorts},
    streams::{Sink, Stream},
    streams::{StreamMap, Streams},
};
use crate::{cli::LaunchArgs, host::Host, limits};

/// One node's part of a job, as its command line and its environment give it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// The job's name.
    pub run_id: RunId,
    /// Where and how the nodes meet.
    pub meeting: Meeting,
    /// What all nodes must have been told alike.
    pub shared: SharedSettings,
    /// Workers on this node.
    pub local_world_size: NonZeroU32,
    /// The role of this node's workers.
    pub role: String,
    /// This node's address, where the user gave it.
    pub local_addr: Option<String>,
    /// This node's wish among newcomers.
    pub node_rank: Option<u32>,
    /// Ports on which it may serve the workers' store.
    pub store_ports: StorePorts,
    /// What each worker runs.
    pub command: WorkerCommand,
    /// The folder under which log folders are made; none: a temporary one.
    pub log_dir: Option<PathBuf>,
    /// Which streams go where.
    pub streams: StreamMap,
    /// Signals on which the agent shuts down.
    pub signals: Vec<Signal>,
    /// `OMP_NUM_THREADS` for workers, where the user has set none and several share the node.
    pub omp_num_threads: Option<u32>,
    /// `TORCH_NCCL_ASYNC_ERROR_HANDLING` for workers, where the user has set none.
    pub nccl_async_error_handling: bool,
}

/// Where and how the nodes meet.
#[derive(Clone, Debug, PartialEq)]
pub enum Meeting {
    /// There is one node, which hosts on a free port of its loopback interface.
    Standalone,
    /// At an endpoint.
    Endpoint {
        /// The candidates; one today.
        endpoints: Vec<Endpoint>,
        /// Whether this node hosts it, where the user says so.
        is_host: Option<bool>,
    },
}

/// How long workers have to end when `--shutdown-timeout` does not say; torch's.
const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// As much as the wire takes, and as fits into the name of a log folder.
const MAX_NAME_LEN: usize = 200;
/// The signals that torchrun handles by default.
const SIGNALS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

impl JobSpec {
    /// Resolves what was typed against the machine.
    ///
    /// # Errors
    ///
    /// Returns every mistake there is, in the order of the flags.
    pub fn resolve(args: LaunchArgs, host: &impl Host) -> Result<Self, Vec<JobSpecError>> {
        let given = Given { args: &args, host };
        let mut errors = Errors::default();
        let nodes = errors.take(given.nodes());
        let local_world_size = errors.take(given.local_world_size());
        let backend = errors.take(given.backend());
        let conf = errors.take(given.rdzv_conf());
        let meeting = errors.take(given.meeting(nodes, backend.flatten(), conf.as_ref()));
        let run_id = errors.take(given.run_id());
        let max_restarts = errors.take(given.number("max_restarts", &args.max_restarts, 0));
        errors.take(given.monitor_interval());
        let role = errors.take(given.name("role", &args.role));
        let local_addr = errors.take(given.name("local_addr", &args.local_addr));
        let redirects = errors.take(given.streams("redirects", &args.redirects));
        let tee = errors.take(given.streams("tee", &args.tee));
        let node_rank = errors.take(given.optional_number("node_rank", &args.node_rank));
        let shutdown_timeout = errors.take(given.shutdown_timeout());
        let command = errors.take(given.command());
        let (
            Some(nodes),
            Some(local_world_size),
            Some(conf),
            Some(meeting),
            Some(run_id),
            Some(max_restarts),
            Some(redirects),
            Some(tee),
            Some(role),
            Some(local_addr),
            Some(node_rank),
            Some(shutdown_timeout),
            Some(command),
        ) = (
            nodes,
            local_world_size,
            conf,
            meeting,
            run_id,
            max_restarts,
            redirects,
            tee,
            role,
            local_addr,
            node_rank,
            shutdown_timeout,
            command,
        )
        else {
            return Err(errors.0);
        };
        if !errors.0.is_empty() {
            return Err(errors.0);
        }
        let mut timeouts = conf.timeouts;
        timeouts.stop_grace = shutdown_timeout;
        Ok(Self {
            run_id,
            meeting,
            shared: SharedSettings { nodes, max_restarts, timeouts, fixed_ranks: false },
            local_world_size,
            role: role.unwrap_or_else(|| "default".to_owned()),
            local_addr: local_addr.filter(|address| !address.is_empty()),
            node_rank,
            store_ports: conf.store_ports,
            command,
            log_dir: given.text("log_dir", &args.log_dir).map(PathBuf::from),
            streams: StreamMap { redirects, tee },
            signals: SIGNALS.to_vec(),
            omp_num_threads: (local_world_size.get() > 1 && host.env("OMP_NUM_THREADS").is_none())
                .then_some(1),
            nccl_async_error_handling: host.env("TORCH_NCCL_ASYNC_ERROR_HANDLING").is_none(),
        })
    }
}

/// Collects mistakes, so that all are told at once.
#[derive(Default)]
struct Errors(Vec<JobSpecError>);

impl Errors {
    fn take<T>(&mut self, result: Result<T, JobSpecError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }
}

/// The command line, with the environment behind it.
struct Given<'a, H> {
    args: &'a LaunchArgs,
    host: &'a H,
}

/// A value and where it came from, as errors repeat it.
struct Typed {
    source: String,
    text: String,
}

impl<H: Host> Given<'_, H> {
    /// What was typed for a flag, else what its `PET_*` variable holds.
    fn typed(&self, name: &str, typed: &Option<String>) -> Option<Typed> {
        if let Some(text) = typed {
            let source = format!("--{}", name.replace('_', "-"));
            return Some(Typed { source, text: text.clone() });
        }
        let source = format!("PET_{}", name.to_ascii_uppercase());
        let text = self.host.env(&source)?.to_string_lossy().into_owned();
        Some(Typed { source, text })
    }

    fn text(&self, name: &str, typed: &Option<String>) -> Option<String> {
        self.typed(name, typed).map(|typed| typed.text)
    }

    /// A name that other nodes are told.
    fn name(&self, name: &str, typed: &Option<String>) -> Result<Option<String>, JobSpecError> {
        let Some(given) = self.typed(name, typed) else { return Ok(None) };
        if given.text.len() > MAX_NAME_LEN || given.text.chars().any(char::is_control) {
            return Err(JobSpecError::Name { source_: given.source, value: given.text });
        }
        Ok(Some(given.text))
    }

    /// An on/off flag; its variable holds an integer, as torchrun wants it.
    fn switch(&self, name: &str, typed: bool) -> Result<bool, JobSpecError> {
        let Some(given) = self.typed(name, &None) else {
            return Ok(typed);
        };
        match given.text.trim().parse::<i64>() {
            Ok(number) => Ok(typed || number != 0),
            Err(_) => Err(JobSpecError::Switch { source_: given.source, value: given.text }),
        }
    }

    fn optional_number(
        &self,
        name: &str,
        typed: &Option<String>,
    ) -> Result<Option<u32>, JobSpecError> {
        let Some(given) = self.typed(name, typed) else {
            return Ok(None);
        };
        let number = given.text.trim().parse();
        number
            .map(Some)
            .map_err(|_| JobSpecError::Number { source_: given.source, value: given.text })
    }

    fn number(
        &self,
        name: &str,
        typed: &Option<String>,
        default: u32,
    ) -> Result<u32, JobSpecError> {
        Ok(self.optional_number(name, typed)?.unwrap_or(default))
    }

    fn nodes(&self) -> Result<NodeRange, JobSpecError> {
        let Some(given) = self.typed("nnodes", &self.args.nnodes) else {
            return Ok("1".parse().expect("one node is a range"));
        };
        given.text.parse().map_err(|error| JobSpecError::Nodes {
            source_: given.source,
            value: given.text,
            error,
        })
    }

    fn local_world_size(&self) -> Result<NonZeroU32, JobSpecError> {
        let Some(given) = self.typed("nproc_per_node", &self.args.nproc_per_node) else {
            return Ok(NonZeroU32::MIN);
        };
        match given.text.trim() {
            "cpu" => Ok(self.host.cpus()),
            "gpu" => self.host.accelerators().ok_or(JobSpecError::NoAccelerator),
            "auto" => Ok(self.host.accelerators().unwrap_or_else(|| self.host.cpus())),
            number => number
                .parse::<NonZeroU32>()
                .ok()
                .filter(|n| n.get() <= limits::MAX_LOCAL_WORLD_SIZE)
                .ok_or(JobSpecError::WorkersPerNode { source_: given.source, value: given.text }),
        }
    }

    fn backend(&self) -> Result<Option<()>, JobSpecError> {
        match self.typed("rdzv_backend", &self.args.rdzv_backend) {
            None => Ok(None),
            Some(given) if given.text == "c10d" => Ok(Some(())),
            Some(given) => Err(JobSpecError::Backend { source_: given.source, value: given.text }),
        }
    }

    fn rdzv_conf(&self) -> Result<RdzvConf, JobSpecError> {
        let text = self.text("rdzv_conf", &self.args.rdzv_conf).unwrap_or_default();
        RdzvConf::parse(&text)
    }

    fn meeting(
        &self,
        nodes: Option<NodeRange>,
        backend: Option<()>,
        conf: Option<&RdzvConf>,
    ) -> Result<Meeting, JobSpecError> {
        let endpoint = self.typed("rdzv_endpoint", &self.args.rdzv_endpoint);
        let endpoint = endpoint.filter(|given| !given.text.is_empty());
        let single = nodes.is_none_or(|nodes| nodes.max() == 1);
        if self.switch("standalone", self.args.standalone)? {
            return match nodes {
                Some(nodes) if !single => Err(JobSpecError::StandaloneNodes { nodes }),
                _ => Ok(Meeting::Standalone),
            };
        }
        let is_host = conf.and_then(|conf| conf.is_host);
        let Some(given) = endpoint else {
            if single && backend.is_none() {
                return Ok(Meeting::Standalone);
            }
            return Ok(Meeting::Endpoint { endpoints: vec![Endpoint::default()], is_host });
        };
        let endpoint: Endpoint = given.text.parse().map_err(|error| JobSpecError::Endpoint {
            source_: given.source,
            value: given.text,
            error,
        })?;
        if !single && endpoint.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
            return Err(JobSpecError::Unspecified { value: endpoint.to_string() });
        }
        if endpoint.port == 0 && !single {
            return Err(JobSpecError::FreePort { value: endpoint.to_string() });
        }
        Ok(Meeting::Endpoint { endpoints: vec![endpoint], is_host })
    }

    fn run_id(&self) -> Result<RunId, JobSpecError> {
        let given = self.typed("rdzv_id", &self.args.rdzv_id);
        let given = given
            .unwrap_or_else(|| Typed { source: "--rdzv-id".to_owned(), text: "none".to_owned() });
        let sound = |c: char| !c.is_control() && c != '/';
        if given.text.is_empty()
            || given.text.len() > MAX_NAME_LEN
            || !given.text.chars().all(sound)
        {
            return Err(JobSpecError::RunId { source_: given.source, value: given.text });
        }
        Ok(RunId::new(given.text))
    }

    fn monitor_interval(&self) -> Result<(), JobSpecError> {
        match self.typed("monitor_interval", &self.args.monitor_interval) {
            Some(given) if !given.text.trim().parse::<f64>().is_ok_and(|s| s > 0.0) => {
                Err(JobSpecError::Seconds { source_: given.source, value: given.text })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn streams(&self, name: &str, typed: &Option<String>) -> Result<Streams, JobSpecError> {
        let Some(given) = self.typed(name, typed) else {
            return Ok(Streams::default());
        };
        given
            .text
            .parse()
            .map_err(|()| JobSpecError::Streams { source_: given.source, value: given.text })
    }

    fn shutdown_timeout(&self) -> Result<Duration, JobSpecError> {
        let flag = self.typed("shutdown_timeout", &self.args.shutdown_timeout);
        let env = || {
            let source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT".to_owned();
            let text = self.host.env(&source)?.to_string_lossy().into_owned();
            Some(Typed { source, text })
        };
        let Some(given) = flag.or_else(env) else {
            return Ok(DEFAULT_SHUTDOWN_TIMEOUT);
        };
        match given.text.trim().parse::<u32>() {
            Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
            Err(_) => Err(JobSpecError::Seconds { source_: given.source, value: given.text }),
        }
    }

    fn command(&self) -> Result<WorkerCommand, JobSpecError> {
        let module = self.switch("module", self.args.module)?;
        let no_python = self.switch("no_python", self.args.no_python)?;
        let script = self.args.script.clone().ok_or(JobSpecError::NoScript)?;
        let args: Vec<OsString> = self.args.args.clone();
        match (module, no_python) {
            (true, true) => Err(JobSpecError::ModuleWithoutPython),
            (true, false) => WorkerCommand::module(script, args, self.host),
            (false, true) => WorkerCommand::program(script, args, self.host),
            (false, false) => WorkerCommand::script(script, args, self.host),
        }
    }
}

#[cfg(test)]
mod tests;
