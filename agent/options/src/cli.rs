//! Defines the command line: subcommands and flags, with torchrun's names in both of its spellings.
//!
//! Values are not checked here, and get no defaults. `spec` interprets them.

mod auth;
mod check;
mod coordinator;
mod doctor;
mod events;
mod forwarded_flags;
mod install_torchrun;
mod job;
mod launch;
mod logs;
mod manifest;
mod notice;
mod page;
mod program_name;
mod rank;
mod run;
mod secret;
mod status;
#[cfg(feature = "top")]
mod top;

use std::{ffi::OsString, sync::LazyLock};

use clap::{
    Arg, CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use ragent_rendezvous::message::PROTOCOL_VERSION;

pub use self::program_name::TORCHRUN;
#[cfg(feature = "top")]
pub use self::top::TopArgs;
pub use self::{
    auth::AuthArgs,
    check::{CheckArgs, CheckFlags},
    coordinator::CoordinatorArgs,
    doctor::DoctorArgs,
    events::{EventsArgs, ExplainArgs, StacksArgs},
    install_torchrun::InstallTorchrunArgs,
    job::JobArgs,
    launch::LaunchOverSshArgs,
    logs::LogsArgs,
    manifest::{K8sArgs, ManifestArgs, ManifestTarget},
    notice::{AskedKind, NoticeArgs},
    page::PageArgs,
    program_name::ProgramName,
    rank::RankArgs,
    run::LaunchArgs,
    secret::SecretArgs,
    status::{AskedJobArgs, StatusArgs},
};

/// The versions of the program and of the protocol between agents. A release build adds its commit.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("RAGENT_COMMIT").map(|commit| format!("commit {commit}, "));
    let commit = commit.unwrap_or_default();
    format!("{} ({commit}protocol {PROTOCOL_VERSION})", env!("CARGO_PKG_VERSION"))
});
static VERSION_OF_TORCHRUN: LazyLock<String> = LazyLock::new(|| format!("is ragent {}", *VERSION));

/// Returns the version as `--version` prints it, without the program's name.
pub fn version() -> String {
    VERSION.clone()
}

/// Start and supervise distributed training jobs; replaces torchrun.
#[derive(Debug, Parser)]
#[command(
    name = "ragent",
    version,
    long_version = VERSION.as_str(),
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    infer_long_args = true,
    subcommand_negates_reqs = true,
    subcommand_precedence_over_arg = false,
    // Flags precede the script.
    override_usage = "ragent [OPTIONS] SCRIPT [ARGS]...\n       ragent COMMAND [OPTIONS]",
    max_term_width = 100,
    mut_args(with_underscores),
    mut_subcommands(of_subcommand),
    after_help = "Use --help for all flags.",
    after_long_help = "\
Examples:
  ragent --nproc-per-node 8 train.py
  ragent --nnodes 2 --rdzv-endpoint node0 --rdzv-id run7 train.py   (on both nodes)
  ragent launch --hostfile hosts --nproc-per-node 8 train.py        (over ssh)

Each flag can also be written with underscores (--nproc_per_node). A flag that is not given is \
read from PET_<NAME> (PET_NPROC_PER_NODE). Times are seconds, or have a unit: 250ms, 60s, 5m, 1h. Scripts are run by the interpreter in PYTHON_EXEC, else \
by that of the environment in which ragent is installed, else by that of the active one, else by python3. Logs are written to stderr; RAGENT_LOG sets \
their level."
)]
pub struct Cli {
    /// The subcommand, which must be the first word. `None` for a launch.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of the launch.
    #[command(flatten)]
    pub launch: LaunchArgs,
}

/// Start and supervise distributed training jobs: ragent in place of torchrun.
#[derive(Debug, Parser)]
#[command(
    name = "torchrun",
    version,
    long_version = VERSION_OF_TORCHRUN.as_str(),
    args_override_self = true,
    infer_long_args = true,
    override_usage = "torchrun [OPTIONS] SCRIPT [ARGS]...",
    max_term_width = 100,
    mut_args(with_underscores),
    after_help = "Use --help for all flags. This is ragent: `ragent --help` lists its further commands.",
)]
struct AsTorchrun {
    /// The flags of the launch.
    #[command(flatten)]
    launch: LaunchArgs,
}

