//! The lines that a terminal shows while a job starts: the nodes that are here, the missing ones, and the reason why
//! the next round is not complete.
//!
//! A pure function of the state, the width and the time.

use std::{fmt::Write as _, time::Instant};

use ragent_proto::printable_line;
use ragent_rendezvous::{
    message::StandbyCounts,
    settings::NodeRange,
    snapshot::{NodeSnapshot, NodeStateName, Snapshot},
};

use super::{fold, limits};
use crate::output::screen::{cut, width};

/// The start of a round, as this agent knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Start {
    /// The name of the job.
    pub run_id: String,
    /// The number of nodes of a round.
    pub nodes: NodeRange,
    /// The time since which the job waits.
    pub since: Instant,
    /// True if workers of this node have run before.
    pub follows_workers: bool,
    /// The state of this node's registration.
    pub stage: StartStage,
    /// The standbys of this node, if it has any.
    pub standbys: Option<StandbyCounts>,
}

/// The state of a node's registration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StartStage {
    /// The node is not registered.
    Looking {
        /// The endpoint of the coordinator.
        endpoint: String,
        /// The cause of the last failed attempt.
        cause: Option<String>,
        /// The time at which the agent gives up.
        until: Instant,
    },
    /// The node is registered.
    Registered {
        /// The endpoint of the coordinator.
        endpoint: String,
        /// The state of the job, and the time at which it was received.
        job: Option<(Facts, Instant)>,
    },
}

/// The part of a job's state that is shown; its size does not depend on the number of nodes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// The number of the next round.
    round: u64,
    /// The nodes by state: the name of the state, their number, and their names.
    groups: Vec<(&'static str, usize, String)>,
    /// The number of nodes that are here and may take part.
    present: usize,
    /// The reason why the next round is not complete.
    reason: Option<String>,
    /// The standbys of all nodes: ready, importing, wanted.
    standbys: (u64, u64, u64),
}

/// The states of nodes that are shown, in this order.
const STATES: [&str; 9] = [
    "ready",
    "lost",
    "preparing",
    "stopping",
    "quarantined",
    "unhealthy",
    "excluded",
    "waiting",
    "running",
];

/// Returns the state of a node, as it is shown.
fn state(node: &NodeSnapshot) -> &'static str {
    match node.state {
        NodeStateName::Joined => "ready",
        NodeStateName::Lost => "lost",
        NodeStateName::Preparing => "preparing",
        NodeStateName::Stopping | NodeStateName::Failed | NodeStateName::Leaving => "stopping",
        NodeStateName::Quarantined => "quarantined",
        NodeStateName::Unhealthy => "unhealthy",
        NodeStateName::Excluded => "excluded",
        NodeStateName::Waiting | NodeStateName::Spare => "waiting",
        NodeStateName::Running | NodeStateName::Succeeded => "running",
    }
}

impl Facts {
    /// Returns the part of a job's state that is shown.
    pub fn of(job: &Snapshot) -> Self {
        let groups = STATES.iter().filter_map(|name| {
            let hosts: Vec<&str> = job
                .nodes
                .iter()
                .filter(|node| state(node) == *name)
                .map(|node| node.host_name.as_str())
                .collect();
            (!hosts.is_empty()).then(|| (*name, hosts.len(), clean(&fold::names(hosts))))
        });
        let is_present = |node: &&NodeSnapshot| match node.state {
            NodeStateName::Lost
            | NodeStateName::Quarantined
            | NodeStateName::Unhealthy
            | NodeStateName::Excluded
            | NodeStateName::Leaving => false,
            NodeStateName::Preparing
            | NodeStateName::Joined
            | NodeStateName::Running
            | NodeStateName::Stopping
            | NodeStateName::Failed
            | NodeStateName::Succeeded
            | NodeStateName::Waiting
            | NodeStateName::Spare => true,
        };
        let mut standbys = (0, 0, 0);
        for counts in job.nodes.iter().filter_map(|node| node.standbys.as_ref()) {
            standbys.0 += u64::from(counts.ready);
            standbys.1 += u64::from(counts.importing);
            standbys.2 += u64::from(counts.size);
        }
        Self {
            round: job.round.0.saturating_add(1),
            groups: groups.collect(),
            present: job.nodes.iter().filter(is_present).count(),
            reason: job.incomplete.as_ref().map(|reason| clean(&reason.text)),
            standbys,
        }
    }
}

