//! Defines the flags of a launch: `ragent SCRIPT`.

use clap::Args;

use super::{
    auth::AuthArgs,
    job::{FAILURES, JobArgs, NODES, OTHER, OUTPUT, PLACEMENT, WORKERS},
    program_name::ProgramName,
};

/// Flags for launching. Flags that most jobs do not need are listed by `--help` only, not by `-h`.
#[derive(Args, Clone, Debug, Default)]
pub struct LaunchArgs {
    /// The name by which the program was called.
    #[arg(skip)]
    pub name: ProgramName,
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Host at which the nodes of the job meet, such as node0 or node0:29400, the same on all nodes. The first coordinator runs there. If
    /// you list 3 or 5 hosts, such as node0,node1,node2, they elect it. With `auto`, nodes find each other on the local network by the name
    /// of the job. With `etcd`, list its members [default: localhost:29400]
    #[arg(long, value_name = "HOST[:PORT][,…]|auto[:PORT]", help_heading = NODES)]
    pub rdzv_endpoint: Option<String>,
    /// Name of the job, the same on all of its nodes [default: none]
    #[arg(long, value_name = "ID", help_heading = NODES)]
    pub rdzv_id: Option<String>,
    /// Run the job on this node alone, with a free port of the loopback interface
    // torchrun accepts these abbreviations, which `--standby` would make ambiguous.
    #[arg(long, aliases = ["stan", "stand"], help_heading = NODES)]
    pub standalone: bool,
    /// Rendezvous backend: `c10d`, `static` with fixed ranks, or `etcd` [default: static if --node-rank,
    /// --master-addr or --master-port is given, else c10d]
    #[arg(long, value_name = "NAME", help_heading = NODES, hide_short_help = true)]
    pub rdzv_backend: Option<String>,
    /// Further settings of the rendezvous, such as join_timeout=600,join_settle=3
    #[arg(long, value_name = "KEY=VALUE,…", help_heading = NODES, hide_short_help = true)]
    pub rdzv_conf: Option<String>,
    /// Rank of this node. With `static` it is fixed, and node 0 hosts the job. With `c10d` it is the preferred position among new nodes
    /// [default: 0]
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub node_rank: Option<String>,
    /// Address of node 0, for `static` [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR", help_heading = NODES, hide_short_help = true)]
    pub master_addr: Option<String>,
    /// Port of node 0, for `static` [default: 29500]
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "PORT",
        help_heading = NODES,
        hide_short_help = true
    )]
    pub master_port: Option<String>,
    /// Address at which the other nodes reach this one [default: the address from which this node
    /// reaches the endpoint]
    #[arg(long, value_name = "ADDR", help_heading = NODES, hide_short_help = true)]
    pub local_addr: Option<String>,
    /// Hosts to ask for the other agents, in addition to the local network. For --rdzv-endpoint auto
    #[arg(long, value_name = "HOST[:PORT],…", help_heading = NODES, hide_short_help = true)]
    pub discover_hosts: Option<String>,
    /// Clients that may connect to the workers' store, the same on all nodes. `members` admits the addresses of the job's nodes, and only
    /// your user on the node that serves it. `any` admits all [default: members]
    #[arg(long, value_name = "WHO", help_heading = NODES, hide_short_help = true)]
    pub store_access: Option<String>,
    /// Run SCRIPT inside the interpreter, as `runpy.run_path` does
    #[arg(long, help_heading = WORKERS, hide_short_help = true)]
    pub run_path: bool,
    /// Role of this node's workers [default: default]
    #[arg(long, value_name = "NAME", help_heading = WORKERS, hide_short_help = true)]
    pub role: Option<String>,
    /// Signals on which this node stops its workers and leaves the job [default:
    /// SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, value_name = "NAME,…", help_heading = WORKERS, hide_short_help = true)]
    pub signals_to_handle: Option<String>,
    /// Signals to forward to the workers while the job continues [default: none]
    #[arg(long, value_name = "NAME,…", help_heading = WORKERS, hide_short_help = true)]
    pub signals_to_forward: Option<String>,
    /// Processes of a worker that get its signals: `main` (its main process, so that its data
    /// loaders live until it has saved), `group` (all of its group at once, as torchrun does) or
    /// `auto` (`main` if that is Python, else `group`) [default: auto; under the name torchrun: group]
    #[arg(long, value_name = "WHO", help_heading = WORKERS, hide_short_help = true)]
    pub signal_workers: Option<String>,
    /// Folder for log files and error files of the workers [default: a temporary folder]
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub log_dir: Option<String>,
    /// Streams to write to a file and also to the console, with a prefix. Values are those of --redirects [default: 0]
    #[arg(short, long, alias = "t", value_name = "N|RANK:N,…", help_heading = OUTPUT)]
    pub tee: Option<String>,
    /// Streams to write to a file, not to the console: 0 none, 1 stdout, 2 stderr, 3 both. By local rank: 0:3,1:2 [default: 0]
    #[arg(short, long, alias = "re", value_name = "N|RANK:N,…", help_heading = OUTPUT)]
    pub redirects: Option<String>,
    /// Prefix of the lines of --tee, with ${role_name}, ${local_rank}, ${rank} and ${hostname} replaced [default:
    /// [${role_name}${local_rank}]:]
    #[arg(long, value_name = "TEMPLATE", help_heading = OUTPUT, hide_short_help = true)]
    pub log_line_prefix_template: Option<String>,
    /// Print the prefix also before lines that go to the console only; set by `ragent launch`
    #[arg(long, hide = true, help_heading = OUTPUT)]
    pub mark_lines: bool,
    /// Print lines about rounds as group rank 0 only; used by `ragent launch`
    #[arg(long, hide = true)]
    pub first_node_lines: bool,
    /// No agent was started under this `--rdzv-id` before; used by `ragent launch`
    #[arg(long, hide = true)]
    pub first_start: bool,
    /// Local ranks to show on the console [default: all]
    #[arg(long, value_name = "RANK,…", help_heading = OUTPUT, hide_short_help = true)]
    pub local_ranks_filter: Option<String>,
    /// Global ranks to show on the console, such as 0 or 0,8-15. Files have all of them [default: all]
    #[arg(long, value_name = "RANKS", help_heading = OUTPUT, hide_short_help = true)]
    pub ranks_filter: Option<String>,
    /// Copy stdout lines of --tee that contain one of these texts to filtered_stdout.log. Write `,,` for a comma
    #[arg(
        long,
        allow_hyphen_values = true,
        value_name = "TEXT,…",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub duplicate_stdout_filters: Option<String>,
    /// The same for stderr, to filtered_stderr.log
    #[arg(
        long,
        allow_hyphen_values = true,
        value_name = "TEXT,…",
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub duplicate_stderr_filters: Option<String>,
    /// Not supported: plug-ins of torchrun that configure the output
    #[arg(long, hide = true, value_name = "NAME", help_heading = OUTPUT)]
    pub logs_specs: Option<String>,
    /// Destination of worker events, as lines of JSON: `null` or `console` (stderr) [default: null]
    #[arg(long, value_name = "HANDLER", help_heading = OUTPUT, hide_short_help = true)]
    pub event_log_handler: Option<String>,
    /// Append the events of the job to this file while this agent coordinates it, one JSON object a line
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, hide_short_help = true)]
    pub journal: Option<String>,
    /// Write the outcome of the job to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, hide_short_help = true)]
    pub report: Option<String>,
    /// Also serve the metrics for Prometheus at this address, such as 0.0.0.0:9400. Every client that reaches it can read them without
    /// authentication. Port 0 selects a free port [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = OUTPUT, hide_short_help = true)]
    pub metrics_listen: Option<String>,
    /// Training step in the workers' captured output, for `ragent status`. `auto` knows the formats of common frameworks, `off` reads
    /// nothing. A regular expression has a group such as `(?<step>\d+)`, and optionally `(?<steps>\d+)` [default: auto]
    #[arg(
        long,
        value_name = "auto|off|PATTERN",
        allow_hyphen_values = true,
        help_heading = OUTPUT,
        hide_short_help = true
    )]
    pub progress: Option<String>,
    /// Format of log lines: `text` or `json` [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = OUTPUT, hide_short_help = true)]
    pub log_format: Option<String>,
    /// Seconds without progress after which workers are killed and count as failed. Workers make progress while one of them writes,
    /// computes or sends a heartbeat (WATCHDOG=1 to NOTIFY_SOCKET). Or `auto`: the coordinator decides it by the steps of the job
    /// [default: never]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", help_heading = FAILURES)]
    pub hang_timeout: Option<String>,
    /// Signal to hung workers before they are killed, on which they print their stacks. For example SIGQUIT with faulthandler [default:
    /// none]
    #[arg(long, value_name = "NAME", help_heading = FAILURES, hide_short_help = true)]
    pub hang_signal: Option<String>,
    /// Exit codes of workers after which the job fails without a restart, such as 3,42
    #[arg(long, value_name = "CODE,…", help_heading = FAILURES, hide_short_help = true)]
    pub no_restart_exit_codes: Option<String>,
    /// Signals to this agent that are notices: SIGUSR1 or SIGUSR1=end if the job ends, SIGUSR1=leave if this node leaves, SIGUSR1=save if
    /// only a checkpoint is wanted [default: none]
    #[arg(long, value_name = "SIGNAL[=KIND],…", help_heading = FAILURES, hide_short_help = true)]
    pub notice_on: Option<String>,
    /// Program that prints a line for each notice: `leave 120 spot`, `end 60 time limit` or `save 0 rebalance` [default: none]
    #[arg(long, value_name = "COMMAND", help_heading = FAILURES, hide_short_help = true)]
    pub notice_command: Option<String>,
    /// What is watched to find a bad machine: a list of gpu, nic (network ports) and disk (folders), or off [default: gpu,nic,disk]
    #[arg(long, value_name = "LIST", help_heading = FAILURES, hide_short_help = true)]
    pub health: Option<String>,
    /// Program that checks this machine before workers start. Its exit code: 0 if the machine is healthy, 75 if there is no result now, any
    /// other if the machine must not be used [default: none]
    #[arg(long, value_name = "COMMAND", help_heading = FAILURES, hide_short_help = true)]
    pub health_check: Option<String>,
    /// Seconds after which the program of `--health-check` is killed, and the machine counts as unhealthy [default: 60]
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub health_timeout: Option<String>,
    /// Program that prints the hosts that the job must not use, one on each line, followed by the reason. It runs every minute on the node
    /// that coordinates, so give it to all nodes [default: none]
    #[arg(long, value_name = "COMMAND", help_heading = FAILURES, hide_short_help = true)]
    pub exclude_command: Option<String>,
    /// Failures in a row without a new training step after which the job is closed, from 2 to 8, the same on all nodes. 0: it is not closed.
    /// Only for scripts that report steps [default: 3; under the name torchrun: 0]
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub no_progress_limit: Option<String>,
    /// Most memory on this node for checkpoints that scripts save by `ragent.checkpoint`, such as 200GiB. 0: no node of the job keeps any
    /// [default: a third of the memory]
    #[arg(long, value_name = "SIZE", help_heading = FAILURES, hide_short_help = true)]
    pub memory_limit: Option<String>,
    /// Copies of the checkpoints in memory on another node, 0 or 1, the same on all nodes [default: 1]
    #[arg(long, value_name = "0|1", help_heading = FAILURES, hide_short_help = true)]
    pub memory_copies: Option<String>,
    /// Name of what this node is lost with, such as its rack. Copies of its checkpoints are kept elsewhere [default: $NODE_NAME, or the host]
    #[arg(long, value_name = "NAME", help_heading = FAILURES, hide_short_help = true)]
    pub failure_domain: Option<String>,
    /// Seconds to wait for GPUs that ended processes of the last round still hold. 0 does not wait [default: 30]
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub held_gpu_timeout: Option<String>,
    /// Keep an interpreter for each worker that has imported MODULES and waits. The next round starts from it, without the import. Without
    /// a value: torch,torch._dynamo [default: none]
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_name = "MODULES",
        help_heading = FAILURES,
        hide_short_help = true
    )]
    pub standby: Option<String>,
    /// Start torch's worker server in workers that start from standbys. The agent then sees their collectives if the job stands still. Only
    /// with --standby
    #[arg(long, help_heading = FAILURES, hide_short_help = true)]
    pub observe: bool,
    /// The authentication of the job.
    #[command(flatten)]
    pub auth: AuthArgs,
    /// Bind each worker to processors near its accelerator: `node`, `socket`, `exclusive` or `core-complex`
    #[arg(long, value_name = "MODE", help_heading = PLACEMENT, hide_short_help = true)]
    pub numa_binding: Option<String>,
    /// Show each worker only its own accelerator, with local rank 0
    #[arg(long, help_heading = PLACEMENT, hide_short_help = true)]
    pub virtual_local_rank: bool,
    /// No effect, since ragent does not poll. Accepted for compatibility with torchrun
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = OTHER,
        hide_short_help = true
    )]
    pub monitor_interval: Option<String>,
    /// No effect, since workers are always new processes. Accepted for compatibility with torchrun
    #[arg(long, value_name = "METHOD", help_heading = OTHER, hide_short_help = true)]
    pub start_method: Option<String>,
    /// Print a completion script for `bash`, `zsh` or `fish`, and exit
    #[arg(long, value_name = "SHELL", help_heading = OTHER, hide_short_help = true)]
    pub print_completion: Option<String>,
}
