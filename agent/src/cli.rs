//! The command line: subcommands and flags, with torchrun's names in both of its spellings.
//!
//! Values are neither checked nor replaced by defaults here; `job_spec` interprets them.

mod k8s;
mod passed;
mod words;

use std::ffi::OsString;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::k8s::{K8sArgs, ManifestArgs, ManifestTarget};

/// Starts, watches and re-forms distributed training jobs; use it in place of torchrun.
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
    after_help = "Every flag has an underscore spelling too (--nproc_per_node) and, where it is \
                  absent, is read from PET_<NAME> (PET_NPROC_PER_NODE). Logs go to stderr; \
                  RAGENT_LOG sets their level."
)]
pub struct Cli {
    /// Another thing to do than launching; only as the first word.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What to launch.
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
        let matches = command.try_get_matches_from_mut(words)?;
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

/// What else the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hosts the endpoint of one job alone, without workers, until SIGTERM.
    Coordinator(CoordinatorArgs),
    /// Looks for what usually goes wrong on this node, and between the nodes of a job.
    Doctor(DoctorArgs),
    /// Starts an agent on every host of a list, over ssh, and shows what all of them say.
    Launch(Box<LaunchOverSshArgs>),
    /// Prints what another system is to be told to run a job.
    Manifest(ManifestArgs),
    /// Becomes one rank's program, under mpirun or srun that start every rank: sets PyTorch's variables
    /// from the launcher's.
    Rank(RankArgs),
    /// Says how a job stands: round, members, ranks, who waits, and what for.
    Status(StatusArgs),
    /// Serves a TCPStore alone, in the foreground, until SIGTERM.
    Store(StoreArgs),
    /// The process that holds the workers of one agent.
    #[command(name = "__keeper", hide = true)]
    Keeper,
    /// The process that starts the agent of one host for `ragent launch`.
    #[command(name = "__relay", hide = true)]
    Relay,
}

