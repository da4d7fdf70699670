//! The body of a death notice, which any process may send.

use ragent_base::testing::{assert_printable, job};
use ragent_coordinator::driver::proofs::Proofs;
use ragent_leadership::state_file::parse_death_notice;
use ragent_rendezvous::ids::{JobUid, ProofKey};

/// The key of the coordinator's proofs.
pub(super) const KEY: [u8; ProofKey::LEN] = [9; ProofKey::LEN];

/// Parses a death notice, and verifies its proof.
pub fn death_notice(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Some(parsed) = parse_death_notice(text) else { return };
    let node = parsed.node.to_string();
    assert!((1..=256).contains(&node.len()) && !node.chars().any(char::is_control));
    assert_printable(&node);
    let proof = parsed.proof.map(|proof| format!(" {proof}")).unwrap_or_default();
    let written = format!("{node} {}{proof}", parsed.round.0);
    assert_eq!(parse_death_notice(&written).as_ref(), Some(&parsed));
    let (proofs, uid) = (Proofs::new(Some(ProofKey::new(KEY))), JobUid::new(job::UID));
    let is_proven = proofs.are_of(&uid, &parsed.node, parsed.proof);
    assert_eq!(is_proven, parsed.proof == Some(proofs.of(&uid, &parsed.node)));
}
