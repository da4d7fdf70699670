//! Sends and recognizes the first line of a relay.
//!
//! It separates the relay's messages from the output of a shell, and proves that both sides run the same program.

use bytes::{Buf, BytesMut};

use crate::commands::ssh::limits;

/// The beginning of the line. No start-up file of a shell prints a zero byte.
const MARK: &[u8] = b"\0ragent-relay ";

/// Returns the line that a relay sends first.
pub(super) fn line() -> Vec<u8> {
    [b"\n", MARK, VERSION.as_bytes(), b"\n"].concat()
}

/// The version of the protocol and of the program, which must be the same on both sides.
const VERSION: &str = concat!("5 ", env!("CARGO_PKG_VERSION"));

/// The reason why the other side is not a relay of this program.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum GreetingError {
    /// The other side prints too much before a greeting.
    #[error("its shell prints {} KiB or more before ragent starts", limits::MAX_BANNER / 1024)]
    Noise,
    /// The other side is another version of the program.
    #[error("it runs ragent {theirs}, but this host runs {}", program(VERSION))]
    Version {
        /// The version of the other side.
        theirs: String,
    },
}

/// The search for a greeting in the input, which arrives in parts.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    /// The place after the mark, if it was found.
    version_at: Option<usize>,
    /// The length of the front of the input that need not be searched again.
    searched: usize,
}

impl Greeting {
    /// Takes everything up to the end of the greeting from the front of `input`. Between calls, bytes may be added only at its end. Returns
    /// false if the greeting has not been received completely.
    ///
    /// # Errors
    ///
    /// Returns [`GreetingError`] if the other side cannot be a relay of this program.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<bool, GreetingError> {
        if self.version_at.is_none() {
            let new = &input[self.searched..];
            let found = new.windows(MARK.len()).position(|window| window == MARK);
            self.version_at = found.map(|at| self.searched + at + MARK.len());
            // The beginning of a mark may be at the end.
            let unfinished = input.len().saturating_sub(MARK.len() - 1);
            self.searched = self.version_at.unwrap_or(unfinished);
        }
        let end = self.version_at.and_then(|_| {
            let end = input[self.searched..].iter().position(|&byte| byte == b'\n');
            let end = end.map(|end| self.searched + end);
            self.searched = input.len();
            end
        });
        let (Some(at), Some(end)) = (self.version_at, end) else {
            let is_noise = input.len() > limits::MAX_BANNER;
            return if is_noise { Err(GreetingError::Noise) } else { Ok(false) };
        };
        let theirs = String::from_utf8_lossy(&input[at..end]).into_owned();
        if theirs != VERSION {
            let theirs = program(&theirs).chars().filter(|c| !c.is_control()).take(40).collect();
            return Err(GreetingError::Version { theirs });
        }
        input.advance(end + 1);
        Ok(true)
    }
}

/// Returns the program's part of a version.
fn program(version: &str) -> &str {
    version.split_once(' ').map_or(version, |(_, program)| program)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Output of a shell before the greeting is skipped, and bytes after it are kept, however the input is divided.
    #[test]
    fn greeting_among_noise() {
        let whole = [b"Welcome!\nragent-relay ", &line()[..], b"rest"].concat();
        for cut in 0..whole.len() - "rest".len() {
            let mut input = BytesMut::from(&whole[..cut]);
            let mut greeting = Greeting::default();
            assert_eq!(greeting.take(&mut input), Ok(false), "{cut}");
            input.extend_from_slice(&whole[cut..]);
            assert_eq!(greeting.take(&mut input), Ok(true));
            assert_eq!(&input[..], b"rest");
        }
    }

    /// Each byte is searched only a few times, before and after the mark, even if the input arrives in small parts.
    #[test]
    fn input_is_not_searched_again() {
        let line = line();
        let text = [&[b'x'; 1_000][..], &line[..line.len() - 1]].concat();
        let (mut greeting, mut input) = (Greeting::default(), BytesMut::new());
        for byte in text {
            input.extend_from_slice(&[byte]);
            assert_eq!(greeting.take(&mut input), Ok(false));
            assert!(input.len() - greeting.searched < MARK.len(), "{}", input.len());
        }
        input.extend_from_slice(b"\nrest");
        assert_eq!(greeting.take(&mut input), Ok(true));
        assert_eq!(&input[..], b"rest");
    }

    /// Another version is an error, and so is a shell that prints too much.
    #[test]
    fn no_relay() {
        let mut other = BytesMut::from(&b"\0ragent-relay 1 0.0.1\n"[..]);
        assert_eq!(take(&mut other), Err(GreetingError::Version { theirs: "0.0.1".to_owned() }));
        let mut noise = BytesMut::from(&vec![b'x'; limits::MAX_BANNER + 1][..]);
        assert_eq!(take(&mut noise), Err(GreetingError::Noise));
    }

    fn take(input: &mut BytesMut) -> Result<bool, GreetingError> {
        Greeting::default().take(input)
    }

    proptest! {
        /// No input causes a panic.
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = take(&mut BytesMut::from(&[MARK, &bytes].concat()[..]));
        }
    }
}
