//! Parses the numbers of flags.

use super::mistake::Mistake;

/// Parses a number from 1 to `max`; the default if none is given.
pub(super) fn from_one(
    flag: &'static str,
    typed: &Option<String>,
    max: u64,
    default: u64,
) -> Result<u64, Mistake> {
    let Some(text) = typed else { return Ok(default) };
    let number = text.trim().parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| Mistake::Number { flag, value: text.clone(), max })
}