/// Returns `text`, which may come from another node, without characters that move the cursor.
fn clean(text: &str) -> String {
    let mut text = printable_line(text);
    text.truncate(text.floor_char_boundary(limits::START_TEXT));
    text
}

impl Start {
    /// Returns the lines at `now` for a terminal with this number of columns, at most [`limits::START_LINES`]. The last column
    /// stays empty.
    pub(crate) fn lines(&self, columns: usize, now: Instant) -> Vec<String> {
        let room = columns.saturating_sub(1);
        let lines = self.uncut(columns, now).into_iter().take(limits::START_LINES);
        lines.map(|line| cut(&line, room)).collect()
    }

    fn uncut(&self, columns: usize, now: Instant) -> Vec<String> {
        let job = clean(&self.run_id);
        let waited = now.saturating_duration_since(self.since).as_secs();
        let mut lines = Vec::new();
        match &self.stage {
            StartStage::Looking { endpoint, cause, until } => {
                let endpoint = clean(endpoint);
                // It is not known while it is elected.
                let place =
                    if endpoint.is_empty() { String::new() } else { format!(" at {endpoint}") };
                lines.push(format!(
                    "ragent: job {job} waits for its coordinator{place} for {waited} s"
                ));
                if let Some(cause) = cause {
                    lines.extend(wrapped("cause", &clean(cause), columns));
                }
                let left = until.saturating_duration_since(now).as_secs();
                lines.push(row("gives up", &format!("in {left} s")));
            }
            StartStage::Registered { endpoint, job: None } => {
                let endpoint = clean(endpoint);
                lines.push(format!(
                    "ragent: job {job} waits for its next round for {waited} s ({endpoint})"
                ));
            }
            StartStage::Registered { endpoint, job: Some((facts, at)) } => {
                let endpoint = clean(endpoint);
                lines.push(format!(
                    "ragent: job {job} waits for round {} for {waited} s ({endpoint})",
                    facts.round
                ));
                let age = now.saturating_duration_since(*at).as_secs();
                lines.extend(self.of_job(facts, age, columns));
            }
        }
        lines.extend(self.of_standbys());
        lines
    }

    fn of_job(&self, facts: &Facts, age: u64, columns: usize) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let rows = limits::START_STATES;
        let (shown, more) = if facts.groups.len() > rows {
            facts.groups.split_at(rows - 1)
        } else {
            (&facts.groups[..], &[][..])
        };
        for (name, count, hosts) in shown {
            lines.push(row(name, &format!("{count} {}: {hosts}", nodes(*count))));
        }
        if !more.is_empty() {
            let more = more.iter().map(|(name, count, _)| format!("{count} {name}"));
            lines.push(row("others", &more.collect::<Vec<_>>().join(", ")));
        }
        lines.extend(self.missing(facts.present));
        if let Some(reason) = &facts.reason {
            let mut text = reason.clone();
            if age > limits::START_INTERVAL.as_secs() + 1 {
                // Writing to a string does not fail.
                let _ = write!(text, " ({age} s ago)");
            }
            lines.extend(wrapped("reason", &text, columns));
        }
        lines
    }

    /// Returns the row with the number of missing nodes.
    fn missing(&self, present: usize) -> Option<String> {
        let [least, most] = [self.nodes.min(), self.nodes.max()]
            .map(|nodes| usize::try_from(nodes).unwrap_or(usize::MAX));
        let [few, all] = [least, most].map(|nodes| nodes.saturating_sub(present));
        let text = match (few, all) {
            (_, 0) => return None,
            _ if least == most => format!("{few} of {least} {}", nodes(least)),
            (0, all) => {
                format!("none of at least {least}; {all} of at most {most} {}", nodes(most))
            }
            (few, all) => {
                format!("{few} of at least {least}, {all} of at most {most} {}", nodes(most))
            }
        };
        Some(row("missing", &text))
    }

    /// Returns the row with the standbys of the job, or else of this node, while not all of them are ready.
    fn of_standbys(&self) -> Option<String> {
        let of_job = match &self.stage {
            StartStage::Registered { job: Some((facts, _)), .. } => Some(facts.standbys),
            StartStage::Looking { .. } | StartStage::Registered { job: None, .. } => None,
        };
        let own = || {
            let own = self.standbys.as_ref()?;
            Some((own.ready.into(), own.importing.into(), own.size.into()))
        };
        let (place, (ready, importing, size)) = match of_job.filter(|(_, _, size)| *size > 0) {
            Some(counts) => ("", counts),
            None => (" on this node", own()?),
        };
        let text = format!("{ready} of {size} ready{place}, {importing} importing modules");
        (ready < size).then(|| row("standbys", &text))
    }
}

