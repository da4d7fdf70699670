//! Keeps nodes out of the next round: those whose machines are unhealthy, and those whose hosts the user has excluded. `JobHealth` decides.

use std::{collections::BTreeMap, time::Instant};

use tracing::{info, warn};

use crate::{
    event::EventKind, machine::Rendezvous, roster::with_short_names, settings::SharedSettings,
};

/// The hosts that the user excludes, with reasons.
pub type ExcludedHosts = BTreeMap<String, String>;

impl Rendezvous {
    /// Lets rounds wait for the first [`Rendezvous::handle_excluded`], at most until this time.
    pub fn await_excluded(&mut self, until: Instant) {
        self.health.await_list_until(until);
    }

    /// Replaces the hosts that get no place. `None` keeps the last ones: it is not known which hosts the user excludes now.
    pub fn handle_excluded(&mut self, now: Instant, hosts: Option<ExcludedHosts>) {
        if !self.begin(now) {
            return;
        }
        let was_awaited = self.health.note_list();
        let hosts = hosts.map(with_short_names);
        let Some(hosts) = hosts.filter(|hosts| self.job.roster.excluded() != hosts) else {
            if was_awaited {
                self.advance(now);
            }
            return;
        };
        for id in self.job.roster.exclude(hosts) {
            let reason = self.job.roster.get(&id).and_then(|node| node.excluded.clone());
            match &reason {
                Some(reason) => warn!(node = %id, %reason, "host excluded"),
                None => info!(node = %id, "host is no longer excluded"),
            }
            let reason = reason.map(|reason| reason.to_string());
            self.out.event_of(&self.job, None, &id, EventKind::NodeExcluded { reason });
            self.index_readiness(&id);
            self.sync(&id);
        }
        self.advance(now);
    }

    /// Keeps the ready nodes that `JobHealth` names out of the next round.
    pub(super) fn set_aside(&mut self, shared: SharedSettings) {
        if self.job.roster.unfit().is_empty() {
            return;
        }
        let Some(aside) = self.health.aside(&self.job, shared) else { return };
        for id in self.job.roster.unfit().clone() {
            let is_aside = aside.contains(&id);
            let Some(node) = self.job.roster.get_mut(&id).filter(|node| node.is_aside != is_aside)
            else {
                continue;
            };
            node.is_aside = is_aside;
            self.index_readiness(&id);
            self.job.has_news = true;
        }
    }
}
