//! The messages between a worker and its agent: one object of JSON in each packet.

use ragent_base::limits::MAX_LOCAL_WORLD_SIZE;
use ragent_core::memory::{Answer, Ask, BlockRange, RangesRequest};
use ragent_rendezvous::{
    ids::{GroupRank, LocalRank},
    limits::NODES_MAX,
    message::{LINE_MAX, MEMORY_BYTES_MAX, MemoryKind, NOTICE_TEXT_MAX, PartSources, STEP_MAX},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::notices::fitted;

/// A text that is fitted is not longer than a line.
const _: () = assert!(NOTICE_TEXT_MAX <= LINE_MAX);

/// The length of an address, in bytes. Messages between agents have no longer ones.
const ADDRESS_MAX: usize = 256;

/// A request, by the name in the field `ask`.
#[derive(Debug, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Request {
    Buffer { step: u64, bytes: u64, kind: MemoryKind, replicated: bool },
    Saved { step: u64, bytes: u64 },
    Load { kind: MemoryKind },
    Ranges { step: u64, group_rank: u32, sources: Vec<String>, ranges: Vec<(u32, u64, u64)> },
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
        Request::Ranges { step, group_rank, sources, ranges } => {
            let range = |(local_rank, offset, bytes)| BlockRange {
                local_rank: LocalRank(local_rank),
                offset,
                bytes,
            };
            let ranges = ranges.into_iter().map(range).collect();
            let group_rank = GroupRank(group_rank);
            let request = RangesRequest { step, group_rank, sources, ranges };
            let are_addresses = request.sources.iter().all(|source| is_address(source));
            let has_node = (group_rank.0 as usize) < NODES_MAX;
            let is_worker = |range: &BlockRange| range.local_rank.0 < MAX_LOCAL_WORLD_SIZE;
            let may_exist = has_node && request.ranges.iter().all(is_worker);
            (are_addresses && may_exist && request.is_valid()).then_some(Ask::Ranges(request))
        }
        Request::Loaded => Some(Ask::Loaded),
        Request::Newest => Some(Ask::Newest),
        Request::Unusable { step, reason } if is_step(step) => {
            Some(Ask::Unusable { step, reason: fitted(&reason) })
        }
        Request::Buffer { .. } | Request::Saved { .. } | Request::Unusable { .. } => None,
    }
}

/// Returns true if a report can name this address: `HOST:PORT`, on one line.
fn is_address(source: &str) -> bool {
    let is_port = |port: &str| port.parse().is_ok_and(|port: u16| port > 0);
    let parts = source.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && is_port(port))
        && source.len() <= ADDRESS_MAX
        && !source.contains(char::is_control)
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
        Answer::Resharded { step, parts } if parts.is_empty() => {
            json!({"step": step, "resharded": true})
        }
        Answer::Resharded { step, parts } => {
            json!({"step": step, "resharded": true, "bytes": list_of(parts).len()})
        }
        Answer::Ranges { bytes, .. } => json!({"bytes": bytes}),
        Answer::Newest(step) => json!({"step": step}),
        Answer::Noted => json!({"noted": true}),
    };
    value.to_string().into_bytes()
}

/// Returns the list of parts of a checkpoint, which follows [`Answer::Resharded`] in a file.
pub(super) fn list_of(parts: &[PartSources]) -> Vec<u8> {
    let part = |part: &PartSources| {
        json!({
            "group_rank": part.group_rank.0,
            "first_rank": part.first_global_rank.0,
            "ranks": part.local_ranks,
            "sources": part.sources,
        })
    };
    Value::Array(parts.iter().map(part).collect()).to_string().into_bytes()
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
        let text =
            r#"{"ask":"ranges","step":5,"group_rank":1,"sources":["n1:1"],"ranges":[[3,64,9]]}"#;
        let range = BlockRange { local_rank: LocalRank(3), offset: 64, bytes: 9 };
        let (sources, ranges) = (vec!["n1:1".to_owned()], vec![range]);
        let request = RangesRequest { step: 5, group_rank: GroupRank(1), sources, ranges };
        assert_eq!(parsed(text), Some(Ask::Ranges(request)));
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
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n:1"],"ranges":[]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":[],"ranges":[[0,0,1]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":16384,"sources":["n:1"],"ranges":[[0,0,1]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n:1"],"ranges":[[4096,0,1]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n"],"ranges":[[0,0,1]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n:0"],"ranges":[[0,0,1]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n:1"],"ranges":[[0,0,0]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n:1"],"ranges":[[0,-1,1]]}"#,
            r#"{"ask":"ranges","step":1,"group_rank":0,"sources":["n:1"],"ranges":[[0,0,1],[0,0,67108864]]}"#,
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
        let answer = Answer::Resharded { step: 5, parts: vec![] };
        assert_eq!(text(answer), r#"{"resharded":true,"step":5}"#);
        let transfer = ragent_core::memory::TransferId { is_foreign: false, number: 1 };
        assert_eq!(text(Answer::Ranges { transfer, bytes: 9 }), r#"{"bytes":9}"#);
        assert_eq!(text(Answer::Newest(Some(5))), r#"{"step":5}"#);
        assert_eq!(text(Answer::Taken), r#"{"taken":true}"#);
        assert_eq!(text(Answer::Noted), r#"{"noted":true}"#);
        assert!(text(Answer::Refused("x".repeat(10_000))).len() < 300);
    }
}
