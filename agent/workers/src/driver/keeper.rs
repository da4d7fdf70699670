//! Handles reports of the keeper, sends it orders, and checks that it responds.

use std::{os::fd::OwnedFd, time::Instant};

use nix::sys::signal::Signal;
use ragent_base::{report::news, sys::clock};
use ragent_core::{keeper_watch::Effect, process_end::ProcessEnd, standby, supervisor::Input};
use ragent_rendezvous::{ids::LocalRank, message::WorkerEnd};
use tracing::{debug, info, warn};

use super::{WorkerState, WorkersDriver, WorkersEvent};
use crate::{
    event_log::WorkerEvent,
    keeper::order::{KeeperReport, Order},
    keeper_link::{FromKeeper, KeeperLink},
};

impl WorkersDriver {
    pub(super) async fn handle_keeper(&mut self, report: FromKeeper) {
        debug!(?report, "keeper");
        if let Some(group) = &mut self.group {
            match report {
                FromKeeper::Report(KeeperReport::Pong) => group.keeper.handle_pong(),
                FromKeeper::Report(_) | FromKeeper::Lost => {
                    group.keeper.handle_report(clock::now());
                }
            }
        }
        let report = match report {
            FromKeeper::Report(report) => report,
            FromKeeper::Lost => {
                warn!("the keeper has ended, and the workers with it; starting another keeper");
                let measures = &self.spec.measures;
                measures.lost_with_keeper.add(measures.workers.get());
                measures.workers.set(0);
                self.keeper = None;
                self.checks.handle_clean_up();
                self.standby_input(standby::Input::KeeperLost);
                return self.input(Input::KeeperLost);
            }
        };
        self.handle_report(report).await;
    }

    /// Updates the number of running workers.
    fn count_workers(&self) {
        let workers = self.group.iter().flat_map(|group| group.workers.values());
        let running = workers.filter(|worker| worker.pid > 0 && worker.end.is_none()).count();
        self.spec.measures.workers.set(running as u64);
    }

    async fn handle_report(&mut self, report: KeeperReport) {
        match report {
            KeeperReport::Spawned { local_rank, pid, is_standby } => {
                let local_rank = LocalRank(local_rank);
                let unfit = self.group.as_mut().and_then(|group| {
                    group.workers.entry(local_rank).or_default().handle_started(pid, is_standby)
                });
                self.spec.measures.count_start(is_standby);
                self.count_workers();
                if let Some(group) = &self.group {
                    let round = group.admission.round;
                    info!(%round, %local_rank, pid, is_standby, "worker started");
                    let event = WorkerEvent::Started;
                    self.spec.events.worker(&group.admission, local_rank, pid, event);
                }
                if let Some(unfit) = unfit {
                    self.start_again(local_rank, unfit);
                }
            }
            KeeperReport::Standby { local_rank, text } => {
                self.handle_standby(LocalRank(local_rank), &text).await;
            }
            KeeperReport::StandbyNotStarted { local_rank, reason, is_short } => {
                self.handle_not_started(LocalRank(local_rank), reason, is_short);
            }
            KeeperReport::StandbyEnded { local_rank, end } => {
                let slot = LocalRank(local_rank);
                let reason = news::ended(&end.into());
                self.standby_input(standby::Input::Ended { slot, reason });
            }
            KeeperReport::NotSpawned { local_rank, reason } => {
                self.spec.measures.not_started.add(1);
                self.input(Input::Ended(LocalRank(local_rank), WorkerEnd::NotStarted(reason)));
            }
            KeeperReport::Ended { local_rank, end } => {
                self.spec.measures.count_end(end);
                let worker = self
                    .group
                    .as_mut()
                    .and_then(|group| group.workers.get_mut(&LocalRank(local_rank)));
                if let Some(worker) = worker {
                    worker.end = Some((end.into(), clock::now()));
                    worker.state = if end == ProcessEnd::Exited(0) {
                        WorkerState::Succeeded
                    } else {
                        WorkerState::Ended
                    };
                }
                if let Some(hang) = self.group.as_mut().and_then(|group| group.hang.as_mut()) {
                    hang.handle_ended(LocalRank(local_rank));
                }
                self.count_workers();
                self.input(Input::Ended(LocalRank(local_rank), end.into()));
                self.release_returned();
            }
            KeeperReport::Quiet => self.input(Input::Quiet),
            KeeperReport::Reaped { number } if number == self.cleanups => self.input(Input::Reaped),
            // The keeper began this cleanup by itself. It also reports the cleanup that was ordered since.
            KeeperReport::Reaped { .. } => {}
            KeeperReport::LeaseOver => {
                // The node driver prints the warning.
                info!("the lease has ended; the keeper kills the workers");
                self.report(WorkersEvent::LeaseExpired).await;
                self.input(Input::Kill);
            }
            KeeperReport::Signal { signal } => {
                if let Ok(signal) = Signal::try_from(signal) {
                    self.report(WorkersEvent::SignalOfWorker(signal)).await;
                }
            }
            KeeperReport::Pong => {}
        }
    }

    pub(super) async fn watch_keeper(&mut self, now: Instant) {
        if let Some(group) = &mut self.group {
            group.keeper.handle_timeout(now);
        }
        self.carry_out_keeper().await;
    }

    pub(super) async fn carry_out_keeper(&mut self) {
        while let Some(effect) = self.group.as_mut().and_then(|group| group.keeper.poll_effect()) {
            let pid = self.keeper.as_ref().map(KeeperLink::pid).unwrap_or_default();
            match effect {
                Effect::Ping => self.order(Order::Ping, Vec::new()).await,
                Effect::ReportSilence => warn!(
                    pid,
                    "the keeper of the workers does not answer; until it does, ends of workers \
                     are not detected (check for a stopped process or a file system that hangs)"
                ),
                Effect::ReportAnswer => warn!(pid, "the keeper of the workers answers again"),
                Effect::Kill => {
                    warn!(
                        pid,
                        "the lease has ended and the keeper does not react; killing the keeper"
                    );
                    self.input(Input::Kill);
                    if let Some(keeper) = &self.keeper {
                        keeper.kill();
                    }
                }
            }
        }
    }

    pub(super) async fn order(&mut self, order: Order, fds: Vec<OwnedFd>) {
        if let Some(keeper) = &self.keeper {
            keeper.order(order, fds).await;
        }
    }

    /// Allows the keeper's workers to run until this time.
    pub(super) fn renew(&mut self, until: Option<Instant>) {
        // The boot clock is read first, so that a pause between the two readings cannot lengthen the lease.
        let boot = clock::boot_time();
        let left = until.map(|until| until.saturating_duration_since(clock::now()));
        let until_ns = left.map(|left| boot.saturating_add(left).as_nanos());
        let until_ns = until_ns.map(|ns| u64::try_from(ns).unwrap_or(u64::MAX));
        self.lease = until;
        if let (Some(group), Some(until)) = (&mut self.group, until) {
            group.keeper.handle_renewed(clock::now(), until);
        }
        let order = Order::Renew { until_ns };
        self.renewed = Some(order.clone());
        if let Some(keeper) = &self.keeper {
            keeper.renew(order);
        }
    }
}
