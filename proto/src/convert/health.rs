//! Converts what agents find out about the health of their machines.

use ragent_rendezvous::message::{
    HEALTH_KIND_MAX, HardwareFact, HealthClass, LINE_MAX, OomKill, Unhealthy,
};

use crate::{Malformed, v1};

enumeration!(HealthClass, HealthClass, "unhealthy.class", [Reset, Replace, Gone]);
enumeration!(OomKill, OomKill, "failure.oom", [Probable]);

message!(Unhealthy, v1::Unhealthy, "unhealthy", {
    class: Enumeration,
    kind: OneLine(HEALTH_KIND_MAX),
    reason: OneLine(LINE_MAX),
}, has_kind);

fn has_kind(unhealthy: &v1::Unhealthy) -> Result<(), Malformed> {
    if unhealthy.kind.is_empty() { Err(Malformed::Missing("unhealthy.kind")) } else { Ok(()) }
}

message!(HardwareFact, v1::HardwareFact, "hardware_fact", {
    text: OneLine(LINE_MAX),
    age_us as age: Optional(Micros),
});
