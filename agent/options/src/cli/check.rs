//! Defines the flags of `ragent check`.

use clap::{Arg, Args, Parser};

use super::LaunchArgs;

/// Flags of `ragent check`: those of a launch, and after `--` those of the check.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = USAGE,
    after_help = "After `--`: --backend NAME, --timeout SECONDS and --out FILE. Use --help for all flags.",
    after_long_help = "\
After `--`:
  --backend NAME     nccl or gloo [default: nccl if torch finds a GPU on any node, else gloo]
  --timeout SECONDS  Seconds after which a pair of nodes has failed [default: 120]
  --out FILE         File for the bad and slow nodes [default: bad-hosts]

Example, on all nodes:
  ragent check --nnodes 8 --nproc-per-node 8 --rdzv-endpoint node0 -- --timeout 60

Each node works with two others, one after the other. A node that fails with both is bad, unless these two may be the reason. The node with rank 0 prints the \
report, and writes a line `HOST REASON` for each bad or slow node to FILE. FILE is empty if all nodes are good. The exit code is \
0 if all nodes are good, and otherwise 1 on all nodes.",
    mut_args(for_check)
)]
pub struct CheckArgs {
    /// The flags of the job that checks the nodes.
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// The flags after `--`.
    #[arg(skip)]
    pub flags: CheckFlags,
}

const USAGE: &str = "ragent check [OPTIONS] [-- [--backend NAME] [--timeout SECONDS] [--out FILE]]";

/// The flags of the check itself.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "ragent check --", override_usage = USAGE, disable_version_flag = true)]
pub struct CheckFlags {
    /// nccl or gloo [default: nccl if torch finds a GPU on any node, else gloo]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Seconds after which a pair of nodes has failed [default: 120]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS")]
    pub timeout: Option<String>,
    /// File for the bad and slow nodes [default: bad-hosts]
    #[arg(long, value_name = "FILE")]
    pub out: Option<String>,
}

impl CheckFlags {
    /// The names of the flags.
    pub(super) const NAMES: [&str; 3] = ["--backend", "--timeout", "--out"];
}

/// Hides the flags for a script of the user.
fn for_check(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "script" | "no_python" | "module" | "run_path" | "launch_method" | "shared_file"
        | "deepspeed_config" | "save_path" | "checkpoint_path" | "standalone" | "standby"
        | "print_completion" => arg.hide(true),
        _ => arg,
    }
}