/// Flags for launching.
#[derive(Args, Clone, Debug, Default)]
pub struct LaunchArgs {
    /// Nodes of the job: N, or MIN:MAX for an elastic one, or MIN:MAX:UNIT for one whose size is
    /// always a multiple of UNIT [default: 1]
    #[arg(long, value_name = "N|MIN:MAX[:UNIT]")]
    pub nnodes: Option<String>,
    /// Workers on this node: a number, `auto`, `cpu`, `gpu` or `xpu` [default: 1]
    #[arg(long, alias = "nproc_per_node", allow_negative_numbers = true, value_name = "N")]
    pub nproc_per_node: Option<String>,
    /// How nodes find each other: `c10d`, or `static` with fixed ranks [default: static where
    /// --node-rank, --master-addr or --master-port is given, else c10d]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME")]
    pub rdzv_backend: Option<String>,
    /// Where the job is coordinated; the node that owns the address hosts it; with `auto` nodes find
    /// each other on the local network by the job's name [default: localhost:29400]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Hosts that are asked for the job's other agents beside the local network, with
    /// --rdzv-endpoint auto
    #[arg(long, alias = "discover_hosts", value_name = "HOST[:PORT],…")]
    pub discover_hosts: Option<String>,
    /// Name of the job; all its nodes must give the same [default: none]
    #[arg(long, alias = "rdzv_id", value_name = "ID")]
    pub rdzv_id: Option<String>,
    /// Further settings of the rendezvous, such as join_timeout=600,join_settle=3
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,…")]
    pub rdzv_conf: Option<String>,
    /// One node, on loopback, on a free port
    #[arg(long)]
    pub standalone: bool,
    /// Failures of the job that are followed by a new round [default: 0]
    #[arg(long, alias = "max_restarts", allow_negative_numbers = true, value_name = "N")]
    pub max_restarts: Option<String>,
    /// Exit codes of workers after which the job is not restarted, but closed as failed
    #[arg(long, alias = "no_restart_exit_codes", value_name = "CODE,…")]
    pub no_restart_exit_codes: Option<String>,
    /// Seconds after which workers that make no progress are killed, as if one had failed: none of
    /// them writes, computes, or sends a heartbeat (WATCHDOG=1 to NOTIFY_SOCKET) [default: never]
    #[arg(long, alias = "hang_timeout", allow_negative_numbers = true, value_name = "SECONDS")]
    pub hang_timeout: Option<String>,
    /// Signal on which hung workers print where they are, such as SIGQUIT with faulthandler; they get
    /// it before they are killed [default: none]
    #[arg(long, alias = "hang_signal", value_name = "NAME")]
    pub hang_signal: Option<String>,
    /// Accepted for torchrun's sake; nothing is polled
    #[arg(long, alias = "monitor_interval", allow_negative_numbers = true, value_name = "SECONDS")]
    pub monitor_interval: Option<String>,
    /// Role of this node's workers [default: default]
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,
    /// The script is a Python module, run as with `python -m`
    #[arg(short, long)]
    pub module: bool,
    /// The script is a program of its own, run without Python
    #[arg(long, alias = "no_python")]
    pub no_python: bool,
    /// The script is run inside the interpreter, as `runpy.run_path` does
    #[arg(long, alias = "run_path")]
    pub run_path: bool,
    /// Accepted for torchrun's sake; workers are always started afresh
    #[arg(long, alias = "start_method", value_name = "METHOD")]
    pub start_method: Option<String>,
    /// Folder for the workers' logs and error files [default: a temporary one]
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    pub log_dir: Option<String>,
    /// Streams that go to a file: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:N,… [default: 0]
    #[arg(short, long, alias = "re", value_name = "N|RANK:N,…")]
    pub redirects: Option<String>,
    /// Streams that go to a file and, with a prefix, to the console; as --redirects [default: 0]
    #[arg(short, long, value_name = "N|RANK:N,…")]
    pub tee: Option<String>,
    /// What lines of --tee begin with; ${role_name}, ${local_rank}, ${rank} and ${hostname} are
    /// replaced [default: [${role_name}${local_rank}]:]
    #[arg(long, alias = "log_line_prefix_template", value_name = "TEMPLATE")]
    pub log_line_prefix_template: Option<String>,
    /// Lines that go to the console alone begin with the prefix too; `ragent launch` asks for it
    #[arg(long, hide = true)]
    pub mark_lines: bool,
    /// Lines about rounds are printed by group rank 0 only; `ragent launch` asks for it
    #[arg(long, hide = true)]
    pub first_node_lines: bool,
    /// Local ranks whose output is shown on the console [default: all]
    #[arg(long, alias = "local_ranks_filter", value_name = "RANK,…")]
    pub local_ranks_filter: Option<String>,
    /// Copies lines of --tee's stdout that contain one of these to filtered_stdout.log; `,,` is a
    /// comma
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        allow_hyphen_values = true,
        value_name = "TEXT,…"
    )]
    pub duplicate_stdout_filters: Option<String>,
    /// The same of stderr, to filtered_stderr.log
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        allow_hyphen_values = true,
        value_name = "TEXT,…"
    )]
    pub duplicate_stderr_filters: Option<String>,
    /// Not supported: plug-ins of torchrun that decide where output goes
    #[arg(long, alias = "logs_specs", hide = true, value_name = "NAME")]
    pub logs_specs: Option<String>,
    /// Where events of the workers go, as lines of JSON: `null`, `console` (stderr) or `file:PATH`
    /// [default: null]
    #[arg(long, alias = "event_log_handler", value_name = "HANDLER")]
    pub event_log_handler: Option<String>,
    /// File that is told how the job ended, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<String>,
    /// Address at which the other nodes reach this one [default: the one that reaches the endpoint]
    #[arg(long, alias = "local_addr", value_name = "ADDR")]
    pub local_addr: Option<String>,
    /// Who may connect to the workers' store: `members` (addresses of the job's nodes, and this user
    /// on the node that serves it) or `any`; all nodes must give the same [default: members]
    #[arg(long, alias = "store_access", value_name = "WHO")]
    pub store_access: Option<String>,
    /// Rank of this node with `static`, where 0 hosts the job; with `c10d`, where it would like to
    /// stand among newcomers [default: 0]
    #[arg(long, alias = "node_rank", allow_negative_numbers = true, value_name = "N")]
    pub node_rank: Option<String>,
    /// Address of the node with rank 0, for `static` [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "ADDR")]
    pub master_addr: Option<String>,
    /// Port of the node with rank 0, for `static` [default: 29500]
    #[arg(long, alias = "master_port", allow_negative_numbers = true, value_name = "PORT")]
    pub master_port: Option<String>,
    /// Binds each worker to processors near its accelerator: `node`, `socket`, `exclusive` or
    /// `core-complex`
    #[arg(long, alias = "numa_binding", value_name = "MODE")]
    pub numa_binding: Option<String>,
    /// Every worker sees its own accelerator only, and has the local rank 0
    #[arg(long, alias = "virtual_local_rank")]
    pub virtual_local_rank: bool,
    /// Signals on which workers are told to end, and this node leaves [default:
    /// SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAME,…")]
    pub signals_to_handle: Option<String>,
    /// Seconds that workers have to end after a signal [default: 30]
    #[arg(long, alias = "shutdown_timeout", allow_negative_numbers = true, value_name = "SECONDS")]
    pub shutdown_timeout: Option<String>,
    /// Signals that are passed on to the workers, while everything goes on [default: none]
    #[arg(long, alias = "signals_to_forward", value_name = "NAME,…")]
    pub signals_to_forward: Option<String>,
    /// Seconds to wait for GPUs that processes of the round before hold still; 0 does not wait
    /// [default: 30]
    #[arg(long, alias = "held_gpu_timeout", allow_negative_numbers = true, value_name = "SECONDS")]
    pub held_gpu_timeout: Option<String>,
    /// What workers are told beside their environment: nothing (`torchrun`), their rank and the world
    /// size (`basic`), or what DeepSpeed's launcher tells them (`deepspeed`) [default: torchrun]
    #[arg(long, alias = "launch_method", value_name = "METHOD")]
    pub launch_method: Option<String>,
    /// With `basic`: workers meet by a file, a fresh one each round, whose name begins with PATH; passed
    /// to them as --init_method
    #[arg(long, alias = "shared_file", value_name = "PATH|auto[:FOLDER]")]
    pub shared_file: Option<String>,
    /// With `deepspeed`: a file of JSON, passed to all workers as --deepspeed_config
    #[arg(long, alias = "deepspeed_config", value_name = "FILE")]
    pub deepspeed_config: Option<String>,
    /// A folder of the job, passed to all workers as --save_path; `auto` makes one
    #[arg(long, alias = "save_path", value_name = "PATH|auto[:FOLDER]")]
    pub save_path: Option<String>,
    /// A file of the job, passed to all workers as --checkpoint_path; `auto` names one
    #[arg(long, alias = "checkpoint_path", value_name = "PATH|auto[:FOLDER]")]
    pub checkpoint_path: Option<String>,
    /// How log lines look: `text` or `json` [default: text]
    #[arg(long, alias = "log_format", value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Prints a completion script for `bash`, `zsh` or `fish`, and does nothing else
    #[arg(long, value_name = "SHELL")]
    pub print_completion: Option<String>,
    /// The training script
    #[arg(value_name = "SCRIPT")]
    pub script: Option<OsString>,
    /// Its arguments, passed through untouched
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Flags of `ragent coordinator`.
#[derive(Args, Clone, Debug)]
pub struct CoordinatorArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "::")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 29400)]
    pub port: u16,
    /// Name of the job that is coordinated
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "none")]
    pub rdzv_id: String,
}

