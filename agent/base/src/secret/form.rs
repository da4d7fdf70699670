//! The form of a secret, and the keys that are derived from it.

use std::{collections::BTreeSet, fmt};

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::limits;

/// A secret. Its text is overwritten when it is dropped, and is not part of any output.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret {
    text: Zeroizing<String>,
    id: SecretId,
}

/// The public name of a secret, by which two processes recognise that they have the same one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SecretId([u8; 4]);

/// The reason why a text is not a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FormError {
    /// It has a character that secrets do not have.
    #[error("it has a character other than A-Z, a-z, 0-9, `_`, `+`, `/`, `=` and `-`")]
    Character,
    /// It has too few or too many characters.
    #[error(
        "it has {len} characters, but a secret has {} to {}",
        limits::MIN_SECRET_LEN,
        limits::MAX_SECRET_LEN
    )]
    Length {
        /// The number of characters.
        len: usize,
    },
    /// It has too few different characters.
    #[error(
        "it may be guessed: it has only {distinct} different characters, and a random one at least {}",
        limits::MIN_DISTINCT
    )]
    Repetition {
        /// The number of different characters.
        distinct: usize,
    },
    /// It consists of words and numbers.
    #[error("it may be guessed: it looks like words and numbers")]
    Words,
}

/// The purpose of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum KeyLabel {
    /// The public name.
    Id,
    /// The name of the server in the first message of TLS.
    ServerName,
    /// The code of datagrams of a search.
    Search,
    /// The seed of the Ed25519 key.
    Tls,
}

impl KeyLabel {
    fn text(self) -> &'static [u8] {
        match self {
            Self::Id => b"id",
            Self::ServerName => b"knock",
            Self::Search => b"search",
            Self::Tls => b"tls ed25519",
        }
    }
}

/// The salt of all keys, which distinguishes them from those of other programs with the same secret.
const SALT: &[u8] = b"ragent secret v1";

/// The beginning of secrets that this program makes, by which scanners of files recognise them.
const PREFIX: &str = "ragent1_";

impl Secret {
    /// Checks the form of a secret. Nothing is decoded: the characters are the key material.
    ///
    /// # Errors
    ///
    /// Returns [`FormError`] if the text is not a secret.
    pub fn new(text: &str) -> Result<Self, FormError> {
        let is_allowed = |c: u8| c.is_ascii_alphanumeric() || b"_+/=-".contains(&c);
        if !text.bytes().all(is_allowed) {
            return Err(FormError::Character);
        }
        let len = text.len();
        if !(limits::MIN_SECRET_LEN..=limits::MAX_SECRET_LEN).contains(&len) {
            return Err(FormError::Length { len });
        }
        let text = Zeroizing::new(text.to_owned());
        let mut id = [0; 4];
        expand(&text, KeyLabel::Id, &mut id);
        Ok(Self { text, id: SecretId(id) })
    }

    /// As [`Secret::new`], for a text that a user may have thought of.
    ///
    /// # Errors
    ///
    /// Returns [`FormError`] also if the text is visibly not random. The form of this program's own secrets is not examined.
    pub fn chosen(text: &str) -> Result<Self, FormError> {
        let secret = Self::new(text)?;
        if text.starts_with(PREFIX) {
            return Ok(secret);
        }
        let distinct = text.bytes().collect::<BTreeSet<_>>().len();
        if distinct < limits::MIN_DISTINCT {
            return Err(FormError::Repetition { distinct });
        }
        if text.split(|c: char| !c.is_ascii_alphanumeric()).all(is_word_or_number) {
            return Err(FormError::Words);
        }
        Ok(secret)
    }

    /// Makes a secret of random bytes of the system.
    ///
    /// # Errors
    ///
    /// Returns TLS's error if the system has no random bytes.
    pub fn random() -> Result<Self, rustls::Error> {
        let bytes = random_bytes()?;
        Ok(Self::of_bytes(&bytes))
    }

    fn of_bytes(bytes: &[u8; 32]) -> Self {
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + limits::MIN_SECRET_LEN));
        text.push_str(PREFIX);
        for chunk in bytes.chunks(3) {
            let mut group = [0; 4];
            group[1..=chunk.len()].copy_from_slice(chunk);
            let group = u32::from_be_bytes(group);
            // A chunk of n bytes has n + 1 digits.
            for digit in 0..=chunk.len() {
                let digit = group >> (18 - 6 * digit) & 63;
                text.push(BASE64_URL[digit as usize].into());
            }
        }
        Self::new(&text).expect("32 bytes have 43 digits")
    }

    /// Returns the public name.
    pub fn id(&self) -> SecretId {
        self.id
    }

    /// Returns the text, for a file or for another process of this user.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Derives the key for a purpose.
    pub(crate) fn key<const N: usize>(&self, label: KeyLabel) -> Zeroizing<[u8; N]> {
        let mut key = Zeroizing::new([0; N]);
        expand(&self.text, label, &mut *key);
        key
    }
}

