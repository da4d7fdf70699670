//! Runs the coordinator while this process leads, and otherwise publishes the leader to the agent's port.
//!
//! The leadership decides who leads: one endpoint, voters, or etcd. This module follows it:
//!
//! 1. This process leads: start a driver with the stored state of the job.
//! 2. The leadership ends: stop the driver at once. No later result of it may be used.
//! 3. Another process leads: publish its endpoint, so that the port redirects registrations to it.
//!
//! Death notices of the last minute are kept through all steps. A new leader would otherwise wait for the lease of a node that is already
//! gone.

use std::{collections::VecDeque, time::Instant};

use ragent_base::{net::port::RegisteredNodes, sys::clock};
use ragent_leadership::{Leader, Leadership, LeadershipCommand, Mandate, state_file::DeathNotice};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{Round, Term, VoterAddress},
    settings::Settings,
};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info};

use crate::{
    driver::{
        self, Coordination, CoordinatorEnd, Input, Inputs, Place, Records, excluded_hosts,
        proofs::Proofs,
    },
    limits,
    role::ElectedCoordinator,
};

/// Runs the coordinator of a process whenever the process leads.
pub struct CoordinatorHost {
    /// The settings of every coordinator that runs in this process.
    pub settings: Settings,
    /// The endpoint at which others reach this process.
    pub endpoint: VoterAddress,
    /// The handle of the leadership.
    pub leadership: Leadership,
    /// The registered nodes, published to the port.
    pub registered_nodes: watch::Sender<RegisteredNodes>,
    /// The elected coordinator, published to the port.
    pub elected: watch::Sender<ElectedCoordinator>,
    /// The coordinator with which the agent of this process is registered, published to the port.
    pub registered: watch::Sender<CoordinatorAddress>,
    /// Death notices that keepers have sent.
    pub death_notices: mpsc::Receiver<DeathNotice>,
    /// The program of `--exclude-command`, with its arguments; empty if there is none.
    pub exclude_command: Vec<String>,
    /// The destinations of what every coordinator of this process records.
    pub records: Records,
}

/// The death notices of the last minute, for the next leader.
#[derive(Debug, Default)]
struct RecentDeathNotices(VecDeque<(Instant, DeathNotice)>);

impl CoordinatorHost {
    /// Coordinates whenever this process leads. Returns when the leadership or the job has ended.
    pub async fn run(mut self) {
        let mut recent = RecentDeathNotices::default();
        loop {
            let leader = self.leadership.leader.borrow_and_update().clone();
            let is_over = match leader {
                Leader::Here(mandate) => self.coordinate(&mandate, &mut recent).await,
                Leader::At(endpoint, term) => {
                    let there = ElectedCoordinator::There(CoordinatorAddress { term, endpoint });
                    self.elected.send_replace(there);
                    self.wait(&mut recent).await
                }
                Leader::Unknown => {
                    self.elected.send_replace(ElectedCoordinator::Unknown);
                    self.wait(&mut recent).await
                }
            };
            if is_over {
                return;
            }
        }
    }

    /// Handles death notices until the leader changes. Returns true if the leadership has ended for good.
    async fn wait(&mut self, recent: &mut RecentDeathNotices) -> bool {
        loop {
            tokio::select! {
                changed = self.leadership.leader.changed() => return changed.is_err(),
                Some(death_notice) = self.death_notices.recv() => {
                    if self.is_proven(&death_notice) {
                        self.report(&death_notice).await;
                        recent.add(clock::now(), death_notice);
                    }
                }
            }
        }
    }

