//! Adds the metrics of a node and of the coordinator's task, which are not part of the job's state.

use std::fmt;

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
    },
    registry::{Registry, Unit},
};
use ragent_base::report::measures::{Histogram, NodeMeasures};

use super::{ProcessCounts, gauge};
use crate::driver::measures::CoordinatorMeasures;

pub(super) fn add_refused(registry: &mut Registry, counts: &ProcessCounts<'_>) {
    let clients = counts.node.map_or(0, |node| node.refused_clients.get());
    let help = "Clients that this process has refused";
    let refused = counters("what", [("peer", counts.refused_peers), ("store_client", clients)]);
    registry.register("ragent_refused", help, refused);
}

pub(super) fn add_node(registry: &mut Registry, node: &NodeMeasures) {
    let workers = gauge(node.workers.get());
    registry.register("ragent_workers", "Running workers of this node", workers);
    let starts = [("exec", node.executed.get()), ("standby", node.from_standby.get())];
    let help = "Workers of this node that were started";
    registry.register("ragent_worker_starts", help, counters("how", starts));
    let ends = [
        ("exit_0", node.succeeded.get()),
        ("exit_code", node.exited.get()),
        ("signal", node.signaled.get()),
        ("keeper_lost", node.lost_with_keeper.get()),
        ("not_started", node.not_started.get()),
    ];
    let help = "Workers of this node that have ended or could not be started";
    registry.register("ragent_worker_ends", help, counters("how", ends));
    let (name, help) = ("ragent_keep_alive", "Round trips of keep-alives of this node");
    let times = Distribution::new(&node.round_trips);
    registry.register_with_unit(name, help, Unit::Seconds, times);
    if let Some(margin) = node.margin() {
        let (name, help) = ("ragent_lease_margin", "Smallest time left of the lease of this node");
        let margin = ConstGauge::new(margin.as_secs_f64());
        registry.register_with_unit(name, help, Unit::Seconds, margin);
    }
    if let Some(stores) = node.stores.get() {
        let help = "Connections to the stores of this node";
        registry.register("ragent_store_connections", help, gauge(stores.connections()));
        let help = "Requests to the stores of this node";
        registry.register("ragent_store_requests", help, ConstCounter::new(stores.requests()));
    }
}

pub(super) fn add_coordinator(registry: &mut Registry, coordinator: &CoordinatorMeasures) {
    let (name, help) = ("ragent_coordinator_loop", "Times for one input of the coordinator");
    let times = Distribution::new(&coordinator.inputs);
    registry.register_with_unit(name, help, Unit::Seconds, times);
    let help = "Elections of this process in a job that had a round";
    let takeovers = ConstCounter::new(coordinator.takeovers.get());
    registry.register("ragent_takeovers", help, takeovers);
}

/// Returns counters that differ in one label.
fn counters<const N: usize>(
    label: &'static str,
    values: [(&'static str, u64); N],
) -> Family<[(&'static str, &'static str); 1], Counter> {
    let family = Family::<_, Counter>::default();
    for (name, value) in values {
        family.get_or_create(&[(label, name)]).inc_by(value);
    }
    family
}

/// A histogram at one moment.
#[derive(Debug)]
struct Distribution {
    sum: f64,
    intervals: Vec<(f64, u64)>,
}

impl Distribution {
    fn new(times: &Histogram) -> Self {
        Self { sum: times.sum(), intervals: times.intervals().into() }
    }
}

impl EncodeMetric for Distribution {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let count = self.intervals.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.intervals, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
