//! Every mistake that arguments and this machine can show before any network is touched.

use std::path::PathBuf;

use nix::sys::signal::Signal;
use ragent_rendezvous::settings::{NodeRange, NodeRangeError};

use super::{EndpointError, MethodName};
use crate::{
    host::numa::NumaError,
    limits,
    placement::{Launcher, PlacementError},
};

/// One mistake. `source_` is the flag or the variable that holds it, as typed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JobSpecError {
    /// A path named after a job that has no name.
    #[error("`{source_} {value}` is named after the job, and the job has no name")]
    AutoWithoutId {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// The rendezvous backend is not one that is known.
    #[error("`{source_} {value}` is not supported")]
    Backend {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// Not one of a few words.
    #[error("`{source_} {value}` is not {choices}")]
    Choice {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// What may be given.
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
        /// All that exist.
        known: String,
    },
    /// A value of `--rdzv-conf` is not what its key takes.
    #[error("`--rdzv-conf` has `{key}={value}`, which is not {expected}")]
    ConfValue {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// DeepSpeed's configuration is not there, or is none.
    #[error("`{source_} {value}` {state}")]
    DeepSpeedConfig {
        /// Where it was given.
        source_: String,
        /// The file.
        value: String,
        /// What is wrong with it.
        state: String,
    },
    /// The endpoint cannot be read.
    #[error("`{source_} {value}` is no endpoint: {error}")]
    Endpoint {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// Why not.
        error: EndpointError,
    },
    /// Chosen lines are to be copied to a folder that is not kept.
    #[error(
        "`--duplicate-stdout-filters` and `--duplicate-stderr-filters` copy to the log folder, and `--log-dir /dev/null` keeps none"
    )]
    FiltersWithoutFolder,
    /// A free port, of which other nodes could not know.
    #[error("`{source_} {value}` takes a free port, which the other nodes would not know")]
    FreePort {
        /// Where it was given.
        source_: String,
        /// The endpoint.
        value: String,
    },
    /// A list of hosts to search, and no search.
    #[error("`--discover-hosts` is for `--rdzv-endpoint auto`")]
    HostsWithoutSearch,
    /// An interface that this machine does not have.
    #[error(
        "`--rdzv-conf` has `discover_interface={name}`, and this machine has no such interface"
    )]
    Interface {
        /// What was given.
        name: String,
    },
    /// The log folder cannot be made or written.
    #[error("`--log-dir {path}` cannot be used: {error}")]
    LogDir {
        /// The folder.
        path: String,
        /// What the system says.
        error: String,
    },
    /// `--log-format` is not one that is known.
    #[error("`--log-format {value}` is neither `text` nor `json`")]
    LogFormat {
        /// What was given.
        value: String,
    },
    /// A plug-in of torchrun's.
    #[error("`--logs-specs {value}` names a Python plug-in, which ragent cannot load")]
    LogsSpecs {
        /// What was given.
        value: String,
    },
    /// More hosts to search than are asked.
    #[error("`--discover-hosts` names {hosts} hosts, and takes {}", limits::MAX_DISCOVER_HOSTS)]
    ManyHosts {
        /// How many.
        hosts: usize,
    },
    /// Both `--module` and `--no-python`.
    #[error("`--module` and `--no-python` exclude each other")]
    ModuleWithoutPython,
    /// A name that other nodes cannot be told.
    #[error("`{source_} {value}` is no name: at most 200 bytes, without control characters")]
    Name {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// GPUs were asked for and there are none.
    #[error("`{source_} {value}` finds no GPU on this machine")]
    NoAccelerator {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// A rank that no node can have.
    #[error("`--node-rank {node_rank}` is none of {nodes} nodes, whose ranks begin at 0")]
    NodeRank {
        /// What was given.
        node_rank: u32,
        /// How many nodes there are.
        nodes: u32,
    },
    /// A launcher that does not say on which node the first agent runs.
    #[error("{launcher} has started this agent, and does not say on which host the first one is")]
    NoHead {
        /// Who has started it.
        launcher: Launcher,
    },
    /// Where rank 0 is said to be can be no address.
    #[error("`{source_} {value}` is no address of rank 0")]
    MasterAddress {
        /// Where it was given.
        source_: &'static str,
        /// What was given.
        value: String,
    },
    /// Rank 0 runs elsewhere than where all ranks look for it.
    #[error("rank 0 runs on {here}, and the ranks would look for it at {master}")]
    MasterElsewhere {
        /// Where they would look.
        master: String,
        /// Where it runs.
        here: String,
    },
    /// The port of rank 0 is none.
    #[error("`{source_} {value}` is no port of rank 0: a number from 1 to 65535")]
    MasterPort {
        /// Where it was given.
        source_: &'static str,
        /// What was given.
        value: String,
    },
    /// A rank is asked for, and nothing says which.
    #[error("no launcher that is known has started this process")]
    NoLauncher,
    /// A launcher that does not say on which node rank 0 runs.
    #[error("{launcher} has started this rank, and does not say on which host rank 0 is")]
    NoMaster {
        /// Who has started it.
        launcher: Launcher,
    },
    /// A program that this process cannot become.
    #[error("the program `{program}` cannot be executed: {error}")]
    NotExecuted {
        /// As given.
        program: String,
        /// What the system says.
        error: String,
        /// Whether there is a file of that name that Python could run.
        is_script: bool,
    },
    /// Peers to examine, and no endpoint.
    #[error("`--peers` asks the nodes of a running job, and no endpoint is given")]
    PeersWithoutEndpoint,
    /// What a launcher says cannot be used.
    #[error("{0}")]
    Placement(PlacementError),
    /// What a launcher says of one rank cannot be used.
    #[error("{0}")]
    RankPlacement(PlacementError),
    /// A launcher has started several agents on one node.
    #[error("{launcher} has started {local_size} agents on this node, which wants one")]
    SeveralAgents {
        /// Who has started them.
        launcher: Launcher,
        /// How many.
        local_size: u32,
    },
    /// Nothing to launch.
    #[error("no training script is given")]
    NoScript,
    /// The number of nodes cannot be read.
    #[error("`{source_} {value}` {error}")]
    Nodes {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// Why not.
        error: NodeRangeError,
    },
    /// Not a number from zero on.
    #[error("`{source_} {value}` is no whole number from 0 on")]
    Number {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// Workers cannot be bound to processors.
    #[error("`--numa-binding {value}` cannot be carried out: {error}")]
    Numa {
        /// What was given.
        value: String,
        /// Why not.
        error: NumaError,
    },
    /// A flag of a launch method that is not chosen.
    #[error("`{source_} {value}` belongs to `--launch-method {method}`")]
    OnlyWith {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// The method.
        method: MethodName,
    },
    /// A file that is to be written cannot be.
    #[error("`{source_} {path}` cannot be written: {error}")]
    OutputFile {
        /// Where it was given.
        source_: &'static str,
        /// The file.
        path: String,
        /// What the system says.
        error: String,
    },
    /// Not a port.
    #[error("`{source_} {value}` is no port: a number from {least} to 65535")]
    Port {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// 0 where that means a free one.
        least: u16,
    },
    /// The program of `--no-python` is not there or cannot be executed.
    #[error("the program `{path}` {state}")]
    Program {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        state: &'static str,
    },
    /// No Python to run the script with.
    #[error("{}", no_python(named))]
    Python {
        /// What `PYTHON_EXEC` names, if it is set.
        named: Option<PathBuf>,
    },
    /// Not a list of local ranks.
    #[error("`{source_} {value}` is no list of local ranks, such as `0,1`")]
    Ranks {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// The job's name cannot be one.
    #[error(
        "`{source_} {value}` is no name of a job: 1 to 200 bytes, no `/`, no control characters"
    )]
    RunId {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// A script asks for a program that is not there.
    #[error("the first line of `{}` asks for {interpreter:?}, which does not exist", path.display())]
    Interpreter {
        /// The script, found.
        path: PathBuf,
        /// As its first line has it.
        interpreter: PathBuf,
    },
    /// The script is not there or cannot be read.
    #[error("the script `{path}` {state}")]
    Script {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        state: &'static str,
    },
    /// Not a list of exit codes.
    #[error("`{source_} {value}` is no list of exit codes from 1 to 255, such as 2,64")]
    ExitCodes {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// A signal that is to be passed on, and cannot be.
    #[error("`{source_} {value}` has {name}, which cannot be passed on")]
    Forwarded {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// The signal.
        name: String,
    },
    /// The system lets this process open too few files.
    #[error("this process may have {limit} files open, and needs {needed}")]
    OpenFiles {
        /// How many it may.
        limit: u64,
        /// How many it needs.
        needed: u64,
    },
    /// Agents that look for each other by a name that any job has.
    #[error("`--rdzv-endpoint auto` finds agents by the job's name, and none is given")]
    SearchWithoutName,
    /// Fixed ranks, and a search for the one with rank 0.
    #[error("`--rdzv-endpoint auto` finds agents for `c10d`, not for `static`")]
    StaticSearch,
    /// Not a time.
    #[error("`{source_} {value}` is no number of seconds")]
    Seconds {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// A path that no `file://` address can have.
    #[error("`{source_} {path}` cannot stand in a `file://` address: it has `?` or `#`")]
    SharedFile {
        /// Where it was given.
        source_: String,
        /// The whole path.
        path: String,
    },
    /// A signal that no program can handle, or that this one must not.
    #[error("`{source_} {value}` has {signal}, which cannot be handled")]
    Signal {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
        /// The signal.
        signal: Signal,
    },
    /// `--standalone` with several nodes.
    #[error("`--standalone` is one node, and `--nnodes` says {nodes}")]
    StandaloneNodes {
        /// What `--nnodes` says.
        nodes: NodeRange,
    },
    /// Not a choice of streams.
    #[error("`{source_} {value}` is neither a number from 0 to 3 nor `RANK:N,…`")]
    Streams {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
    /// An on/off variable that is no integer.
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
        /// Who has started them.
        launcher: Launcher,
        /// How many.
        agents: u32,
        /// What `--nnodes` says.
        nodes: NodeRange,
    },
    /// Workers that are to see one device each, and too few devices.
    #[error(
        "`--virtual-local-rank` needs a device for each of {workers} workers, and {variable} is `{value}`"
    )]
    TooFewDevices {
        /// Which variable names the devices.
        variable: String,
        /// What it holds.
        value: String,
        /// How many workers there are.
        workers: u32,
    },
    /// The unit of nodes is given twice.
    #[error("`--nnodes {nodes}` and `node_unit={unit}` contradict each other")]
    TwoUnits {
        /// What `--nnodes` says.
        nodes: NodeRange,
        /// What `--rdzv-conf` says.
        unit: u32,
    },
    /// An endpoint that every machine takes for itself.
    #[error("`{source_} {value}` means every machine itself, and the job has several nodes")]
    Unspecified {
        /// Where it was given.
        source_: String,
        /// The endpoint.
        value: String,
    },
    /// The number of workers cannot be read.
    #[error("`{source_} {value}` is neither a number from 1 on nor `auto`, `cpu`, `gpu` or `xpu`")]
    WorkersPerNode {
        /// Where it was given.
        source_: String,
        /// What was given.
        value: String,
    },
}

impl JobSpecError {
    /// What to try.
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
