//! Forwards requests to vouch for connections to a round's store, and the answers.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    group::Group,
    ids::{NodeId, RoundId},
    limits::VOUCHERS_MAX,
    machine::Rendezvous,
    message::{StoreConnection, StoreConnections, ToNode, Vouched},
    phase::{Phase, Running},
    roster::Roster,
    vouchers::Vouchers,
};

impl Rendezvous {
    /// Asks the members at the address of each connection to vouch for it. Only the node that serves the store
    /// of the running round may ask.
    pub(super) fn ask_vouchers(&mut self, node: &NodeId, asked: &StoreConnections) {
        let roster = &self.roster;
        let Phase::Running(running) = &mut self.phase else { return };
        let Some((vouchers, group)) = vouchers(running, roster, asked.round) else { return };
        if vouchers.server != *node {
            return;
        }
        let is_present = |id: &&NodeId| {
            group.held(id).is_some() && roster.get(id).is_some_and(|node| node.attached)
        };
        let mut questions: BTreeMap<(NodeId, bool), Vec<StoreConnection>> = BTreeMap::new();
        for connection in &asked.connections {
            let members = vouchers.at(connection.client.ip());
            let present: Vec<_> = members.filter(is_present).take(VOUCHERS_MAX).collect();
            let is_only_voucher = present.len() == 1;
            for member in present {
                let question = questions.entry((member.clone(), is_only_voucher));
                question.or_default().push(*connection);
            }
        }
        for ((member, is_only_voucher), connections) in questions {
            let question = StoreConnections { round: asked.round, connections, is_only_voucher };
            self.send_to_attached(&member, ToNode::AskVoucher(question));
        }
    }

    /// Collects the answers of `node` for the member that serves the store.
    pub(super) fn collect_answers(&mut self, now: Instant, node: &NodeId, vouched: &Vouched) {
        let Phase::Running(running) = &mut self.phase else { return };
        let round = vouched.round;
        let Some((vouchers, group)) = vouchers(running, &self.roster, round) else { return };
        if group.held(node).is_none() {
            return;
        }
        let answers = vouched.numbers.iter().map(|number| (*number, true));
        let answers = answers.chain(vouched.denied.iter().map(|number| (*number, false)));
        let messages: Vec<_> = answers.map(|answer| vouchers.answers.add(now, answer)).collect();
        let server = vouchers.server.clone();
        for answers in messages {
            self.forward_answers(&server, round, answers);
        }
    }

    /// Returns the time at which collected answers are to be sent.
    pub(super) fn answers_due(&self) -> Option<Instant> {
        let Phase::Running(running) = &self.phase else { return None };
        running.vouchers.as_ref()?.answers.poll_timeout()
    }

    /// Sends collected answers if they are due.
    pub(super) fn send_answers(&mut self, now: Instant) {
        let Phase::Running(running) = &mut self.phase else { return };
        let round = running.group.round;
        let Some(vouchers) = &mut running.vouchers else { return };
        let (answers, server) = (vouchers.answers.due(now), vouchers.server.clone());
        self.forward_answers(&server, round, answers);
    }

    /// Notes the addresses of a member that has registered again.
    pub(super) fn note_addresses(&mut self, id: &NodeId) {
        let Phase::Running(running) = &mut self.phase else { return };
        if running.group.held(id).is_some()
            && let Some(vouchers) = &mut running.vouchers
        {
            vouchers.add_addresses(&self.roster, id);
        }
    }

    fn forward_answers(&mut self, server: &NodeId, round: RoundId, answers: Vec<(u64, bool)>) {
        let (vouched, denied): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|(_, is_vouched)| *is_vouched);
        let number = |(number, _)| number;
        let numbers: Vec<u64> = vouched.into_iter().map(number).collect();
        let denied: Vec<u64> = denied.into_iter().map(number).collect();
        if !(numbers.is_empty() && denied.is_empty()) {
            self.send_to_attached(server, ToNode::Vouched(Vouched { round, numbers, denied }));
        }
    }

    fn send_to_attached(&mut self, id: &NodeId, message: ToNode) {
        if let Some(node) = self.roster.get(id).filter(|node| node.attached) {
            let peer = node.peer();
            self.send(peer, message);
        }
    }
}

/// Returns the vouchers of a running group, if it is that of `round`.
fn vouchers<'a>(
    running: &'a mut Running,
    roster: &Roster,
    round: RoundId,
) -> Option<(&'a mut Vouchers, &'a Group)> {
    let Running { group, vouchers, .. } = running;
    let group = Some(&*group).filter(|group| group.round == round)?;
    if vouchers.is_none() {
        *vouchers = Vouchers::new(group, roster);
    }
    Some((vouchers.as_mut()?, group))
}
