//! Defines the flags of `ragent logs`.

use clap::Args;

use super::AskedJobArgs;

/// Flags of `ragent logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// Ranks whose output is printed, such as 3,8-15 [default: all]
    #[arg(value_name = "RANKS")]
    pub ranks: Option<String>,
    /// The job.
    #[command(flatten)]
    pub asked: AskedJobArgs,
    /// Print the output of these hosts only, such as n1,n4 or n[1-4]
    #[arg(long, value_name = "HOSTS")]
    pub host: Option<String>,
    /// Begin with the last ten lines of each stream, and print new ones until the job ends
    #[arg(long, short)]
    pub follow: bool,
    /// Print only lines that match this regular expression
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    pub grep: Option<String>,
    /// Print each line by itself, also if other ranks have printed the same, and tracebacks whole
    #[arg(long)]
    pub raw: bool,
    /// Print a JSON object for each line: its ranks, host, stream, round and text
    #[arg(long)]
    pub json: bool,
}
