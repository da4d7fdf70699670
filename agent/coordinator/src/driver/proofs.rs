//! Authenticates messages of a node by a proof that the coordinator issued with its welcome.
//!
//! Node ids are public: `ragent status` prints them. So a registration under a known id, and a death notice, must carry
//! HMAC-SHA256(key, job uid, node id), truncated. The coordinator verifies it with its key alone, so it keeps no list
//! of proofs. The key is part of the job's state, so the next coordinator can verify the same proofs.

use std::collections::BTreeSet;

use hmac::{Hmac, Mac};
use ragent_proto::Proof;
use ragent_rendezvous::{
    ids::{JobUid, NodeId, ProofKey},
    limits::NODES_MAX,
    message::{PROTOCOL_VERSION, Registration},
};
use sha2::Sha256;

/// The proofs of the nodes of one coordinator.
#[derive(Debug)]
pub struct Proofs {
    key: ProofKey,
    /// True if members without a valid proof are accepted, because the key of the previous coordinator was lost.
    is_lenient: bool,
    /// The nodes that have sent a message since their welcome, so they have received their proof.
    confirmed: BTreeSet<NodeId>,
}

impl Proofs {
    /// Creates proofs with the `key` of the previous coordinator. Without a key, it generates one, and accepts members without a valid
    /// proof until the first admission.
    pub fn new(key: Option<ProofKey>) -> Self {
        let is_lenient = key.is_none();
        let key = key.unwrap_or_else(|| ProofKey::new(rand::random()));
        Self { key, is_lenient, confirmed: BTreeSet::new() }
    }

    /// Returns the key, for the job's state.
    pub(crate) fn key(&self) -> &ProofKey {
        &self.key
    }

    /// Returns the proof of a node.
    pub fn of(&self, uid: &JobUid, node: &NodeId) -> Proof {
        let mut proof = [0; Proof::LEN];
        if let Some(mac) = self.mac(uid, node) {
            let whole = mac.finalize().into_bytes();
            proof.iter_mut().zip(whole).for_each(|(to, from)| *to = from);
        }
        Proof(proof)
    }

    /// Verifies the proof of a node.
    pub fn are_of(&self, uid: &JobUid, node: &NodeId, proof: Option<Proof>) -> bool {
        let (Some(Proof(proof)), Some(mac)) = (proof, self.mac(uid, node)) else { return false };
        mac.verify_truncated_left(&proof).is_ok()
    }

    /// Returns true if a registration may use its node id. `uid` is the uid of the job.
    ///
    /// Without a valid proof, the node id must be new, and the agent must not know the job uid. An
    /// agent that knows the uid was welcomed, so it has its proof.
    pub(crate) fn admit(
        &self,
        uid: &JobUid,
        registration: &Registration,
        proof: Option<Proof>,
    ) -> bool {
        let node = &registration.node.node_id;
        if self.are_of(uid, node, proof) {
            return true;
        }
        // An agent of another version has no proof. It is refused later, because of its version.
        let knows_the_job = registration.protocol_version == PROTOCOL_VERSION
            && registration.job_uid.as_ref() == Some(uid);
        !self.confirmed.contains(node) && (self.is_lenient || !knows_the_job)
    }

    fn mac(&self, uid: &JobUid, node: &NodeId) -> Option<Hmac<Sha256>> {
        // A key of any length is valid.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()).ok()?;
        mac.update(uid.to_string().as_bytes());
        // No name contains this byte, so no other pair has the same bytes.
        mac.update(&[0]);
        mac.update(node.to_string().as_bytes());
        Some(mac)
    }

    /// Notes that a node has sent a message on a welcomed stream, so it has its proof.
    ///
    /// A welcome alone is not enough: it may be lost in transit, and then the agent registers again without a proof.
    ///
    /// The number of ids is limited. At the limit, ids that `is_present` does not know are removed. Among them may be a node that has just
    /// lost its lease: another process can use its id until it registers again.
    pub(crate) fn confirm(&mut self, node: &NodeId, is_present: impl Fn(&NodeId) -> bool) {
        if self.confirmed.contains(node) {
            return;
        }
        if self.confirmed.len() >= CONFIRMED_MAX {
            self.confirmed.retain(is_present);
        }
        self.confirmed.insert(node.clone());
    }

