//! Requests to vouch for connections to a round's store, and the answers.

use ragent_rendezvous::message::{
    STORE_CONNECTIONS_MAX, StoreConnection, StoreConnections, Vouched,
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
            is_only_voucher: asked.is_only_voucher,
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
        let is_only_voucher = asked.is_only_voucher;
        let round = round(asked.round, "store_connections.round")?;
        Ok(Self { round, connections, is_only_voucher })
    }
}

impl From<Vouched> for v1::Vouched {
    fn from(vouched: Vouched) -> Self {
        let Vouched { round, numbers, denied } = vouched;
        Self { round: to_round(round), numbers, denied }
    }
}

impl TryFrom<v1::Vouched> for Vouched {
    type Error = Malformed;

    fn try_from(vouched: v1::Vouched) -> Result<Self, Malformed> {
        let numbers = list(vouched.numbers, "vouched.numbers", STORE_CONNECTIONS_MAX, Ok)?;
        let denied = list(vouched.denied, "vouched.denied", STORE_CONNECTIONS_MAX, Ok)?;
        Ok(Self { round: round(vouched.round, "vouched.round")?, numbers, denied })
    }
}
