//! Defines the flags of `ragent events` and `ragent explain`.

use clap::Args;

use super::AskedJobArgs;

/// The flags that select a job. They contradict `--journal`, which reads a file.
const OF_A_JOB: [&str; 7] =
    ["rdzv_endpoint", "auth", "secret_file", "tls_ca", "tls_cert", "tls_key", "tls_peer"];

/// Flags of `ragent events`.
#[derive(Args, Clone, Debug)]
pub struct EventsArgs {
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
    /// Read the events from this file, which an agent has written with --journal. No process is asked
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_JOB, conflicts_with_all = ["since", "follow"])]
    pub journal: Option<String>,
    /// Print only the events after the one with this id, such as 1.42
    #[arg(long, value_name = "ID")]
    pub since: Option<String>,
    /// Print new events as they happen, until the job ends
    #[arg(long, short)]
    pub follow: bool,
    /// Print each event as a JSON object on a line of its own
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ragent explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// Part of the job to explain: `restart`, `time`, `wait`, `stall`, `rank N` or `node HOST` [default: the job, in short]
    #[arg(value_name = "TOPIC", num_args = 0..=2)]
    pub topic: Vec<String>,
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
    /// Read the events from this file, which an agent has written with --journal. No process is asked
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_JOB)]
    pub journal: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags of `ragent stacks`.
#[derive(Args, Clone, Debug)]
pub struct StacksArgs {
    /// Ranks to print, such as 3,8-15 [default: all]
    #[arg(value_name = "RANKS")]
    pub ranks: Option<String>,
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
    /// Print one JSON object, with the places of all ranks
    #[arg(long, conflicts_with = "ranks")]
    pub json: bool,
}
