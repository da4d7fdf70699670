//! The messages between a launch and its relays, and its list of hosts.

use std::{collections::BTreeSet, fmt::Debug};

use bytes::BytesMut;
use ragent_proto::printable;

use super::{
    frame::{FrameDecoder, Message},
    hostfile::{HostList, ListedHost},
    limits,
    order::{RelayOrder, RelayReport},
};

/// Decodes a stream of reports if the first byte is even, else of orders: as a whole, and in pieces. The second byte is the
/// number of pieces; each of the next ones is the length of a piece.
pub fn launch_frames(input: &[u8]) {
    let Some((&[kind, cuts], rest)) = input.split_first_chunk() else { return };
    let (pieces, stream) = rest.split_at(rest.len().min(cuts.into()));
    if kind % 2 == 0 {
        compare::<RelayReport>(pieces, stream)
    } else {
        compare::<RelayOrder>(pieces, stream)
    }
}

fn compare<M: Message + Debug + PartialEq>(pieces: &[u8], stream: &[u8]) {
    let whole = messages::<M>(stream, &[]);
    assert_eq!(messages::<M>(stream, pieces), whole);
    for message in &whole.0 {
        let encoded = message.encode().expect("what was decoded is within limits");
        let again = messages::<M>(&encoded, &[]);
        assert_eq!((again.0.as_slice(), again.1), (std::slice::from_ref(message), None));
    }
}

/// Returns the messages of `stream`, and the error at its end, if `pieces` of these lengths arrive before the rest.
fn messages<M: Message>(stream: &[u8], pieces: &[u8]) -> (Vec<M>, Option<String>) {
    let (mut decoder, mut input, mut messages) =
        (FrameDecoder::<M>::default(), BytesMut::new(), Vec::new());
    let mut rest = stream;
    for length in pieces.iter().map(|&piece| usize::from(piece)).chain([stream.len()]) {
        let (piece, more) = rest.split_at(length.min(rest.len()));
        input.extend_from_slice(piece);
        rest = more;
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error.to_string())),
            }
        }
        assert!(input.capacity() <= M::LIMIT + 2 * stream.len() + 1024, "memory for a length only");
    }
    (messages, None)
}

/// Parses a list of hosts.
pub fn hostfile(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match text.parse::<HostList>() {
        Ok(list) => {
            let hosts = list.hosts();
            assert!((1..=limits::MAX_LISTED_HOSTS).contains(&hosts.len()));
            let names: BTreeSet<String> =
                hosts.iter().map(|host| host.name.to_ascii_lowercase()).collect();
            assert_eq!(names.len(), hosts.len(), "each host is listed once");
            for target in hosts.iter().map(ListedHost::target) {
                assert!(!target.is_empty() && !target.starts_with('-'), "an option of ssh");
                assert!(target.bytes().all(|byte| byte.is_ascii_graphic()), "{target}");
            }
            let written: String = hosts.iter().map(line).collect();
            assert_eq!(written.parse::<HostList>().as_ref(), Ok(&list), "{written}");
        }
        Err(error) => {
            assert!(!error.hint().is_empty());
            let text = printable(&error.to_string());
            assert!(text.len() <= input.len() + 256, "{text}");
        }
    }
}

fn line(host: &ListedHost) -> String {
    let ListedHost { name, user, slots } = host;
    let user = user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let slots = slots.map(|slots| format!(" slots={slots}")).unwrap_or_default();
    format!("{user}[{name}]{slots}\n")
}
