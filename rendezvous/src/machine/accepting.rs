//! Decides which registrations are accepted, and what is learned from them.

use std::{mem, time::Instant};

use tracing::warn;

use crate::{
    effect::Effect,
    event::EventKind,
    ids::{JobUid, Round, RoundId},
    job::Availability,
    limits::{AGENT_TERM_MAX, AHEAD_MAX, KEEP_ALIVES_MISSED, NUMBER_MAX, TERMS_AHEAD_MAX},
    machine::Rendezvous,
    message::{NodeDescription, PROTOCOL_VERSION, RefuseReason, Registration, Welcome},
    phase::{Phase, Recovering},
    roster::{Common, RosterNode},
    settings::Leases,
    table::is_loopback,
};

impl Rendezvous {
    /// Returns the reason why a stream is refused; `None` if it is accepted.
    pub(super) fn why_refused(&self, registration: &Registration) -> Option<RefuseReason> {
        if registration.protocol_version != PROTOCOL_VERSION {
            return Some(RefuseReason::ProtocolVersion { ours: PROTOCOL_VERSION });
        }
        if registration.run_id != self.job.settings.run_id {
            return Some(RefuseReason::RunId { ours: self.job.settings.run_id.clone() });
        }
        if registration.job_uid.as_ref().is_some_and(|uid| !self.is_own(uid))
            && !self.may_adopt(registration)
        {
            return Some(RefuseReason::EarlierRun);
        }
        if let Some(ours) = self.job.settings.shared.filter(|ours| *ours != registration.settings) {
            return Some(RefuseReason::Settings { ours });
        }
        let id = &registration.node.node_id;
        if self.job.roster.get(id).is_some() || self.welcomed.contains(id) {
            return None;
        }
        if let Phase::Closed(closed) = &self.job.phase {
            return Some(RefuseReason::Closed(closed.outcome.clone()));
        }
        let limit = registration.settings.nodes.served();
        if self.job.roster.len() >= limit || self.welcomed.len() >= limit {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            return Some(RefuseReason::TooManyNodes { limit });
        }
        if let Some(address) = self.unreachable(registration) {
            return Some(RefuseReason::LoopbackAddress { address });
        }
        let nodes = registration.settings.nodes.max();
        let fixed_rank = registration.node.node_rank.filter(|_| registration.settings.fixed_ranks);
        if let Some(node_rank) = fixed_rank.filter(|rank| *rank >= nodes) {
            return Some(RefuseReason::NodeRankTooHigh { node_rank, nodes });
        }
        if let Some((node_rank, host_name)) = self.rank_taken(registration) {
            return Some(RefuseReason::NodeRankTaken { node_rank, host_name });
        }
        let (script, host_name) = self.other_script(registration)?;
        Some(RefuseReason::OtherScript { script, host_name })
    }

    /// Returns the node's rank and the host name of the node that already has it, if ranks are
    /// fixed. If that node may be lost or is leaving, the newcomer waits instead.
    fn rank_taken(&self, registration: &Registration) -> Option<(u32, String)> {
        let node_rank =
            registration.node.node_rank.filter(|_| registration.settings.fixed_ranks)?;
        let taken_by = self.present(&Common::NodeRank(node_rank)).next()?;
        Some((node_rank, taken_by.host_name.clone()))
    }

    /// Returns the name of another script that a node with the same role runs, and that node's host
    /// name. Two scripts mean that two jobs were given the same endpoint.
    fn other_script(&self, registration: &Registration) -> Option<(String, String)> {
        let NodeDescription { role, script, .. } = &registration.node;
        // A node of this run was compared when it first registered, and keeps its place. This
        // coordinator may not know the others yet.
        if script.is_empty() || registration.job_uid.is_some() {
            return None;
        }
        // The nodes of a role have the same script, so comparing one is enough.
        let mut others = self.present(&Common::Role(role.clone()));
        let other = others.find(|other| !other.script.is_empty())?;
        (other.script != *script).then(|| (other.script.clone(), other.host_name.clone()))
    }

