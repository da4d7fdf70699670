//! The start time of a process, which distinguishes it from another one with the same number.

use std::fs;

/// Returns the start time of a process, in ticks since boot; `None` if there is no such process, or
/// it is a zombie.
pub(crate) fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name may contain any character, and ends at the last parenthesis. The third field
    // is the state, the 22nd the start time.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let has_ended = ["Z", "X"].contains(&fields.next()?);
    fields.nth(18)?.parse().ok().filter(|_| !has_ended)
}
