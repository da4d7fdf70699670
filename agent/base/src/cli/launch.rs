//! The flags of `ragent launch`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, Args};

use super::LaunchArgs;

/// Flags of `ragent launch`; those of the job go to the agents as they are.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "ragent launch --hostfile FILE [OPTIONS] SCRIPT [ARGS]...",
    after_help = "Use --help for all flags.",
    after_long_help = "Without --nnodes, the job needs all hosts. Without --rdzv-endpoint, the \
                       first host coordinates the job, and the loss of that host ends it; with \
                       --rdzv-conf voters=3, three of the hosts elect the coordinator, and any one \
                       host may be lost except this one, which starts the job: its loss ends all \
                       agents. Without --rdzv-id, the job gets a unique name. The lines of workers begin with host and rank, unless -t, -r or a \
                       template changes that.",
    mut_args(for_hosts)
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
    pub chdir: Option<PathBuf>,
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
    pub forwarded_flags: Vec<OsString>,
}

/// The heading in the help for the flags of `ragent launch` that are not flags of the job.
const OVER_SSH: &str = "Hosts";

/// Corrects the help of flags of a job for a list of hosts.
fn for_hosts(arg: Arg) -> Arg {
    let help = match arg.get_id().as_str() {
        // Each host gets its own rank, and completion scripts are those of `ragent`.
        "node_rank" | "print_completion" => return arg.hide(true),
        "master_addr" => {
            "Address of node 0, for `static` [default: the first host that is reached]"
        }
        "nnodes" => {
            "Number of nodes: N, or MIN:MAX for an elastic job, or MIN:MAX:UNIT for a number that \
             is always a multiple of UNIT [default: all hosts]"
        }
        "nproc_per_node" => {
            "Number of workers on each host: a number, `auto`, `cpu`, `gpu` or `xpu` [default: its \
             number of slots, else 1]"
        }
        "rdzv_backend" => {
            "Rendezvous backend: `c10d`, `static` with fixed ranks, or `etcd` [default: static if \
             --master-addr or --master-port is given, else c10d]"
        }
        "rdzv_endpoint" => {
            "Address of the coordinator, or of 3 or 5 voters, which elect it; with `auto`, nodes \
             find each other on the local network by the name of the job [default: the first host \
             that is reached]"
        }
        "rdzv_id" => "Name of the job, the same on all of its nodes [default: a unique name]",
        _ => return arg,
    };
    arg.help(help)
}
