//! Vouching for connections to a round's store: the questions of the node that serves it, and the answers of the
//! other members.

use std::time::Instant;

use ragent_rendezvous::{
    batch::Batch,
    ids::Round,
    limits::VOUCHER_INTERVAL,
    message::{FromNode, STORE_CONNECTIONS_MAX, StoreConnection, StoreConnections, Vouched},
};

use super::{Action, Agent, Effect};

/// Creates the collection of connections about which members are still to be asked.
pub(super) fn questions() -> Batch<StoreConnection> {
    Batch::new(STORE_CONNECTIONS_MAX, VOUCHER_INTERVAL)
}

impl Agent {
    /// Notes that the store that this node serves to `round` has a connection for which a member must vouch.
    pub fn handle_unvouched(&mut self, now: Instant, round: Round, connection: StoreConnection) {
        if round == self.round.round {
            let due = self.questions.add(now, connection);
            self.ask_vouchers(due);
        }
    }

    /// Notes that the node that serves the store of a round asks this node to vouch for connections.
    pub fn handle_ask_voucher(&mut self, asked: StoreConnections) {
        if asked.round == self.round {
            self.act(Action::Vouch(asked));
        }
    }

    /// Notes the answer about the connections of [`Action::Vouch`].
    pub fn handle_looked_up(&mut self, vouched: Vouched) {
        let is_empty = vouched.numbers.is_empty() && vouched.denied.is_empty();
        if vouched.round == self.round && !is_empty {
            self.effects.push_back(Effect::Send(FromNode::Vouched(vouched)));
        }
    }

    /// Notes the answers of members about connections to the store that this node serves.
    pub fn handle_vouched(&mut self, vouched: Vouched) {
        if vouched.round == self.round && self.serves_the_store() {
            self.act(Action::ServeClients(vouched));
        }
    }

    pub(super) fn handle_questions_timeout(&mut self, now: Instant) {
        let due = self.questions.due(now);
        self.ask_vouchers(due);
    }

    fn ask_vouchers(&mut self, connections: Vec<StoreConnection>) {
        if !connections.is_empty() {
            let (round, is_only_voucher) = (self.round, false);
            let asked = StoreConnections { round, connections, is_only_voucher };
            self.effects.push_back(Effect::Send(FromNode::AskVouchers(asked)));
        }
    }
}
