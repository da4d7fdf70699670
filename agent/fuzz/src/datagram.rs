//! Datagrams of agents that look for each other.

use std::{net::SocketAddr, sync::LazyLock};

use ragent_base::{
    secret::{Credentials, Origin, Secret, Unsecured},
    testing::job,
};
use ragent_coordinator::pages::identity::Candidate;
use ragent_rendezvous::ids::RunId;

use super::datagram::{Announcement, Opened, Seal};
use crate::endpoint::limits;

/// Opens a datagram if the first byte is even; else seals an announcement made from the input, and changes the datagram.
pub fn datagram(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    if kind % 2 == 0 { open(rest) } else { seal(rest) }
}

struct Seals {
    sealed: Seal,
    other: Seal,
    open: Seal,
}

static SEALS: LazyLock<Seals> = LazyLock::new(|| {
    let secret = |text: &str| vec![Secret::new(text).expect("a secret")];
    let seal = |credentials| Seal::new(RunId::new(job::RUN_ID), credentials);
    Seals {
        sealed: seal(Credentials::new(secret(job::SECRET), Origin::Stdin)),
        other: seal(Credentials::new(secret(&"x".repeat(43)), Origin::Stdin)),
        open: seal(Credentials::unsecured(Unsecured::Chosen)),
    }
});

fn open(bytes: &[u8]) {
    let Seals { sealed, other, open } = &*SEALS;
    if let Opened::Announcement(message) = open.open(bytes) {
        assert_refused(sealed, bytes);
        assert!(bytes.len() <= limits::MAX_DATAGRAM);
        assert_eq!(open.open(&only(open, &message)), Opened::Announcement(message));
    }
    // The corpus has sealed datagrams of the job, with this secret and with another one.
    for (seal, stranger) in [(sealed, other), (other, sealed)] {
        let Opened::Announcement(message) = seal.open(bytes) else { continue };
        assert_refused(stranger, bytes);
        assert_refused(open, bytes);
        assert_eq!(seal.open(&only(seal, &message)), Opened::Announcement(message));
        for at in 0..bytes.len() {
            for change in [1, 0x20, 0x80] {
                let mut changed = bytes.to_vec();
                changed[at] ^= change;
                assert_refused(seal, &changed);
            }
            assert_refused(seal, &bytes[..at]);
        }
    }
}

/// Seals the announcement in the first bytes. Then two bytes are the place of a change, one is the change, and the others follow.
fn seal(input: &[u8]) {
    let Seals { sealed, other, open } = &*SEALS;
    let Some((head, rest)) = input.split_first_chunk::<16>() else { return };
    let message = announcement(head);
    let plain = only(open, &message);
    assert_eq!(open.open(&plain), Opened::Announcement(message));
    assert_eq!(sealed.open(&plain), Opened::OtherJob);
    let datagram = only(sealed, &message);
    assert_eq!(sealed.open(&datagram), Opened::Announcement(message));
    for stranger in [other, open] {
        assert_eq!(stranger.open(&datagram), Opened::OtherJob);
    }
    let text = String::from_utf8_lossy(&datagram);
    assert!(!text.contains(job::RUN_ID) && !text.contains(job::SECRET));
    let Some((change, more)) = rest.split_first_chunk::<3>() else { return };
    let mut changed = datagram.clone();
    let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % datagram.len();
    changed[place] ^= change[2];
    changed.extend_from_slice(more);
    if changed != datagram {
        assert_refused(sealed, &changed);
    }
}

#[track_caller]
fn assert_refused(seal: &Seal, datagram: &[u8]) {
    let opened = seal.open(datagram);
    assert!(!matches!(opened, Opened::Announcement(_)), "{}", datagram.escape_ascii());
}

fn announcement(bytes: &[u8; 16]) -> Announcement {
    let [kind, flags, b2, b3, b4, b5, b6, b7, number @ ..] = *bytes;
    let number = u64::from_le_bytes(number);
    let port = u16::from_le_bytes([b6, b7]);
    let home: Option<SocketAddr> = match kind % 3 {
        0 => None,
        1 => Some(([b2, b3, b4, b5], port).into()),
        _ => Some((u128::from(number).to_be_bytes(), port).into()),
    };
    Announcement {
        by: Candidate { rank: u32::from_le_bytes([b2, b3, b4, b5]), number },
        may_host: flags & 1 == 0,
        searches: flags & 2 == 0,
        port,
        home,
    }
}

/// Returns the datagram with an announcement.
#[track_caller]
fn only(seal: &Seal, message: &Announcement) -> Vec<u8> {
    let mut datagrams = seal.close(message);
    assert_eq!(datagrams.len(), 1);
    let datagram = datagrams.remove(0);
    assert!(datagram.len() <= limits::MAX_DATAGRAM);
    datagram
}

/// Returns datagrams of the job, sealed and plain.
pub fn seeds() -> Vec<Vec<u8>> {
    let Seals { sealed, other, open } = &*SEALS;
    let heads = [0_u8, 1, 2].map(|kind| std::array::from_fn(|at| if at == 0 { kind } else { 77 }));
    let seals = [sealed, open, other];
    let datagrams = |seal: &&Seal| heads.map(|head| only(seal, &announcement(&head)));
    seals.iter().flat_map(datagrams).collect()
}
