//! `--print-completion`: what a shell must know to complete ragent's flags.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::{
    cli::Cli,
    error::{LaunchError, system},
    job_spec::JobSpecError,
};

/// Prints the completion script for `shell` on stdout.
///
/// # Errors
///
/// Returns [`LaunchError`] if there is none for that shell, or stdout takes nothing.
pub fn print(shell: &str) -> Result<ExitCode, LaunchError> {
    let shell = match shell {
        "bash" => Shell::Bash,
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        other => {
            return Err(LaunchError::Usage(vec![JobSpecError::Choice {
                source_: "--print-completion".to_owned(),
                value: other.to_owned(),
                choices: "`bash`, `zsh` or `fish`",
            }]));
        }
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "ragent", &mut script);
    io::stdout().write_all(&script).map_err(system("print"))?;
    Ok(ExitCode::SUCCESS)
}
