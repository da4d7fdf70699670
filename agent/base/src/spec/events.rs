//! Reads the destination of the workers' events: torchrun's `--event-log-handler`.

use std::{path::PathBuf, str::FromStr};

use super::{UsageError, arguments::Arguments};
use crate::sys::host::Host;

/// The destination of events.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum EventDestination {
    /// Nowhere.
    #[default]
    Null,
    /// To stderr.
    Console,
    /// To the end of a file.
    File(PathBuf),
}

impl FromStr for EventDestination {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(_) => Err(()),
            None if text == "console" => Ok(Self::Console),
            // torchrun's second name has no handler in the open-source version.
            None if ["null", "dynamic_rendezvous"].contains(&text) => Ok(Self::Null),
            None => Err(()),
        }
    }
}

impl<H: Host> Arguments<'_, H> {
    pub(super) fn event_log(&self) -> Result<EventDestination, UsageError> {
        let choices = "`null`, `console` or `file:PATH`";
        let read = |text: &str| text.parse().ok();
        self.choice("event_log_handler", &self.args.event_log_handler, choices, read)
    }
}
