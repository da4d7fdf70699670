//! Adds the metrics of checkpoints in memory.

use prometheus_client::{
    metrics::gauge::ConstGauge,
    registry::{Registry, Unit},
};
use ragent_rendezvous::snapshot::MemoryStatus;

use super::gauge;

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
    let mut add = |name, help, ms: Option<u64>| {
        if let Some(ms) = ms {
            let seconds = ConstGauge::new(ms as f64 / 1000.0);
            registry.register_with_unit(name, help, Unit::Seconds, seconds);
        }
    };
    add("ragent_memory_age", "Time since it became whole", memory.age_ms);
    add("ragent_memory_save", "Usual time for which a save stops the workers", memory.cost_ms);
    if memory.limit > 0 {
        let help = "Memory that the node with the largest parts needs";
        let needed = gauge(memory.needed);
        registry.register_with_unit("ragent_memory_needed", help, Unit::Bytes, needed);
        let help = "Most memory that this node may use for parts";
        let limit = gauge(memory.limit);
        registry.register_with_unit("ragent_memory_limit", help, Unit::Bytes, limit);
    }
}
