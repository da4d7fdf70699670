//! Proves that an agent owns its node id.

use std::{fmt, str::FromStr};

/// A proof of one node id. It is issued when the node registers, and sent with all its later messages:
/// registrations, and the death notice.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Proof(pub [u8; Self::LEN]);

impl Proof {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// Parses the bytes of a message. They are empty before the node has registered.
    pub(crate) fn from_wire(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// Omits the proof itself: a reader of a log could use it to act as the node.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(..)")
    }
}

/// Hexadecimal digits, as in a death notice.
impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is not a proof in hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not {} hexadecimal digits", 2 * Proof::LEN)]
pub struct NoProof;

impl FromStr for Proof {
    type Err = NoProof;

    fn from_str(text: &str) -> Result<Self, NoProof> {
        if text.len() != 2 * Self::LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NoProof);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| NoProof)?;
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The printed form parses to the same proof. The debug form omits it.
    #[test]
    fn round_trip() {
        let proof = Proof([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(proof.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(proof.to_string().parse(), Ok(proof));
        assert_eq!(format!("{proof:?}"), "Proof(..)");
        let signed = format!("+{}", &proof.to_string()[1..]);
        for wrong in ["", "00", &signed, &proof.to_string()[1..], &format!("{proof}0")] {
            assert_eq!(wrong.parse::<Proof>(), Err(NoProof));
        }
    }
}
