//! Defines the flags of `ragent launch`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Arg, Args};

use super::LaunchArgs;

/// Flags of `ragent launch`. Those of the job go to the agents as they are.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "ragent launch --hostfile FILE [OPTIONS] SCRIPT [ARGS]...",
    after_help = "Use --help for all flags.",
    after_long_help = "\
Without --nnodes, the job needs all hosts. Without --rdzv-id, it gets a unique name. The lines of \
workers begin with host and rank, unless -t, -r or a template changes that.

Without --rdzv-endpoint, three of the hosts elect the coordinator from --nnodes 2:3 up, and five \
from 3:5 up. Any one of them may be lost if MIN nodes are left. In smaller jobs, the first host \
that is reached runs the coordinator, and its loss ends the job. --rdzv-conf voters=1, 3 or 5 \
chooses another number of hosts.

The loss of this host, which starts the job, always ends all agents.",
    mut_args(for_hosts)
)]
pub struct LaunchOverSshArgs {
    /// File with a host on each line, such as `node1`, `node1:8` or `me@node1 slots=8`. The slots are the number of workers, unless you
    /// give --nproc-per-node
    #[arg(long, value_name = "FILE", help_heading = OVER_SSH)]
    pub hostfile: String,
    /// Use only these hosts, such as node1,node[3-5], or only some accelerators of a host, such as node1:0,2@node2
    #[arg(long, value_name = "HOST,…", help_heading = OVER_SSH)]
    pub include: Option<String>,
    /// Leave out these hosts or accelerators, in the form of --include
    #[arg(long, value_name = "HOST,…", help_heading = OVER_SSH)]
    pub exclude: Option<String>,
    /// Set a variable on all hosts. NAME alone takes its value on this host. May be repeated
    #[arg(short = 'x', value_name = "NAME[=VALUE]", help_heading = OVER_SSH)]
    pub export: Vec<String>,
    /// Set the variables of a file on all hosts, one NAME=VALUE per line. May be repeated
    #[arg(long, value_name = "FILE", help_heading = OVER_SSH, hide_short_help = true)]
    pub env_file: Vec<String>,
    /// Working folder of the agents [default: the current folder]
    #[arg(long, value_name = "DIR", help_heading = OVER_SSH, hide_short_help = true)]
    pub chdir: Option<PathBuf>,
    /// Path of ragent on the other hosts [default: the path of this program]
    #[arg(long, value_name = "PATH", help_heading = OVER_SSH, hide_short_help = true)]
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
    /// Highest number of ssh connections that ragent opens at once [default: 64]
    #[arg(long, value_name = "N", help_heading = OVER_SSH, hide_short_help = true)]
    pub fanout: Option<String>,
    /// Seconds to wait for a connection [default: 10]
    #[arg(long, value_name = "SECONDS", help_heading = OVER_SSH, hide_short_help = true)]
    pub connect_timeout: Option<String>,
    /// Print the commands for each host, and start nothing
    #[arg(long, help_heading = OVER_SSH)]
    pub dry_run: bool,
    /// The job.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// The flags of the job that were given, in the form in which agents get them.
    #[arg(skip)]
    pub forwarded_flags: Vec<OsString>,
}

/// The heading in the help for the flags of `ragent launch` that are not flags of the job.
const OVER_SSH: &str = "Hosts";

/// Replaces the help of those flags that mean something else for a list of hosts.
fn for_hosts(arg: Arg) -> Arg {
    let help = match arg.get_id().as_str() {
        // Each host gets its own rank, and completion scripts are for `ragent` itself.
        "node_rank" | "print_completion" => return arg.hide(true),
        "master_addr" => {
            "Address of node 0, for `static` [default: the first host that is reached]"
        }
        "nnodes" => {
            "Number of nodes: N, or MIN:MAX for an elastic job, such as 2:8, or MIN:MAX:UNIT to use \
             only multiples of UNIT [default: all hosts]"
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
            "Host at which the nodes of the job meet, such as node0 or node0:29400. If you list 3 \
             or 5 hosts, such as node0,node1,node2, they elect the coordinator. With `auto`, nodes \
             find each other on the local network by the name of the job. With `etcd`, list its \
             members [default: hosts that are reached, as described below]"
        }
        "rdzv_id" => "Name of the job, the same on all of its nodes [default: a unique name]",
        _ => return arg,
    };
    arg.help(help)
}
