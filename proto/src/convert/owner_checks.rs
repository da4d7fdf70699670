//! Converts requests to confirm the users of connections to a round's store, and the answers.

use ragent_rendezvous::message::{
    CheckedOwners, STORE_CONNECTIONS_MAX, StoreConnection, StoreConnections,
};

use super::{list, round, to_round};
use crate::{Malformed, v1};

impl From<StoreConnections> for v1::StoreConnections {
    fn from(asked: StoreConnections) -> Self {
        let connections = asked.connections.iter().map(|one| v1::StoreConnection {
            number: one.number,
            client: one.client.to_string(),
            store: one.store.to_string(),
        });
        Self {
            round: to_round(asked.round),
            connections: connections.collect(),
            is_only_member: asked.is_only_member,
        }
    }
}

impl TryFrom<v1::StoreConnections> for StoreConnections {
    type Error = Malformed;

    fn try_from(asked: v1::StoreConnections) -> Result<Self, Malformed> {
        const FIELD: &str = "store_connections.connections";
        let connection = |one: v1::StoreConnection| {
            let end = |text: &str| text.parse().map_err(|_| Malformed::OutOfRange(FIELD));
            let (client, store) = (end(&one.client)?, end(&one.store)?);
            Ok(StoreConnection { number: one.number, client, store })
        };
        let connections = list(asked.connections, FIELD, STORE_CONNECTIONS_MAX, connection)?;
        let is_only_member = asked.is_only_member;
        let round = round(asked.round, "store_connections.round")?;
        Ok(Self { round, connections, is_only_member })
    }
}

impl From<CheckedOwners> for v1::CheckedOwners {
    fn from(checked: CheckedOwners) -> Self {
        let CheckedOwners { round, numbers, denied } = checked;
        Self { round: to_round(round), numbers, denied }
    }
}

impl TryFrom<v1::CheckedOwners> for CheckedOwners {
    type Error = Malformed;

    fn try_from(checked: v1::CheckedOwners) -> Result<Self, Malformed> {
        let numbers = list(checked.numbers, "checked_owners.numbers", STORE_CONNECTIONS_MAX, Ok)?;
        let denied = list(checked.denied, "checked_owners.denied", STORE_CONNECTIONS_MAX, Ok)?;
        Ok(Self { round: round(checked.round, "checked_owners.round")?, numbers, denied })
    }
}
