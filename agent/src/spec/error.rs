//! The mistakes that arguments and this machine can show before any network is used.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use ragent_rendezvous::settings::{NodeRange, NodeRangeError};

use super::{EndpointError, MethodName};
use crate::{
    limits,
    scheduler::{Launcher, PlacementError},
    sys::host::numa::NumaError,
};

/// A mistake. `source_` is the flag or the variable that contains it, as typed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JobSpecError {
    /// A path named after a job that has no name.
    #[error("`{source_} {value}` derives a name from `--rdzv-id`, which is not given")]
    AutoWithoutId {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// The rendezvous backend is unknown.
    #[error("`{source_} {value}` is not supported")]
    Backend {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A value that is not one of a few words.
    #[error("`{source_} {value}` is not {choices}")]
    Choice {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The words that may be given.
        choices: &'static str,
    },
    /// An entry of `--rdzv-conf` is not `key=value`.
    #[error("`--rdzv-conf` has the entry `{entry}`, which is not `key=value`")]
    ConfEntry {
        /// The entry.
        entry: String,
    },
    /// A key of `--rdzv-conf` does not exist.
    #[error("`--rdzv-conf` has the unknown key `{key}`")]
    ConfKey {
        /// The key.
        key: String,
        /// All keys that exist.
        known: String,
    },
    /// The value of a key of `--rdzv-conf` is invalid.
    #[error("`--rdzv-conf` has `{key}={value}`, which is not {expected}")]
    ConfValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The values that it takes.
        expected: &'static str,
    },
    /// The configuration of DeepSpeed is missing or invalid.
    #[error("`{source_} {value}` {state}")]
    DeepSpeedConfig {
        /// The flag or the variable.
        source_: String,
        /// The file.
        value: String,
        /// The problem with it.
        state: String,
    },
    /// The endpoint cannot be read.
    #[error("`{source_} {value}` is not a valid endpoint: {error}")]
    Endpoint {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The reason.
        error: EndpointError,
    },
    /// Filtered lines are to be copied to a folder that is not kept.
    #[error(
        "`--duplicate-stdout-filters` and `--duplicate-stderr-filters` write to the log folder, \
         but `--log-dir /dev/null` disables it"
    )]
    FiltersWithoutFolder,
    /// A free port, which other nodes could not know.
    #[error("`{source_} {value}` selects a free port, which the other nodes cannot know")]
    FreePort {
        /// The flag or the variable.
        source_: String,
        /// The endpoint.
        value: String,
    },
    /// A list of hosts to search without a search.
    #[error("`--discover-hosts` requires `--rdzv-endpoint auto`")]
    HostsWithoutSearch,
    /// An interface that this machine does not have.
    #[error(
        "`--rdzv-conf` has `discover_interface={name}`, but this machine has no such interface"
    )]
    Interface {
        /// The name of the interface.
        name: String,
    },
    /// The log folder cannot be created or written.
    #[error("`--log-dir {path}` cannot be used: {error}")]
    LogDir {
        /// The folder.
        path: String,
        /// The system's error.
        error: String,
    },
    /// `--log-format` is unknown.
    #[error("`--log-format {value}` is neither `text` nor `json`")]
    LogFormat {
        /// Its value.
        value: String,
    },
    /// A plug-in for torchrun.
    #[error("`--logs-specs {value}` is a Python plug-in, which ragent cannot load")]
    LogsSpecs {
        /// The name of the plug-in.
        value: String,
    },
    /// More hosts to search than are allowed.
    #[error(
        "`--discover-hosts` lists {hosts} hosts, but at most {} are allowed",
        limits::MAX_DISCOVER_HOSTS
    )]
    ManyHosts {
        /// The number of hosts.
        hosts: usize,
    },
    /// Both `--module` and `--no-python`.
    #[error("`--module` and `--no-python` cannot be used together")]
    ModuleWithoutPython,
    /// A name that cannot be sent to other nodes.
    #[error(
        "`{source_} {value}` is not a valid name: at most 200 bytes, without control characters"
    )]
    Name {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// GPUs were asked for and there are none.
    #[error("`{source_} {value}` needs a GPU, but this machine has none that is visible")]
    NoAccelerator {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A rank that no node can have.
    #[error(
        "`--node-rank {node_rank}` is out of range: the job has {nodes} nodes, and ranks begin at 0"
    )]
    NodeRank {
        /// The rank.
        node_rank: u32,
        /// The number of nodes.
        nodes: u32,
    },
    /// A launcher that does not provide the host of the first agent.
    #[error("{launcher} has started this agent, but does not provide the host of the first agent")]
    NoHead {
        /// The launcher.
        launcher: Launcher,
    },
    /// The address of rank 0 is invalid.
    #[error("`{source_} {value}` is not a valid address of rank 0")]
    MasterAddress {
        /// The flag or the variable.
        source_: &'static str,
        /// Its value.
        value: String,
    },
    /// Rank 0 does not run where all ranks look for it.
    #[error("rank 0 runs on {here}, but the other ranks would connect to {master}")]
    MasterElsewhere {
        /// The address that they use.
        master: String,
        /// The host on which it runs.
        here: String,
    },
    /// The port of rank 0 is invalid.
    #[error(
        "`{source_} {value}` is not a valid port of rank 0: it must be a number from 1 to 65535"
    )]
    MasterPort {
        /// The flag or the variable.
        source_: &'static str,
        /// Its value.
        value: String,
    },
    /// No known launcher has started this process, so its rank is unknown.
    #[error("this process was not started by a supported launcher")]
    NoLauncher,
    /// A launcher that does not provide the host of rank 0.
    #[error("{launcher} has started this rank, but does not provide the host of rank 0")]
    NoMaster {
        /// The launcher.
        launcher: Launcher,
    },
    /// A program that this process cannot execute.
    #[error("the program `{program}` cannot be executed: {error}")]
    NotExecuted {
        /// The program, as given.
        program: String,
        /// The system's error.
        error: String,
        /// True if there is a file of that name that Python could run.
        is_script: bool,
    },
    /// `--peers` without an endpoint.
    #[error("`--peers` needs the endpoint of a running job, but no endpoint is given")]
    PeersWithoutEndpoint,
    /// The variables of a launcher are invalid.
    #[error("{0}")]
    Placement(PlacementError),
    /// The variables of a launcher for one rank are invalid.
    #[error("{0}")]
    RankPlacement(PlacementError),
    /// A launcher has started several agents on one node.
    #[error("{launcher} has started {local_size} agents on this node, but a node runs only one")]
    SeveralAgents {
        /// The launcher.
        launcher: Launcher,
        /// The number of agents.
        local_size: u32,
    },
    /// No script is given.
    #[error("no training script is given")]
    NoScript,
    /// The number of nodes cannot be read.
    #[error("`{source_} {value}` {error}")]
    Nodes {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The reason.
        error: NodeRangeError,
    },
    /// The value is not a number from zero on.
    #[error("`{source_} {value}` is not a whole number, 0 or greater")]
    Number {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// Workers cannot be bound to processors.
    #[error("`--numa-binding {value}` is not possible: {error}")]
    Numa {
        /// The value of the flag.
        value: String,
        /// The reason.
        error: NumaError,
    },
    /// A flag of a launch method that is not chosen.
    #[error("`{source_} {value}` requires `--launch-method {method}`")]
    OnlyWith {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The method.
        method: MethodName,
    },
    /// A file that ragent is to write cannot be written.
    #[error("`{source_} {path}` cannot be written: {error}")]
    OutputFile {
        /// The flag or the variable.
        source_: &'static str,
        /// The file.
        path: String,
        /// The system's error.
        error: String,
    },
    /// The value is not a port.
    #[error("`{source_} {value}` is not a valid port: it must be a number from {least} to 65535")]
    Port {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The smallest port that is allowed; 0 if that means a free one.
        least: u16,
    },
    /// The program of `--no-python` does not exist or cannot be executed.
    #[error("the program `{path}` {state}")]
    Program {
        /// The program, as given.
        path: PathBuf,
        /// The problem with it.
        state: &'static str,
    },
    /// There is no Python to run the script.
    #[error("{}", no_python(named))]
    Python {
        /// The value of `PYTHON_EXEC`, if it is set.
        named: Option<PathBuf>,
    },
    /// The value is not a list of local ranks.
    #[error("`{source_} {value}` is not a list of local ranks, such as `0,1`")]
    Ranks {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// The job's name is invalid.
    #[error(
        "`{source_} {value}` is not a valid name of a job: 1 to 200 bytes, without `/` and \
         control characters"
    )]
    RunId {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// The interpreter of a script does not exist.
    #[error(
        "the first line of `{}` requests {interpreter:?}, which does not exist",
        path.display()
    )]
    Interpreter {
        /// The path of the script.
        path: PathBuf,
        /// The interpreter, as in the first line of the script.
        interpreter: PathBuf,
    },
    /// The script does not exist or cannot be read.
    #[error("the script `{path}` {state}")]
    Script {
        /// The script, as given.
        path: PathBuf,
        /// The problem with it.
        state: &'static str,
    },
    /// The value is not a list of exit codes.
    #[error("`{source_} {value}` is not a list of exit codes from 1 to 255, such as 2,64")]
    ExitCodes {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A signal to forward cannot be forwarded.
    #[error("`{source_} {value}` contains {name}, which cannot be forwarded")]
    Forwarded {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The signal.
        name: String,
    },
    /// The system lets this process open too few files.
    #[error("this process may open {limit} files, but needs {needed}")]
    OpenFiles {
        /// The number of files that it may open.
        limit: u64,
        /// The number of files that it needs.
        needed: u64,
    },
    /// Agents would search for each other by the default name of a job.
    #[error("`--rdzv-endpoint auto` finds agents by `--rdzv-id`, which is not given")]
    SearchWithoutName,
    /// A search for the endpoint with fixed ranks.
    #[error("`--rdzv-endpoint auto` requires the backend `c10d`, not `static`")]
    StaticSearch,
    /// The value is not a number of seconds.
    #[error("`{source_} {value}` is not a valid number of seconds")]
    Seconds {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A path that a `file://` address cannot contain.
    #[error("`{source_} {path}` cannot be used in a `file://` address: it contains `?` or `#`")]
    SharedFile {
        /// The flag or the variable.
        source_: String,
        /// The whole path.
        path: String,
    },
    /// A signal that no program can handle, or that ragent must not handle.
    #[error("`{source_} {value}` contains {signal}, which cannot be handled")]
    Signal {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The signal.
        signal: Signal,
    },
    /// `--standalone` with several nodes.
    #[error("`--standalone` runs one node, but `--nnodes` is {nodes}")]
    StandaloneNodes {
        /// The value of `--nnodes`.
        nodes: NodeRange,
    },
    /// The value is not a choice of streams.
    #[error("`{source_} {value}` is neither a number from 0 to 3 nor `RANK:N,…`")]
    Streams {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// The value of an on/off variable is not an integer.
    #[error("`{source_}={value}` is neither 0 nor 1")]
    Switch {
        /// The variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A launcher has started fewer agents than the job needs.
    #[error("{launcher} has started {agents} agents, but `--nnodes` is {nodes}")]
    TooFewAgents {
        /// The launcher.
        launcher: Launcher,
        /// The number of agents.
        agents: u32,
        /// The value of `--nnodes`.
        nodes: NodeRange,
    },
    /// There are fewer devices than workers, which are to see one each.
    #[error(
        "`--virtual-local-rank` needs a device for each of {workers} workers, but {variable} is \
         `{value}`"
    )]
    TooFewDevices {
        /// The variable that lists the devices.
        variable: String,
        /// Its value.
        value: String,
        /// The number of workers.
        workers: u32,
    },
    /// The unit of nodes is given twice, with different values.
    #[error("`--nnodes {nodes}` and `node_unit={unit}` contradict each other")]
    TwoUnits {
        /// The value of `--nnodes`.
        nodes: NodeRange,
        /// The value of `node_unit` in `--rdzv-conf`.
        unit: u32,
    },
    /// An endpoint that every machine takes for itself.
    #[error(
        "`{source_} {value}` refers to a different machine on each node, but the job has several nodes"
    )]
    Unspecified {
        /// The flag or the variable.
        source_: String,
        /// The endpoint.
        value: String,
    },
    /// The number of workers cannot be read.
    #[error("`{source_} {value}` is neither a positive number nor `auto`, `cpu`, `gpu` or `xpu`")]
    WorkersPerNode {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
}

