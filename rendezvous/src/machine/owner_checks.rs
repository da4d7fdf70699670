//! Passes on requests to confirm the users of connections to a round's store, and the answers.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    group::Group,
    ids::{NodeId, RoundId},
    limits::ASKED_MEMBERS_MAX,
    machine::Rendezvous,
    message::{CheckedOwners, StoreConnection, StoreConnections, ToNode},
    owner_checks::OwnerChecks,
    phase::{Phase, Running},
    roster::Roster,
};

impl Rendezvous {
    /// Asks the members at the address of each connection to confirm its user. Only the node that serves the
    /// running round's store may ask.
    pub(super) fn check_owners(&mut self, node: &NodeId, asked: &StoreConnections) {
        let roster = &self.roster;
        let Phase::Running(running) = &mut self.phase else { return };
        let Some((checks, group)) = checks(running, roster, asked.round) else { return };
        if checks.server != *node {
            return;
        }
        let is_present = |id: &&NodeId| {
            group.held(id).is_some() && roster.get(id).is_some_and(|node| node.attached)
        };
        let mut questions: BTreeMap<(NodeId, bool), Vec<StoreConnection>> = BTreeMap::new();
        for connection in &asked.connections {
            let members = checks.at(connection.client.ip());
            let present: Vec<_> = members.filter(is_present).take(ASKED_MEMBERS_MAX).collect();
            let is_only_member = present.len() == 1;
            for member in present {
                let question = questions.entry((member.clone(), is_only_member));
                question.or_default().push(*connection);
            }
        }
        for ((member, is_only_member), connections) in questions {
            let question = StoreConnections { round: asked.round, connections, is_only_member };
            self.send_to_attached(&member, ToNode::CheckOwners(question));
        }
    }

    /// Collects the answers of `node` for the member that serves the store.
    pub(super) fn collect_answers(&mut self, now: Instant, node: &NodeId, checked: &CheckedOwners) {
        let Phase::Running(running) = &mut self.phase else { return };
        let round = checked.round;
        let Some((checks, group)) = checks(running, &self.roster, round) else { return };
        if group.held(node).is_none() {
            return;
        }
        let answers = checked.numbers.iter().map(|number| (*number, true));
        let answers = answers.chain(checked.denied.iter().map(|number| (*number, false)));
        let messages: Vec<_> = answers.map(|answer| checks.answers.add(now, answer)).collect();
        let server = checks.server.clone();
        for answers in messages {
            self.forward_answers(&server, round, answers);
        }
    }

    /// Returns the time at which collected answers must be sent.
    pub(super) fn answers_due(&self) -> Option<Instant> {
        let Phase::Running(running) = &self.phase else { return None };
        running.checks.as_ref()?.answers.poll_timeout()
    }

    /// Sends collected answers if they are due.
    pub(super) fn send_answers(&mut self, now: Instant) {
        let Phase::Running(running) = &mut self.phase else { return };
        let round = running.group.round;
        let Some(checks) = &mut running.checks else { return };
        let (answers, server) = (checks.answers.due(now), checks.server.clone());
        self.forward_answers(&server, round, answers);
    }

    /// Notes the addresses of a member that has registered again.
    pub(super) fn note_addresses(&mut self, id: &NodeId) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.group.held(id).is_some()
            && let Some(checks) = &mut running.checks
        {
            checks.add_addresses(&self.roster, id);
        }
    }

    fn forward_answers(&mut self, server: &NodeId, round: RoundId, answers: Vec<(u64, bool)>) {
        let (checked, denied): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|(_, is_checked)| *is_checked);
        let number = |(number, _)| number;
        let numbers: Vec<u64> = checked.into_iter().map(number).collect();
        let denied: Vec<u64> = denied.into_iter().map(number).collect();
        if !(numbers.is_empty() && denied.is_empty()) {
            self.send_to_attached(
                server,
                ToNode::CheckedOwners(CheckedOwners { round, numbers, denied }),
            );
        }
    }

    fn send_to_attached(&mut self, id: &NodeId, message: ToNode) {
        if let Some(node) = self.roster.get(id).filter(|node| node.attached) {
            let peer = node.peer();
            self.send(peer, message);
        }
    }
}

/// Returns the checks of a running group, if its round is `round`.
fn checks<'a>(
    running: &'a mut Running,
    roster: &Roster,
    round: RoundId,
) -> Option<(&'a mut OwnerChecks, &'a Group)> {
    let Running { group, checks, .. } = running;
    let group = Some(&*group).filter(|group| group.round == round)?;
    if checks.is_none() {
        *checks = OwnerChecks::new(group, roster);
    }
    Some((checks.as_mut()?, group))
}
