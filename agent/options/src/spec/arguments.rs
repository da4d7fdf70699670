//! Reads the command line, and the `PET_*` variables for flags that are not given.

use ragent_base::sys::host::Host;
use ragent_rendezvous::settings::StoreAccess;

use super::{Argument, UsageError};
use crate::{cli::LaunchArgs, scheduler::Placement};

/// As much as the protocol allows, and as fits into the name of a log folder.
pub(super) const MAX_NAME_LEN: usize = 200;

/// The hint for `--store-access user`.
const NOT_BY_USER: &str = "omit it: `members`, the default, refuses hosts outside the job; if users share your machines, give \
                           the job machines of its own";

/// The command line, and the environment for flags that are not given.
pub(super) struct Arguments<'a, H> {
    pub(super) args: &'a LaunchArgs,
    pub(super) host: &'a H,
    /// The place that a launcher has given to this agent, if that counts.
    pub(super) placement: Option<Placement>,
}

impl<H: Host> Arguments<'_, H> {
    /// Returns the value of a flag, else that of its `PET_*` variable.
    pub(super) fn argument(&self, name: &str, typed: &Option<String>) -> Option<Argument> {
        let flag = format!("--{}", name.replace('_', "-"));
        let variable = || self.variable(&format!("PET_{}", name.to_ascii_uppercase()));
        Argument::of_flag(&flag, typed).or_else(variable)
    }

    /// Returns the value of a flag or of its variable, unless it is empty.
    pub(super) fn not_empty(&self, name: &str, typed: &Option<String>) -> Option<Argument> {
        self.argument(name, typed).filter(|given| !given.text.is_empty())
    }

    /// Returns the value of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<Argument> {
        let text = self.host.env(name)?;
        Some(Argument::new(name, &text.to_string_lossy()))
    }

    pub(super) fn text(&self, name: &str, typed: &Option<String>) -> Option<String> {
        self.argument(name, typed).map(|given| given.text)
    }

    /// Reads a name that is sent to other nodes.
    pub(super) fn name(
        &self,
        name: &str,
        typed: &Option<String>,
    ) -> Result<Option<String>, UsageError> {
        let Some(given) = self.argument(name, typed) else { return Ok(None) };
        if given.text.len() > MAX_NAME_LEN || given.text.chars().any(char::is_control) {
            return Err(given.is_not("a valid name: at most 200 bytes, without control characters"));
        }
        Ok(Some(given.text))
    }

    /// Reads an on/off flag; its variable contains an integer, as with torchrun.
    pub(super) fn switch(&self, name: &str, typed: bool) -> Result<bool, UsageError> {
        let given = self.argument(name, &None).map(|given| given.switch()).transpose()?;
        Ok(typed || given.unwrap_or(false))
    }

    pub(super) fn optional_number(
        &self,
        name: &str,
        typed: &Option<String>,
    ) -> Result<Option<u32>, UsageError> {
        self.argument(name, typed).map(|given| given.number(0..=u32::MAX)).transpose()
    }

    pub(super) fn number(
        &self,
        name: &str,
        typed: &Option<String>,
        default: u32,
    ) -> Result<u32, UsageError> {
        Ok(self.optional_number(name, typed)?.unwrap_or(default))
    }

    /// Reads which clients may connect to the workers' store.
    pub(super) fn store_access(&self) -> Result<StoreAccess, UsageError> {
        let (name, typed) = ("store_access", &self.args.store_access);
        // It has demanded protection, so an agent that cannot give it does not start.
        if let Some(given) = self.argument(name, typed).filter(|given| given.text == "user") {
            return Err(given.invalid("is not supported any more").with_hint(NOT_BY_USER));
        }
        let choose = |text: &str| match text {
            "members" => Some(StoreAccess::Members),
            "any" => Some(StoreAccess::Any),
            _ => None,
        };
        self.choice(name, typed, "`members` or `any`", choose)
    }

    /// Reads torchrun's `--event-log-handler`. Returns true if events are printed.
    pub(super) fn prints_events(&self) -> Result<bool, UsageError> {
        let choose = |text: &str| match text {
            "console" => Some(true),
            // torchrun's third name has no handler in the open-source version.
            "null" | "dynamic_rendezvous" => Some(false),
            _ => None,
        };
        let given = &self.args.event_log_handler;
        self.choice("event_log_handler", given, "`null` or `console`", choose).map_err(|error| {
            error.with_hint("to write the events of the job to a file, use `--journal FILE`")
        })
    }

    /// Reads one of a few words; the default value if none is given.
    pub(super) fn choice<T: Default>(
        &self,
        name: &str,
        typed: &Option<String>,
        choices: &str,
        choose: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, UsageError> {
        match self.argument(name, typed) {
            Some(given) => given.choice(choices, choose),
            None => Ok(T::default()),
        }
    }
}
