//! Defines the kinds of fields: how a value is written to a message, and how it is checked when it is read.

use std::{fmt::Display, num::NonZeroU32, str::FromStr, time::Duration};

use ragent_rendezvous::{
    ids::{
        GlobalRank, GroupRank, JobUid, LocalRank, NodeId, RoleRank, Round, Term, VoterAddress,
        VoterId,
    },
    message::MEMORY_BYTES_MAX,
};

use super::{
    fitted_to, list, millis, name, nonempty, number, one_line, port, printable, progress::step,
    required, text, to_millis, to_millis_up,
};
use crate::{Malformed, limits};

/// The kind of a field, which has the type `Domain` here and the type `Wire` in the message.
pub(super) trait FieldKind<Domain, Wire> {
    /// Converts a value that is sent.
    fn write(&self, value: Domain) -> Wire;

    /// Checks a value that was received in the field with this name.
    fn read(&self, value: Wire, field: &'static str) -> Result<Domain, Malformed>;
}

/// A type that is, or wraps, a value of a message.
pub(super) trait Wrapper<Wire> {
    fn wrap(value: Wire) -> Self;
    fn inner(self) -> Wire;
}

impl<T> Wrapper<T> for T {
    fn wrap(value: T) -> Self {
        value
    }

    fn inner(self) -> T {
        self
    }
}

macro_rules! wrappers {
    ($wire:ty, $wrap:expr, $inner:expr, [$($wrapper:ident),+]) => {
        $(impl Wrapper<$wire> for $wrapper {
            fn wrap(value: $wire) -> Self {
                $wrap(value)
            }

            fn inner(self) -> $wire {
                $inner(self)
            }
        })+
    };
}

wrappers!(u64, Self, |id: Self| id.0, [Round, Term, VoterId]);
wrappers!(u32, Self, |id: Self| id.0, [GlobalRank, GroupRank, LocalRank, RoleRank]);
wrappers!(String, Self::new, |id: Self| id.to_string(), [JobUid, NodeId, VoterAddress]);

/// Defines kinds: the types of the field, the conversion of a value that is sent, and the check of a received one.
macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $kind:ident [$($generics:tt)*] $domain:ty => $wire:ty: $write:expr, $read:expr;
    )+) => {
        $($(#[$doc])*
        pub(super) struct $kind;

        impl<$($generics)*> FieldKind<$domain, $wire> for $kind {
            fn write(&self, value: $domain) -> $wire {
                $write(value)
            }

            fn read(&self, value: $wire, field: &'static str) -> Result<$domain, Malformed> {
                $read(value, field)
            }
        })+
    };
}

kinds! {
    /// A value without limits.
    Same [D: Wrapper<W>, W] D => W: D::inner, |value, _| Ok(D::wrap(value));
    /// A message, which checks itself.
    Inner [D: TryFrom<W, Error = Malformed>, W: From<D>] D => W:
        W::from, |value, _| D::try_from(value);
    /// A term, or another number that only grows.
    Number [D: Wrapper<u64>] D => u64: D::inner, |value, field| number(value, field).map(D::wrap);
    /// A training step.
    Step [] u64 => u64: |value| value, step;
    /// An amount of memory in bytes.
    ByteCount [] u64 => u64: |value| value, byte_count;
    /// A port.
    PortNumber [] u16 => u32: u32::from, port;
    /// The number of workers of a node.
    Workers [] NonZeroU32 => u32: NonZeroU32::get, workers;
    /// A time in milliseconds.
    Millis [] Duration => u64: to_millis, millis;
    /// A time in milliseconds that is rounded up.
    MillisUp [] Duration => u64: to_millis_up, millis;
    /// A time in microseconds.
    Micros [] Duration => u64: to_micros, micros;
    /// A name, which may be empty.
    Name [D: Wrapper<String>] D => String:
        D::inner, |value, field| name(value, field).map(D::wrap);
    /// A name that is not empty.
    Nonempty [D: Wrapper<String>] D => String:
        D::inner, |value, field| nonempty(value, field).map(D::wrap);
    /// A host and a port.
    Address [] String => String: |value| value, address;
    /// An address that is written as text.
    Parsed [D: Display + FromStr] D => String: |value: D| value.to_string(), parsed;
    /// The state of a process: one letter, or none.
    Letter [] Option<char> => String:
        |value: Option<char>| value.map(String::from).unwrap_or_default(), letter;
}

/// A value of an enumeration. Its error has the name that the enumeration gives it.
pub(super) struct Enumeration;

/// A value of an enumeration; `None` if it is not known. A name that only a later build has is unknown here.
pub(super) struct IfKnown;

impl<D> FieldKind<Option<D>, i32> for IfKnown
where
    Enumeration: FieldKind<D, i32>,
{
    fn write(&self, value: Option<D>) -> i32 {
        value.map_or(0, |value| Enumeration.write(value))
    }

    fn read(&self, value: i32, field: &'static str) -> Result<Option<D>, Malformed> {
        Ok(Enumeration.read(value, field).ok())
    }
}

