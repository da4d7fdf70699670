//! Reads one value of the command line or the environment.

use std::{ffi::OsStr, fmt, num::NonZeroU32, ops::RangeInclusive};

use ragent_base::{
    limits,
    net::{Endpoint, EndpointError},
    sys::host::Host,
};
use ragent_rendezvous::settings::{NodeRange, NodeRangeError};

use super::UsageError;

/// The value of a flag or a variable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Argument {
    /// The flag or the variable, as errors show it.
    pub(crate) source: String,
    /// The value, as given.
    pub text: String,
}

impl Argument {
    /// Names the source of a value.
    pub fn new(source: &str, text: &str) -> Self {
        Self { source: source.to_owned(), text: text.to_owned() }
    }

    /// Returns the value of a flag, if it is given.
    pub fn of_flag(flag: &str, typed: &Option<String>) -> Option<Self> {
        typed.as_deref().map(|text| Self::new(flag, text))
    }

    /// Splits a command of the user into words, as a shell does. `example` is another command.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no word, or if the program does not exist.
    pub fn command<H: Host>(&self, host: &H, example: &str) -> Result<Vec<String>, UsageError> {
        let wrong = |problem: &str| {
            let hint = format!("give a program with its arguments, such as {example}");
            self.invalid(problem).with_hint(&hint)
        };
        let words = shlex::split(&self.text)
            .filter(|words| !words.is_empty())
            .ok_or_else(|| wrong("is empty, or has an open quotation mark"))?;
        if words.first().is_some_and(|word| host.find_program(OsStr::new(word)).is_none()) {
            return Err(wrong("names a program that does not exist or cannot be run"));
        }
        Ok(words)
    }

    /// Returns the error "`--flag VALUE` `problem`" or "`VARIABLE=VALUE` `problem`".
    pub fn invalid(&self, problem: impl fmt::Display) -> UsageError {
        let Self { source, text } = self;
        let sign = if source.starts_with('-') { ' ' } else { '=' };
        UsageError::new(format!("`{source}{sign}{text}` {problem}"))
    }

    /// Returns the error that this value is not `expected`, a description of valid values.
    pub fn is_not(&self, expected: impl fmt::Display) -> UsageError {
        self.invalid(format_args!("is not {expected}"))
    }

    /// Reads a whole number, as Python's `int` does.
    pub fn number(&self, range: RangeInclusive<u32>) -> Result<u32, UsageError> {
        let number = self.int().filter(|number| range.contains(number));
        number.ok_or_else(|| match (range.start(), range.end()) {
            // A maximum that no useful value reaches.
            (min, max) if *max >= MAX_SIGNED => {
                self.is_not(format_args!("a whole number, {min} or greater"))
            }
            (min, max) => self.is_not(format_args!("a number from {min} to {max}")),
        })
    }

    fn int(&self) -> Option<u32> {
        python_int(&self.text)?.parse().ok()
    }

    /// Reads a time in seconds, or with a unit. `is_allowed` is false for NaN too.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not a time, or not an allowed one.
    pub fn seconds(&self, is_allowed: impl FnOnce(f64) -> bool) -> Result<f64, UsageError> {
        let seconds = seconds(&self.text).filter(|seconds| is_allowed(*seconds));
        seconds.ok_or_else(|| {
            self.is_not("a valid time: seconds, or a number with a unit such as `250ms`, `60s`, `5m` or `1h`")
        })
    }

    /// Reads a time of whole seconds.
    ///
    /// # Errors
    ///
    /// Returns an error if it is not a time, or not in the range.
    pub fn whole_seconds(&self, range: RangeInclusive<u32>) -> Result<u32, UsageError> {
        let (min, max) = (f64::from(*range.start()), f64::from(*range.end()));
        let is_allowed = |seconds: &f64| seconds.fract() == 0.0 && (min..=max).contains(seconds);
        match seconds(&self.text).filter(is_allowed) {
            Some(seconds) => Ok(seconds as u32),
            None => self.number(range).map_err(|error| {
                error
                    .with_hint("give whole seconds, or one number with a unit, as in `90s` or `5m`")
            }),
        }
    }

    /// Reads a number of workers.
    pub(super) fn workers(&self) -> Result<NonZeroU32, UsageError> {
        let workers = self.int().filter(|workers| *workers <= limits::MAX_LOCAL_WORLD_SIZE);
        let problem = "is neither a positive number nor `auto`, `cpu`, `gpu` or `xpu`";
        let hint = "give the number of workers of this node, as in `--nproc-per-node 8`, or `auto` \
                    for one on each accelerator";
        workers.and_then(NonZeroU32::new).ok_or_else(|| self.invalid(problem).with_hint(hint))
    }

    /// Reads `port`, which is all of this value or a part of it; `min` is 0 if that selects a free
    /// port.
    pub(super) fn port(&self, port: &str, min: u16) -> Result<u16, UsageError> {
        let number = python_int(port).and_then(|digits| digits.parse().ok());
        number.filter(|port| *port >= min).ok_or_else(|| {
            self.is_not(format_args!("a valid port: it must be a number from {min} to 65535"))
        })
    }

    /// Reads an endpoint.
    pub(super) fn endpoint(&self) -> Result<Endpoint, UsageError> {
        self.text.parse().map_err(|error| self.not_an_endpoint(error))
    }

