//! Generates the man pages in `packaging/man` from the help.

use std::{collections::BTreeMap, fs, path::Path};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::Cli;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/man");

/// Returns the page of each command that users see, by its file name.
fn pages() -> BTreeMap<String, String> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = BTreeMap::new();
    add(&mut pages, command.display_name("ragent"));
    pages
}

fn add(pages: &mut BTreeMap<String, String>, command: Command) {
    let hidden = |it: &&Command| it.is_hide_set();
    let below: Vec<Command> = command.get_subcommands().filter(|it| !hidden(it)).cloned().collect();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    // Otherwise descriptions of flags that `-h` hides would be left out.
    let command = command.mut_args(|flag| flag.hide_short_help(false));
    // The pages must not contain the commit of a release build.
    let command = command.long_version(None::<&str>);
    let man = Man::new(command).title(name.to_ascii_uppercase()).manual("ragent");
    let man = man.source(concat!("ragent ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render(&mut text).expect("a vector takes any text");
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA", ".SH NOTES");
    pages.insert(format!("{name}.1"), text);
    below.into_iter().for_each(|command| add(pages, command));
}

/// The man pages agree with the commands and flags.
#[test]
fn man_pages_are_current() {
    let pages = pages();
    let names = fs::read_dir(FOLDER).unwrap().map(|file| file.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, pages.keys().cloned().collect::<Vec<_>>(), "generate them with `make man`");
    for (name, text) in &pages {
        let found = fs::read_to_string(Path::new(FOLDER).join(name)).unwrap();
        assert!(found == *text, "{name} is not that of the program: generate it with `make man`");
    }
}

/// Each command that users see has a page, and the page of a launch has the flags of all headings.
#[test]
fn pages_have_the_help() {
    let pages = pages();
    for name in ["ragent.1", "ragent-launch.1", "ragent-manifest-k8s.1", "ragent-top.1"] {
        assert!(pages.contains_key(name), "{:?}", pages.keys());
    }
    assert!(pages.keys().all(|name| !name.contains("__")), "{:?}", pages.keys());
    for part in
        ["nproc\\-per\\-node", "hang\\-timeout", "WATCHDOG=1", "ragent\\-doctor(1)", "PYTHON_EXEC"]
    {
        assert!(pages["ragent.1"].contains(part), "no `{part}` in\n{}", pages["ragent.1"]);
    }
}

/// Writes the pages: `make man`.
#[test]
#[ignore = "it writes files"]
fn man_pages_are_written() {
    let pages = pages();
    fs::create_dir_all(FOLDER).unwrap();
    for file in fs::read_dir(FOLDER).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    for (name, text) in &pages {
        fs::write(Path::new(FOLDER).join(name), text).unwrap();
    }
}
