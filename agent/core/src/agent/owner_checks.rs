//! Confirms the users of connections to a round's store: sends the questions of the node that serves it, and
//! the answers of the other members.

use std::time::Instant;

use ragent_rendezvous::{
    batch::Batch,
    ids::Round,
    limits::OWNER_CHECK_INTERVAL,
    message::{CheckedOwners, FromNode, STORE_CONNECTIONS_MAX, StoreConnection, StoreConnections},
};

use super::{Action, Agent, Effect};

/// Creates the collection of connections about which members must still be asked.
pub(super) fn questions() -> Batch<StoreConnection> {
    Batch::new(STORE_CONNECTIONS_MAX, OWNER_CHECK_INTERVAL)
}

impl Agent {
    /// Notes that the store which this node serves to `round` has a connection, and that a member must
    /// confirm its user.
    pub fn handle_unchecked(&mut self, now: Instant, round: Round, connection: StoreConnection) {
        if round == self.round.round {
            let due = self.questions.add(now, connection);
            self.check_owners(due);
        }
    }

    /// Notes that the node which serves the round's store asks this node to confirm the users of connections.
    pub fn handle_check_owners(&mut self, asked: StoreConnections) {
        if asked.round == self.round {
            self.act(Action::CheckOwners(asked));
        }
    }

    /// Notes the answer about the connections of [`Action::CheckOwners`].
    pub fn handle_looked_up(&mut self, checked: CheckedOwners) {
        let is_empty = checked.numbers.is_empty() && checked.denied.is_empty();
        if checked.round == self.round && !is_empty {
            self.effects.push_back(Effect::Send(FromNode::CheckedOwners(checked)));
        }
    }

    /// Notes the answers of members about connections to the store that this node serves.
    pub fn handle_checked_owners(&mut self, checked: CheckedOwners) {
        if checked.round == self.round && self.serves_the_store() {
            self.act(Action::ServeClients(checked));
        }
    }

    pub(super) fn handle_questions_timeout(&mut self, now: Instant) {
        let due = self.questions.due(now);
        self.check_owners(due);
    }

    fn check_owners(&mut self, connections: Vec<StoreConnection>) {
        if !connections.is_empty() {
            let (round, is_only_member) = (self.round, false);
            let asked = StoreConnections { round, connections, is_only_member };
            self.effects.push_back(Effect::Send(FromNode::CheckOwners(asked)));
        }
    }
}
