//! Lists the errors of NVIDIA's GPU driver (XIDs), and what a machine needs after each of them.
//!
//! The list follows NVIDIA's catalogue of 2025-10-29. It has no entry for errors that only inform.

use super::Need;

/// After these, the machine must be restarted or repaired.
const REPLACE: [u32; 3] = [54, 79, 151];

/// After these, the GPU must be reset.
const RESET: [u32; 15] = [46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158];

/// After these, a new start of the program is enough. The first and the last number of each range.
const PROGRAM: [(u32, u32); 19] = [
    (8, 8),
    (11, 11),
    (13, 13),
    (25, 25),
    (31, 32),
    (39, 41),
    (45, 45),
    (60, 60),
    (68, 72),
    (75, 77),
    (80, 80),
    (82, 86),
    (88, 89),
    (94, 94),
    (96, 105),
    (126, 126),
    (127, 134),
    (135, 135),
    (139, 139),
];

/// The names that people search for.
const NAMES: [(u32, &str); 29] = [
    (8, "the GPU stopped processing"),
    (11, "invalid or corrupted push buffer"),
    (13, "graphics engine exception"),
    (31, "memory page fault"),
    (32, "invalid or corrupted push buffer"),
    (38, "driver firmware error"),
    (43, "the GPU stopped processing"),
    (45, "preemptive cleanup"),
    (46, "the GPU stopped processing"),
    (48, "double-bit ECC error"),
    (54, "auxiliary power is not connected"),
    (61, "internal micro-controller breakpoint"),
    (62, "internal micro-controller halt"),
    (63, "row remapping event"),
    (64, "row remapping failure"),
    (69, "graphics engine class error"),
    (74, "NVLink error"),
    (79, "fell off the bus"),
    (92, "high rate of single-bit ECC errors"),
    (94, "contained memory error"),
    (95, "uncontained memory error"),
    (109, "context switch time-out"),
    (119, "GSP RPC time-out"),
    (120, "GSP error"),
    (121, "C2C link error"),
    (137, "NVLink privilege error"),
    (140, "unrecovered ECC error"),
    (143, "GPU initialization failure"),
    (154, "the recovery action has changed"),
];

/// Returns the need of a machine after an error. After NVLink errors (74, 144 to 150) and after 154, the driver itself
/// names it as the recovery action, so they only inform.
pub(super) fn need(xid: u64) -> Need {
    let Ok(xid) = u32::try_from(xid) else { return Need::Nothing };
    if REPLACE.contains(&xid) {
        Need::Replace
    } else if RESET.contains(&xid) {
        Need::Reset
    } else if PROGRAM.iter().any(|(first, last)| (*first..=*last).contains(&xid)) {
        Need::Program
    } else {
        Need::Nothing
    }
}

/// Returns an error with its name, such as `XID 79 (fell off the bus)`.
pub(super) fn text(xid: u64) -> String {
    match NAMES.iter().find(|(number, _)| u64::from(*number) == xid) {
        Some((_, name)) => format!("XID {xid} ({name})"),
        None => format!("XID {xid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers with this need, in order.
    fn with(expected: Need) -> Vec<u64> {
        (0..1000).filter(|xid| need(*xid) == expected).collect()
    }

    /// The classes are those of NVIDIA's catalogue, as `docs/health.md` has them.
    #[test]
    fn classes_are_those_of_the_page() {
        let page = include_str!("../../../../docs/health.md");
        for (name, class) in
            [("replace", Need::Replace), ("reset", Need::Reset), ("program", Need::Program)]
        {
            let row = page.lines().find(|line| line.starts_with(&format!("| {name} | ")));
            let numbers = row.and_then(|row| row.split('|').nth(3)).expect("the page has the row");
            let numbers = numbers.split(',').flat_map(|range| {
                let (first, last) = range.split_once(" to ").unwrap_or((range, range));
                let number = |text: &str| text.trim().parse::<u64>().expect("a number");
                number(first)..=number(last)
            });
            assert_eq!(with(class), numbers.collect::<Vec<_>>(), "{name}");
        }
    }

    /// Numbers of later drivers are shown without a name, and are no reason to do anything.
    #[test]
    fn unknown_numbers_inform() {
        assert_eq!(text(79), "XID 79 (fell off the bus)");
        assert_eq!(text(172), "XID 172");
        assert_eq!(need(172), Need::Nothing);
        assert_eq!((need(u64::MAX), text(u64::MAX)), (Need::Nothing, format!("XID {}", u64::MAX)));
    }
}
