//! Describes the health of machines, as their own agents find it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most facts about the hardware in a failure.
pub const HARDWARE_FACTS_MAX: usize = 4;

/// The longest name of a kind of reason, in bytes.
pub const HEALTH_KIND_MAX: usize = 64;

/// The need of an unhealthy machine. A later value is worse.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum HealthClass {
    /// A reset of a GPU.
    Reset,
    /// A restart or a repair.
    Replace,
    /// A GPU is gone, or the user's own check has failed: workers cannot run.
    Gone,
}

/// The reason why a node should get no place. The node's own next check ends it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Unhealthy {
    /// The need of the machine.
    pub class: HealthClass,
    /// The kind of reason, for programs, such as `xid_79`; at most [`HEALTH_KIND_MAX`] bytes. If many nodes report
    /// the same kind at once, the kind is probably not about the machines.
    pub kind: String,
    /// The reason, for people, such as `GPU 3: XID 79 (fell off the bus)`; at most [`LINE_MAX`](super::LINE_MAX)
    /// bytes.
    pub reason: String,
}

/// Something that the hardware of a node has reported since the round began.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HardwareFact {
    /// The fact, such as `GPU 3 reported XID 79 (fell off the bus)`; at most [`LINE_MAX`](super::LINE_MAX) bytes.
    pub text: String,
    /// The time since then, when the message was sent; `None` for a state that is older than the round and lasts.
    pub age: Option<Duration>,
}

/// Returns a time in one unit, such as `0.4 s` or `12 min`.
pub fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// The certainty with which the kernel killed a worker for lack of memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OomKill {
    /// The kernel killed a process of the node at that time.
    Probable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_unit() {
        let texts =
            [0.4, 59.0, 60.0, 3_599.0, 7_300.0].map(|s| time_text(Duration::from_secs_f64(s)));
        assert_eq!(texts, ["0.4 s", "59.0 s", "1 min", "59 min", "2 h"]);
    }
}
