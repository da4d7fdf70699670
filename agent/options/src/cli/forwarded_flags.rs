//! Collects the words of a command line that are passed on to agents.

use std::ffi::OsString;

use clap::{ArgMatches, Args, Command, parser::ValueSource};

use super::LaunchArgs;

/// Returns the flags for launching that were given on the command line, each as one word with its
/// full name, without the script and its arguments.
pub(super) fn flags(matches: &ArgMatches) -> Vec<OsString> {
    let mut words = Vec::new();
    for flag in LaunchArgs::augment_args(Command::new("")).get_arguments() {
        let Some(name) = flag.get_long() else { continue };
        let id = flag.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if flag.get_action().takes_values() {
            for value in matches.get_raw(id).into_iter().flatten() {
                let mut word = OsString::from(format!("--{name}="));
                word.push(value);
                words.push(word);
            }
        } else if matches.get_flag(id) {
            words.push(format!("--{name}").into());
        }
    }
    words
}
