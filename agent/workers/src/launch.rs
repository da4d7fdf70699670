//! Prepares the start of a worker: its arguments, its environment, and the file for its error.

pub mod arguments;
pub mod environment;
pub(crate) mod error_file;
