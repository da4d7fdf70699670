//! Recognizes the name by which the program was called.

use std::{ffi::OsString, path::Path};

/// The name by which the program was called. As `torchrun`, it replaces torchrun in tools that start it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ProgramName {
    /// Any name other than `torchrun`.
    #[default]
    Ragent,
    /// `torchrun`. There are no subcommands, and the defaults are torchrun's.
    Torchrun,
}

/// The file name of torchrun, and of the link that replaces it.
pub const TORCHRUN: &str = "torchrun";

impl ProgramName {
    /// Returns the name in the first word of a command line.
    pub(super) fn of(word: Option<&OsString>) -> Self {
        let name = word.and_then(|word| Path::new(word).file_name());
        if name.is_some_and(|name| name == TORCHRUN) { Self::Torchrun } else { Self::Ragent }
    }

    /// Returns the name as text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Ragent => "ragent",
            Self::Torchrun => TORCHRUN,
        }
    }
}
