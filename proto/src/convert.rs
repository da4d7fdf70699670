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

        impl $crate::convert::kinds::FieldKind<$domain, i32> for $crate::convert::kinds::Enumeration {
            fn write(&self, value: $domain) -> i32 {
                v1::$wire::from(value).into()
            }

            fn read(&self, value: i32, _: &'static str) -> Result<$domain, Malformed> {
                v1::$wire::try_from(value).unwrap_or_default().try_into()
            }
        }
    };
}

/// Implements conversions between a generated message and a domain type, from one list of fields. Each line has
/// the name of the field in the message, the name in the domain type if it is another one, and the kind of the
/// field. An error names the field after `$name`. A last argument is a function that checks rules about several
/// fields of a received message.
macro_rules! message {
    ($domain:path, $wire:path, $name:literal, {
        $($on_wire:ident $(as $field:ident)?: $kind:expr),+ $(,)?
    } $(, $check:path)?) => {
        impl From<$domain> for $wire {
            fn from(message: $domain) -> Self {
                use $crate::convert::kinds::*;
                let $domain { $($($field:)? $on_wire),+ } = message;
                Self { $($on_wire: $kind.write($on_wire)),+ }
            }
        }

        impl TryFrom<$wire> for $domain {
            type Error = Malformed;

            fn try_from(message: $wire) -> Result<Self, Malformed> {
                use $crate::convert::kinds::*;
                $($check(&message)?;)?
                let $wire { $($on_wire),+ } = message;
                $(let $on_wire =
                    $kind.read($on_wire, concat!($name, ".", stringify!($on_wire)))?;)+
                Ok(Self { $($($field:)? $on_wire),+ })
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
mod kinds;
mod look;
mod memory;
mod notice;
mod progress;
mod settings;
mod snapshot;
pub mod voter;

use std::time::Duration;

use ragent_rendezvous::{ids::RoundId, limits::NUMBER_MAX, message::LINE_MAX};

pub use self::{
    agent::FromAgent,
    coordinator::{CoordinatorAddress, FromCoordinator},
    snapshot::state_from_json,
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

/// Returns the milliseconds, rounded up: for a time for which workers may run, a shorter one would be unsafe.
fn to_millis_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Checks a term, or another number that only grows.
fn number(value: u64, field: &'static str) -> Result<u64, Malformed> {
    if value > NUMBER_MAX { Err(Malformed::OutOfRange(field)) } else { Ok(value) }
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

message!(RoundId, v1::RoundId, "round_id", { term: Same, round: Same });

fn round(value: Option<v1::RoundId>, field: &'static str) -> Result<RoundId, Malformed> {
    required(value, field)?.try_into()
}

fn to_round(value: RoundId) -> Option<v1::RoundId> {
    Some(value.into())
}

#[cfg(test)]
mod tests;
