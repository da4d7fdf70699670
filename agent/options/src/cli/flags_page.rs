//! Generates `docs/flags.md`, the table of all flags, from the help.

use std::{fmt::Write, fs, path::Path};

use clap::{Arg, Command, CommandFactory};

use super::Cli;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flags.md");

const HEAD: &str = "\
# All flags

This page has the text of `--help`, in one place. [settings.md](settings.md) explains the flags by topic, and
[torchrun-compat.md](torchrun-compat.md) compares them with torchrun's. Underscores work too, as in `--nproc_per_node`. A flag of a launch that is
not given is read from `PET_` and its name, as in `PET_NPROC_PER_NODE`. Times are seconds, or have a unit: `250ms`, `60s`, `5m`, `1h`.
";

fn page() -> String {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = HEAD.to_owned();
    let launch: Vec<&Arg> = flags(&command).collect();
    let mut headings: Vec<&str> = Vec::new();
    for heading in launch.iter().filter_map(|flag| flag.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let _ = write!(page, "\n## A launch\n\n    ragent [OPTIONS] SCRIPT [ARGS]...\n");
    for heading in headings {
        let of_heading = launch.iter().filter(|flag| flag.get_help_heading() == Some(heading));
        let _ = write!(page, "\n### {heading}\n{}", table(of_heading.copied()));
    }
    add_commands(&mut page, &command, &launch);
    page
}

/// Adds the commands below `command`. The flags of a launch, which some of them have, are not repeated.
fn add_commands(page: &mut String, command: &Command, launch: &[&Arg]) {
    for command in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let is_of_launch = |flag: &&Arg| {
            launch.iter().any(|it| it.get_id() == flag.get_id() && it.get_help() == flag.get_help())
        };
        let own: Vec<&Arg> = flags(command).filter(|flag| !is_of_launch(flag)).collect();
        let has_others = flags(command).any(|flag| is_of_launch(&flag));
        let name = command.get_bin_name().unwrap_or_default();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n## {name}\n\n{}.\n", escaped(&about));
        if has_others {
            page.push_str(
                "It also has some flags of [a launch](#a-launch): `--help` lists them.\n",
            );
        }
        if !own.is_empty() {
            page.push_str(&table(own.into_iter()));
        }
        add_commands(page, command, launch);
    }
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_shown = |flag: &&Arg| {
        !flag.is_hide_set()
            && !flag.is_positional()
            && flag.get_id() != "help"
            && flag.get_id() != "version"
    };
    command.get_arguments().filter(is_shown)
}

fn table<'a>(flags: impl Iterator<Item = &'a Arg>) -> String {
    let mut table = "\n| flag | meaning |\n|---|---|\n".to_owned();
    for flag in flags {
        let long = flag.get_long().map(|name| format!("--{name}"));
        let short = flag.get_short().map(|name| format!("-{name}"));
        let mut names = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
        if flag.get_action().takes_values() {
            let values: Vec<_> =
                flag.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
            let _ = write!(names, " {}", values.join(" "));
        }
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(table, "| `{}` | {} |", names.replace('|', "\\|"), escaped(&help));
    }
    table
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

/// The table agrees with the flags.
#[test]
fn flags_page_is_current() {
    let found = fs::read_to_string(FILE).unwrap();
    assert!(
        found == page(),
        "docs/flags.md differs from the flags of the program: write it again with `make man`"
    );
}

/// Writes the page: `make man`.
#[test]
#[ignore = "it writes a file"]
fn flags_page_is_written() {
    fs::write(Path::new(FILE), page()).unwrap();
}
