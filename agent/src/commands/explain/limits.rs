//! Limits `ragent explain`. Each limit has its reason. Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

/// The nodes of a host that are asked for their hardware: more agents than a machine usually has.
pub(super) const HARDWARE_ASKED: usize = 16;
/// The time for an agent to answer. It answers from memory, without asking the driver.
pub(super) const HARDWARE_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of an answer: 16 KiB, and its header.
pub(super) const HARDWARE_LEN: usize = 20 * 1024;
