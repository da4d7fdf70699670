//! Encodes orders and reports: a length, a kind, and JSON or, for output, the line.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ragent_base::output::streams::Stream;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use super::order::{RelayOrder, RelayReport};
use crate::commands::ssh::limits;

/// The reason why a message cannot be encoded, or why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The length exceeds the limit.
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    /// The frame has no kind.
    #[error("a message is empty")]
    Empty,
    /// The kind is unknown.
    #[error("a message has the unknown kind {0}")]
    Kind(u8),
    /// The JSON is not a valid message.
    #[error("a message is malformed")]
    Json(#[source] serde_json::Error),
}

/// A message that can be sent in a frame.
pub(super) trait Message: Sized {
    /// The maximum length of a frame. Reports are short, orders may be long.
    const LIMIT: usize;

    fn encode(&self) -> Result<Bytes, FrameError>;
    fn decode(kind: u8, payload: Bytes) -> Result<Self, FrameError>;
}

impl Message for RelayOrder {
    const LIMIT: usize = limits::MAX_RELAY_FRAME;

    fn encode(&self) -> Result<Bytes, FrameError> {
        json_frame(self)
    }

    fn decode(kind: u8, payload: Bytes) -> Result<Self, FrameError> {
        match kind {
            JSON => from_json(&payload),
            kind => Err(FrameError::Kind(kind)),
        }
    }
}

impl Message for RelayReport {
    const LIMIT: usize = KIND + limits::MAX_RELAYED_LINE;

    fn encode(&self) -> Result<Bytes, FrameError> {
        let Self::Line { stream, line } = self else { return json_frame(self) };
        let kind = match stream {
            Stream::Stdout => STDOUT,
            Stream::Stderr => STDERR,
        };
        let mut content = BytesMut::with_capacity(KIND + line.len());
        content.put_u8(kind);
        content.put_slice(line);
        frame::<Self>(&content)
    }

    fn decode(kind: u8, payload: Bytes) -> Result<Self, FrameError> {
        let stream = match kind {
            JSON => return from_json(&payload),
            STDOUT => Stream::Stdout,
            STDERR => Stream::Stderr,
            kind => return Err(FrameError::Kind(kind)),
        };
        Ok(Self::Line { stream, line: payload })
    }
}

/// The decoder of the messages of one direction.
#[derive(Debug)]
pub(super) struct FrameDecoder<M> {
    frames: LengthDelimitedCodec,
    messages: PhantomData<M>,
}

impl<M: Message> Default for FrameDecoder<M> {
    fn default() -> Self {
        Self { frames: frames::<M>(), messages: PhantomData }
    }
}

impl<M: Message> FrameDecoder<M> {
    /// Takes one message from the front of `input`. Returns `None` if it has not been received completely.
    ///
    /// # Errors
    ///
    /// Returns [`FrameError`] if no continuation of `input` could be a message.
    pub(super) fn decode(&mut self, input: &mut BytesMut) -> Result<Option<M>, FrameError> {
        let content = self.frames.decode(input).map_err(|_| FrameError::TooLong(M::LIMIT))?;
        let Some(mut content) = content.map(BytesMut::freeze) else { return Ok(None) };
        let kind = content.try_get_u8().map_err(|_| FrameError::Empty)?;
        M::decode(kind, content).map(Some)
    }
}

/// The length of a kind.
const KIND: usize = 1;
const JSON: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;

/// Returns the codec of frames: the length of the content in 4 bytes, and the content.
fn frames<M: Message>() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(M::LIMIT).new_codec()
}

fn frame<M: Message>(content: &[u8]) -> Result<Bytes, FrameError> {
    let mut frame = BytesMut::new();
    let encoded = frames::<M>().encode(content, &mut frame);
    encoded.map_err(|_| FrameError::TooLong(M::LIMIT))?;
    Ok(frame.freeze())
}

fn json_frame<M: Message + Serialize>(message: &M) -> Result<Bytes, FrameError> {
    let mut content = vec![JSON];
    serde_json::to_writer(&mut content, message).map_err(FrameError::Json)?;
    frame::<M>(&content)
}

fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(FrameError::Json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commands::ssh::order::{AgentEnd, HostJob, SharedJob};

    fn reports() -> Vec<RelayReport> {
        let line = |text: &'static [u8]| Bytes::from_static(text);
        vec![
            RelayReport::Line { stream: Stream::Stderr, line: line(b"\xff\n") },
            RelayReport::Ended(AgentEnd::NotStarted("no folder".to_owned())),
            RelayReport::Line { stream: Stream::Stdout, line: line(b"") },
            RelayReport::Ended(AgentEnd::Exited(3)),
        ]
    }

    fn take<M: Message>(input: &[u8]) -> Result<Option<M>, FrameError> {
        FrameDecoder::default().decode(&mut BytesMut::from(input))
    }

    /// Orders arrive as they were sent, with any bytes in them, also in the name of a folder.
    #[test]
    fn orders_arrive() {
        use std::os::unix::ffi::OsStringExt;
        let odd = std::ffi::OsString::from_vec(vec![0xff, b'=', b'\n']);
        let env = vec![("A".to_owned(), odd.clone())];
        let job = SharedJob { env, folder: odd.into(), ..SharedJob::default() };
        for order in [RelayOrder::Job(job), RelayOrder::Start(HostJob::default())] {
            assert_eq!(take::<RelayOrder>(&order.encode().unwrap()).unwrap(), Some(order));
        }
    }

    /// Both sides refuse a length over the limit, before memory is reserved for it.
    #[test]
    fn long_messages_are_refused() {
        let head = [0, 2, 0, 0];
        assert!(matches!(take::<RelayReport>(&head), Err(FrameError::TooLong(_))));
        assert!(matches!(take::<RelayOrder>(&head), Ok(None)));
        let report = |len| {
            let line = Bytes::from(vec![b'x'; len]);
            RelayReport::Line { stream: Stream::Stdout, line }
        };
        let longest = report(limits::MAX_RELAYED_LINE);
        assert_eq!(take::<RelayReport>(&longest.encode().unwrap()).unwrap(), Some(longest));
        let longer = report(limits::MAX_RELAYED_LINE + 1);
        assert!(matches!(longer.encode(), Err(FrameError::TooLong(_))));
    }

    /// A frame without content or with an unknown kind is an error. So is a report that no relay makes.
    #[test]
    fn short_messages_are_refused() {
        assert!(matches!(take::<RelayReport>(&[0, 0, 0, 0]), Err(FrameError::Empty)));
        assert!(matches!(take::<RelayReport>(&[0, 0, 0, 1, 9]), Err(FrameError::Kind(9))));
        let lost = RelayReport::Disconnected("cut".to_owned());
        assert!(matches!(lost.encode(), Err(FrameError::Json(_))));
        let lost = [&[0, 0, 0, 23, JSON], &br#"{"Disconnected":"cut"}"#[..]].concat();
        assert!(matches!(take::<RelayReport>(&lost), Err(FrameError::Json(_))));
    }

    proptest! {
        /// The same reports are received, however the bytes are divided.
        #[test]
        fn cut_anywhere(cuts in proptest::collection::vec(1usize..40, 0..20)) {
            let bytes: Vec<u8> = reports().iter().flat_map(|report| report.encode().unwrap()).collect();
            let (mut input, mut rest, mut arrived) = (BytesMut::new(), &bytes[..], Vec::new());
            let mut frames = FrameDecoder::<RelayReport>::default();
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                input.extend_from_slice(head);
                rest = tail;
                while let Some(report) = frames.decode(&mut input).unwrap() {
                    arrived.push(report);
                }
            }
            prop_assert_eq!(arrived, reports());
        }

        /// Any bytes are a message, an incomplete message, or an error.
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut input = BytesMut::from(&bytes[..]);
            let mut reports = FrameDecoder::<RelayReport>::default();
            while let Ok(Some(_)) = reports.decode(&mut input) {}
            let _ = FrameDecoder::<RelayOrder>::default().decode(&mut input);
        }
    }
}
