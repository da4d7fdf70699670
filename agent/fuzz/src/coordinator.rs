//! Messages of coordinators.

use std::time::Duration;

use ragent_base::testing::assert_shown;
use ragent_coordinator::client::reading::read_state;
use ragent_proto::{Message as _, convert::FromCoordinator, v1};

/// The lease of a coordinator with the most nodes, with a margin.
const LEASE_MAX: Duration = Duration::from_secs(60);

/// Decodes the status of a job if the first byte is odd, else a message of a stream.
pub fn coordinator(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    if kind % 2 == 1 {
        status(bytes)
    } else {
        message(bytes)
    };
}

fn message(bytes: &[u8]) -> Option<()> {
    let message = v1::CoordinatorMessage::decode(bytes).ok()?;
    let message = FromCoordinator::try_from(message).ok()?;
    assert_shown(&message);
    if let FromCoordinator::Welcomed(welcome, _) = &message {
        let leases = welcome.leases;
        assert!(!leases.keep_alive_interval.is_zero(), "{leases:?}");
        assert!(leases.keep_alive_interval < leases.agent, "{leases:?}");
        assert!(leases.agent < leases.coordinator && leases.coordinator <= LEASE_MAX, "{leases:?}");
    }
    let encoded = v1::CoordinatorMessage::from(message.clone()).encode_to_vec();
    let again = v1::CoordinatorMessage::decode(encoded.as_slice()).expect("it was encoded");
    assert_eq!(FromCoordinator::try_from(again), Ok(message));
    Some(())
}

fn status(bytes: &[u8]) -> Option<()> {
    let state = read_state(str::from_utf8(bytes).ok()?).ok()?;
    assert_shown(&state);
    let encoded = serde_json::to_string(&state).expect("all keys are text");
    assert_eq!(read_state(&encoded).expect("it was encoded"), state);
    Some(())
}
