//! A secret in a message or a file that only this user can read.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use zeroize::Zeroizing;

use super::form::Secret;

/// A secret whose text is written out: in the registration of an agent, and in the orders of a launch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WrittenSecret(pub Secret);

impl Serialize for WrittenSecret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.text())
    }
}

impl<'de> Deserialize<'de> for WrittenSecret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(from)?);
        Secret::new(&text).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text is written, and only a valid one is read.
    #[test]
    fn text_is_written() {
        let secret = WrittenSecret(Secret::new(&"k".repeat(43)).unwrap());
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(text, format!("\"{}\"", "k".repeat(43)));
        assert_eq!(serde_json::from_str::<WrittenSecret>(&text).unwrap(), secret);
        assert!(serde_json::from_str::<WrittenSecret>("\"short\"").is_err());
        assert!(!format!("{secret:?}").contains("kkk"));
    }
}
