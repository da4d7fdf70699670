//! The mistakes that arguments and this machine can show before any network is used.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use ragent_rendezvous::settings::{NodeRange, NodeRangeError};

use super::{EndpointError, MethodName};
use crate::{
    host::numa::NumaError,
    limits,
    placement::{Launcher, PlacementError},
};

/// A mistake. `source_` is the flag or the variable that contains it, as typed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JobSpecError {
    /// A path named after a job that has no name.
    #[error("`{source_} {value}` is named after the job, and the job has no name")]
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
    #[error("`{source_} {value}` is no endpoint: {error}")]
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
        "`--duplicate-stdout-filters` and `--duplicate-stderr-filters` copy to the log folder, and `--log-dir /dev/null` keeps none"
    )]
    FiltersWithoutFolder,
    /// A free port, which other nodes could not know.
    #[error("`{source_} {value}` takes a free port, which the other nodes would not know")]
    FreePort {
        /// The flag or the variable.
        source_: String,
        /// The endpoint.
        value: String,
    },
    /// A list of hosts to search without a search.
    #[error("`--discover-hosts` is for `--rdzv-endpoint auto`")]
    HostsWithoutSearch,
    /// An interface that this machine does not have.
    #[error(
        "`--rdzv-conf` has `discover_interface={name}`, and this machine has no such interface"
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
    #[error("`--logs-specs {value}` names a Python plug-in, which ragent cannot load")]
    LogsSpecs {
        /// The name of the plug-in.
        value: String,
    },
    /// More hosts to search than are allowed.
    #[error("`--discover-hosts` names {hosts} hosts, and takes {}", limits::MAX_DISCOVER_HOSTS)]
    ManyHosts {
        /// The number of hosts.
        hosts: usize,
    },
    /// Both `--module` and `--no-python`.
    #[error("`--module` and `--no-python` exclude each other")]
    ModuleWithoutPython,
    /// A name that cannot be sent to other nodes.
    #[error("`{source_} {value}` is no name: at most 200 bytes, without control characters")]
    Name {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// GPUs were asked for and there are none.
    #[error("`{source_} {value}` finds no GPU on this machine")]
    NoAccelerator {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A rank that no node can have.
    #[error("`--node-rank {node_rank}` is none of {nodes} nodes, whose ranks begin at 0")]
    NodeRank {
        /// The rank.
        node_rank: u32,
        /// The number of nodes.
        nodes: u32,
    },
    /// A launcher that does not provide the host of the first agent.
    #[error("{launcher} has started this agent, and does not say on which host the first one is")]
    NoHead {
        /// The launcher.
        launcher: Launcher,
    },
    /// The address of rank 0 is invalid.
    #[error("`{source_} {value}` is no address of rank 0")]
    MasterAddress {
        /// The flag or the variable.
        source_: &'static str,
        /// Its value.
        value: String,
    },
    /// Rank 0 does not run where all ranks look for it.
    #[error("rank 0 runs on {here}, and the ranks would look for it at {master}")]
    MasterElsewhere {
        /// The address that they use.
        master: String,
        /// The host on which it runs.
        here: String,
    },
    /// The port of rank 0 is invalid.
    #[error("`{source_} {value}` is no port of rank 0: a number from 1 to 65535")]
    MasterPort {
        /// The flag or the variable.
        source_: &'static str,
        /// Its value.
        value: String,
    },
    /// No known launcher has started this process, so its rank is unknown.
    #[error("no launcher that is known has started this process")]
    NoLauncher,
    /// A launcher that does not provide the host of rank 0.
    #[error("{launcher} has started this rank, and does not say on which host rank 0 is")]
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
    #[error("`--peers` asks the nodes of a running job, and no endpoint is given")]
    PeersWithoutEndpoint,
    /// The variables of a launcher are invalid.
    #[error("{0}")]
    Placement(PlacementError),
    /// The variables of a launcher for one rank are invalid.
    #[error("{0}")]
    RankPlacement(PlacementError),
    /// A launcher has started several agents on one node.
    #[error("{launcher} has started {local_size} agents on this node, which wants one")]
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
    #[error("`{source_} {value}` is no whole number from 0 on")]
    Number {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// Workers cannot be bound to processors.
    #[error("`--numa-binding {value}` cannot be carried out: {error}")]
    Numa {
        /// The value of the flag.
        value: String,
        /// The reason.
        error: NumaError,
    },
    /// A flag of a launch method that is not chosen.
    #[error("`{source_} {value}` belongs to `--launch-method {method}`")]
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
    #[error("`{source_} {value}` is no port: a number from {least} to 65535")]
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
    #[error("`{source_} {value}` is no list of local ranks, such as `0,1`")]
    Ranks {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// The job's name is invalid.
    #[error(
        "`{source_} {value}` is no name of a job: 1 to 200 bytes, no `/`, no control characters"
    )]
    RunId {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// The interpreter of a script does not exist.
    #[error("the first line of `{}` asks for {interpreter:?}, which does not exist", path.display())]
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
    #[error("`{source_} {value}` is no list of exit codes from 1 to 255, such as 2,64")]
    ExitCodes {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A signal to forward cannot be forwarded.
    #[error("`{source_} {value}` has {name}, which cannot be passed on")]
    Forwarded {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The signal.
        name: String,
    },
    /// The system lets this process open too few files.
    #[error("this process may have {limit} files open, and needs {needed}")]
    OpenFiles {
        /// The number of files that it may open.
        limit: u64,
        /// The number of files that it needs.
        needed: u64,
    },
    /// Agents would search for each other by the default name of a job.
    #[error("`--rdzv-endpoint auto` finds agents by the job's name, and none is given")]
    SearchWithoutName,
    /// A search for the endpoint with fixed ranks.
    #[error("`--rdzv-endpoint auto` finds agents for `c10d`, not for `static`")]
    StaticSearch,
    /// The value is not a number of seconds.
    #[error("`{source_} {value}` is no number of seconds")]
    Seconds {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
    },
    /// A path that a `file://` address cannot contain.
    #[error("`{source_} {path}` cannot stand in a `file://` address: it has `?` or `#`")]
    SharedFile {
        /// The flag or the variable.
        source_: String,
        /// The whole path.
        path: String,
    },
    /// A signal that no program can handle, or that ragent must not handle.
    #[error("`{source_} {value}` has {signal}, which cannot be handled")]
    Signal {
        /// The flag or the variable.
        source_: String,
        /// Its value.
        value: String,
        /// The signal.
        signal: Signal,
    },
    /// `--standalone` with several nodes.
    #[error("`--standalone` is one node, and `--nnodes` says {nodes}")]
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
    #[error("{launcher} has started {agents} agents, and `--nnodes` says {nodes}")]
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
        "`--virtual-local-rank` needs a device for each of {workers} workers, and {variable} is `{value}`"
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
    #[error("`{source_} {value}` means every machine itself, and the job has several nodes")]
    Unspecified {
        /// The flag or the variable.
        source_: String,
        /// The endpoint.
        value: String,
    },
    /// The number of workers cannot be read.
    #[error("`{source_} {value}` is neither a number from 1 on nor `auto`, `cpu`, `gpu` or `xpu`")]
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
                "`c10d` needs no server beside the job; the endpoint is one of its nodes".to_owned()
            }
            Self::Backend { .. } => "`c10d` and `static` are what there is".to_owned(),
            Self::ConfKey { known, .. } => format!("the keys are {known}"),
            Self::Forwarded { .. } => {
                "name signals such as SIGUSR1, which `--signals-to-handle` does not have".to_owned()
            }
            Self::OpenFiles { .. } => {
                "raise `ulimit -n` (its hard limit), or `LimitNOFILE=` of the unit".to_owned()
            }
            Self::Endpoint { error: EndpointError::NoPort, .. } => {
                "with `static` give it as `HOST:PORT`".to_owned()
            }
            Self::Endpoint { error: EndpointError::PortInAddress, .. } => {
                "give the port as `--master-port`".to_owned()
            }
            Self::Endpoint { .. } | Self::Unspecified { .. } => {
                "give the address of one node, such as `node0:29400`".to_owned()
            }
            Self::FreePort { .. } => "give the same port on all nodes".to_owned(),
            Self::LogDir { .. } => "give a folder that this user may write to".to_owned(),
            Self::LogsSpecs { .. } => "`--log-dir`, `--redirects`, `--tee` and \
                `--log-line-prefix-template` say where output goes"
                .to_owned(),
            Self::NoAccelerator { .. } => {
                "does a variable hide it, such as CUDA_VISIBLE_DEVICES? `auto` falls back to \
                 processors"
                    .to_owned()
            }
            Self::PeersWithoutEndpoint => "give it as `--rdzv-endpoint HOST:PORT`".to_owned(),
            Self::HostsWithoutSearch => "give both, or name the endpoint alone".to_owned(),
            Self::Interface { .. } => "`ip -brief address` lists them".to_owned(),
            Self::ManyHosts { .. } => "name some of them: one that runs is enough".to_owned(),
            Self::SearchWithoutName => "give the same `--rdzv-id` on all nodes".to_owned(),
            Self::StaticSearch => {
                "`--node-rank 0` hosts with `c10d` too, where `auto` is the endpoint".to_owned()
            }
            Self::NoHead { .. } => {
                "name it with `--rdzv-endpoint HOST:PORT`, the same on all nodes".to_owned()
            }
            Self::MasterElsewhere { .. } => {
                "name its host with `--master-addr`, or in MASTER_ADDR".to_owned()
            }
            Self::MasterAddress { .. } => "give a host's name or its address".to_owned(),
            Self::MasterPort { .. } => {
                "without it, the port follows from the job's name".to_owned()
            }
            Self::NotExecuted { program, is_script: true, .. } => {
                format!("`ragent rank -- python {program}`")
            }
            Self::RankPlacement(_) => "start it by `mpirun` or `srun` itself, and let what stands \
                                       between leave the variables of these as they are"
                .to_owned(),
            Self::NoMaster { .. } => "name it with `--master-addr`, or in MASTER_ADDR".to_owned(),
            Self::NoLauncher => "start it by `mpirun` or `srun`; where there is none, `ragent \
                                 --nproc-per-node N SCRIPT` starts N workers on this node"
                .to_owned(),
            Self::TooFewAgents { .. } => {
                "lower MIN, or name with `--rdzv-endpoint` where others join".to_owned()
            }
            Self::Placement(_) => "`--standalone` launches on this node alone, and \
                                   `--rdzv-endpoint` with `--nnodes` whatever the launcher says"
                .to_owned(),
            Self::SeveralAgents { launcher: Launcher::Slurm, .. } => {
                "`srun --ntasks-per-node=1 ragent …` starts one a node, and `srun ragent rank -- …` \
                 gives every task a rank of its own"
                    .to_owned()
            }
            Self::SeveralAgents { .. } => {
                "`mpirun -npernode 1 ragent …` (`-ppn 1`) starts one a node, and `mpirun ragent \
                 rank -- …` gives every process a rank of its own"
                    .to_owned()
            }
            Self::NoScript => "see `ragent --help`".to_owned(),
            Self::Program { .. } => "without `--no-python` it is run by Python".to_owned(),
            Self::Interpreter { interpreter, .. } => {
                let has_cr = interpreter.as_os_str().as_encoded_bytes().ends_with(b"\r");
                if has_cr {
                    "its lines end as on Windows: `sed -i 's/\\r$//'` mends it".to_owned()
                } else {
                    "install it, or mend the line".to_owned()
                }
            }
            Self::Python { .. } => {
                "activate the environment, or name the interpreter in PYTHON_EXEC".to_owned()
            }
            Self::Script { .. } => {
                "a module wants `-m`, a program that is not Python `--no-python`".to_owned()
            }
            Self::StandaloneNodes { .. } => {
                "for several nodes give `--rdzv-endpoint HOST:PORT` instead".to_owned()
            }
            Self::OutputFile { .. } => {
                "its folder must exist, and this user be allowed to write there".to_owned()
            }
            Self::AutoWithoutId { .. } => "give `--rdzv-id NAME`, the same on all nodes".to_owned(),
            Self::DeepSpeedConfig { .. } => {
                "it is one object of JSON, without comments; see docs/launch-methods.md".to_owned()
            }
            Self::OnlyWith { method, .. } => {
                format!("add `--launch-method {method}`, or leave it out")
            }
            Self::SharedFile { .. } => "give a path without them".to_owned(),
            Self::TooFewDevices { .. } => "start fewer workers, or name more devices".to_owned(),
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
        Some(path) => format!("PYTHON_EXEC names `{}`, which cannot be executed", path.display()),
        None => "no Python is found: neither `python3` nor `python` is in PATH".to_owned(),
    }
}
