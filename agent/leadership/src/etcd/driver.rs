//! Drives the machine of a process that may lead through etcd: one task, which waits only for its inputs.
//!
//! Inputs are commands of the agent, events of the two connections to etcd, and deadlines. A change of the
//! coordinator's state is confirmed when etcd has stored it.

use std::time::Instant;

use ragent_base::{net::Endpoint, sys::clock};
use ragent_core::reported_causes::ReportedCauses;
use ragent_election::{
    claim::{Claim, Effect},
    election::{
        NewLeadership,
        message::{Replica, Version},
    },
};
use ragent_rendezvous::{ids::Term, jitter::Jitter};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};
use tracing::{debug, warn};

use super::{
    CandidateSpec,
    changes::{self, KeyChange},
    client::EtcdClient,
    error::EtcdError,
    event::EtcdEvent,
    limits,
    outage::EtcdOutage,
    watch as key_watch,
};
use crate::{Leader, LeadershipCommand, Mandate, StateNeed, Stored, Superseded};

/// The values that are published to the rest of the agent.
pub(super) struct PublishedClaim {
    pub leader: watch::Sender<Leader>,
    pub stored: watch::Sender<Stored>,
    pub successors: watch::Sender<Vec<Endpoint>>,
    pub superseded: watch::Sender<Option<Superseded>>,
}

/// The driver of one process.
pub(super) struct EtcdDriver {
    claim: Claim,
    published: PublishedClaim,
    outage: EtcdOutage,
    /// The name of the key.
    key: String,
    /// The causes that were already logged.
    reported: ReportedCauses,
    /// The term in which this process leads, and the end of its right; `None` if it does not lead.
    leading: Option<(Term, watch::Sender<Instant>)>,
    /// Changes of the state that are being stored, in order.
    storing: Vec<(u64, oneshot::Sender<()>)>,
    /// Notified when the record of this process is released.
    leaving: Vec<oneshot::Sender<StateNeed>>,
    changes: mpsc::Sender<KeyChange>,
    queue: mpsc::Receiver<EtcdEvent>,
    /// The tasks of the connections.
    tasks: JoinSet<()>,
}

impl EtcdDriver {
    /// Starts the process and the tasks of its connections.
    pub(super) fn new(spec: CandidateSpec, published: PublishedClaim) -> Self {
        let CandidateSpec { etcd, run_id, settings } = spec;
        let now = clock::now();
        let (events, queue) = mpsc::channel(limits::EVENTS);
        let (changes, requested) = mpsc::channel(limits::CHANGES);
        let mut jitter = Jitter::new(settings.seed);
        // Agents start with different members, which spreads the load.
        let [first, ..] = jitter.bits().to_le_bytes();
        let client = || EtcdClient::of_job(etcd.clone(), &run_id, first.into());
        let mut tasks = JoinSet::new();
        tasks.spawn(changes::execute(client(), requested, events.clone()));
        tasks.spawn(key_watch::report(client(), Jitter::new(jitter.bits()), events));
        Self {
            // No agent leads a new job before it has seen no change for this long.
            outage: EtcdOutage::new(now + settings.timers.silence, settings.timers.leader_lease),
            claim: Claim::new(now, settings),
            published,
            key: client().key_text(),
            reported: ReportedCauses::default(),
            leading: None,
            storing: Vec::new(),
            leaving: Vec::new(),
            changes,
            queue,
            tasks,
        }
    }

