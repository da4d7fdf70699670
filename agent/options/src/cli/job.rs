//! Defines the flags that all commands have which start a job.

use std::ffi::OsString;

use clap::Args;

/// Flags that have the same meaning wherever a job runs.
#[derive(Args, Clone, Debug, Default)]
pub struct JobArgs {
    /// Number of nodes: N, or MIN:MAX for an elastic job, such as 2:8, or MIN:MAX:UNIT to use only multiples of UNIT [default: 1]
    #[arg(long, value_name = "N|MIN:MAX[:UNIT]", help_heading = NODES)]
    pub nnodes: Option<String>,
    /// Number of workers on this node: a number, `auto`, `cpu`, `gpu` or `xpu` [default: 1]
    #[arg(long, allow_negative_numbers = true, value_name = "N", help_heading = WORKERS)]
    pub nproc_per_node: Option<String>,
    /// Run SCRIPT as a program, without Python
    // Abbreviations that torchrun accepts.
    #[arg(long, aliases = ["no-p", "no_p"], help_heading = WORKERS)]
    pub no_python: bool,
    /// Run SCRIPT as a Python module, as `python -m` does
    #[arg(short, long, help_heading = WORKERS)]
    pub module: bool,
    /// Arguments and variables that workers get in addition: none with `torchrun`, rank and world size as arguments with `basic`, those of
    /// DeepSpeed's launcher with `deepspeed` [default: torchrun]
    #[arg(long, value_name = "METHOD", help_heading = WORKERS, hide_short_help = true)]
    pub launch_method: Option<String>,
    /// File through which the workers of `basic` find each other, which they get as `--init_method`. Each round has a new one, whose name
    /// begins with PATH
    #[arg(long, value_name = "PATH|auto[:FOLDER]", help_heading = WORKERS, hide_short_help = true)]
    pub shared_file: Option<String>,
    /// Configuration for `deepspeed`, a JSON file, which all workers get as `--deepspeed_config`
    #[arg(long, value_name = "FILE", help_heading = WORKERS, hide_short_help = true)]
    pub deepspeed_config: Option<String>,
    /// Folder of the job, which all workers get as `--save_path`. `auto` creates one
    #[arg(long, value_name = "PATH|auto[:FOLDER]", help_heading = WORKERS, hide_short_help = true)]
    pub save_path: Option<String>,
    /// File of the job, which all workers get as `--checkpoint_path`. `auto` chooses a name
    #[arg(long, value_name = "PATH|auto[:FOLDER]", help_heading = WORKERS, hide_short_help = true)]
    pub checkpoint_path: Option<String>,
    /// Seconds that workers have to end after a signal, before they are killed [default: 30]
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        help_heading = WORKERS,
        hide_short_help = true
    )]
    pub shutdown_timeout: Option<String>,
    /// Number of failures of workers that the job survives: after each, all workers start again. Ten minutes with a newer checkpoint forgive
    /// all failures before, except under the name torchrun. Nodes that join or are lost do not count [default: 0]
    #[arg(long, allow_negative_numbers = true, value_name = "N", help_heading = FAILURES)]
    pub max_restarts: Option<String>,
    /// Seconds for which all ranks may save after a notice, such as SIGTERM to an agent, before its node leaves. No step is then done again.
    /// The same on all nodes. 0: the node leaves at once [default: 0]
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", help_heading = FAILURES)]
    pub notice: Option<String>,
    /// Training script and its arguments. All flags of ragent come before it
    // All words from the script on belong to it. `allow_hyphen_values` is not set, so a mistyped flag before the script is refused and not
    // taken for the script.
    #[arg(value_names = ["SCRIPT", "ARGS"], trailing_var_arg = true)]
    pub script: Vec<OsString>,
}

/// The headings in the help for the flags of a job.
pub(super) const NODES: &str = "Nodes and rendezvous";
pub(super) const WORKERS: &str = "Workers";
pub(super) const OUTPUT: &str = "Output";
pub(super) const FAILURES: &str = "Failures";
pub(super) const PLACEMENT: &str = "Placement";
pub(super) const SECURITY: &str = "Security";
pub(super) const OTHER: &str = "Other";