/// Flags of `ragent doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// The job's endpoint, as its agents are given it [default: only this machine is looked at]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Lets the nodes of the job that runs there measure how they reach each other
    #[arg(long)]
    pub peers: bool,
    /// Workers that this node is to have, as for a launch [default: one for each GPU]
    #[arg(long, alias = "nproc_per_node", allow_negative_numbers = true, value_name = "N")]
    pub nproc_per_node: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ragent launch`; those of the job go to the agents as they are.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "ragent launch --hostfile FILE [OPTIONS] SCRIPT [ARGS]...",
    after_help = "Without --nnodes all hosts must take part; without --rdzv-endpoint the first of them \
                  coordinates the job; without --rdzv-id it gets a name of its own. Workers' lines begin \
                  with host and rank unless -t, -r or a template says otherwise."
)]
pub struct LaunchOverSshArgs {
    /// The hosts, one a line: `node1`, `node1:8`, `me@node1 slots=8`. Slots are workers, where
    /// --nproc-per-node is absent
    #[arg(long, value_name = "FILE", help_heading = OVER_SSH)]
    pub hostfile: String,
    /// Takes these hosts only: node1,node[3-5], or node1:0,2@node2 for accelerators of a host
    #[arg(long, value_name = "HOST,…", help_heading = OVER_SSH)]
    pub include: Option<String>,
    /// Leaves these hosts, or accelerators of a host, out
    #[arg(long, value_name = "HOST,…", help_heading = OVER_SSH)]
    pub exclude: Option<String>,
    /// Gives all hosts a variable, with its value here or this one; may be given several times
    #[arg(short = 'x', value_name = "NAME[=VALUE]", help_heading = OVER_SSH)]
    pub export: Vec<String>,
    /// Gives all hosts the variables of a file: NAME=VALUE a line; may be given several times
    #[arg(long, alias = "env_file", value_name = "FILE", help_heading = OVER_SSH)]
    pub env_file: Vec<String>,
    /// Folder in which agents run [default: this one]
    #[arg(long, value_name = "DIR", help_heading = OVER_SSH)]
    pub chdir: Option<std::path::PathBuf>,
    /// ragent on the other hosts [default: the path of this one]
    #[arg(long, alias = "remote_ragent", value_name = "PATH", help_heading = OVER_SSH)]
    pub remote_ragent: Option<String>,
    /// ssh, with options of your own, such as 'ssh -F conf -p 2222' [default: ssh]
    #[arg(long, allow_hyphen_values = true, value_name = "WORDS", help_heading = OVER_SSH)]
    pub ssh: Option<String>,
    /// Connections that one host opens; with more hosts than that, hosts reach others [default: 32]
    #[arg(long, value_name = "N", help_heading = OVER_SSH)]
    pub fanout: Option<String>,
    /// Seconds that a connection may take [default: 10]
    #[arg(long, alias = "connect_timeout", value_name = "SECONDS", help_heading = OVER_SSH)]
    pub connect_timeout: Option<String>,
    /// Prints what would run where, and starts nothing
    #[arg(long, alias = "dry_run", help_heading = OVER_SSH)]
    pub dry_run: bool,
    /// The job.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// The flags of the job that were typed, as agents are given them.
    #[arg(skip)]
    pub passed: Vec<OsString>,
}

/// The heading in the help for the flags of `ragent launch` that are not flags of the job.
const OVER_SSH: &str = "Hosts";

/// Flags of `ragent rank`.
#[derive(Args, Clone, Debug)]
pub struct RankArgs {
    /// Address of rank 0 [default: MASTER_ADDR, else what the launcher says]
    #[arg(long, alias = "master_addr", value_name = "ADDR")]
    pub master_addr: Option<String>,
    /// Port of rank 0 [default: MASTER_PORT, else one that follows from the job's name]
    #[arg(long, alias = "master_port", allow_negative_numbers = true, value_name = "PORT")]
    pub master_port: Option<String>,
    /// The program, and its arguments
    // Their beginning is marked before clap parses them, so that a mistyped flag is not taken for
    // the program.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Flags of `ragent status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// The job's endpoint, or any of its agents [default: this user's running job]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]|auto[:PORT]")]
    pub rdzv_endpoint: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ragent store`.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// Address to listen on; `::` takes connections from other hosts, too, and from all who can reach it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    pub port: u16,
    /// Ends when the process that started it does
    #[arg(long, alias = "exit_with_parent")]
    pub exit_with_parent: bool,
}