    /// Coordinates in one term. Returns true if the job, or the leadership for good, has ended.
    async fn coordinate(&mut self, mandate: &Mandate, recent: &mut RecentDeathNotices) -> bool {
        let term = mandate.term();
        let (inputs, queue) = mpsc::channel(limits::COORDINATOR_QUEUE);
        recent.pass_on(clock::now(), &inputs);
        self.elected.send_replace(ElectedCoordinator::Here(inputs.clone()));
        let coordination = self.coordination(mandate);
        let coordinator = driver::drive(coordination, queue);
        let command = self.exclude_command.clone();
        let excluding = excluded_hosts::follow(&command, &inputs);
        tokio::pin!(coordinator, excluding);
        let end = loop {
            tokio::select! {
                // The end of the term first: no result of this coordinator may be used after it.
                biased;
                changed = self.leadership.leader.changed() => {
                    if changed.is_err() {
                        self.elected.send_replace(ElectedCoordinator::Unknown);
                        return true;
                    }
                    if !self.leads_in(term) {
                        // All streams end with the coordinator.
                        return false;
                    }
                }
                end = &mut coordinator => break end,
                () = &mut excluding => {}
                Some(death_notice) = self.death_notices.recv() => {
                    // The coordinator checks the proof. It runs in this task too, so waiting for room in its queue would block forever. If
                    // the notice is lost, the node's lease ends instead.
                    let _ = inputs.try_send(Input::DeathNotice(death_notice.clone()));
                    if self.is_proven(&death_notice) {
                        recent.add(clock::now(), death_notice);
                    }
                }
            }
        };
        let is_over = end == CoordinatorEnd::JobOver;
        let is_handed_over = end == CoordinatorEnd::HandedOver;
        // The leadership learns of the end first. A task that waits for the end also sends commands, and these must come later.
        match end {
            CoordinatorEnd::JobOver => {
                debug!("the job has ended; ending the leadership");
                self.leadership.send(LeadershipCommand::JobOver(term)).await;
            }
            CoordinatorEnd::SteppedDown(to) => {
                self.leadership.send(LeadershipCommand::StepDown(to)).await
            }
            CoordinatorEnd::Forgotten => self.leadership.send(LeadershipCommand::Forget).await,
            // Another process may lead.
            CoordinatorEnd::Ended => self.leadership.send(LeadershipCommand::Resign(term)).await,
            // The coordinator has sent its last messages. The process leaves below.
            CoordinatorEnd::HandedOver => {}
        }
        // A job with one endpoint never gets another coordinator, so its port keeps answering that the job has ended.
        if !(is_over && self.leadership.is_fixed()) {
            self.elected.send_replace(ElectedCoordinator::Unknown);
        }
        if is_over || is_handed_over {
            self.leadership.leave(false).await;
        }
        if is_over {
            return true;
        }
        while self.leads_in(term) {
            if self.wait(recent).await {
                return true;
            }
        }
        false
    }

    fn coordination(&self, mandate: &Mandate) -> Coordination {
        if !self.leadership.is_fixed() {
            info!(
                endpoint = %self.endpoint, term = %mandate.term(), run_id = %self.settings.run_id,
                "elected; coordinating the job"
            );
            if mandate.job_state.as_ref().is_some_and(|job_state| job_state.round > Round(0)) {
                self.records.measures.takeovers.add(1);
            }
        }
        let place = Place {
            leadership: self.leadership.clone(),
            endpoint: self.endpoint.clone(),
            registered_nodes: self.registered_nodes.clone(),
            registered: self.registered.clone(),
            awaits_excluded: !self.exclude_command.is_empty(),
        };
        Coordination::new(self.settings.clone(), mandate, place, self.records.clone())
    }

    fn leads_in(&self, term: Term) -> bool {
        match &*self.leadership.leader.borrow() {
            Leader::Here(mandate) => mandate.term() == term,
            Leader::At(..) | Leader::Unknown => false,
        }
    }

    /// Returns true if a death notice proves its node id, by the key in this process's copy of the state.
    fn is_proven(&self, death_notice: &DeathNotice) -> bool {
        let stored = self.leadership.stored.borrow();
        let Some(job_state) = &stored.replica.job_state else { return false };
        let proofs = Proofs::new(job_state.proof_key.clone());
        proofs.are_of(&job_state.job_uid, &death_notice.node, death_notice.proof)
    }

    /// Reports to the election that an agent has ended, so the lease of its process is over.
    async fn report(&self, death_notice: &DeathNotice) {
        self.leadership.send(LeadershipCommand::DeathNotice(death_notice.node.clone())).await;
    }
}

impl RecentDeathNotices {
    fn add(&mut self, now: Instant, death_notice: DeathNotice) {
        self.forget_old(now);
        if self.0.len() >= limits::MAX_DEATH_NOTICES {
            self.0.pop_front();
        }
        self.0.push_back((now, death_notice));
    }

    /// Passes the death notices on to a coordinator that has just started.
    fn pass_on(&mut self, now: Instant, inputs: &Inputs) {
        self.forget_old(now);
        for (_, death_notice) in &self.0 {
            // The queue has room for all of them.
            let _ = inputs.try_send(Input::DeathNotice(death_notice.clone()));
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) > limits::DEATH_NOTICE_AGE;
        while self.0.front().is_some_and(|(at, _)| is_old(*at)) {
            self.0.pop_front();
        }
    }
}