/// Adds the spelling of a flag with underscores, which is torchrun's other one.
fn with_underscores(arg: Arg) -> Arg {
    let other = arg.get_long().filter(|name| name.contains('-')).map(|name| name.replace('-', "_"));
    arg.aliases(other)
}

/// Does the same for the flags of a subcommand, and of those below it.
fn of_subcommand(command: clap::Command) -> clap::Command {
    command.mut_args(with_underscores).mut_subcommands(of_subcommand)
}

impl Cli {
    /// Parses a command line, which begins with the program's name. Called as `torchrun`, the program has no subcommands.
    ///
    /// # Errors
    ///
    /// Returns clap's message to the user, which may also be the help or the version.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().collect();
        let read = match ProgramName::of(words.first()) {
            ProgramName::Ragent => Self::read_own(&words),
            ProgramName::Torchrun => Self::read_as_torchrun(&words),
        };
        read.map_err(|error| naming_the_word(error, &words))
    }

    /// Returns the flags before the first mistake of a refused launch. `None` if the words call another command.
    pub fn refused_launch(words: &[OsString]) -> Option<LaunchArgs> {
        let command = match ProgramName::of(words.first()) {
            ProgramName::Ragent => Self::command(),
            ProgramName::Torchrun => AsTorchrun::command(),
        };
        let matches = command.ignore_errors(true).try_get_matches_from(words).ok()?;
        let launch = matches.subcommand().is_none().then(|| LaunchArgs::from_arg_matches(&matches));
        launch?.ok()
    }

    fn read_as_torchrun(words: &[OsString]) -> Result<Self, clap::Error> {
        let mut launch = AsTorchrun::try_parse_from(words)
            .map_err(|error| without_wrong_tip(error, words))?
            .launch;
        launch.name = ProgramName::Torchrun;
        drop_separator(&mut launch.job.script, words);
        Ok(Self { command: None, launch })
    }

    fn read_own(words: &[OsString]) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command
            .try_get_matches_from_mut(words)
            .map_err(|error| without_wrong_tip(error, words))?;
        let mut cli =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let (Some(Command::Launch(args)), Some((_, matches))) =
            (&mut cli.command, matches.subcommand())
        {
            args.forwarded_flags = forwarded_flags::flags(matches);
        }
        if let Some(Command::Check(args)) = &mut cli.command {
            // Its flags are where a launch has the script.
            let flags = std::mem::take(&mut args.launch.job.script);
            args.flags = CheckFlags::try_parse_from([OsString::new()].into_iter().chain(flags))?;
        }
        if let Some(script) = cli.script_mut() {
            drop_separator(script, words);
        }
        Ok(cli)
    }

    /// Returns the script with its arguments, if the command has one.
    fn script_mut(&mut self) -> Option<&mut Vec<OsString>> {
        match &mut self.command {
            None => Some(&mut self.launch.job.script),
            Some(Command::Launch(args)) => Some(&mut args.launch.job.script),
            Some(Command::Manifest(ManifestArgs { target: ManifestTarget::K8s(args) })) => {
                Some(&mut args.job.script)
            }
            Some(
                Command::Check(_)
                | Command::Coordinator(_)
                | Command::Doctor(_)
                | Command::Events(_)
                | Command::Explain(_)
                | Command::InstallTorchrun(_)
                | Command::Keeper
                | Command::Logs(_)
                | Command::Notice(_)
                | Command::Page(_)
                | Command::Rank(_)
                | Command::Relay
                | Command::Secret(_)
                | Command::Stacks(_)
                | Command::Status(_),
            ) => None,
            #[cfg(feature = "top")]
            Some(Command::Top(_)) => None,
        }
    }
}

/// Removes a `--` directly after the script, as argparse does. `words` is the whole command line. It ends with the script and its
/// arguments.
fn drop_separator(script: &mut Vec<OsString>, words: &[OsString]) {
    let before = words.len().checked_sub(script.len() + 1).and_then(|at| words.get(at));
    if before.is_some_and(|word| word != "--") && script.get(1).is_some_and(|word| word == "--") {
        script.remove(1);
    }
}

