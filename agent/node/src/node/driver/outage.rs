//! Reports that the coordinator is lost: a warning at once and every 30 s, and log lines.

use ragent_base::{
    report::news,
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::client::StreamError;
use ragent_core::outage::OutageReport;
use tracing::{info, warn};

use super::NodeDriver;

impl NodeDriver<'_> {
    /// Reports that a stream, or an attempt to open one, has ended with `error`.
    pub(super) fn report_outage(&mut self, error: &StreamError, was_registered: bool) {
        if self.node.agent().is_leaving() {
            return;
        }
        let cause = news::with_causes(error);
        let now = clock::now();
        let is_registered = self.node.agent().job_uid().is_some();
        let report = if was_registered {
            self.outage.handle_stream_ended(&cause)
        } else {
            self.outage.handle_unreachable(now, &cause, is_registered)
        };
        let (endpoint, settings) = (&self.spec.destination, &self.spec.settings);
        let left = self.node.agent().gives_up_at().unwrap_or(now).saturating_duration_since(now);
        let give_up_after_s = left.as_millis().div_ceil(1000);
        let lease = settings.leases.agent.as_secs_f64();
        match report {
            Some(OutageReport::First) if self.workers.are_running && !settings.runs_unleased => {
                warn!(
                    "cannot reach the coordinator at {endpoint}; retrying for {give_up_after_s} s \
                 (workers are killed if it stays unreachable for {lease:.1} s): {cause}"
                )
            }
            Some(OutageReport::First) => warn!(
                "cannot reach the coordinator at {endpoint}; retrying for {give_up_after_s} s: \
                 {cause}"
            ),
            Some(OutageReport::Further) => {
                info!(%endpoint, cause, give_up_after_s, "cannot reach the coordinator; retrying");
            }
            None => {}
        }
    }

    /// Ends this node's part if the coordinator has another secret. A node that was already a member of the job stays, because the file of
    /// its secret can still be corrected.
    pub(super) fn review_mismatch(&mut self, error: StreamError) {
        let StreamError::Mismatch(mismatch) = error else {
            return self.outage.handle_no_mismatch();
        };
        let has_lasted = self.outage.handle_mismatch(clock::now());
        if has_lasted && self.node.agent().job_uid().is_none() {
            self.mismatch = Some(mismatch);
        }
    }

    /// Reports that the lease has ended.
    pub(super) fn report_lost_lease(&mut self) {
        let (endpoint, settings) = (&self.spec.destination, &self.spec.settings);
        let give_up_after_s = settings.shared.timeouts.join.as_secs();
        let lease = settings.leases.agent.as_secs_f64();
        let stops_workers = self.workers.are_running && !settings.runs_unleased;
        // If the network is sound, a busy machine is the usual reason.
        let load = ThisHost.load().map_or_else(String::new, |load| format!(" ({load} here)"));
        if !stops_workers {
            // Nothing follows for this node. If the coordinator stays unreachable, the next attempt to reach it is a warning. The first
            // answer may also have taken most of a lease, for example while a coordinator was elected.
            return info!("the lease has ended: the coordinator has not answered in time{load}");
        }
        match self.outage.handle_lease_lost(clock::now()) {
            OutageReport::First => warn!(
                "the lease has ended: the coordinator at {endpoint} has not answered for {lease:.1} \
                 s{load}; killing the workers of this node, which start again in the next round \
                 (this agent gives up after {give_up_after_s} s)"
            ),
            OutageReport::Further => {
                info!("the lease has ended: the coordinator has not answered in time{load}");
            }
        }
        self.spec.log.keep();
    }
}