    /// Returns the nodes that share this property and are certainly present. A node is not if its
    /// stream has ended (its agent may have restarted as the newcomer), if its keep-alives are
    /// overdue, or if it is leaving.
    fn present<'a>(
        &'a self,
        common: &Common,
    ) -> impl Iterator<Item = &'a NodeDescription> + use<'a> {
        let overdue = self.leases().keep_alive_interval * KEEP_ALIVES_MISSED;
        let is_present = move |node: &&RosterNode| {
            let was_seen = self.job.clock.saturating_duration_since(node.last_seen) <= overdue;
            node.attached && was_seen && !node.is_leaving()
        };
        self.job.roster.with(common).filter(is_present).map(|node| &*node.description)
    }

    /// Returns the loopback address that keeps this node and the known nodes from being in one
    /// round.
    ///
    /// It is one of these:
    ///
    /// - the node's own address, if other nodes are on other machines
    /// - the master's address in a running round, because the newcomer's first round would be the
    ///   job's last
    ///
    /// In the first gathering, a loopback master closes the job instead (see
    /// [`Rendezvous::complete`]), so that every node learns of it.
    fn unreachable(&self, registration: &Registration) -> Option<String> {
        let elsewhere = |host_name: &str| host_name != registration.node.host_name;
        let mut others = self.job.roster.iter().map(|(_, node)| &node.description);
        if is_loopback(&registration.node.address)
            && others.any(|other| elsewhere(&other.host_name))
        {
            return Some(registration.node.address.clone());
        }
        let master = self.job.phase.group()?.table.as_ref()?.member_ranks().first()?;
        (is_loopback(&master.node.address) && elsewhere(&master.node.host_name))
            .then(|| master.node.address.clone())
    }

    /// Returns true if `uid` names this run.
    fn is_own(&self, uid: &JobUid) -> bool {
        *uid == self.job.state.job_uid || self.job.given_before.as_ref() == Some(uid)
    }

    /// Returns true if this coordinator may take over the run of `registration`: it has no round
    /// and no run bound to it, and the node knows a round.
    ///
    /// This coordinator's state was lost in this case, for example by a reboot.
    fn may_adopt(&self, registration: &Registration) -> bool {
        let is_unbound = !self.has_voters()
            && self.job.state.round == Round(0)
            && self.job.given_before.is_none()
            && matches!(self.job.phase, Phase::Gathering(_))
            && self.job.availability == Availability::Available;
        let known_round = registration.known_round.round.max(registration.report.round);
        is_unbound && known_round.round != Round(0) && self.is_credible(known_round)
    }

    /// Adopts the run of `registration` if this coordinator has none yet. The first one counts. Its
    /// round and charges are learned as from any node of the run.
    ///
    /// Nodes that wait here already have another uid. They register again, and receive this one.
    pub(super) fn adopt(&mut self, registration: &Registration) {
        let Some(uid) = registration.job_uid.clone().filter(|uid| !self.is_own(uid)) else {
            return;
        };
        warn!(
            node = %registration.node.node_id, round = %registration.known_round.round, job_uid = %uid,
            "adopted the run of a node: this coordinator was started without state"
        );
        self.job.given_before = Some(mem::replace(&mut self.job.state.job_uid, uid));
        let id = &registration.node.node_id;
        self.out.event_of(&self.job, None, id, EventKind::RunAdopted);
        let others = self.job.roster.iter().filter(|(other, _)| *other != id);
        let mut peers: Vec<_> = others.map(|(_, node)| node.peer()).collect();
        peers.extend(self.welcomed.take());
        self.out.queue.extend(peers.into_iter().map(|to| Effect::HangUp { to }));
    }

    /// Learns round and charges of an earlier coordinator from a node of this run.
    pub(super) fn learn(&mut self, now: Instant, registration: &Registration) {
        let (before, mut has_news) = (self.job.state.clone(), false);
        let known_round = registration.known_round.round.max(registration.report.round);
        if !self.is_credible(known_round) {
            return;
        }
        match self.job.phase {
            Phase::Gathering(_) | Phase::Recovering(_) => {}
            // This coordinator has completed a round itself, so it knows more than any node that
            // registers. Such a node may be a foreign agent that was welcomed before.
            Phase::Running(_) | Phase::Regathering(_) | Phase::Closed(_) => return,
        }
        let is_newer =
            known_round > RoundId { term: self.job.state.term, round: self.job.state.round };
        match self.job.grant {
            None if is_newer => self.job.state.term = known_round.term.next(),
            Some(_) if known_round.term > self.job.state.term => {
                warn!(term = %known_round.term, "a node knows a later coordinator; resigning");
                self.job.availability = Availability::Ended;
                self.out.coordinator_ended(&self.job, false);
                self.out.queue.push_back(Effect::Resign { term: known_round.term });
                return;
            }
            None | Some(_) => {}
        }
        if known_round.round > self.job.state.round {
            // A node that was not a member may not know the size. The largest possible one is
            // assumed.
            let max = registration.settings.nodes.max();
            let size = registration.known_round.size_by_member(max).unwrap_or(max);
            self.job.state.round = known_round.round;
            self.job.state.round_size = size;
            self.job.roster.distrust_stores(known_round);
            self.job.has_news = true;
            self.job.state.is_adopted = true;
            self.job.state.host = None;
            // Another coordinator has completed that round, and the job may have got further in it.
            has_news |= self.progress.forget_complete_step(&mut self.out);
            match &mut self.job.phase {
                Phase::Gathering(_) => {
                    self.enter(Phase::Recovering(Recovering::new(now, known_round, size)));
                }
                Phase::Recovering(recovering) => recovering.size = size,
                Phase::Running(_) | Phase::Regathering(_) | Phase::Closed(_) => {}
            }
        }
        self.recall_round(now, registration);
        if registration.charged_through > self.job.state.charged_through
            && registration.charged_through <= self.job.state.round
        {
            self.job.state.charged_through = registration.charged_through;
            let (used, most) = (registration.restarts_used, registration.settings.max_restarts);
            self.job.state.restarts_used = self.job.state.restarts_used.max(used);
            // More were possible only because progress had forgiven some. How many is not known.
            self.progress.learn_forgiven(used.saturating_sub(most));
        }
        if has_news || self.job.state != before {
            let (nodes, restarts_used) = (self.job.state.round_size, self.job.state.restarts_used);
            let kind = EventKind::StateLearned { nodes, restarts_used };
            self.out.event_of(&self.job, None, &registration.node.node_id, kind);
            self.out.remember();
        }
    }

    /// Returns true if a claimed round is plausible: not too far ahead of the known one.
    pub(super) fn is_credible(&self, known_round: RoundId) -> bool {
        let fits = |number: u64, known: u64, ahead: u64| {
            number <= known.saturating_add(ahead) && number <= NUMBER_MAX
        };
        let fits_term = match self.job.grant {
            None => fits(known_round.term.0, self.job.state.term.0, AHEAD_MAX),
            Some(_) => {
                let is_usable = known_round.term.0 <= AGENT_TERM_MAX;
                is_usable && fits(known_round.term.0, self.job.state.term.0, TERMS_AHEAD_MAX)
            }
        };
        fits_term && fits(known_round.round.0, self.job.state.round.0, AHEAD_MAX)
    }

    /// Returns true if `registration` comes from an agent of this run, so that its claims count.
    pub(super) fn is_of_this_run(&self, registration: &Registration) -> bool {
        registration.job_uid.as_ref() == Some(&self.job.state.job_uid)
    }

    pub(super) fn welcome(&self, leases: Leases) -> Welcome {
        Welcome {
            term: self.job.state.term,
            job_uid: self.job.state.job_uid.clone(),
            coordinator: self.job.settings.coordinator.clone(),
            leases,
            voters: self.job.settings.voters.clone(),
            lease_left: self.lease_left(self.job.clock),
        }
    }
}
