//! The encoding of orders and reports: a length, a kind, and JSON or, for output, the line.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

use super::order::{HostNumber, Order, Report};
use crate::{limits, spec::Stream};

/// The reason why bytes are not a valid frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The length exceeds the limit.
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// The kind is unknown.
    #[error("a message has the unknown kind {0}")]
    Kind(u8),
    /// A line of output is too short for the number of its host.
    #[error("a line of output has no host number")]
    Line,
    /// The JSON is not a valid message.
    #[error("a message is malformed")]
    Json(#[source] serde_json::Error),
}

/// A message that can be sent in a frame.
pub(super) trait Message: Sized {
    /// The maximum length of a payload: reports are short, orders may be long.
    const LIMIT: usize;

    fn encode(&self) -> Bytes;
    fn decode(kind: u8, payload: Bytes) -> Result<Self, FrameError>;
}

impl Message for Order {
    const LIMIT: usize = limits::MAX_RELAY_FRAME;

    fn encode(&self) -> Bytes {
        json_frame(self)
    }

    fn decode(kind: u8, payload: Bytes) -> Result<Self, FrameError> {
        match kind {
            JSON => from_json(&payload),
            kind => Err(FrameError::Kind(kind)),
        }
    }
}

impl Message for Report {
    const LIMIT: usize = NUMBER + limits::MAX_RELAYED_LINE;

    fn encode(&self) -> Bytes {
        let Self::Line { host, stream, line } = self else { return json_frame(self) };
        let kind = match stream {
            Stream::Stdout => STDOUT,
            Stream::Stderr => STDERR,
        };
        let mut frame = BytesMut::with_capacity(HEAD + NUMBER + line.len());
        put_head(&mut frame, kind, NUMBER + line.len());
        frame.put_u32(*host);
        frame.put_slice(line);
        frame.freeze()
    }

    fn decode(kind: u8, mut payload: Bytes) -> Result<Self, FrameError> {
        let stream = match kind {
            JSON => return from_json(&payload),
            STDOUT => Stream::Stdout,
            STDERR => Stream::Stderr,
            kind => return Err(FrameError::Kind(kind)),
        };
        let host = payload.try_get_u32().map_err(|_| FrameError::Line)?;
        Ok(Self::Line { host, stream, line: payload })
    }
}

/// Takes one message from the front of `input`, or `None` if it has not been received completely.
///
/// # Errors
///
/// Returns [`FrameError`] if no continuation of `input` could be a message.
pub(super) fn take<M: Message>(input: &mut BytesMut) -> Result<Option<M>, FrameError> {
    let Some(&[a, b, c, d, kind]) = input.first_chunk::<HEAD>() else { return Ok(None) };
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > M::LIMIT {
        return Err(FrameError::TooLong(len));
    }
    if input.len() < HEAD + len {
        return Ok(None);
    }
    input.advance(HEAD);
    M::decode(kind, input.split_to(len).freeze()).map(Some)
}

/// The length of a frame's head: the length of the payload in 4 bytes, and its kind in one.
const HEAD: usize = 5;
/// The length of the number of the host whose line follows.
const NUMBER: usize = size_of::<HostNumber>();
const JSON: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;

fn put_head(frame: &mut BytesMut, kind: u8, len: usize) {
    // The receiver refuses longer frames; `plan` ensures that there are none.
    frame.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    frame.put_u8(kind);
}

fn json_frame(message: &impl Serialize) -> Bytes {
    let json = serde_json::to_vec(message).expect("a message has no map with odd keys");
    let mut frame = BytesMut::with_capacity(HEAD + json.len());
    put_head(&mut frame, JSON, json.len());
    frame.put_slice(&json);
    frame.freeze()
}

fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(FrameError::Json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commands::ssh::order::{AgentEnd, HostJob, Job};

    fn reports() -> Vec<Report> {
        let line = |text: &'static [u8]| Bytes::from_static(text);
        vec![
            Report::Line { host: 7, stream: Stream::Stderr, line: line(b"\xff\n") },
            Report::Gone { host: 1, why: "no route".to_owned(), is_direct: true },
            Report::Line { host: 0, stream: Stream::Stdout, line: line(b"") },
            Report::Ended { host: 2, end: AgentEnd::Exited(3) },
        ]
    }

    /// Orders are received as they were sent, with any bytes in them.
    #[test]
    fn orders_arrive() {
        use std::os::unix::ffi::OsStringExt;
        let odd = std::ffi::OsString::from_vec(vec![0xff, b'=', b'\n']);
        let job = Job { env: vec![("A".to_owned(), odd)], ..Job::default() };
        let order = Order::Start { job, hosts: vec![HostJob::default()] };
        let mut input = BytesMut::from(&order.encode()[..]);
        assert_eq!(take::<Order>(&mut input).unwrap(), Some(order));
        assert!(input.is_empty());
    }

    /// A length over the limit is refused before memory is reserved for it.
    #[test]
    fn long_messages_are_refused() {
        let mut input = BytesMut::from(&[0, 2, 0, 0, 0][..]);
        assert!(matches!(take::<Report>(&mut input), Err(FrameError::TooLong(_))));
        assert!(matches!(take::<Order>(&mut input), Ok(None)));
    }

    proptest! {
        /// The same reports are received for every division of the bytes.
        #[test]
        fn cut_anywhere(cuts in proptest::collection::vec(1usize..40, 0..20)) {
            let bytes: Vec<u8> = reports().iter().flat_map(|report| report.encode()).collect();
            let (mut input, mut rest, mut arrived) = (BytesMut::new(), &bytes[..], Vec::new());
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                input.extend_from_slice(head);
                rest = tail;
                while let Some(report) = take::<Report>(&mut input).unwrap() {
                    arrived.push(report);
                }
            }
            prop_assert_eq!(arrived, reports());
        }

        /// Any bytes are a message, an incomplete message, or an error.
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take::<Report>(&mut input) {}
            let _ = take::<Order>(&mut input);
        }
    }
}
