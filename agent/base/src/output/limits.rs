//! The limits of `output`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use crate::limits::CONSOLE_CHUNK;
#[cfg(test)]
pub(crate) use crate::limits::UNUSED_AFTER;

/// The number of bytes that a keeper copies at once from a pipe that its agent has not emptied: any
/// writable pipe takes as many in one piece.
pub(crate) const SPILLED_CHUNK: usize = 4096;
/// Chunks of output that wait for the console; workers wait while it is full, as they would for the
/// console itself.
pub(crate) const CONSOLE_QUEUE: usize = 64;
/// The size of one read from a worker's pipe that goes to a file: two threads take turns with each,
/// or the worker and one.
pub(crate) const TEE_CHUNK: usize = 256 * 1024;
/// Chunks of one stream that are copied before another stream's turn.
pub(crate) const COPY_BURST: usize = 16;
/// The size of the end of a worker's stderr that a report contains; together with the rest, a
/// failure stays near 4 KiB.
pub(crate) const STDERR_TAIL: usize = 3 * 1024;
/// The size of the end of a stream that has no file, for readers of the output: hundreds of lines.
pub(crate) const READABLE_TAIL: usize = 64 * 1024;
/// The output that a reader may be behind. After that it goes on at the end of the stream, and lines are left out. A new reader gets as
/// much of the end: thousands of lines, and little for a network.
pub(crate) const OUTPUT_WINDOW: u64 = 256 * 1024;
/// The size of one read of output: small, so that the other streams have their turn.
pub(crate) const OUTPUT_PART: u64 = 64 * 1024;
/// The size of a line of output for readers. Longer lines become several.
pub const OUTPUT_LINE: usize = 4096;
/// The number of rounds whose output can be read: the newest one, and the one whose failure a user may look for.
pub(crate) const OUTPUT_ROUNDS: usize = 2;
/// The time after which a begun line is shown, such as a question or a progress bar.
pub const OUTPUT_LINE_PATIENCE: Duration = Duration::from_secs(1);
/// The end of a chunk that is read to find training steps in it, if the chunk need not be read otherwise: an ordinary line many
/// times over, while a flood of output is copied as fast as before.
pub(crate) const SAMPLED_OUTPUT: usize = 4096;
/// The number of last attempts whose folders stay in a temporary folder even if they are empty.
pub(crate) const KEPT_ATTEMPTS: u32 = 16;
/// The number of entries of the folder for temporary files that an agent examines when it starts.
pub(crate) const MAX_TEMP_ENTRIES: usize = 4096;
/// The number of temporary folders that are kept although they contain only reports of a failure: those of
/// the failures that a user may still compare.
pub(crate) const KEPT_REPORTS: usize = 64;
/// The time that such a folder is kept: a weekend passes before a failure is examined.
pub(crate) const REPORTS_KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The size of the pieces when a line without an end is printed with a prefix.
pub const MAX_CONSOLE_LINE: usize = 64 * 1024;
