//! Converts between generated and domain types, with one file for each kind of message.

/// Implements conversions between a generated enumeration, whose zero is unspecified, and a domain
/// enumeration.
macro_rules! enumeration {
    ($domain:ident, $wire:ident, $field:literal, [$($name:ident),+ $(,)?]) => {
        impl From<$domain> for v1::$wire {
            fn from(value: $domain) -> Self {
                match value {
                    $($domain::$name => Self::$name,)+
                }
            }
        }

        impl TryFrom<v1::$wire> for $domain {
            type Error = Malformed;

            fn try_from(value: v1::$wire) -> Result<Self, Malformed> {
                match value {
                    v1::$wire::Unspecified => Err(Malformed::OutOfRange($field)),
                    $(v1::$wire::$name => Ok(Self::$name),)+
                }
            }
        }
    };
}

mod account;
mod agent;
pub mod claim;
mod coordinator;
mod failure;
mod health;
mod job_state;
mod look;
mod memory;
mod notice;
mod progress;
mod settings;
mod snapshot;
pub mod voter;

use std::time::Duration;

use ragent_rendezvous::{
    ids::{Round, RoundId, Term},
    message::LINE_MAX,
};

pub use self::{
    agent::FromAgent,
    coordinator::{FromCoordinator, NotHere},
    snapshot::checked,
};
use crate::{
    Malformed, limits,
    printable::{is_unfit, printable, turns_text},
    v1,
};

/// Returns the value of a mandatory field.
fn required<T>(value: Option<T>, field: &'static str) -> Result<T, Malformed> {
    value.ok_or(Malformed::Missing(field))
}

/// Checks a text of at most `limit` bytes. It has no control characters other than newline and tab, and none
/// that override the direction of text.
fn text(value: String, field: &'static str, limit: usize) -> Result<String, Malformed> {
    if value.len() > limit {
        return Err(Malformed::TooLong { field, len: value.len(), limit });
    }
    if value.chars().any(|c| is_unfit(c) || turns_text(c)) {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(value)
}

/// Checks a name of at most [`limits::MAX_NAME_LEN`] bytes, on one line.
fn name(value: String, field: &'static str) -> Result<String, Malformed> {
    one_line(value, field, limits::MAX_NAME_LEN)
}

/// Checks a line of at most [`LINE_MAX`] bytes.
fn line(value: String, field: &'static str) -> Result<String, Malformed> {
    one_line(value, field, LINE_MAX)
}

/// Checks a text of at most `limit` bytes, on one line.
fn one_line(value: String, field: &'static str, limit: usize) -> Result<String, Malformed> {
    let value = text(value, field, limit)?;
    if value.chars().any(char::is_control) {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(value)
}

/// Returns the part of `value` that [`name`] accepts.
fn fitted(value: &str) -> String {
    fitted_to(value, limits::MAX_NAME_LEN)
}

/// Returns the part of `value` that [`line()`] accepts.
fn fitted_line(value: &str) -> String {
    fitted_to(value, LINE_MAX)
}

/// Returns the part of `value` that [`one_line`] accepts.
fn fitted_to(value: &str, limit: usize) -> String {
    let fit = value.chars().filter(|c| !c.is_control() && !turns_text(*c));
    let mut len = 0;
    let cut = fit.take_while(|c| {
        len += c.len_utf8();
        len <= limit
    });
    cut.collect()
}

/// Checks a name that must not be empty.
fn nonempty(value: String, field: &'static str) -> Result<String, Malformed> {
    if value.is_empty() {
        return Err(Malformed::Missing(field));
    }
    name(value, field)
}

fn port(value: u32, field: &'static str) -> Result<u16, Malformed> {
    match u16::try_from(value) {
        Ok(0) | Err(_) => Err(Malformed::OutOfRange(field)),
        Ok(port) => Ok(port),
    }
}

fn millis(value: u64, field: &'static str) -> Result<Duration, Malformed> {
    if value > limits::MAX_DURATION_MS {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(Duration::from_millis(value))
}

fn to_millis(value: Duration) -> u64 {
    u64::try_from(value.as_millis()).unwrap_or(u64::MAX)
}

fn list<T, U>(
    values: Vec<T>,
    field: &'static str,
    limit: usize,
    convert: impl Fn(T) -> Result<U, Malformed>,
) -> Result<Vec<U>, Malformed> {
    if values.len() > limit {
        return Err(Malformed::TooLong { field, len: values.len(), limit });
    }
    values.into_iter().map(convert).collect()
}

fn round(value: Option<v1::RoundId>, field: &'static str) -> Result<RoundId, Malformed> {
    let v1::RoundId { term, round } = required(value, field)?;
    Ok(RoundId { term: Term(term), round: Round(round) })
}

fn to_round(value: RoundId) -> Option<v1::RoundId> {
    Some(v1::RoundId { term: value.term.0, round: value.round.0 })
}

#[cfg(test)]
mod tests;