/// Adds the word that is not UTF-8, and its flag, to clap's error, which lacks them.
fn naming_the_word(error: clap::Error, words: &[OsString]) -> clap::Error {
    let mut invalid = words.iter().enumerate().filter(|(_, word)| word.to_str().is_none());
    // If there are several, some may be paths or arguments of the script. These need not be UTF-8.
    let (Some((at, word)), None) = (invalid.next(), invalid.next()) else { return error };
    if error.kind() != ErrorKind::InvalidUtf8 {
        return error;
    }
    let flag = at.checked_sub(1).and_then(|before| words.get(before)?.to_str());
    let flag = flag.filter(|word| word.starts_with('-') && !word.contains('='));
    let given = [flag.unwrap_or_default(), &word.to_string_lossy()].join(" ");
    clap::Error::raw(ErrorKind::InvalidUtf8, format!("`{}` is not valid UTF-8\n", given.trim()))
}

/// Removes clap's useless suggestions: to write an unknown flag after `--`, which would make it the script, and flags that hardly resemble
/// the unknown one. Explains how to replace `--use-env`, and where the flags of `ragent check` belong.
fn without_wrong_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let text = |value: Option<&ContextValue>| match value {
        Some(ContextValue::String(text)) => text.replace('_', "-"),
        Some(_) | None => String::new(),
    };
    let given = text(error.get(ContextKind::InvalidArg));
    let suggested = text(error.get(ContextKind::SuggestedArg));
    if strsim::osa_distance(&given, &suggested) > suggested.len() / 3 {
        error.remove(ContextKind::SuggestedArg);
    }
    let command = words.get(1).and_then(|word| word.to_str());
    if command == Some("check") && CheckFlags::NAMES.contains(&given.as_str()) {
        let tip = format!("write it after `--`: ragent check … -- {given} …");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
        return error;
    }
    if given == "--use-env" {
        let tip = "omit it: scripts always find LOCAL_RANK in their environment";
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
        return error;
    }
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

/// Returns the first of these words that is a flag of a launch.
pub fn own_flag(words: &[OsString]) -> Option<&str> {
    let command = AsTorchrun::command();
    let is_own = |word: &&str| {
        let name = word.strip_prefix("--").and_then(|word| word.split('=').next());
        let name = name.unwrap_or_default().replace('_', "-");
        command.get_arguments().any(|flag| flag.get_long() == Some(name.as_str()))
    };
    words.iter().filter_map(|word| word.to_str()).find(is_own)
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find bad and slow nodes before a job: let them work in pairs, and name those that fail
    Check(Box<CheckArgs>),
    /// Run a voter of one job, without workers, until SIGTERM
    Coordinator(CoordinatorArgs),
    /// Check this node, and the connections between the nodes of a job, for common problems
    Doctor(DoctorArgs),
    /// Print what has happened in a job, with the time and the cause of each event
    Events(EventsArgs),
    /// Explain what a job waits for, why it was restarted, what that cost, and what would help
    Explain(ExplainArgs),
    /// Make `torchrun` start ragent: put a link of that name into a folder, or remove it again
    InstallTorchrun(InstallTorchrunArgs),
    /// Start an agent over ssh on each host of a list, and show the output of all of them
    Launch(Box<LaunchOverSshArgs>),
    /// Print what the workers of a job print, the same line of many ranks only once
    Logs(LogsArgs),
    /// Print a manifest that runs a job on another system
    Manifest(ManifestArgs),
    /// Give the agents on this machine a notice, so that all ranks save before the node leaves or the job ends
    Notice(NoticeArgs),
    /// Serve the page of a job to a browser on this machine, and print its address
    Page(PageArgs),
    /// Run a program as one rank under mpirun or srun, with PyTorch's variables set from those of the launcher
    Rank(RankArgs),
    /// Print a new secret, or write it to a file, for `--secret-file`
    Secret(SecretArgs),
    /// Look at all workers of a job, and print where each is
    Stacks(StacksArgs),
    /// Print the status of a job: round, members, ranks, and the reason for waiting
    Status(StatusArgs),
    /// Show a job in the terminal, as it changes: progress, lost time, nodes and events
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// The process that starts the workers of one agent, and ends them if the agent is gone.
    #[command(name = "__keeper", hide = true)]
    Keeper,
    /// The process that starts the agent of one host for `ragent launch`.
    #[command(name = "__relay", hide = true)]
    Relay,
}

#[cfg(all(test, feature = "top"))]
mod flags_page;
#[cfg(all(test, feature = "top"))]
mod man_pages;
#[cfg(test)]
mod tests;
