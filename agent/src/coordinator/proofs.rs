//! Decides who speaks for a node: whoever shows the proof that the coordinator handed out with its
//! welcome.
//!
//! Node ids are no secret, as `ragent status` prints them. So an attend under an id that is known, and
//! an obituary, have to show HMAC-SHA256(key, job uid, node id), which the coordinator can check
//! without remembering anything but its key. The key is in the state file, so that a coordinator that
//! is restarted knows its members.

use std::{collections::BTreeSet, fmt};

use hmac::{Hmac, Mac};
use ragent_proto::Proof;
use ragent_rendezvous::{
    ids::{JobUid, NodeId},
    limits::NODES_MAX,
    message::{Attend, PROTOCOL_VERSION},
};
use sha2::Sha256;

/// The secret that proofs are made with.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Key([u8; Self::LEN]);

impl Key {
    const LEN: usize = 32;

    fn random() -> Self {
        Self(rand::random())
    }

    /// Hexadecimal digits, for the state file.
    pub(crate) fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads them.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        if text.len() != 2 * Self::LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    fn mac(&self, uid: &JobUid, node: &NodeId) -> Option<Hmac<Sha256>> {
        // A key of any length will do.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(uid.to_string().as_bytes());
        // No name has this byte, so no other pair has the same bytes.
        mac.update(&[0]);
        mac.update(node.to_string().as_bytes());
        Some(mac)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What one coordinator knows of its agents' proofs.
#[derive(Debug)]
pub(crate) struct Proofs {
    key: Key,
    /// Whether members may show what an earlier coordinator gave them, whose key was lost.
    is_lenient: bool,
    /// Nodes that have spoken after they were welcomed, so that they have their proof.
    confirmed: BTreeSet<NodeId>,
}

impl Proofs {
    /// Proofs by the `key` that the state file holds; else by a fresh one, and until the first
    /// admission members of the job are taken at their word.
    pub(crate) fn new(key: Option<Key>) -> Self {
        let is_lenient = key.is_none();
        let key = key.unwrap_or_else(Key::random);
        Self { key, is_lenient, confirmed: BTreeSet::new() }
    }

    /// The key, for the state file.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// The proof of a node.
    pub(crate) fn of(&self, uid: &JobUid, node: &NodeId) -> Proof {
        let mut proof = [0; Proof::LEN];
        if let Some(mac) = self.key.mac(uid, node) {
            let whole = mac.finalize().into_bytes();
            proof.iter_mut().zip(whole).for_each(|(to, from)| *to = from);
        }
        Proof(proof)
    }

    /// Whether `proof` is that of a node.
    pub(crate) fn are_of(&self, uid: &JobUid, node: &NodeId, proof: Option<Proof>) -> bool {
        let (Some(Proof(proof)), Some(mac)) = (proof, self.key.mac(uid, node)) else {
            return false;
        };
        mac.verify_truncated_left(&proof).is_ok()
    }

    /// Whether an attend may be in the name of its node id. `uid` is the job's own.
    ///
    /// Without a proof the id must be new, and so must whoever attends: one that knows the job has been
    /// welcomed, and got its proof.
    pub(crate) fn admit(&self, uid: &JobUid, attend: &Attend, proof: Option<Proof>) -> bool {
        let node = &attend.node.node_id;
        if self.are_of(uid, node, proof) {
            return true;
        }
        // One that speaks another version knows no proofs, and is refused for that.
        let knows_the_job =
            attend.protocol_version == PROTOCOL_VERSION && attend.job_uid.as_ref() == Some(uid);
        !self.confirmed.contains(node) && (self.is_lenient || !knows_the_job)
    }

    /// Takes note that a node has spoken on a stream that was welcomed.
    ///
    /// Not before: a welcome may have been lost on its way, and then the agent comes again without.
    pub(crate) fn confirm(&mut self, node: &NodeId) {
        if self.confirmed.len() < CONFIRMED_MAX && !self.confirmed.contains(node) {
            self.confirmed.insert(node.clone());
        }
    }

    /// Takes note that nodes were admitted to a round: all members have their proofs by now.
    pub(crate) fn handle_admission(&mut self) {
        self.is_lenient = false;
    }
}

/// Node ids that are remembered: those of all nodes, each started anew a few times.
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

    fn attend(name: &str, knows_the_job: bool) -> Attend {
        let mut attend = crate::coordinator::driver::tests::attend(name);
        attend.job_uid = knows_the_job.then(uid);
        attend
    }

    fn sound() -> Proofs {
        Proofs::new(Some(Key([1; 32])))
    }

    /// A node that has its proof cannot be spoken for without it, whatever else is known of it.
    #[test]
    fn known_nodes_show_their_proof() {
        let mut proofs = sound();
        assert!(proofs.admit(&uid(), &attend("n", false), None), "a new one");
        proofs.confirm(&node("n"));
        let proof = proofs.of(&uid(), &node("n"));
        let others = [
            None,
            Some(Proof([0; 16])),
            Some(proofs.of(&uid(), &node("m"))),
            Some(proofs.of(&JobUid::new("other"), &node("n"))),
            Some(Proofs::new(None).of(&uid(), &node("n"))),
        ];
        for knows in [false, true] {
            assert!(proofs.admit(&uid(), &attend("n", knows), Some(proof)));
            for other in others {
                assert!(!proofs.admit(&uid(), &attend("n", knows), other), "{knows} {other:?}");
                assert!(!proofs.are_of(&uid(), &node("n"), other));
            }
        }
        assert!(!proofs.admit(&uid(), &attend("m", true), Some(proof)), "nor is it another's");
        assert!(proofs.admit(&uid(), &attend("m", false), None));
        for (name, is_admitted) in [("n", false), ("m", true)] {
            let old = Attend { protocol_version: 2, ..attend(name, true) };
            assert_eq!(proofs.admit(&uid(), &old, None), is_admitted, "what is refused otherwise");
        }
    }

    /// Until it has spoken, an agent may have lost its welcome, and comes again without a proof.
    #[test]
    fn lost_welcome_locks_nobody_out() {
        let mut proofs = sound();
        assert!(proofs.admit(&uid(), &attend("n", false), None));
        assert!(proofs.admit(&uid(), &attend("n", false), None));
        proofs.confirm(&node("n"));
        assert!(!proofs.admit(&uid(), &attend("n", false), None));
    }

    /// A coordinator that is restarted knows its members by the key of its state file.
    #[test]
    fn proofs_outlive_the_coordinator() {
        let proof = sound().of(&uid(), &node("n"));
        let proofs = Proofs::new(Key::from_hex(&sound().key().to_hex()));
        assert!(proofs.admit(&uid(), &attend("n", true), Some(proof)));
        assert!(!proofs.admit(&uid(), &attend("n", true), None));
        for wrong in ["", "00", &"0".repeat(63), &"+".repeat(64), &"\u{fc}".repeat(32)] {
            assert_eq!(Key::from_hex(wrong), None);
        }
    }

    /// One that has lost its key takes members at their word, until the first round of its own.
    #[test]
    fn lost_key_keeps_no_member_out() {
        let mut proofs = Proofs::new(None);
        let old = Some(sound().of(&uid(), &node("n")));
        assert!(proofs.admit(&uid(), &attend("n", true), old));
        assert!(!proofs.are_of(&uid(), &node("n"), old), "an obituary needs the new one");
        proofs.confirm(&node("n"));
        assert!(!proofs.admit(&uid(), &attend("n", true), old), "it has a new one");
        assert!(proofs.admit(&uid(), &attend("m", true), old));
        proofs.handle_admission();
        assert!(!proofs.admit(&uid(), &attend("k", true), old));
    }
}
