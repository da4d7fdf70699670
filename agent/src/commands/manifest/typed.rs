//! Reads the value of one flag.

use std::collections::BTreeMap;

use super::{ManifestError, names::Rule};

pub(super) fn wrong(flag: &'static str, value: &str, expected: &'static str) -> ManifestError {
    ManifestError::Value { flag, value: value.to_owned(), expected }
}

pub(super) fn check(flag: &'static str, value: &str, rule: &Rule) -> Result<(), ManifestError> {
    if (rule.holds)(value) { Ok(()) } else { Err(wrong(flag, value, rule.expected)) }
}

/// Returns the valid value of a flag, if one was given.
pub(super) fn checked(
    flag: &'static str,
    typed: &Option<String>,
    rule: &Rule,
) -> Result<Option<String>, ManifestError> {
    typed.as_deref().map(|value| check(flag, value, rule)).transpose()?;
    Ok(typed.clone())
}

pub(super) fn required(
    flag: &'static str,
) -> impl FnOnce(Option<String>) -> Result<String, ManifestError> {
    move |given| given.ok_or(ManifestError::Missing { flag })
}

pub(super) fn number(
    flag: &'static str,
    typed: &Option<String>,
    default: u32,
) -> Result<u32, ManifestError> {
    let Some(text) = typed else { return Ok(default) };
    // Kubernetes uses signed numbers.
    let number = text.parse::<u32>().ok().filter(|number| i32::try_from(*number).is_ok());
    number.ok_or_else(|| wrong(flag, text, "a whole number, 0 or greater"))
}

/// Parses `NAME=VALUE` pairs; each name may occur once.
pub(super) fn pairs(
    flag: &'static str,
    typed: &[String],
    [key, value]: [&Rule; 2],
) -> Result<BTreeMap<String, String>, ManifestError> {
    let mut pairs = BTreeMap::new();
    for text in typed {
        let pair = text.split_once('=').ok_or_else(|| wrong(flag, text, "`NAME=VALUE`"))?;
        check(flag, pair.0, key)?;
        check(flag, pair.1, value)?;
        if pairs.insert(pair.0.to_owned(), pair.1.to_owned()).is_some() {
            return Err(ManifestError::Twice { flag, name: pair.0.to_owned() });
        }
    }
    Ok(pairs)
}