/// A text of at most this many bytes. Control characters other than newline and tab are not sent.
pub(super) struct Text(pub(super) usize);

impl FieldKind<String, String> for Text {
    fn write(&self, value: String) -> String {
        printable(&value)
    }

    fn read(&self, value: String, field: &'static str) -> Result<String, Malformed> {
        text(value, field, self.0)
    }
}

/// A line of at most this many bytes. A longer one is cut when it is sent.
pub(super) struct OneLine(pub(super) usize);

impl FieldKind<String, String> for OneLine {
    fn write(&self, value: String) -> String {
        fitted_to(&value, self.0)
    }

    fn read(&self, value: String, field: &'static str) -> Result<String, Malformed> {
        one_line(value, field, self.0)
    }
}

/// A list of at most this many values.
pub(super) struct List<K>(pub(super) usize, pub(super) K);

impl<D, W, K: FieldKind<D, W>> FieldKind<Vec<D>, Vec<W>> for List<K> {
    fn write(&self, values: Vec<D>) -> Vec<W> {
        values.into_iter().map(|value| self.1.write(value)).collect()
    }

    fn read(&self, values: Vec<W>, field: &'static str) -> Result<Vec<D>, Malformed> {
        list(values, field, self.0, |value| self.1.read(value, field))
    }
}

/// A value that may be absent.
pub(super) struct Optional<K>(pub(super) K);

impl<D, W, K: FieldKind<D, W>> FieldKind<Option<D>, Option<W>> for Optional<K> {
    fn write(&self, value: Option<D>) -> Option<W> {
        value.map(|value| self.0.write(value))
    }

    fn read(&self, value: Option<W>, field: &'static str) -> Result<Option<D>, Malformed> {
        value.map(|value| self.0.read(value, field)).transpose()
    }
}

/// A message that must not be absent.
pub(super) struct Required<K>(pub(super) K);

impl<D, W, K: FieldKind<D, W>> FieldKind<D, Option<W>> for Required<K> {
    fn write(&self, value: D) -> Option<W> {
        Some(self.0.write(value))
    }

    fn read(&self, value: Option<W>, field: &'static str) -> Result<D, Malformed> {
        self.0.read(required(value, field)?, field)
    }
}

/// A message that counts as the default if it is absent.
pub(super) struct OrDefault<K>(pub(super) K);

impl<D: Default, W, K: FieldKind<D, W>> FieldKind<D, Option<W>> for OrDefault<K> {
    fn write(&self, value: D) -> Option<W> {
        Some(self.0.write(value))
    }

    fn read(&self, value: Option<W>, field: &'static str) -> Result<D, Malformed> {
        value.map_or_else(|| Ok(D::default()), |value| self.0.read(value, field))
    }
}

/// A large value, which is in a box here.
pub(super) struct Boxed<K>(pub(super) K);

impl<D, W, K: FieldKind<D, W>> FieldKind<Box<D>, W> for Boxed<K> {
    fn write(&self, value: Box<D>) -> W {
        self.0.write(*value)
    }

    fn read(&self, value: W, field: &'static str) -> Result<Box<D>, Malformed> {
        self.0.read(value, field).map(Box::new)
    }
}

fn to_micros(age: Duration) -> u64 {
    u64::try_from(age.as_micros()).unwrap_or(u64::MAX)
}

fn micros(age_us: u64, field: &'static str) -> Result<Duration, Malformed> {
    if age_us / 1000 > limits::MAX_DURATION_MS {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(Duration::from_micros(age_us))
}

fn byte_count(value: u64, field: &'static str) -> Result<u64, Malformed> {
    if value > MEMORY_BYTES_MAX { Err(Malformed::OutOfRange(field)) } else { Ok(value) }
}

fn workers(value: u32, field: &'static str) -> Result<NonZeroU32, Malformed> {
    NonZeroU32::new(value)
        .filter(|workers| workers.get() <= limits::MAX_LOCAL_WORLD_SIZE)
        .ok_or(Malformed::OutOfRange(field))
}

fn parsed<T: FromStr>(value: String, field: &'static str) -> Result<T, Malformed> {
    value.parse().map_err(|_| Malformed::OutOfRange(field))
}

fn address(value: String, field: &'static str) -> Result<String, Malformed> {
    let value = nonempty(value, field)?;
    let (host, port) = value.rsplit_once(':').ok_or(Malformed::OutOfRange(field))?;
    let is_port = port.parse().is_ok_and(|port: u16| port > 0);
    if host.is_empty() || !is_port {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(value)
}

fn letter(value: String, field: &'static str) -> Result<Option<char>, Malformed> {
    let mut letters = value.chars();
    match (letters.next(), letters.next()) {
        (None, _) => Ok(None),
        (Some(letter), None) if letter.is_ascii_alphabetic() => Ok(Some(letter)),
        (Some(_), _) => Err(Malformed::OutOfRange(field)),
    }
}
