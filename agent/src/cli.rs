//! The command line: subcommands and flags, with torchrun's names in both of its spellings.
//!
//! Values are neither checked nor replaced by defaults here; `spec` interprets them.

mod k8s;
mod passed;
mod words;

use std::ffi::OsString;

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};

pub use self::k8s::{K8sArgs, ManifestArgs, ManifestTarget};

/// Start and supervise distributed training jobs; replaces torchrun.
#[derive(Debug, Parser)]
#[command(
    name = "ragent",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    infer_long_args = true,
    subcommand_negates_reqs = true,
    subcommand_precedence_over_arg = false,
    // Flags precede the script.
    override_usage = "ragent [OPTIONS] SCRIPT [ARGS]...\n       ragent COMMAND [OPTIONS]",
    max_term_width = 100,
    after_help = "Use --help for all flags.",
    after_long_help = "\
Examples:
  ragent --nproc-per-node 8 train.py
  ragent --nnodes 2 --rdzv-endpoint node0 --rdzv-id run7 train.py   (on both nodes)
  ragent launch --hostfile hosts --nproc-per-node 8 train.py        (over ssh)

Each flag can also be written with underscores (--nproc_per_node). A flag that is not given is \
read from PET_<NAME> (PET_NPROC_PER_NODE). Scripts are run by the interpreter in PYTHON_EXEC, else \
by that of the active environment, else by python3. Logs are written to stderr; RAGENT_LOG sets \
their level."
)]
pub struct Cli {
    /// The subcommand, which must be the first word; None for a launch.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of the launch.
    #[command(flatten)]
    pub launch: LaunchArgs,
}

impl Cli {
    /// Parses a command line, whose first word is the program's name.
    ///
    /// # Errors
    ///
    /// Returns clap's message to the user, which may also be the help or the version.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let words = words::mark_script(&command, words.into_iter().collect());
        let matches = command.try_get_matches_from_mut(words).map_err(without_wrong_tip)?;
        let mut cli =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let (Some(Command::Launch(args)), Some((_, matches))) =
            (&mut cli.command, matches.subcommand())
        {
            args.passed = passed::flags(matches);
        }
        Ok(cli)
    }
}

/// Removes clap's suggestion to write an unknown flag after `--`: there it would be the script.
fn without_wrong_tip(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

/// Returns the name of the subcommand that `word` resembles, if there is one.
pub(crate) fn similar_command(word: &str) -> Option<String> {
    let command = Cli::command();
    let names = command.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.get_name());
    names
        .map(|name| (strsim::osa_distance(word, name), name))
        .filter(|(distance, name)| *distance <= name.len() / 3)
        .min()
        .map(|(_, name)| name.to_owned())
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Host the endpoint of one job, without workers, until SIGTERM
    Coordinator(CoordinatorArgs),
    /// Check this node, and the connections between the nodes of a job, for common problems
    Doctor(DoctorArgs),
    /// Start an agent over ssh on each host of a list, and show the output of all of them
    Launch(Box<LaunchOverSshArgs>),
    /// Print a manifest that runs a job on another system
    Manifest(ManifestArgs),
    /// Run the program of one rank under mpirun or srun, with PyTorch's variables set from the
    /// launcher's
    Rank(RankArgs),
    /// Print the status of a job: round, members, ranks, and the reason for waiting
    Status(StatusArgs),
    /// Serve a TCPStore in the foreground until SIGTERM
    Store(StoreArgs),
    /// The process that holds the workers of one agent.
    #[command(name = "__keeper", hide = true)]
    Keeper,
    /// The process that starts the agent of one host for `ragent launch`.
    #[command(name = "__relay", hide = true)]
    Relay,
}

