//! Adds the metrics of the job's time account, and of the costs of its restarts.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
    },
    registry::{Registry, Unit},
};
use ragent_rendezvous::{
    event::{RestartCause, RestartSum},
    snapshot::Snapshot,
};

/// Adds the times of all states, and the restarts by cause.
pub(super) fn add_time(registry: &mut Registry, snapshot: &Snapshot) {
    let time = &snapshot.time;
    let states = Seconds::default();
    for state in &time.states {
        // A counter must never fall, so only settled times are in it.
        states
            .get_or_create(&[("state", state.state.clone())])
            .inc_by(in_seconds(state.settled_ms));
    }
    let help = "Time of the job in each state";
    registry.register_with_unit("ragent_time", help, Unit::Seconds, states);
    let redone = ConstCounter::new(in_seconds(time.redone_ms));
    let help = "Time that was spent on steps that were done again";
    registry.register_with_unit("ragent_redone", help, Unit::Seconds, redone);
    let help = "Productive part of the known time of the job that was not redone";
    let ratio = time.productive_ratio().unwrap_or(f64::NAN);
    registry.register("ragent_productive_ratio", help, ConstGauge::new(ratio));
    let restarts = Family::<[(&str, &str); 1], Counter>::default();
    let costs = Seconds::default();
    for cause in RestartCause::ALL {
        let of_cause = snapshot.restarts.iter().find(|restarts| restarts.cause == cause);
        let sum = of_cause.map_or_else(RestartSum::default, |restarts| restarts.sum);
        restarts.get_or_create(&[("cause", cause.name())]).inc_by(sum.count.into());
        costs.get_or_create(&[("cause", cause.name().to_owned())]).inc_by(in_seconds(sum.cost_ms));
    }
    registry.register("ragent_restarts", "Starts of rounds, by the cause of each", restarts);
    let help = "Time until the workers made progress again, by cause";
    registry.register_with_unit("ragent_restart", help, Unit::Seconds, costs);
}

/// Counters of seconds that differ in one label.
type Seconds = Family<[(&'static str, String); 1], Counter<f64, AtomicU64>>;

fn in_seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}
