//! Prints the output of commands.

use std::io::{self, ErrorKind, Write};

/// Prints and flushes `text`.
///
/// # Errors
///
/// Returns the system's refusal, such as a full disk. A reader that closed the pipe, as `head`
/// does, is not an error.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}
