//! Keeps the proof of this agent's node id, and the proof that was sent on each stream.

use std::collections::BTreeMap;

use ragent_proto::Proof;
use ragent_rendezvous::ids::StreamNumber;

/// The proof of a node id.
#[derive(Debug, Default)]
pub(super) struct ProofOfId {
    /// The newest proof; `None` until the first welcome under the node id.
    newest: Option<Proof>,
    /// The proof that was sent on each open stream.
    shown: BTreeMap<StreamNumber, Option<Proof>>,
}

impl ProofOfId {
    /// Returns the newest proof.
    pub(super) fn newest(&self) -> Option<Proof> {
        self.newest
    }

    /// Notes that the newest proof is sent on a stream.
    pub(super) fn handle_shown(&mut self, stream: StreamNumber) {
        self.shown.insert(stream, self.newest);
    }

    /// Notes that a stream has ended.
    pub(super) fn handle_ended(&mut self, stream: StreamNumber) {
        self.shown.remove(&stream);
    }

    /// Replaces the proof by the one in a welcome. Returns true if it differs.
    pub(super) fn handle_welcome(&mut self, proof: Proof) -> bool {
        self.newest.replace(proof) != Some(proof)
    }

    /// Handles a refusal because the node id belongs to another agent. Returns true if this agent
    /// must register under a new node id, for which it has no proof.
    ///
    /// Otherwise only that stream is refused: the agent is registered on another one, or received
    /// its proof after it had opened this one.
    pub(super) fn handle_refused(&mut self, stream: StreamNumber, is_registered: bool) -> bool {
        let shown = self.shown.get(&stream).copied().flatten();
        let is_lost = shown == self.newest && !is_registered;
        if is_lost {
            self.newest = None;
        }
        is_lost
    }

    /// Discards the proof, which is not valid for another coordinator.
    pub(super) fn discard(&mut self) {
        self.newest = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamNumber = StreamNumber(1);
    const SECOND: StreamNumber = StreamNumber(2);
    const PROOF: Proof = Proof([1; 16]);

    /// An agent whose newest proof was refused registers under a new node id, without a proof.
    #[test]
    fn refused_proof_needs_a_new_id() {
        let mut without = ProofOfId::default();
        without.handle_shown(FIRST);
        assert!(without.handle_refused(FIRST, false));
        let mut with = ProofOfId::default();
        assert!(with.handle_welcome(PROOF));
        with.handle_shown(SECOND);
        assert!(with.handle_refused(SECOND, false));
        assert_eq!(with.newest(), None);
    }

    /// Only the stream is refused if the proof arrived after the stream was opened, or while the
    /// agent is registered on another one.
    #[test]
    fn outdated_refusal_changes_nothing() {
        let mut proof = ProofOfId::default();
        proof.handle_shown(FIRST);
        proof.handle_welcome(PROOF);
        assert!(!proof.handle_refused(FIRST, false));
        proof.handle_shown(SECOND);
        assert!(!proof.handle_refused(SECOND, true));
        assert_eq!(proof.newest(), Some(PROOF));
    }

    /// A repeated welcome carries no new proof. A stream that has ended has sent none.
    #[test]
    fn proofs_are_compared() {
        let mut proof = ProofOfId::default();
        assert!(proof.handle_welcome(PROOF));
        assert!(!proof.handle_welcome(PROOF));
        assert!(proof.handle_welcome(Proof([2; 16])));
        proof.handle_shown(FIRST);
        proof.handle_ended(FIRST);
        assert!(!proof.handle_refused(FIRST, false));
        proof.discard();
        assert_eq!(proof.newest(), None);
    }
}
