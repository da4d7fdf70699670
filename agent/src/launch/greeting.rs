//! The first words of a relay, by which whoever called it tells them from what a shell prints, and
//! knows that both are the same program.

use bytes::{Buf, BytesMut};

use crate::limits;

/// What begins the line; no start-up file of a shell prints a zero byte.
const MARK: &[u8] = b"\0ragent-relay ";

/// The line that a relay says first.
pub(super) fn line() -> Vec<u8> {
    [b"\n", MARK, VERSION.as_bytes(), b"\n"].concat()
}

/// What both sides must have alike: the version of what they say to each other, and the program's.
const VERSION: &str = concat!("1 ", env!("CARGO_PKG_VERSION"));

/// Why there is no relay at the other end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum GreetingError {
    /// It prints something else, and much of it.
    #[error("its shell prints {} KiB and more before ragent starts", limits::MAX_BANNER / 1024)]
    Noise,
    /// It is another program.
    #[error("it runs ragent {theirs}, and this host {}", program(VERSION))]
    Version {
        /// Which one.
        theirs: String,
    },
}

/// Takes everything up to the end of the greeting off the front of `input`; false if that has not
/// arrived whole.
///
/// # Errors
///
/// Returns [`GreetingError`] if no relay of this program can be meant.
pub(super) fn take(input: &mut BytesMut) -> Result<bool, GreetingError> {
    let found = input.windows(MARK.len()).position(|window| window == MARK);
    let end = found.and_then(|at| Some(at + input[at..].iter().position(|&byte| byte == b'\n')?));
    let (Some(at), Some(end)) = (found, end) else {
        let is_noise = input.len() > limits::MAX_BANNER;
        return if is_noise { Err(GreetingError::Noise) } else { Ok(false) };
    };
    let theirs = String::from_utf8_lossy(&input[at + MARK.len()..end]).into_owned();
    if theirs != VERSION {
        let theirs = program(&theirs).chars().filter(|c| !c.is_control()).take(40).collect();
        return Err(GreetingError::Version { theirs });
    }
    input.advance(end + 1);
    Ok(true)
}

/// The program's part of a version.
fn program(version: &str) -> &str {
    version.split_once(' ').map_or(version, |(_, program)| program)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a shell prints before is skipped, what comes behind is kept, however it is cut.
    #[test]
    fn greeting_among_noise() {
        let whole = [b"Welcome!\nragent-relay ", &line()[..], b"rest"].concat();
        for cut in 0..whole.len() - "rest".len() {
            let mut input = BytesMut::from(&whole[..cut]);
            assert_eq!(take(&mut input), Ok(false), "{cut}");
            input.extend_from_slice(&whole[cut..]);
            assert_eq!(take(&mut input), Ok(true));
            assert_eq!(&input[..], b"rest");
        }
    }

    /// Another version is told, and so is a shell that prints without end.
    #[test]
    fn no_relay() {
        let mut other = BytesMut::from(&b"\0ragent-relay 1 0.0.1\n"[..]);
        assert_eq!(take(&mut other), Err(GreetingError::Version { theirs: "0.0.1".to_owned() }));
        let mut noise = BytesMut::from(&vec![b'x'; limits::MAX_BANNER + 1][..]);
        assert_eq!(take(&mut noise), Err(GreetingError::Noise));
    }

    proptest! {
        /// Whatever comes, it is a greeting or none.
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = take(&mut BytesMut::from(&[MARK, &bytes].concat()[..]));
        }
    }
}
