//! Converts the record of a job's leader in an external store.

use prost::Message;
use ragent_election::claim::{Record, RecordKind};
use ragent_rendezvous::{
    heir::Successor,
    ids::{NodeId, Term},
    limits::SUCCESSORS_MAX,
    message::PROTOCOL_VERSION,
};

use super::{list, millis, nonempty, number, to_millis_up};
use crate::{
    Malformed,
    v1::{self, leader_record::Kind},
};

/// Encodes a record.
pub fn encode(record: Record) -> Vec<u8> {
    let Record { process, endpoint, term, number, silence, kind, successors, job_state } = record;
    let kind = match kind {
        RecordKind::Leads => Kind::Leads,
        RecordKind::Resigned => Kind::Resigned,
        RecordKind::Placeholder => Kind::Placeholder,
        RecordKind::JobOver => Kind::JobOver,
    };
    let record = v1::LeaderRecord {
        protocol_version: PROTOCOL_VERSION,
        process: process.to_string(),
        endpoint,
        term: term.0,
        number,
        kind: kind.into(),
        successors: successors.into_iter().map(Into::into).collect(),
        job_state: job_state.map(Into::into),
        silence_ms: to_millis_up(silence),
    };
    record.encode_to_vec()
}

/// Decodes a record.
///
/// # Errors
///
/// Returns [`Malformed::ProtocolVersion`] if a process with another protocol version has written it, and
/// another error if it is not valid.
pub fn decode(bytes: &[u8]) -> Result<Record, Malformed> {
    let record = v1::LeaderRecord::decode(bytes).map_err(|_| Malformed::Encoding)?;
    if record.protocol_version != PROTOCOL_VERSION {
        let theirs = record.protocol_version;
        return Err(Malformed::ProtocolVersion { ours: PROTOCOL_VERSION, theirs });
    }
    let kind = match Kind::try_from(record.kind) {
        Ok(Kind::Leads) => RecordKind::Leads,
        Ok(Kind::Resigned) => RecordKind::Resigned,
        Ok(Kind::Placeholder) => RecordKind::Placeholder,
        Ok(Kind::JobOver) => RecordKind::JobOver,
        Err(_) => return Err(Malformed::OutOfRange("record.kind")),
    };
    Ok(Record {
        process: NodeId::new(nonempty(record.process, "record.process")?),
        endpoint: nonempty(record.endpoint, "record.endpoint")?,
        term: Term(number(record.term, "record.term")?),
        number: record.number,
        silence: millis(record.silence_ms, "record.silence_ms")?,
        kind,
        successors: list(
            record.successors,
            "record.successors",
            SUCCESSORS_MAX,
            TryInto::try_into,
        )?,
        job_state: record.job_state.map(TryInto::try_into).transpose()?,
    })
}

message!(Successor, v1::Successor, "successor", { process: Nonempty, endpoint: Nonempty });

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use ragent_rendezvous::{
        ids::{JobUid, ProofKey},
        settings::JobState,
    };

    use super::*;

    /// A record with all fields.
    pub(in crate::convert) fn record() -> Record {
        let successor =
            |name: &str| Successor { process: NodeId::new(name), endpoint: format!("{name}:1") };
        Record {
            process: NodeId::new("a"),
            endpoint: "10.0.0.1:29400".to_owned(),
            term: Term(9 << 16),
            number: 3,
            silence: Duration::from_secs(6),
            kind: RecordKind::JobOver,
            successors: ["b", "c", "d"].map(successor).to_vec(),
            job_state: Some(JobState {
                proof_key: Some(ProofKey::new([7; 32])),
                ..JobState::new(JobUid::new("u"))
            }),
        }
    }

    /// A record survives its encoding.
    #[test]
    fn records_survive_their_encoding() {
        assert_eq!(decode(&encode(record())), Ok(record()));
        let without = Record { successors: Vec::new(), job_state: None, ..record() };
        assert_eq!(decode(&encode(without.clone())), Ok(without));
    }

    /// Bytes that are not a record, and records of other versions, are refused.
    #[test]
    fn other_values_are_refused() {
        assert_eq!(decode(b"hello"), Err(Malformed::Encoding));
        let theirs = 0;
        let ours = PROTOCOL_VERSION;
        assert_eq!(decode(b""), Err(Malformed::ProtocolVersion { ours, theirs }));
        let many = [record().successors, record().successors].concat();
        let many = Record { successors: many, ..record() };
        let error = decode(&encode(many)).unwrap_err();
        assert!(matches!(error, Malformed::TooLong { .. }), "{error}");
        let nameless = Record { endpoint: String::new(), ..record() };
        assert_eq!(decode(&encode(nameless)), Err(Malformed::Missing("record.endpoint")));
    }
}