/// Flags for launching. Flags that most jobs do not need are listed by `--help` only, not by `-h`.
#[derive(Args, Clone, Debug, Default)]
pub struct LaunchArgs {
    /// Number of nodes: N, or MIN:MAX for an elastic job, or MIN:MAX:UNIT for a number that is
    /// always a multiple of UNIT [default: 1]
    #[arg(long, value_name = "N|MIN:MAX[:UNIT]", help_heading = NODES)]
    pub nnodes: Option<String>,
    /// Address of the coordinator; the node that owns the address hosts it; with `auto`, nodes find
    /// each other on the local network by the name of the job [default: localhost:29400]
    #[arg(
        long,
        alias = "rdzv_endpoint",
        value_name = "HOST[:PORT]|auto[:PORT]",
        help_heading = NODES
    )]
    pub rdzv_endpoint: Option<String>,
    /// Name of the job, the same on all of its nodes [default: none]
    #[arg(long, alias = "rdzv_id", value_name = "ID", help_heading = NODES)]
    pub rdzv_id: Option<String>,
    /// Run the job on this node alone, with a free port of the loopback interface
    #[arg(long, help_heading = NODES)]
    pub standalone: bool,
    /// Rendezvous backend: `c10d`, or `static` with fixed ranks [default: static if --node-rank,
    /// --master-addr or --master-port is given, else c10d]
    #[arg(
        long,
        alias = "rdzv_backend",
        value_name = "NAME",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub rdzv_backend: Option<String>,
    /// Further settings of the rendezvous, such as join_timeout=600,join_settle=3
    #[arg(
        long,
        alias = "rdzv_conf",
        value_name = "KEY=VALUE,…",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub rdzv_conf: Option<String>,
    /// Rank of this node with `static`, where node 0 hosts the job; preferred position among new
    /// nodes with `c10d` [default: 0]
    #[arg(
        long,
        alias = "node_rank",
        allow_negative_numbers = true,
        value_name = "N",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub node_rank: Option<String>,
    /// Address of node 0, for `static` [default: 127.0.0.1]
    #[arg(
        long,
        alias = "master_addr",
        value_name = "ADDR",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub master_addr: Option<String>,
    /// Port of node 0, for `static` [default: 29500]
    #[arg(
        long,
        alias = "master_port",
        allow_negative_numbers = true,
        value_name = "PORT",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub master_port: Option<String>,
    /// Address at which the other nodes reach this one [default: the address from which this node
    /// reaches the endpoint]
    #[arg(
        long,
        alias = "local_addr",
        value_name = "ADDR",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub local_addr: Option<String>,
    /// Hosts to ask for the other agents of the job, in addition to the local network, with
    /// --rdzv-endpoint auto
    #[arg(
        long,
        alias = "discover_hosts",
        value_name = "HOST[:PORT],…",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub discover_hosts: Option<String>,
    /// Clients that may connect to the workers' store: `members` (addresses of the job's nodes, and
    /// this user on the node that serves it) or `any`; the same on all nodes [default: members]
    #[arg(
        long,
        alias = "store_access",
        value_name = "WHO",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub store_access: Option<String>,

    /// Number of workers on this node: a number, `auto`, `cpu`, `gpu` or `xpu` [default: 1]
    #[arg(
        long,
        alias = "nproc_per_node",
        allow_negative_numbers = true,
        value_name = "N",
        help_heading = WORKERS
    )]
    pub nproc_per_node: Option<String>,
    /// Run SCRIPT as a program, without Python
    #[arg(long, alias = "no_python", help_heading = WORKERS)]
    pub no_python: bool,
    /// Run SCRIPT as a Python module, as `python -m` does
    #[arg(short, long, help_heading = WORKERS)]
    pub module: bool,
    /// Run SCRIPT inside the interpreter, as `runpy.run_path` does
    #[arg(long, alias = "run_path", help_heading = WORKERS, hide_short_help = true)]
    pub run_path: bool,
    /// Role of this node's workers [default: default]
    #[arg(long, value_name = "NAME", help_heading = WORKERS, hide_short_help = true)]
    pub role: Option<String>,
    /// Additional arguments and variables of workers: none (`torchrun`), rank and world size as
    /// arguments (`basic`), or those of DeepSpeed's launcher (`deepspeed`) [default: torchrun]
    #[arg(
        long,
        alias = "launch_method",
        value_name = "METHOD",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub launch_method: Option<String>,
    /// Rendezvous file of the workers with `basic`, a new one for each round, whose name begins
    /// with PATH; passed to them as --init_method
    #[arg(
        long,
        alias = "shared_file",
        value_name = "PATH|auto[:FOLDER]",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub shared_file: Option<String>,
    /// JSON file for `deepspeed`, passed to all workers as --deepspeed_config
    #[arg(
        long,
        alias = "deepspeed_config",
        value_name = "FILE",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub deepspeed_config: Option<String>,
    /// Folder of the job, passed to all workers as --save_path; `auto` creates one
    #[arg(
        long,
        alias = "save_path",
        value_name = "PATH|auto[:FOLDER]",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub save_path: Option<String>,
    /// File of the job, passed to all workers as --checkpoint_path; `auto` chooses a name
    #[arg(
        long,
        alias = "checkpoint_path",
        value_name = "PATH|auto[:FOLDER]",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub checkpoint_path: Option<String>,
    /// Signals on which this node stops its workers and leaves the job [default:
    /// SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(
        long,
        alias = "signals_to_handle",
        value_name = "NAME,…",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub signals_to_handle: Option<String>,
    /// Signals to forward to the workers while the job continues [default: none]
    #[arg(
        long,
        alias = "signals_to_forward",
        value_name = "NAME,…",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub signals_to_forward: Option<String>,
    /// Seconds for workers to end after a signal, before they are killed [default: 30]
    #[arg(
        long,
        alias = "shutdown_timeout",
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub shutdown_timeout: Option<String>,

    /// Folder for log files and error files of the workers [default: a temporary folder]
    #[arg(long, alias = "log_dir", value_name = "DIR", help_heading = OUTPUT)]
    pub log_dir: Option<String>,
    /// Streams to write to a file and, with a prefix, to the console; values as for --redirects
    /// [default: 0]
    #[arg(short, long, value_name = "N|RANK:N,…", help_heading = OUTPUT)]
    pub tee: Option<String>,
    /// Streams to write to a file: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:N,… [default: 0]
    #[arg(short, long, alias = "re", value_name = "N|RANK:N,…", help_heading = OUTPUT)]
    pub redirects: Option<String>,
    /// Prefix of the lines of --tee, in which ${role_name}, ${local_rank}, ${rank} and ${hostname}
    /// are replaced [default: [${role_name}${local_rank}]:]
    #[arg(
        long,
        alias = "log_line_prefix_template",
        value_name = "TEMPLATE",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub log_line_prefix_template: Option<String>,
    /// Print the prefix also before lines that go to the console only; set by `ragent launch`
    #[arg(long, hide = true, help_heading = OUTPUT)]
    pub mark_lines: bool,
    /// Print lines about rounds as group rank 0 only; used by `ragent launch`
    #[arg(long, hide = true)]
    pub first_node_lines: bool,
    /// Local ranks to show on the console [default: all]
    #[arg(
        long,
        alias = "local_ranks_filter",
        value_name = "RANK,…",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub local_ranks_filter: Option<String>,
    /// Copy lines of --tee's stdout that contain one of these texts to filtered_stdout.log; `,,` is
    /// a comma
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        allow_hyphen_values = true,
        value_name = "TEXT,…",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub duplicate_stdout_filters: Option<String>,
    /// Copy such lines of stderr to filtered_stderr.log
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        allow_hyphen_values = true,
        value_name = "TEXT,…",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub duplicate_stderr_filters: Option<String>,
    /// Not supported: plug-ins of torchrun that configure the output
    #[arg(long, alias = "logs_specs", hide = true, value_name = "NAME", help_heading = OUTPUT)]
    pub logs_specs: Option<String>,
    /// Destination of worker events, as lines of JSON: `null`, `console` (stderr) or `file:PATH`
    /// [default: null]
    #[arg(
        long,
        alias = "event_log_handler",
        value_name = "HANDLER",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub event_log_handler: Option<String>,
    /// File for the outcome of the job, as JSON
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, hide_short_help = true)]
    pub report: Option<String>,
    /// Format of log lines: `text` or `json` [default: text]
    #[arg(
        long,
        alias = "log_format",
        value_name = "FORMAT",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub log_format: Option<String>,

    /// Maximum number of failures after which a new round is started [default: 0]
    #[arg(
        long,
        alias = "max_restarts",
        allow_negative_numbers = true,
        value_name = "N",
        help_heading = FAILURES
    )]
    pub max_restarts: Option<String>,
    /// Seconds after which workers without progress are killed and count as failed: none of them
    /// writes, computes, or sends a heartbeat (WATCHDOG=1 to NOTIFY_SOCKET) [default: never]
    #[arg(
        long,
        alias = "hang_timeout",
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = FAILURES
    )]
    pub hang_timeout: Option<String>,
    /// Signal on which hung workers print their stacks, sent before they are killed, such as
    /// SIGQUIT with faulthandler [default: none]
    #[arg(
        long,
        alias = "hang_signal",
        value_name = "NAME",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub hang_signal: Option<String>,
    /// Exit codes of workers after which the job is closed as failed, without a restart
    #[arg(
        long,
        alias = "no_restart_exit_codes",
        value_name = "CODE,…",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub no_restart_exit_codes: Option<String>,
    /// Seconds to wait for GPUs that ended processes of the last round still hold; 0 does not wait
    /// [default: 30]
    #[arg(
        long,
        alias = "held_gpu_timeout",
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub held_gpu_timeout: Option<String>,

    /// Bind each worker to processors near its accelerator: `node`, `socket`, `exclusive` or
    /// `core-complex`
    #[arg(
        long,
        alias = "numa_binding",
        value_name = "MODE",
        help_heading = PLACEMENT,
        hide_short_help = true
    )]
    pub numa_binding: Option<String>,
    /// Make only its own accelerator visible to each worker, with local rank 0
    #[arg(
        long,
        alias = "virtual_local_rank",
        help_heading = PLACEMENT,
        hide_short_help = true
    )]
    pub virtual_local_rank: bool,

    /// Accepted for compatibility with torchrun; ragent does not poll
    #[arg(
        long,
        alias = "monitor_interval",
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = OTHER,
        hide_short_help = true
    )]
    pub monitor_interval: Option<String>,
    /// Accepted for compatibility with torchrun; workers are always started as new processes
    #[arg(
        long,
        alias = "start_method",
        value_name = "METHOD",
        help_heading = OTHER,
        hide_short_help = true
    )]
    pub start_method: Option<String>,
    /// Print a completion script for `bash`, `zsh` or `fish`, and exit
    #[arg(long, value_name = "SHELL", help_heading = OTHER, hide_short_help = true)]
    pub print_completion: Option<String>,
    /// Training script
    #[arg(value_name = "SCRIPT")]
    pub script: Option<OsString>,
    /// Arguments of the script, passed unchanged
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// The headings in the help for the flags of a launch.
const NODES: &str = "Nodes and rendezvous";
const WORKERS: &str = "Workers";
const OUTPUT: &str = "Output";
const FAILURES: &str = "Failures";
const PLACEMENT: &str = "Placement";
const OTHER: &str = "Other";