fn nodes(count: usize) -> &'static str {
    if count == 1 { "node" } else { "nodes" }
}

/// The columns of a row's name, with those before and after it.
const INDENT: usize = 14;

fn row(name: &str, text: &str) -> String {
    format!("  {name:<11} {text}")
}

/// Returns a row with its text wrapped between words, on at most [`limits::START_REASON`] lines.
fn wrapped(name: &str, text: &str, columns: usize) -> Vec<String> {
    let room = columns.saturating_sub(INDENT + 1);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let is_last = lines.len() == limits::START_REASON;
        match lines.last_mut() {
            Some(line) if is_last || width(line) + 1 + width(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    lines.iter().zip(names).map(|(line, name)| row(name, line)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ragent_rendezvous::{
        ids::{GroupRank, NodeId},
        snapshot::Explanation,
    };

    use super::*;
    use crate::{sys::clock, testing::empty_snapshot};

    const SECOND: Duration = Duration::from_secs(1);

    fn node(host_name: String, state: NodeStateName) -> NodeSnapshot {
        NodeSnapshot {
            node_id: NodeId::new(host_name.as_str()),
            host_name,
            address: "10.0.0.1".to_owned(),
            observed: None,
            agent_port: 1,
            group_rank: None::<GroupRank>,
            first_global_rank: None,
            local_world_size: 8,
            state,
            last_seen_ms: 0,
            reason: None,
            progress: None,
            progress_age_ms: None,
            standbys: None,
            load: None,
            unhealthy: None,
            excluded: None,
        }
    }

    /// The facts of a job with nodes in these states.
    fn facts(states: &[(NodeStateName, usize)], reason: &str) -> Facts {
        let mut job = empty_snapshot();
        let states = states.iter().flat_map(|(state, count)| std::iter::repeat_n(*state, *count));
        job.nodes =
            states.enumerate().map(|(number, state)| node(format!("n{number}"), state)).collect();
        let kind = "too_few_nodes".to_owned();
        job.incomplete = Some(Explanation { kind, text: reason.to_owned() });
        Facts::of(&job)
    }

    fn start(range: (u32, u32), stage: StartStage, since: Instant) -> Start {
        Start {
            run_id: "run7".to_owned(),
            nodes: NodeRange::new(range.0, range.1).unwrap(),
            since,
            follows_workers: false,
            stage,
            standbys: None,
        }
    }

    fn registered(job: Option<(Facts, Instant)>) -> StartStage {
        StartStage::Registered { endpoint: "node0:29400".to_owned(), job }
    }

    const TOO_FEW: &str =
        "waiting for 1 more node (1 of at least 2 are ready), join timeout in 588 s";

    /// The block has the nodes that are here, the number of the missing ones, and the reason with the time that is
    /// left.
    #[test]
    fn missing_node_is_shown() {
        let now = clock::now();
        let facts = facts(&[(NodeStateName::Joined, 1)], TOO_FEW);
        let start = start((2, 2), registered(Some((facts, now + 11 * SECOND))), now);
        let wide = [
            "ragent: job run7 waits for round 1 for 12 s (node0:29400)",
            "  ready       1 node: n0",
            "  missing     1 of 2 nodes",
            "  reason      waiting for 1 more node (1 of at least 2 are ready), join timeout in 588 s",
        ];
        assert_eq!(start.lines(120, now + 12 * SECOND), wide);
        let usual = [
            &wide[..3],
            &[
                "  reason      waiting for 1 more node (1 of at least 2 are ready), join timeout",
                "              in 588 s",
            ],
        ]
        .concat();
        assert_eq!(start.lines(80, now + 12 * SECOND), usual);
        let narrow = [
            "ragent: job run7 waits for round 1 f...",
            "  ready       1 node: n0",
            "  missing     1 of 2 nodes",
            "  reason      waiting for 1 more node",
            "              (1 of at least 2 are r...",
        ];
        assert_eq!(start.lines(40, now + 12 * SECOND), narrow);
    }

    /// A job of 10,000 nodes in all states takes eight lines, which fit any width.
    #[test]
    fn block_is_bounded() {
        let now = clock::now();
        let states = NodeStateName::ALL.map(|state| (state, 769));
        let mut facts = facts(&states, &"a long reason ".repeat(100));
        facts.standbys = (7_000, 500, 80_000);
        let start = start((9_998, 9_999), registered(Some((facts, now))), now);
        for columns in [40, 80, 120] {
            let lines = start.lines(columns, now + SECOND);
            assert_eq!(lines.len(), limits::START_LINES, "{lines:#?}");
            assert!(lines.iter().all(|line| width(line) < columns), "{lines:#?}");
        }
        let lines = start.lines(120, now + SECOND);
        assert_eq!(lines[1], "  ready       769 nodes: n[769-1537]");
        assert_eq!(lines[2], "  lost        769 nodes: n[9228-9996]");
        let others = "769 preparing, 2307 stopping, 769 quarantined, 769 unhealthy, 769 excluded, 1538 waiting, \
                      1538 running";
        assert_eq!(lines[3], format!("  others      {others}"));
        let missing = "3846 of at least 9998, 3847 of at most 9999 nodes";
        assert_eq!(lines[4], format!("  missing     {missing}"));
        let standbys = "7000 of 80000 ready, 500 importing modules";
        assert_eq!(lines[7], format!("  standbys    {standbys}"));
        assert_eq!(start.lines(0, now), [""; 8]);
    }

    /// An elastic job with enough nodes lacks none, and has room for more; a full one has no such row.
    #[test]
    fn room_is_shown() {
        let now = clock::now();
        let reason = "last call, 12 s left for up to 6 more nodes";
        let few = facts(&[(NodeStateName::Joined, 2)], reason);
        let lines = start((2, 8), registered(Some((few, now))), now).lines(80, now);
        assert_eq!(lines[2], "  missing     none of at least 2; 6 of at most 8 nodes");
        assert_eq!(lines[3], format!("  reason      {reason}"));
        let all = facts(&[(NodeStateName::Joined, 8)], reason);
        let lines = start((2, 8), registered(Some((all, now))), now).lines(80, now);
        assert!(lines.iter().all(|line| !line.contains("missing")), "{lines:#?}");
    }

    /// Before its registration, a node shows where it looks for the coordinator, why it waits, and when it gives up.
    #[test]
    fn search_is_shown() {
        let now = clock::now();
        let looking = StartStage::Looking {
            endpoint: "node0:29400".to_owned(),
            cause: Some("connection\x1b[31m refused\u{202e}".to_owned()),
            until: now + 600 * SECOND,
        };
        let mut start = start((2, 2), looking, now);
        start.standbys = Some(StandbyCounts { ready: 3, importing: 5, size: 8, obstacle: None });
        let expected = [
            "ragent: job run7 waits for its coordinator at node0:29400 for 12 s",
            "  cause       connection[31m refused",
            "  gives up    in 588 s",
            "  standbys    3 of 8 ready on this node, 5 importing modules",
        ];
        assert_eq!(start.lines(80, now + 12 * SECOND), expected);
        start.stage = registered(None);
        start.standbys = None;
        let expected = "ragent: job run7 waits for its next round for 0 s (node0:29400)";
        assert_eq!(start.lines(80, now), [expected]);
    }

    /// The age of a reason is shown if its times are out of date.
    #[test]
    fn age_of_the_reason_is_shown() {
        let now = clock::now();
        let job = facts(&[], "join timeout in 588 s");
        let start = start((2, 2), registered(Some((job, now))), now);
        let reason = |after: u32| start.lines(80, now + after * SECOND).pop().unwrap();
        assert_eq!(reason(2), "  reason      join timeout in 588 s");
        assert_eq!(reason(7), "  reason      join timeout in 588 s (7 s ago)");
    }
}