/// Returns true for digits, and for letters of one case, also after a capital.
fn is_word_or_number(part: &str) -> bool {
    let all = |is: fn(&u8) -> bool, part: &[u8]| part.iter().all(is);
    let (bytes, rest) = (part.as_bytes(), part.as_bytes().get(1..).unwrap_or_default());
    let is_number = all(u8::is_ascii_digit, bytes);
    let is_capitalised = bytes.first().is_some_and(u8::is_ascii_alphabetic);
    let is_word = is_capitalised && all(u8::is_ascii_lowercase, rest);
    is_number || is_word || all(u8::is_ascii_uppercase, bytes)
}

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn expand(text: &str, label: KeyLabel, key: &mut [u8]) {
    let hkdf = Hkdf::<Sha256>::new(Some(SALT), text.as_bytes());
    hkdf.expand(label.text(), key).expect("keys are shorter than 255 hashes");
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id)
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl SecretId {
    /// Parses the form that is displayed.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 8 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let number = u32::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
        Some(Self(number.to_be_bytes()))
    }
}

/// Returns 32 random bytes of the system.
pub fn random_bytes() -> Result<Zeroizing<[u8; 32]>, rustls::Error> {
    let mut bytes = Zeroizing::new([0; 32]);
    rustls::crypto::ring::default_provider().secure_random.fill(&mut *bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::new(&"k".repeat(43)).unwrap()
    }

    /// A secret has at least 256 bits if it is base64, and no character that a shell or a URL changes.
    #[test]
    fn form_is_checked() {
        for text in ["k".repeat(43), "aZ09_+/=-".repeat(56) + "kkkkkkkk"] {
            assert_eq!(Secret::new(&text).unwrap().text(), text);
        }
        for len in [0, 42, 513] {
            assert_eq!(Secret::new(&"k".repeat(len)), Err(FormError::Length { len }));
        }
        for character in [" ", "\n", "ü", "$", "\0", "."] {
            let text = "k".repeat(42) + character;
            assert_eq!(Secret::new(&text), Err(FormError::Character), "{character:?}");
        }
    }

    /// A text that a user may have thought of is refused. Random ones of other programs are accepted, and all that this program
    /// makes.
    #[test]
    fn weak_secrets_are_refused() {
        let words = [
            "correct-horse-battery-staple-correct-horse-battery",
            "Correct_Horse_Battery_Staple_2026_Correct_Horse_1",
            "CORRECT/HORSE/BATTERY/STAPLE/CORRECT/HORSE/BATTERY=",
            "correcthorsebatterystaplecorrecthorsebatterystaple",
            "314159265358979323846264338327950288419716939937",
        ];
        for text in words {
            assert_eq!(Secret::chosen(text), Err(FormError::Words), "{text}");
        }
        for (text, distinct) in [("a".repeat(43), 1), ("aZ09_+/=-".repeat(9), 9)] {
            assert_eq!(Secret::chosen(&text), Err(FormError::Repetition { distinct }), "{text}");
        }
        // Of `openssl rand -base64 32`, `openssl rand -hex 32`, `uuidgen` twice, and base32.
        let random = [
            "Zm9vYmFyIGlzIG5vdCBhIHNlY3JldCBidXQgbG9uZyE=",
            "8f14e45fceea167a5a36dedd4bea2543f1a3b0c7d9e2648511aabbccdde0ff19",
            "7b2d9c1e-4f3a-4e8b-9a6d-0c5f1e2b3a4d-550e8400-e29b-41d4-a716-446655440000",
            "MFRGGZDFMZTWQ2LKNNWG23TPOBYXE43UOV3HO6DZPIYTE",
        ];
        for text in random {
            assert!(Secret::chosen(text).is_ok(), "{text}");
        }
        for byte in [0, 0xff] {
            let made = Secret::of_bytes(&[byte; 32]);
            assert_eq!(Secret::chosen(made.text()), Ok(made));
        }
    }

    /// All nodes of a job derive the same keys, in every version of the program.
    #[test]
    fn keys_are_stable() {
        let secret = secret();
        assert_eq!(secret.id().to_string(), ID_OF_K);
        let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&*secret.key::<16>(KeyLabel::ServerName)), SERVER_NAME_OF_K);
        assert_eq!(hex(&*secret.key::<32>(KeyLabel::Tls)), SEED_OF_K);
        assert_ne!(Secret::new(&"l".repeat(43)).unwrap().id(), secret.id());
        assert_eq!(SecretId::parse(ID_OF_K), Some(secret.id()));
        for wrong in ["", "+1234567", "1234567", "123456789", "zzzzzzzz"] {
            assert_eq!(SecretId::parse(wrong), None, "{wrong}");
        }
    }

    // `hmac` of Python computes the same keys.
    const ID_OF_K: &str = "27bbfbdc";
    const SERVER_NAME_OF_K: &str = "d5c2f893d293b23dbaebe396b19c30a8";
    const SEED_OF_K: &str = "53d7f608face47ca48dd908358099d146288e67e52d2d791059928795451a468";

    /// A made secret is base64 of its bytes.
    #[test]
    fn secrets_are_made() {
        let bytes: [u8; 32] = std::array::from_fn(|index| 8 * index as u8);
        let made = Secret::of_bytes(&bytes);
        assert_eq!(made.text(), "ragent1_AAgQGCAoMDhASFBYYGhweICIkJigqLC4wMjQ2ODo8Pg");
        let made = Secret::of_bytes(&[0xff; 32]);
        assert_eq!(made.text(), format!("ragent1_{}8", "_".repeat(42)));
    }

    /// The text is not part of the debug output, which logs may contain.
    #[test]
    fn text_is_hidden() {
        let shown = format!("{:?}", secret());
        assert_eq!(shown, format!("Secret({ID_OF_K})"));
    }

    /// Each made secret is another one.
    #[test]
    fn random_bytes_differ() {
        assert_ne!(*random_bytes().unwrap(), *random_bytes().unwrap());
    }
}