/// Flags of `ragent coordinator`.
#[derive(Args, Clone, Debug)]
pub struct CoordinatorArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "::")]
    pub host: String,
    /// Port to listen on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 29400)]
    pub port: u16,
    /// Name of the job
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none")]
    pub rdzv_id: String,
}

/// Flags of `ragent doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Endpoint of the job, as given to its agents [default: check this machine only]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Let the nodes of the running job measure the connections between them
    #[arg(long)]
    pub peers: bool,
    /// Number of workers on this node, as for a launch [default: one for each GPU]
    #[arg(long, alias = "nproc_per_node", allow_negative_numbers = true, value_name = "N")]
    pub nproc_per_node: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ragent launch`; those of the job go to the agents as they are.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "ragent launch --hostfile FILE [OPTIONS] SCRIPT [ARGS]...",
    after_help = "Use --help for all flags.",
    after_long_help = "Without --nnodes, the job needs all hosts. Without --rdzv-endpoint, the \
                       first host coordinates the job. Without --rdzv-id, the job gets a unique \
                       name. The lines of workers begin with host and rank, unless -t, -r or a \
                       template changes that.",
    // What holds for a single node does not hold for a list of hosts.
    mut_arg("nnodes", |arg| arg.help(
        "Number of nodes: N, or MIN:MAX for an elastic job, or MIN:MAX:UNIT for a number that is \
         always a multiple of UNIT [default: all hosts]"
    )),
    mut_arg("rdzv_endpoint", |arg| arg.help(
        "Address of the coordinator; with `auto`, nodes find each other on the local network by \
         the name of the job [default: the first host that is reached]"
    )),
    mut_arg("rdzv_id", |arg| arg.help(
        "Name of the job, the same on all of its nodes [default: a unique name]"
    )),
    mut_arg("master_addr", |arg| arg.help(
        "Address of node 0, for `static` [default: the first host that is reached]"
    )),
    mut_arg("nproc_per_node", |arg| arg.help(
        "Number of workers on each host: a number, `auto`, `cpu`, `gpu` or `xpu` [default: its \
         number of slots, else 1]"
    )),
    // Each host gets its own rank, and completion scripts are those of `ragent`.
    mut_arg("node_rank", |arg| arg.hide(true)),
    mut_arg("print_completion", |arg| arg.hide(true)),
)]
pub struct LaunchOverSshArgs {
    /// List of hosts, one per line: `node1`, `node1:8`, `me@node1 slots=8`; slots are the number of
    /// workers if --nproc-per-node is not given
    #[arg(long, value_name = "FILE", help_heading = OVER_SSH)]
    pub hostfile: String,
    /// Use only these hosts: node1,node[3-5], or node1:0,2@node2 for accelerators of a host
    #[arg(long, value_name = "HOST,…", help_heading = OVER_SSH)]
    pub include: Option<String>,
    /// Leave out these hosts, or accelerators of a host
    #[arg(long, value_name = "HOST,…", help_heading = OVER_SSH)]
    pub exclude: Option<String>,
    /// Set a variable on all hosts, to this value or the value on this host; may be repeated
    #[arg(short = 'x', value_name = "NAME[=VALUE]", help_heading = OVER_SSH)]
    pub export: Vec<String>,
    /// Set the variables of a file on all hosts, one NAME=VALUE per line; may be repeated
    #[arg(
        long,
        alias = "env_file",
        value_name = "FILE",
        help_heading = OVER_SSH,
        hide_short_help = true
    )]
    pub env_file: Vec<String>,
    /// Working folder of the agents [default: the current folder]
    #[arg(long, value_name = "DIR", help_heading = OVER_SSH, hide_short_help = true)]
    pub chdir: Option<std::path::PathBuf>,
    /// Path of ragent on the other hosts [default: the path of this program]
    #[arg(
        long,
        alias = "remote_ragent",
        value_name = "PATH",
        help_heading = OVER_SSH,
        hide_short_help = true
    )]
    pub remote_ragent: Option<String>,
    /// ssh command with options, such as 'ssh -F conf -p 2222' [default: ssh]
    #[arg(
        long,
        allow_hyphen_values = true,
        value_name = "WORDS",
        help_heading = OVER_SSH,
        hide_short_help = true
    )]
    pub ssh: Option<String>,
    /// Maximum number of connections from one host; with more hosts, these connect to further hosts
    /// [default: 32]
    #[arg(long, value_name = "N", help_heading = OVER_SSH, hide_short_help = true)]
    pub fanout: Option<String>,
    /// Timeout of a connection in seconds [default: 10]
    #[arg(
        long,
        alias = "connect_timeout",
        value_name = "SECONDS",
        help_heading = OVER_SSH,
        hide_short_help = true
    )]
    pub connect_timeout: Option<String>,
    /// Print the commands for each host, and start nothing
    #[arg(long, alias = "dry_run", help_heading = OVER_SSH)]
    pub dry_run: bool,
    /// The job.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// The flags of the job that were given, as they are passed to agents.
    #[arg(skip)]
    pub passed: Vec<OsString>,
}

/// The heading in the help for the flags of `ragent launch` that are not flags of the job.
const OVER_SSH: &str = "Hosts";

/// Flags of `ragent rank`.
#[derive(Args, Clone, Debug)]
pub struct RankArgs {
    /// Address of rank 0 [default: MASTER_ADDR, else the address that the launcher provides]
    #[arg(long, alias = "master_addr", value_name = "ADDR")]
    pub master_addr: Option<String>,
    /// Port of rank 0 [default: MASTER_PORT, else a port derived from the job's name]
    #[arg(long, alias = "master_port", allow_negative_numbers = true, value_name = "PORT")]
    pub master_port: Option<String>,
    /// Program and its arguments
    // Their beginning is marked before clap parses them, so that a mistyped flag is not taken for
    // the program.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Flags of `ragent status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Endpoint of the job or of one of its agents [default: the running job of this user]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ragent store`.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// Address to listen on; `::` accepts connections from all hosts that can reach this one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    pub port: u16,
    /// End when the parent process ends
    #[arg(long, alias = "exit_with_parent")]
    pub exit_with_parent: bool,
}

#[cfg(test)]
mod tests;