    /// Drives the process until no sender of commands is left.
    pub(super) async fn drive(mut self, mut commands: mpsc::Receiver<LeadershipCommand>) {
        loop {
            self.carry_out_all();
            let (due, report_at) = (self.claim.poll_timeout(), self.outage.poll_timeout());
            tokio::select! {
                // Messages come before deadlines. Otherwise a pause of this process would look like silence of the leader.
                biased;
                Some(event) = self.queue.recv() => self.handle_event(event),
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return,
                },
                () = clock::until(due) => self.claim.handle_timeout(clock::now()),
                () = clock::until(report_at) => {
                    if let Some(report) = self.outage.handle_timeout(clock::now()) {
                        warn!("{report}");
                    }
                }
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    fn handle_event(&mut self, event: EtcdEvent) {
        let now = clock::now();
        match event {
            EtcdEvent::Value(value) => {
                self.outage.handle_answer();
                self.claim.handle_value(now, *value);
            }
            EtcdEvent::Changed(number, outcome, error) => {
                match error {
                    Some(error) => self.note(&error),
                    None => self.outage.handle_answer(),
                }
                self.claim.handle_outcome(now, number, outcome);
            }
            EtcdEvent::Away(error) => self.note(&error),
        }
    }

    /// Notes an error. An error that a repetition does not end is logged once.
    fn note(&mut self, error: &EtcdError) {
        debug!(%error, "etcd");
        if error.is_permanent() && self.reported.insert(&error.to_string()) {
            warn!("{error}");
        }
        self.outage.handle_error(error);
    }

    fn handle_command(&mut self, command: LeadershipCommand) {
        let now = clock::now();
        match command {
            LeadershipCommand::Remember { term, job_state, successors, copied, .. } => {
                // Otherwise this process no longer leads in that term, and `copied` is dropped.
                if self.leading.as_ref().is_none_or(|(leading, _)| *leading != term) {
                    return;
                }
                if !successors.is_empty() {
                    self.claim.handle_successors(now, successors);
                }
                if let Some(number) = self.claim.handle_remember(now, *job_state) {
                    self.storing.push((number, copied));
                }
            }
            LeadershipCommand::Highest(term) => self.claim.handle_highest(now, term),
            LeadershipCommand::Resign(term) => self.claim.handle_resigned(now, term),
            LeadershipCommand::JobOver(term) => self.claim.handle_job_over(now, term),
            LeadershipCommand::DeathNotice(process) => {
                self.claim.handle_death_notice(now, &process)
            }
            // The record in etcd names no voters.
            LeadershipCommand::Members(..)
            | LeadershipCommand::KnownJob(_)
            | LeadershipCommand::Found(_)
            | LeadershipCommand::Ended(_)
            | LeadershipCommand::Forget
            | LeadershipCommand::StepDown(_)
            | LeadershipCommand::Registered(None) => {}
            LeadershipCommand::Registered(Some((job, _))) => self.claim.handle_registered(now, job),
            LeadershipCommand::Leave { left, .. } => {
                self.leaving.push(left);
                self.claim.handle_leaving(now);
            }
        }
    }

    fn carry_out_all(&mut self) {
        // First, because a coordinator acts on a change as soon as it is stored.
        self.publish();
        while let Some(effect) = self.claim.poll_effect() {
            self.carry_out(effect);
        }
    }

    /// Publishes the job's state and the successors, if they have changed.
    fn publish(&mut self) {
        let (record, highest) = (self.claim.record(), self.claim.highest());
        let Some(record) = record else { return };
        let version = Version { term: record.term, number: record.number };
        let is_new = |stored: &Stored| {
            stored.highest != highest || stored.replica.job_state != record.job_state
        };
        self.published.stored.send_if_modified(|stored| {
            let is_new = is_new(stored);
            if is_new {
                let replica =
                    Replica { version, job_state: record.job_state.clone(), ..Replica::default() };
                *stored = Stored { voter: None, replica, highest, is_led: true };
            }
            is_new
        });
        let endpoints = record.successors.iter().filter_map(|one| one.endpoint.parse().ok());
        let endpoints: Vec<Endpoint> = endpoints.collect();
        self.published.successors.send_if_modified(|known| {
            let is_new = *known != endpoints;
            if is_new {
                *known = endpoints;
            }
            is_new
        });
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Change { number, expected, record } => {
                // The queue has room: the machine requests one change at a time.
                let _ = self.changes.try_send(KeyChange { number, expected, record });
            }
            Effect::Lead(leadership) => self.lead(*leadership),
            Effect::Extend(until) => {
                if let Some((_, sender)) = &self.leading {
                    sender.send_replace(until);
                }
            }
            Effect::Stored(number) => {
                let (done, rest): (Vec<_>, Vec<_>) =
                    self.storing.drain(..).partition(|(storing, _)| *storing <= number);
                self.storing = rest;
                for (_, copied) in done {
                    // The coordinator may have ended.
                    let _ = copied.send(());
                }
            }
            Effect::Follow { leader } => {
                let has_led = self.leading.take().is_some();
                self.storing.clear();
                let is_known = leader.is_some();
                if let Some(lost) = self.outage.handle_leader(clock::now(), is_known, has_led) {
                    warn!("{lost}");
                }
                debug!(?leader, "leader");
                self.published.leader.send_replace(match leader {
                    Some((endpoint, term)) => Leader::At(endpoint, term),
                    None => Leader::Unknown,
                });
            }
            Effect::Outlived(outcome) => {
                self.published.superseded.send_replace(Some(Superseded::ByEnd(Some(outcome))));
            }
            Effect::GarbageReplaced => warn!(
                "the key {} in etcd had a value that is not a record of ragent; this agent has replaced it by the \
                 record of the job. Find out which program writes to this key, or give the job another one with \
                 `--rdzv-conf etcd_prefix=PREFIX`",
                self.key
            ),
            Effect::Released => {
                for left in self.leaving.drain(..) {
                    // The agent may have stopped waiting.
                    let _ = left.send(StateNeed::Replaced);
                }
            }
        }
    }

    fn lead(&mut self, leadership: NewLeadership) {
        let (sender, until) = watch::channel(leadership.until);
        self.leading = Some((leadership.term, sender));
        let _ = self.outage.handle_leader(clock::now(), true, false);
        self.published
            .leader
            .send_replace(Leader::Here(Mandate::elected(leadership, until).into()));
    }
}
