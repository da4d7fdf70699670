//! Defines the flags of `ragent notice`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Flags of `ragent notice`.
#[derive(Args, Clone, Debug)]
pub struct NoticeArgs {
    /// What is about to happen
    // An error about a missing kind shows this name.
    #[arg(value_name = "leave|end|save")]
    pub kind: AskedKind,
    /// Seconds for which ranks may save, at most those of `--notice` [default: those of `--notice`]
    #[arg(long = "in", value_name = "SECONDS", allow_negative_numbers = true)]
    pub within: Option<String>,
    /// Wait until all ranks have saved, and exit with 1 if they have not. For `save`, wait for the ranks on this machine
    #[arg(long)]
    pub wait: bool,
    /// Only the agents of this job [default: all of your agents on this machine]
    #[arg(long, value_name = "ID")]
    pub rdzv_id: Option<String>,
    /// Only for root: the agents of this user [default: yours]
    #[arg(long, value_name = "NAME", conflicts_with = "runtime_dir")]
    pub user: Option<String>,
    /// Only for root: the folder in which the agents are registered, if it is not the usual one of their user
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Text for people, such as the reason
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,
}

/// What is about to happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum AskedKind {
    /// This node leaves its job, after a checkpoint
    Leave,
    /// The job ends on all nodes, after a checkpoint
    End,
    /// A checkpoint is wanted, and the job goes on
    Save,
}
