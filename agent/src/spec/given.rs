//! Reads the command line, and the `PET_*` variables for flags that are not given.

use ragent_rendezvous::settings::StoreAccess;

use super::JobSpecError;
use crate::{cli::LaunchArgs, scheduler::Placement, sys::host::Host};

/// As much as the protocol allows, and as fits into the name of a log folder.
pub(super) const MAX_NAME_LEN: usize = 200;

/// Collects mistakes, so that all are reported at once.
pub(crate) struct Errors<E = JobSpecError>(pub(crate) Vec<E>);

impl<E> Default for Errors<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: PartialEq> Errors<E> {
    /// Returns the value. Collects a mistake once, and returns `fallback`, which is never used,
    /// instead.
    pub(crate) fn or<T>(&mut self, result: Result<T, E>, fallback: T) -> T {
        result.unwrap_or_else(|error| {
            if !self.0.contains(&error) {
                self.0.push(error);
            }
            fallback
        })
    }

    /// Returns the value. Collects a mistake, and returns the default value instead.
    pub(crate) fn or_default<T: Default>(&mut self, result: Result<T, E>) -> T {
        self.or(result, T::default())
    }
}

/// The command line, and the environment for flags that are not given.
pub(super) struct Given<'a, H> {
    pub(super) args: &'a LaunchArgs,
    pub(super) host: &'a H,
    /// The place that a launcher has given to this agent, if that counts.
    pub(super) placement: Option<Placement>,
}

/// A value and its source, as errors show it.
pub(super) struct Typed {
    pub(super) source: String,
    pub(super) text: String,
}

impl<H: Host> Given<'_, H> {
    /// Returns the value of a flag, else that of its `PET_*` variable.
    pub(super) fn typed(&self, name: &str, typed: &Option<String>) -> Option<Typed> {
        if let Some(text) = typed {
            let source = format!("--{}", name.replace('_', "-"));
            return Some(Typed { source, text: text.clone() });
        }
        self.variable(&format!("PET_{}", name.to_ascii_uppercase()))
    }

    /// Returns the value of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<Typed> {
        let text = self.host.env(name)?.to_string_lossy().into_owned();
        Some(Typed { source: name.to_owned(), text })
    }

    pub(super) fn text(&self, name: &str, typed: &Option<String>) -> Option<String> {
        self.typed(name, typed).map(|typed| typed.text)
    }

    /// Reads a name that is sent to other nodes.
    pub(super) fn name(
        &self,
        name: &str,
        typed: &Option<String>,
    ) -> Result<Option<String>, JobSpecError> {
        let Some(given) = self.typed(name, typed) else { return Ok(None) };
        if given.text.len() > MAX_NAME_LEN || given.text.chars().any(char::is_control) {
            return Err(JobSpecError::Name { source_: given.source, value: given.text });
        }
        Ok(Some(given.text))
    }

    /// Reads an on/off flag; its variable contains an integer, as with torchrun.
    pub(super) fn switch(&self, name: &str, typed: bool) -> Result<bool, JobSpecError> {
        let Some(given) = self.typed(name, &None) else {
            return Ok(typed);
        };
        match python_int(&given.text).and_then(|digits| digits.parse::<i64>().ok()) {
            Some(number) => Ok(typed || number != 0),
            None => Err(JobSpecError::Switch { source_: given.source, value: given.text }),
        }
    }

    pub(super) fn optional_number(
        &self,
        name: &str,
        typed: &Option<String>,
    ) -> Result<Option<u32>, JobSpecError> {
        let Some(given) = self.typed(name, typed) else {
            return Ok(None);
        };
        match python_int(&given.text).and_then(|digits| digits.parse().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(JobSpecError::Number { source_: given.source, value: given.text }),
        }
    }

    pub(super) fn number(
        &self,
        name: &str,
        typed: &Option<String>,
        default: u32,
    ) -> Result<u32, JobSpecError> {
        Ok(self.optional_number(name, typed)?.unwrap_or(default))
    }

    /// Reads which clients may connect to the workers' store.
    pub(super) fn store_access(&self) -> Result<StoreAccess, JobSpecError> {
        let choose = |text: &str| match text {
            "members" => Some(StoreAccess::Members),
            "any" => Some(StoreAccess::Any),
            _ => None,
        };
        let choices = "`members` or `any`";
        let given = self.choice("store_access", &self.args.store_access, choices, choose)?;
        Ok(given.unwrap_or_default())
    }

    /// Reads one of a few words.
    pub(super) fn choice<T>(
        &self,
        name: &str,
        typed: &Option<String>,
        choices: &'static str,
        choose: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, JobSpecError> {
        let Some(given) = self.typed(name, typed) else {
            return Ok(None);
        };
        match choose(&given.text) {
            Some(chosen) => Ok(Some(chosen)),
            None => Err(JobSpecError::Choice { source_: given.source, value: given.text, choices }),
        }
    }
}

/// Returns the digits of a whole number as Python's `int` reads it: with surrounding white space, a
/// sign, and single underscores between digits.
pub(super) fn python_int(text: &str) -> Option<String> {
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
}
