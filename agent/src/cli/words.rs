//! Finds the script, or the program, in a command line: all words after it are its arguments.
//!
//! clap would parse ragent's flags anywhere in the line; it has no rule like that of argparse.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
};

use clap::Command;

/// Inserts `--` before the script or the program, unless the first word is a subcommand that has
/// neither. Invalid words are left for clap to refuse.
pub(super) fn mark_script(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let (command, mut at) = meant(command, &words);
    let has = |name| command.get_arguments().any(|arg| arg.get_id() == name);
    let (has_script, has_program) = (has("script"), has("command"));
    if !(has_script || has_program) || (at == 1 && words.get(1).is_some_and(|word| word == "help"))
    {
        return words;
    }
    let flags = Flags::of(command);
    while let Some(word) = words.get(at) {
        if word == "--" {
            return words;
        }
        match flags.words_of(word) {
            Some(used) => at += used,
            None => {
                let (own, rest) = words.split_at(at);
                let (script, mut args) = rest.split_at(1);
                // argparse removes the first `--`, also directly after the script.
                if has_script && args.first().is_some_and(|word| word == "--") {
                    args = &args[1..];
                }
                return [own, &["--".into()], script, args].concat();
            }
        }
    }
    words
}

/// Returns the command or subcommand that the first words name, and the index of its first word.
fn meant<'a>(mut command: &'a Command, words: &[OsString]) -> (&'a Command, usize) {
    let mut at = 1;
    while let Some(below) = words.get(at).and_then(|word| {
        command.get_subcommands().find(|known| word.as_os_str() == known.get_name())
    }) {
        (command, at) = (below, at + 1);
    }
    (command, at)
}

/// The flags of a command; true if a flag takes a value.
struct Flags {
    long: BTreeMap<String, (String, bool)>,
    short: BTreeMap<char, bool>,
}

impl Flags {
    fn of(command: &Command) -> Self {
        let mut flags = Self { long: BTreeMap::new(), short: BTreeMap::new() };
        // Every command has these two.
        for (name, short) in [("help", 'h'), ("version", 'V')] {
            flags.long.insert(name.to_owned(), (name.to_owned(), false));
            flags.short.insert(short, false);
        }
        for arg in command.get_arguments() {
            let takes_value = arg.get_action().takes_values();
            let aliases = arg.get_all_aliases().into_iter().flatten();
            for name in arg.get_long().into_iter().chain(aliases) {
                flags.long.insert(name.to_owned(), (arg.get_id().to_string(), takes_value));
            }
            flags.short.extend(arg.get_short().map(|short| (short, takes_value)));
        }
        flags
    }

    /// Returns the number of words of the flag that begins with `word`; `None` if it is not a flag.
    fn words_of(&self, word: &OsStr) -> Option<usize> {
        let text = word.to_string_lossy();
        if let Some(long) = text.strip_prefix("--") {
            let is_whole = long.contains('=');
            return Some(if self.long_takes_value(long) && !is_whole { 2 } else { 1 });
        }
        let cluster = text.strip_prefix('-').filter(|cluster| !cluster.is_empty())?;
        let mut letters = cluster.chars();
        while let Some(letter) = letters.next() {
            if self.short.get(&letter) == Some(&true) {
                return Some(if letters.as_str().is_empty() { 2 } else { 1 });
            }
        }
        Some(1)
    }

    fn long_takes_value(&self, name: &str) -> bool {
        if let Some((_, takes_value)) = self.long.get(name) {
            return *takes_value;
        }
        let meant: BTreeSet<&(String, bool)> = self
            .long
            .range(name.to_owned()..)
            .take_while(|(known, _)| known.starts_with(name))
            .map(|(_, flag)| flag)
            .collect();
        // An ambiguous prefix is refused later.
        meant.len() == 1 && meant.first().is_some_and(|(_, takes_value)| *takes_value)
    }
}
