//! What a command was asked to print.

use std::io::{self, ErrorKind, Write};

/// Prints `text`, all of which is out when this returns.
///
/// # Errors
///
/// Returns the system's refusal, such as that of a disk that is full. A reader that went away, as `head`
/// does, has read enough.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}
