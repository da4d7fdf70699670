//! Reads and checks the value of one flag.

use std::collections::BTreeMap;

use ragent_options::spec::{Argument, UsageError};

use super::names::Rule;

pub(super) fn check(flag: &str, value: &str, rule: &Rule) -> Result<(), UsageError> {
    if (rule.holds)(value) { Ok(()) } else { Err(Argument::new(flag, value).is_not(rule.expected)) }
}

/// Returns the value of a flag if it is given, and an error if it is invalid.
pub(super) fn checked(
    flag: &str,
    typed: &Option<String>,
    rule: &Rule,
) -> Result<Option<String>, UsageError> {
    typed.as_deref().map(|value| check(flag, value, rule)).transpose()?;
    Ok(typed.clone())
}

pub(super) fn required(flag: &str, given: Option<String>) -> Result<String, UsageError> {
    given.ok_or_else(|| missing(flag))
}

pub(super) fn missing(flag: &str) -> UsageError {
    UsageError::new(format!("`{flag}` is not given")).with_hint(HELP)
}

/// The hint for a missing argument.
pub(super) const HELP: &str = "see `ragent manifest k8s --help`";

pub(super) fn twice(flag: &str, name: &str) -> UsageError {
    UsageError::new(format!("`{flag}` gives `{name}` twice"))
}

pub(super) fn number(flag: &str, typed: &Option<String>, default: u32) -> Result<u32, UsageError> {
    // Kubernetes uses signed numbers.
    const MAX: u32 = i32::MAX as u32;
    Argument::of_flag(flag, typed).map_or(Ok(default), |given| given.number(0..=MAX))
}

/// Parses `NAME=VALUE` pairs. Each name may occur once.
pub(super) fn pairs(
    flag: &str,
    typed: &[String],
    [key, value]: [&Rule; 2],
) -> Result<BTreeMap<String, String>, UsageError> {
    let mut pairs = BTreeMap::new();
    for text in typed {
        let wrong = || Argument::new(flag, text).is_not("`NAME=VALUE`");
        let pair = text.split_once('=').ok_or_else(wrong)?;
        check(flag, pair.0, key)?;
        check(flag, pair.1, value)?;
        if pairs.insert(pair.0.to_owned(), pair.1.to_owned()).is_some() {
            return Err(twice(flag, pair.0));
        }
    }
    Ok(pairs)
}
