//! A number that changes with any effect of a coordinator: two builds with equal numbers decide alike.

use std::{
    collections::hash_map::DefaultHasher,
    fmt::{self, Debug, Write},
    hash::Hasher,
};

/// The effects so far, in order, as one number.
#[derive(Debug, Default)]
pub(crate) struct Trace(DefaultHasher);

impl Trace {
    pub(crate) fn add(&mut self, effect: &dyn Debug) {
        writeln!(self, "{effect:?}").expect("hashing cannot fail");
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.finish()
    }
}

impl Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