    /// Notes that nodes were admitted to a round. All members have their proofs by then.
    pub(crate) fn handle_admission(&mut self) {
        self.is_lenient = false;
    }
}

/// The maximum number of confirmed node ids: all nodes that can be present, with a few restarts each.
const CONFIRMED_MAX: usize = 4 * NODES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn uid() -> JobUid {
        JobUid::new("uid")
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name)
    }

    fn registration(name: &str, knows_the_job: bool) -> Registration {
        let mut registration = ragent_base::testing::registration(name);
        registration.job_uid = knows_the_job.then(uid);
        registration
    }

    fn sound() -> Proofs {
        Proofs::new(Some(ProofKey::new([1; 32])))
    }

    /// Once a node has its proof, messages under its id are refused without it.
    #[test]
    fn known_nodes_show_their_proof() {
        let mut proofs = sound();
        assert!(proofs.admit(&uid(), &registration("n", false), None), "a new one");
        proofs.confirm(&node("n"), |_| true);
        let proof = proofs.of(&uid(), &node("n"));
        let others = [
            None,
            Some(Proof([0; 16])),
            Some(proofs.of(&uid(), &node("m"))),
            Some(proofs.of(&JobUid::new("other"), &node("n"))),
            Some(Proofs::new(None).of(&uid(), &node("n"))),
        ];
        for knows in [false, true] {
            assert!(proofs.admit(&uid(), &registration("n", knows), Some(proof)));
            for other in others {
                assert!(
                    !proofs.admit(&uid(), &registration("n", knows), other),
                    "{knows} {other:?}"
                );
                assert!(!proofs.are_of(&uid(), &node("n"), other));
            }
        }
        assert!(
            !proofs.admit(&uid(), &registration("m", true), Some(proof)),
            "nor is it another's"
        );
        assert!(proofs.admit(&uid(), &registration("m", false), None));
        for (name, is_admitted) in [("n", false), ("m", true)] {
            let old = Registration { protocol_version: 2, ..registration(name, true) };
            assert_eq!(proofs.admit(&uid(), &old, None), is_admitted, "what is refused otherwise");
        }
    }

    /// An agent whose welcome was lost may register again without a proof.
    #[test]
    fn lost_welcome_locks_nobody_out() {
        let mut proofs = sound();
        assert!(proofs.admit(&uid(), &registration("n", false), None));
        assert!(proofs.admit(&uid(), &registration("n", false), None));
        proofs.confirm(&node("n"), |_| true);
        assert!(!proofs.admit(&uid(), &registration("n", false), None));
    }

    /// The next coordinator verifies its members with the same key.
    #[test]
    fn proofs_outlive_the_coordinator() {
        let proof = sound().of(&uid(), &node("n"));
        let proofs = Proofs::new(Some(sound().key().clone()));
        assert!(proofs.admit(&uid(), &registration("n", true), Some(proof)));
        assert!(!proofs.admit(&uid(), &registration("n", true), None));
    }

    /// A coordinator without its key accepts members without a valid proof until its first round.
    #[test]
    fn lost_key_keeps_no_member_out() {
        let mut proofs = Proofs::new(None);
        let old = Some(sound().of(&uid(), &node("n")));
        assert!(proofs.admit(&uid(), &registration("n", true), old));
        assert!(!proofs.are_of(&uid(), &node("n"), old), "a death notice needs the new one");
        proofs.confirm(&node("n"), |_| true);
        assert!(!proofs.admit(&uid(), &registration("n", true), old), "it has a new one");
        assert!(proofs.admit(&uid(), &registration("m", true), old));
        proofs.handle_admission();
        assert!(!proofs.admit(&uid(), &registration("k", true), old));
    }

    /// The number of confirmed ids is limited. Present nodes stay, even if many others come and go.
    #[test]
    fn present_nodes_stay_confirmed() {
        let mut proofs = sound();
        let is_present = |id: &NodeId| *id == node("present");
        proofs.confirm(&node("present"), is_present);
        for number in 0..3 * CONFIRMED_MAX {
            proofs.confirm(&node(&format!("passing-{number}")), is_present);
        }
        assert!(proofs.confirmed.len() <= CONFIRMED_MAX, "{}", proofs.confirmed.len());
        assert!(!proofs.admit(&uid(), &registration("present", false), None));
    }
}
