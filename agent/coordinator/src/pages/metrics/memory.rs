//! Adds the metrics of checkpoints in memory.

use prometheus_client::{
    metrics::counter::ConstCounter,
    registry::{Registry, Unit},
};
use ragent_rendezvous::snapshot::MemoryStatus;

use super::{add_seconds, family, gauge};

/// Adds what is known about checkpoints in memory. A metric without a known value is absent.
pub(super) fn add_memory(registry: &mut Registry, memory: Option<&MemoryStatus>) {
    let help = "1 while checkpoints in memory are off although the script saves them, else 0";
    let is_off = memory.is_some_and(MemoryStatus::is_off);
    registry.register("ragent_memory_off", help, gauge(u8::from(is_off)));
    let Some(memory) = memory else { return };
    if let Some(step) = memory.step {
        let help = "Newest step that is whole in memory";
        registry.register("ragent_memory_step", help, gauge(step));
        let help = "1 if another node holds each part of it as well, else 0";
        registry.register("ragent_memory_copied", help, gauge(u8::from(memory.is_copied)));
    }
    let help = "Time since it became whole";
    add_seconds(registry, "ragent_memory_age", help, memory.age_ms);
    let help = "Usual time for which a save stops the workers";
    add_seconds(registry, "ragent_memory_save", help, memory.cost_ms);
    let help = "Time from the first saved part of the newest copied step until it was whole";
    add_seconds(registry, "ragent_memory_copy", help, memory.copy_ms);
    let help = "Time during which at least one rank waited for a buffer in save";
    let waited = ConstCounter::new(memory.waited_ms as f64 / 1000.0);
    registry.register_with_unit("ragent_memory_wait", help, Unit::Seconds, waited);
    let places = [
        ("own", memory.bytes.own),
        ("copy", memory.bytes.copy),
        ("leftover", memory.bytes.leftover),
    ];
    let help = "Bytes of checkpoints on all nodes, by the reason why they are kept";
    registry.register_with_unit("ragent_memory", help, Unit::Bytes, family("place", places));
    if memory.limit > 0 {
        let help = "Memory that the node with the largest parts needs";
        let needed = gauge(memory.needed);
        registry.register_with_unit("ragent_memory_needed", help, Unit::Bytes, needed);
        let help = "Most memory that this node may use for parts";
        let limit = gauge(memory.limit);
        registry.register_with_unit("ragent_memory_limit", help, Unit::Bytes, limit);
    }
}