    /// Reads a host, and a port if there is one.
    pub(super) fn host_and_port(&self) -> Result<(String, Option<u16>), UsageError> {
        Endpoint::split(&self.text).map_err(|error| self.not_an_endpoint(error))
    }

    pub(super) fn not_an_endpoint(&self, error: EndpointError) -> UsageError {
        let hint = match error {
            EndpointError::NoPort => "with `static`, give the endpoint as `HOST:PORT`",
            EndpointError::PortInAddress => "give the port as `--master-port`",
            // Only an IPv6 address has several colons.
            EndpointError::Port if self.text.matches(':').count() > 1 => {
                "write an IPv6 address with a port in brackets: `[fd00::1]:29400`"
            }
            EndpointError::Bracket => "close it after the IPv6 address: `[fd00::1]:29400`",
            EndpointError::Host
            | EndpointError::NoHost
            | EndpointError::Port
            | EndpointError::Url => ADDRESS_HINT,
        };
        self.is_not(format_args!("a valid endpoint: {error}")).with_hint(hint)
    }

    /// Reads a number of nodes: `N`, `MIN:MAX` or `MIN:MAX:UNIT`.
    pub fn nodes(&self) -> Result<NodeRange, UsageError> {
        let part = |part: &str| python_int(part).unwrap_or_else(|| part.to_owned());
        let parts: Vec<String> = self.text.split(':').map(part).collect();
        parts.join(":").parse().map_err(|error| {
            let invalid = self.invalid(error);
            match error {
                NodeRangeError::Empty { min, max } if max > 0 && min > max => invalid
                    .with_hint(format!("give the smaller number first: `--nnodes {max}:{min}`")),
                NodeRangeError::Empty { .. } => {
                    invalid.with_hint("give at least 1 node, as in `--nnodes 1` or `--nnodes 1:4`")
                }
                NodeRangeError::Format => invalid
                    .with_hint("give the number of nodes, as in `--nnodes 4` or `--nnodes 2:8`"),
                NodeRangeError::NoMultiple { .. } => invalid,
            }
        })
    }

    /// Reads the integer of a variable for an on/off flag.
    pub(super) fn switch(&self) -> Result<bool, UsageError> {
        let number = python_int(&self.text).and_then(|digits| digits.parse::<i64>().ok());
        number.map(|number| number != 0).ok_or_else(|| self.invalid("is neither 0 nor 1"))
    }

    /// Reads one of a few words, which `choices` lists.
    pub fn choice<T>(
        &self,
        choices: &str,
        choose: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, UsageError> {
        choose(&self.text).ok_or_else(|| self.is_not(choices))
    }
}

/// The hint for an endpoint that is not the address of a node.
pub(super) const ADDRESS_HINT: &str = "give the address of one node, such as `node0:29400`";

/// The largest number that signed types of 32 bits have.
const MAX_SIGNED: u32 = i32::MAX as u32;

/// Reads a time in seconds, or with the unit `ms`, `s`, `m` or `h`.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let with_unit = |(unit, factor)| Some((text.strip_suffix(unit)?, factor));
    let (number, factor) = units.into_iter().find_map(with_unit).unwrap_or((text, 1.0));
    Some(number.parse::<f64>().ok()? * factor)
}

/// Returns the digits of a whole number as Python's `int` reads it: with surrounding white space, a
/// sign, and single underscores between digits.
fn python_int(text: &str) -> Option<String> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let groups: Vec<&str> = digits.split('_').collect();
    let is_number = |group: &&str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    groups.iter().all(is_number).then(|| text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exactly what Python reads as a whole number is accepted.
    #[test]
    fn numbers_are_pythons() {
        for (text, digits) in [(" 12 ", "12"), ("+3", "+3"), ("1_000", "1000"), ("-4", "-4")] {
            assert_eq!(python_int(text).as_deref(), Some(digits));
        }
        for wrong in ["", "1__0", "_1", "1_", "1.5", "0x1", "--1", "1 0"] {
            assert_eq!(python_int(wrong), None, "{wrong}");
        }
    }

    /// A time is a number of seconds, or has a unit.
    #[test]
    fn times_have_units() {
        let read = |text| Argument::new("--notice", text).seconds(|seconds| seconds >= 0.0);
        for (text, expected) in [
            ("60", 60.0),
            (" 1.5 ", 1.5),
            ("250ms", 0.25),
            ("60s", 60.0),
            ("5m", 300.0),
            ("1h", 3600.0),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for wrong in ["", "s", "5x", "5 minutes", "nan", "-1s", "1h30m"] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains("is not a valid time: seconds, or"), "{error}");
        }
        let whole = |text| Argument::new("--shutdown-timeout", text).whole_seconds(0..=600).ok();
        let read = ["30", "1_0", "5m", "1.5s", "1h", "-1"].map(whole);
        assert_eq!(read, [Some(30), Some(10), Some(300), None, None, None]);
    }

    /// The error of a number describes the range, unless its maximum is that of the type.
    #[test]
    fn ranges_of_numbers() {
        let read = |text, range| Argument::new("--n", text).number(range);
        let error = |text, range| read(text, range).unwrap_err().to_string();
        assert_eq!(read(" 1_0", 1..=10), Ok(10));
        assert_eq!(error("11", 1..=10), "`--n 11` is not a number from 1 to 10");
        assert_eq!(error("-1", 0..=u32::MAX), "`--n -1` is not a whole number, 0 or greater");
    }
}
