//! The messages between a worker and its agent: one object of JSON in each packet.

use ragent_core::memory::{Answer, Ask};
use ragent_rendezvous::message::{
    LINE_MAX, MEMORY_BYTES_MAX, MemoryKind, NOTICE_TEXT_MAX, STEP_MAX,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::notices::fitted;

/// A text that is fitted is not longer than a line.
const _: () = assert!(NOTICE_TEXT_MAX <= LINE_MAX);

/// A request, by the name in the field `ask`.
#[derive(Debug, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Request {
    Buffer { step: u64, bytes: u64, kind: MemoryKind, replicated: bool },
    Saved { step: u64, bytes: u64 },
    Load { kind: MemoryKind },
    Loaded,
    Newest,
    Unusable { step: u64, reason: String },
}

/// Parses the request of a worker; `None` if it is malformed.
pub(super) fn parse(packet: &[u8]) -> Option<Ask> {
    let is_step = |step: u64| step <= STEP_MAX;
    let is_size = |bytes: u64| (1..=MEMORY_BYTES_MAX).contains(&bytes);
    match serde_json::from_slice(packet).ok()? {
        Request::Buffer { step, bytes, kind, replicated } if is_step(step) && is_size(bytes) => {
            Some(Ask::Buffer { step, bytes, kind, is_replicated: replicated })
        }
        Request::Saved { step, bytes } if is_step(step) && is_size(bytes) => {
            Some(Ask::Saved { step, bytes })
        }
        Request::Load { kind } => Some(Ask::Load { kind }),
        Request::Loaded => Some(Ask::Loaded),
        Request::Newest => Some(Ask::Newest),
        Request::Unusable { step, reason } if is_step(step) => {
            Some(Ask::Unusable { step, reason: fitted(&reason) })
        }
        Request::Buffer { .. } | Request::Saved { .. } | Request::Unusable { .. } => None,
    }
}

/// Returns the packet of an answer. Those with a buffer have a descriptor as well.
pub(super) fn packet(answer: &Answer) -> Vec<u8> {
    let value: Value = match answer {
        Answer::Buffer { buffer, waited } => {
            json!({"buffer": buffer.id, "size": buffer.size, "waited": waited.as_secs_f64()})
        }
        Answer::Refused(why) => json!({"refused": fitted(why)}),
        Answer::Taken => json!({"taken": true}),
        Answer::Nothing => json!({"step": null}),
        Answer::Block { step, bytes, is_replicated, .. } => {
            json!({"step": step, "bytes": bytes, "replicated": is_replicated})
        }
        Answer::Newest(step) => json!({"step": step}),
        Answer::Noted => json!({"noted": true}),
    };
    value.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ragent_core::memory::Buffer;

    use super::*;

    fn parsed(text: &str) -> Option<Ask> {
        parse(text.as_bytes())
    }

    /// Each request is parsed. Its text is cut, and has no control characters.
    #[test]
    fn requests_are_parsed() {
        let kind = MemoryKind::State;
        let ask = parsed(r#"{"ask":"buffer","step":5,"bytes":9,"kind":"dcp","replicated":true}"#);
        let expected =
            Ask::Buffer { step: 5, bytes: 9, kind: MemoryKind::Dcp, is_replicated: true };
        assert_eq!(ask, Some(expected));
        let ask = parsed(r#"{"ask":"saved","step":0,"bytes":1}"#);
        assert_eq!(ask, Some(Ask::Saved { step: 0, bytes: 1 }));
        assert_eq!(parsed(r#"{"ask":"load","kind":"state"}"#), Some(Ask::Load { kind }));
        assert_eq!(parsed(r#"{"ask":"newest"}"#), Some(Ask::Newest));
        assert_eq!(parsed(r#"{"ask":"loaded"}"#), Some(Ask::Loaded));
        let long = "\\u001b[2J".to_owned() + &"x".repeat(3_000);
        let ask = parsed(&format!(r#"{{"ask":"unusable","step":5,"reason":"{long}"}}"#));
        let Some(Ask::Unusable { step: 5, reason }) = ask else { panic!("{ask:?}") };
        assert!(reason.starts_with("[2Jx") && reason.len() == LINE_MAX, "{reason}");
    }

    /// Other requests are malformed: unknown ones, and numbers out of their range.
    #[test]
    fn malformed_requests_are_refused() {
        for text in [
            "",
            "{",
            "[]",
            r#"{"ask":"delete"}"#,
            r#"{"ask":"saved","step":9007199254740992,"bytes":1}"#,
            r#"{"ask":"saved","step":-1,"bytes":1}"#,
            r#"{"ask":"saved","step":1.5,"bytes":1}"#,
            r#"{"ask":"saved","step":1,"bytes":0}"#,
            r#"{"ask":"saved","step":1,"bytes":1000000000000000000}"#,
            r#"{"ask":"buffer","step":1,"bytes":1,"kind":"pickle","replicated":false}"#,
            r#"{"ask":"load"}"#,
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
        assert_eq!(parse(b"\xff"), None);
    }

    /// Answers have the names of the protocol, and fit into a packet.
    #[test]
    fn answers_are_json() {
        let text = |answer| String::from_utf8(packet(&answer)).unwrap();
        let buffer = Buffer { id: 3, size: 4096 };
        let answer = Answer::Buffer { buffer, waited: Duration::from_millis(1_500) };
        assert_eq!(text(answer), r#"{"buffer":3,"size":4096,"waited":1.5}"#);
        let answer = Answer::Block { step: 5, buffer, bytes: 9, is_replicated: false };
        assert_eq!(text(answer), r#"{"bytes":9,"replicated":false,"step":5}"#);
        assert_eq!(text(Answer::Nothing), r#"{"step":null}"#);
        assert_eq!(text(Answer::Newest(Some(5))), r#"{"step":5}"#);
        assert_eq!(text(Answer::Taken), r#"{"taken":true}"#);
        assert_eq!(text(Answer::Noted), r#"{"noted":true}"#);
        assert!(text(Answer::Refused("x".repeat(10_000))).len() < 300);
    }
}
