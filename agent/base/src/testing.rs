//! Parts that several unit tests and fuzz targets use, in this crate and in those above.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use ragent_proto::printable;
use ragent_rendezvous::{
    Rendezvous,
    grant::Grant,
    ids::{GlobalRank, GroupRank, JobUid, NodeId, Round, RunId, Term},
    message::{NodeDescription, NodeState, Registration},
    settings::{JobState, Leases, NodeRange, Settings, SharedSettings},
    snapshot::{JobTime, NodeSnapshot, NodeStateName, PhaseName, Snapshot},
    voter_count::VoterCount,
};

/// The job that the targets know.
pub mod job {
    /// Its name.
    pub const RUN_ID: &str = "fuzzed-job-7f3a90";
    /// The run.
    pub const UID: &str = "uid7";
    /// The text of its secret.
    pub const SECRET: &str = "abcdefghijklmnopqrstuvwxyz0123456789_ABCDEFGHIJ";
}

/// Splits an input into parts, each after its length of two bytes. The last one may be shorter.
pub fn frames(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes(*len));
        let (frame, rest) = rest.split_at(len.min(rest.len()));
        input = rest;
        Some(frame)
    })
}

/// Creates the coordinator of the job, which continues from `job_state`.
pub fn coordinator(now: Instant, job_state: JobState, grant: Option<Grant>) -> Rendezvous {
    let settings = Settings {
        run_id: RunId::new(job::RUN_ID),
        coordinator: "c".to_owned(),
        host: None,
        shared: None,
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: true,
        leases: Leases::default(),
        begins_at: None,
    };
    Rendezvous::new(now, settings, job_state, grant)
}

/// The state of a run that begins.
pub fn job_state() -> JobState {
    JobState::new(JobUid::new(job::UID))
}

/// The status of a job with which no node has registered.
pub fn empty_snapshot() -> Snapshot {
    Snapshot {
        run_id: RunId::new("job"),
        job_uid: JobUid::new("u"),
        term: Term(1),
        round: Round(0),
        phase: PhaseName::Gathering,
        phase_ms: 0,
        time: JobTime::default(),
        last_restart: None,
        restarts: Vec::new(),
        min_nodes: 1,
        max_nodes: 1,
        restarts_used: 0,
        restarts_forgiven: 0,
        max_restarts: 0,
        world_size: 0,
        nodes: Vec::new(),
        incomplete: None,
        saving: None,
        checkpoints: None,
        saved_step: None,
        save_failed: None,
        stall: None,
        look: None,
        memory: None,
        progress: None,
        refused_clients: Vec::new(),
        refused_peers: Vec::new(),
        unreached: Vec::new(),
        outcome: None,
        leader: None,
        voters: Vec::new(),
    }
}

/// The nodes of a job with eight workers each. The first `members` of them have ranks.
pub fn nodes(members: u32, spares: u32) -> Vec<NodeSnapshot> {
    let node = |number: u32| NodeSnapshot {
        node_id: NodeId::new(format!("n{number}")),
        host_name: format!("n{number}"),
        address: format!("10.0.0.{number}"),
        observed: None,
        agent_port: 1,
        group_rank: (number < members).then_some(GroupRank(number)),
        first_global_rank: (number < members).then_some(GlobalRank(8 * number)),
        local_world_size: 8,
        state: if number < members { NodeStateName::Running } else { NodeStateName::Spare },
        last_seen_ms: u64::from(100 + number % 3),
        reason: None,
        progress: None,
        progress_age_ms: None,
        standbys: None,
        load: None,
        unhealthy: None,
        excluded: None,
    };
    (0..members + spares).map(node).collect()
}

/// The registration of a node with one worker in a job of one to three nodes.
pub fn registration(name: &str) -> Registration {
    Registration {
        waited: Duration::from_secs(3_600),
        ..Registration::new(
            RunId::new("job"),
            NodeDescription {
                agent_port: 1,
                script: "train.py".to_owned(),
                ..NodeDescription::new(NodeId::new(name), name, "10.0.0.1")
            },
            SharedSettings::new(NodeRange::new(1, 3).expect("a range")),
            NodeState::Ready { store_port: 9 },
        )
    }
}

/// Asserts that a text can be printed on a terminal.
#[track_caller]
pub fn assert_printable(text: &str) {
    assert_eq!(printable(text), text, "it has characters that control a terminal");
}

/// Asserts that no text within a value has characters that control a terminal: its debug form shows them as escapes.
#[track_caller]
pub fn assert_shown(value: &impl Debug) {
    let text = format!("{value:?}");
    let mut rest = text.as_str();
    while let Some((_, escape)) = rest.split_once('\\') {
        let character = match escape.strip_prefix("u{").and_then(|digits| digits.split_once('}')) {
            Some((digits, _)) => {
                u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).expect("a character")
            }
            None => match escape.chars().next().expect("an escape") {
                '0' => '\0',
                'r' => '\r',
                _ => ' ',
            },
        };
        assert_printable(character.encode_utf8(&mut [0; 4]));
        rest = escape.get(1..).unwrap_or_default();
    }
}

/// The escapes of a debug form are recognised, so that a control character in any field of a message is found.
#[test]
fn control_characters_are_found() {
    for sound in ["a\tb\n", "\\u{1b}", "\\r\"'é"] {
        assert_shown(&vec![sound]);
    }
    for bad in ["\u{1b}", "\r", "\0", "\u{9b}", "\u{7f}", "x\\\u{202e}", "\n\u{2066}"] {
        assert!(std::panic::catch_unwind(|| assert_shown(&vec![bad])).is_err(), "{bad:?}");
    }
}
