//! Prints completion scripts for shells: `--print-completion`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use ragent_options::{
    cli::{Cli, ProgramName},
    spec::Argument,
};

use super::error::{LaunchError, system};

/// Prints the completion script for `shell` on stdout, for the name by which the program was called.
///
/// # Errors
///
/// Returns [`LaunchError`] if there is no script for that shell, or stdout cannot be written.
pub fn print(shell: &str, name: ProgramName) -> Result<ExitCode, LaunchError> {
    let choose = |text: &str| match text {
        "bash" => Some(Shell::Bash),
        "zsh" => Some(Shell::Zsh),
        "fish" => Some(Shell::Fish),
        _ => None,
    };
    let given = Argument::new("--print-completion", shell);
    let shell = given.choice("`bash`, `zsh` or `fish`", choose)?;
    io::stdout().write_all(&script(shell, name)).map_err(system("print"))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell, name: ProgramName) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut offered(name), name.text(), &mut script);
    script
}

/// Returns the command without hidden subcommands, which the scripts would offer too. torchrun has no subcommands.
fn offered(name: ProgramName) -> Command {
    let all = Cli::command();
    let commands = all
        .get_subcommands()
        .filter(|command| name == ProgramName::Ragent && !command.is_hide_set());
    Command::new(name.text())
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(commands.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Internal commands are not offered; all others are.
    #[test]
    fn internal_commands_are_not_offered() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell, ProgramName::Ragent)).unwrap();
            for hidden in ["__keeper", "__relay"] {
                assert!(!script.contains(hidden), "{shell} offers {hidden}");
            }
            for offered in ["manifest", "k8s", "nproc-per-node", "hostfile", "version"] {
                assert!(script.contains(offered), "{shell} does not offer {offered}");
            }
        }
    }
}
