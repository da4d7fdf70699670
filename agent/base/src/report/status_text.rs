//! The state of a job as text.

pub mod memory;
pub mod progress;
pub mod saving;
pub mod stall;
pub mod table;

use std::{fmt::Write as _, net::IpAddr};

use ragent_proto::printable;
use ragent_rendezvous::snapshot::{RefusedPeer, Snapshot, Unreached, VoterStatus};

use super::{outcome_text, time_text};

/// The rows of the table of nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rows {
    /// One for all nodes that do not differ in their state.
    Folded,
    /// One for each node.
    Nodes,
}

/// Returns the state as text.
pub fn text(snapshot: &Snapshot, rows: Rows) -> String {
    let mut text = String::new();
    let nodes = if snapshot.min_nodes == snapshot.max_nodes {
        snapshot.min_nodes.to_string()
    } else {
        format!("{}:{}", snapshot.min_nodes, snapshot.max_nodes)
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "job {}  round {}  {}  nodes {nodes}  workers {}  restarts {}/{}",
        snapshot.run_id,
        snapshot.round,
        snapshot.phase.name(),
        snapshot.world_size,
        snapshot.restarts_used.saturating_sub(snapshot.restarts_forgiven),
        snapshot.max_restarts,
    );
    if let Some(progress) = &snapshot.progress {
        let _ = writeln!(text, "{}", progress::line(progress));
    }
    for line in stall_lines(snapshot) {
        let _ = writeln!(text, "{line}");
    }
    if let Some(phase) = &snapshot.saving {
        let _ = writeln!(text, "{}", saving::phase(phase));
    }
    if let Some(times) = &snapshot.checkpoints {
        for line in saving::times(times) {
            let _ = writeln!(text, "{line}");
        }
    }
    if let Some(reason) = &snapshot.save_failed {
        let _ = writeln!(text, "checkpoint failed: {reason}");
    }
    if let Some(memory) = &snapshot.memory {
        let _ = writeln!(text, "{}", memory::line(memory));
    }
    if let Some(why) = &snapshot.incomplete {
        let _ = writeln!(text, "not complete: {}", why.text);
    }
    let _ = writeln!(text, "time: {}", time_text::of_account(&snapshot.time));
    if !snapshot.voters.is_empty() {
        let voters: Vec<_> = snapshot.voters.iter().map(voter).collect();
        let _ = writeln!(text, "voters: {}", voters.join(", "));
    } else if let Some(leader) = &snapshot.leader {
        let _ = writeln!(text, "leader: {leader} (term {})", snapshot.term);
    }
    if !snapshot.nodes.is_empty() {
        text += &match rows {
            Rows::Folded => table::folded(&snapshot.nodes),
            Rows::Nodes => table::of_nodes(&snapshot.nodes),
        };
    }
    if !snapshot.refused_clients.is_empty() {
        let addresses: Vec<_> = snapshot.refused_clients.iter().map(IpAddr::to_string).collect();
        let _ = writeln!(
            text,
            "the store of round {} refused connections from {}: not from an address of a member, or not \
             from the job's user there; if a worker of this job connected from there, give its address \
             with `--local-addr` on its node, or `--store-access any` on all nodes",
            snapshot.round,
            addresses.join(", ")
        );
    }
    for unreached in &snapshot.unreached {
        let _ = writeln!(text, "{}", unreached_text(unreached));
    }
    for RefusedPeer { address, count, reason } in &snapshot.refused_peers {
        let _ = writeln!(text, "refused: {count} from {address} ({reason})");
    }
    if let Some(outcome) = &snapshot.outcome {
        let _ = writeln!(text, "{}", outcome_text::closed(outcome, snapshot.run_id.as_str()));
    }
    // The answer may come from an untrusted process.
    printable(&text)
}

/// Returns the lines about the stall of a job; none if it makes progress.
pub fn stall_lines(snapshot: &Snapshot) -> Vec<String> {
    let usual = snapshot.progress.and_then(|progress| progress.step_time);
    snapshot.stall.as_ref().map_or_else(Vec::new, |stall| stall::lines(stall, usual))
}

/// Returns the line about a connection between nodes that could not be opened.
pub fn unreached_text(unreached: &Unreached) -> String {
    format!(
        "{unreached}; workers connect to each other on any port, so check the firewalls between the nodes"
    )
}

fn voter(voter: &VoterStatus) -> String {
    let VoterStatus { endpoint, is_leader, silent_for } = voter;
    if *is_leader {
        format!("{endpoint} (leads)")
    } else if voter.is_silent() {
        format!("{endpoint} (no answer for {} s)", silent_for.as_secs())
    } else {
        endpoint.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::empty_snapshot;

    /// Voters are listed on one line, with the leader and those that do not answer; programs read the milliseconds.
    #[test]
    fn voters_are_listed() {
        let voter = |endpoint: &str, is_leader, silent_ms| VoterStatus {
            endpoint: endpoint.to_owned(),
            is_leader,
            silent_for: Duration::from_millis(silent_ms),
        };
        let voters =
            vec![voter("n0:1", true, 0), voter("n1:1", false, 250), voter("n2:1", false, 12_345)];
        let mut snapshot = empty_snapshot();
        assert!(!text(&snapshot, Rows::Folded).contains("voters"));
        snapshot.set_voters(voters);
        let line = "voters: n0:1 (leads), n1:1, n2:1 (no answer for 12 s)";
        assert_eq!(text(&snapshot, Rows::Folded).lines().nth(2), Some(line));
        let json = serde_json::to_value(&snapshot).unwrap();
        let silent = serde_json::json!({
            "endpoint": "n2:1", "is_leader": false, "silent_ms": 12_345,
        });
        assert_eq!(json["voters"][2], silent);
        assert_eq!(json["leader"], "n0:1");
    }

    /// A leader that was chosen through etcd has a line of its own.
    #[test]
    fn leader_without_voters_is_shown() {
        let mut snapshot = empty_snapshot();
        snapshot.leader = Some("10.0.0.1:5".to_owned());
        assert_eq!(
            text(&snapshot, Rows::Folded).lines().nth(2),
            Some("leader: 10.0.0.1:5 (term 1)")
        );
        let json = serde_json::to_value(&snapshot).unwrap();
        assert_eq!((&json["leader"], &json["term"]), (&"10.0.0.1:5".into(), &1.into()));
    }
}