impl JobSpecError {
    /// Returns a hint for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Backend { value, .. } if value.starts_with("etcd") => {
                "use `c10d`, which needs no separate server; the endpoint is one of the nodes"
                    .to_owned()
            }
            Self::Backend { .. } => "supported backends: `c10d` and `static`".to_owned(),
            Self::ConfKey { known, .. } => format!("the keys are {known}"),
            Self::Forwarded { .. } => {
                "list signals that `--signals-to-handle` does not contain, such as SIGUSR1"
                    .to_owned()
            }
            Self::OpenFiles { .. } => {
                "raise the hard limit of `ulimit -n`, or `LimitNOFILE=` of the unit".to_owned()
            }
            Self::Endpoint { error: EndpointError::NoPort, .. } => {
                "with `static`, give the endpoint as `HOST:PORT`".to_owned()
            }
            Self::Endpoint { error: EndpointError::PortInAddress, .. } => {
                "give the port as `--master-port`".to_owned()
            }
            Self::Endpoint { .. } | Self::Unspecified { .. } => {
                "give the address of one node, such as `node0:29400`".to_owned()
            }
            Self::FreePort { .. } => "use the same fixed port on all nodes".to_owned(),
            Self::LogDir { .. } => "give a folder that this user may write to".to_owned(),
            Self::LogsSpecs { .. } => {
                "use `--log-dir`, `--redirects`, `--tee` and `--log-line-prefix-template` to \
                 configure the output"
                    .to_owned()
            }
            Self::NoAccelerator { .. } => {
                "check variables such as CUDA_VISIBLE_DEVICES, which may hide it; `auto` falls \
                 back to processors"
                    .to_owned()
            }
            Self::PeersWithoutEndpoint => "give it as `--rdzv-endpoint HOST:PORT`".to_owned(),
            Self::HostsWithoutSearch => {
                "give both flags, or an endpoint without `--discover-hosts`".to_owned()
            }
            Self::Interface { .. } => "`ip -brief address` lists the interfaces".to_owned(),
            Self::ManyHosts { .. } => {
                "list fewer hosts: one host of a running agent is enough".to_owned()
            }
            Self::SearchWithoutName => "give the same `--rdzv-id NAME` on all nodes".to_owned(),
            Self::StaticSearch => {
                "use `c10d`: with `--rdzv-endpoint auto`, `--node-rank 0` hosts the coordinator \
                 there too"
                    .to_owned()
            }
            Self::NoHead { .. } => {
                "give it as `--rdzv-endpoint HOST:PORT`, the same on all nodes".to_owned()
            }
            Self::MasterElsewhere { .. } => {
                "give its host as `--master-addr` or in MASTER_ADDR".to_owned()
            }
            Self::MasterAddress { .. } => "give the name or the address of a host".to_owned(),
            Self::MasterPort { .. } => {
                "without it, the port is derived from the job's name".to_owned()
            }
            Self::NotExecuted { program, is_script: true, .. } => {
                format!("use `ragent rank -- python {program}`")
            }
            Self::RankPlacement(_) => {
                "start it directly with `mpirun` or `srun`; a wrapper in between must not change \
                 the variables that they set"
                    .to_owned()
            }
            Self::NoMaster { .. } => "give it as `--master-addr` or in MASTER_ADDR".to_owned(),
            Self::NoLauncher => {
                "start it with `mpirun` or `srun`; without these, `ragent --nproc-per-node N \
                 SCRIPT` starts N workers on this node"
                    .to_owned()
            }
            Self::TooFewAgents { .. } => {
                "lower MIN in `--nnodes`, or give `--rdzv-endpoint`, so that other agents can \
                 join"
                    .to_owned()
            }
            Self::Placement(_) => {
                "use `--standalone` for this node alone, or `--rdzv-endpoint` and `--nnodes`, \
                 which replace the launcher's values"
                    .to_owned()
            }
            Self::SeveralAgents { launcher: Launcher::Slurm, .. } => {
                "`srun --ntasks-per-node=1 ragent …` starts one agent per node; `srun ragent \
                 rank -- …` makes each task one rank"
                    .to_owned()
            }
            Self::SeveralAgents { .. } => {
                "`mpirun -npernode 1 ragent …` (`-ppn 1`) starts one agent per node; `mpirun \
                 ragent rank -- …` makes each process one rank"
                    .to_owned()
            }
            Self::NoScript => "see `ragent --help`".to_owned(),
            Self::Program { .. } => "without `--no-python`, Python runs it".to_owned(),
            Self::Interpreter { interpreter, .. } => {
                let has_cr = interpreter.as_os_str().as_encoded_bytes().ends_with(b"\r");
                if has_cr {
                    "it has Windows line endings: remove them with `sed -i 's/\\r$//'`".to_owned()
                } else {
                    "install it, or correct the line".to_owned()
                }
            }
            Self::Python { .. } => {
                "activate an environment, or set PYTHON_EXEC to an interpreter".to_owned()
            }
            Self::Script { .. } => {
                "use `-m` for a module, and `--no-python` for a program that is not Python"
                    .to_owned()
            }
            Self::StandaloneNodes { .. } => {
                "for several nodes, give `--rdzv-endpoint HOST:PORT` instead".to_owned()
            }
            Self::OutputFile { .. } => {
                "its folder must exist, and this user must be allowed to write to it".to_owned()
            }
            Self::AutoWithoutId { .. } => "give `--rdzv-id NAME`, the same on all nodes".to_owned(),
            Self::DeepSpeedConfig { .. } => {
                "it must be one JSON object without comments; see docs/launch-methods.md".to_owned()
            }
            Self::OnlyWith { method, .. } => {
                format!("add `--launch-method {method}`, or omit the flag")
            }
            Self::SharedFile { .. } => "give a path without these characters".to_owned(),
            Self::TooFewDevices { .. } => "start fewer workers, or list more devices".to_owned(),
            Self::Choice { .. }
            | Self::ConfEntry { .. }
            | Self::ConfValue { .. }
            | Self::FiltersWithoutFolder
            | Self::LogFormat { .. }
            | Self::ModuleWithoutPython
            | Self::Name { .. }
            | Self::NodeRank { .. }
            | Self::Nodes { .. }
            | Self::NotExecuted { is_script: false, .. }
            | Self::Number { .. }
            | Self::Numa { .. }
            | Self::ExitCodes { .. }
            | Self::Port { .. }
            | Self::Ranks { .. }
            | Self::RunId { .. }
            | Self::Seconds { .. }
            | Self::Signal { .. }
            | Self::Streams { .. }
            | Self::Switch { .. }
            | Self::TwoUnits { .. }
            | Self::WorkersPerNode { .. } => return None,
        })
    }
}

fn no_python(named: &Option<PathBuf>) -> String {
    match named {
        Some(path) => format!("PYTHON_EXEC is `{}`, which cannot be executed", path.display()),
        None => "no Python is found: neither `python3` nor `python` is in PATH".to_owned(),
    }
}
