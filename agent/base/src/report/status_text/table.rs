//! The table of nodes in `ragent status`.

use std::{collections::HashMap, fmt::Write as _};

use ragent_rendezvous::{message::StandbyCounts, snapshot::NodeSnapshot};

use crate::report::fold;

/// Returns the table of all nodes, with a row for each.
pub(crate) fn of_nodes(nodes: &[NodeSnapshot]) -> String {
    let head = ["rank", "host", "address", "workers", "state", "seen"].map(str::to_owned);
    let rows = nodes.iter().map(|node| {
        [
            node.group_rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            node.host_name.clone(),
            node.address.clone(),
            workers(&[node]),
            state(&[node]),
            seen(&[node]),
        ]
    });
    table(&[vec![head], rows.collect()].concat())
}

/// Returns the table of all nodes, with a row for all nodes in the same state.
pub(crate) fn folded(nodes: &[NodeSnapshot]) -> String {
    let rows = groups(nodes).into_iter().map(|group| {
        let group: Vec<&NodeSnapshot> = group.into_iter().map(|index| &nodes[index]).collect();
        row(&group)
    });
    table(&[vec![HEAD.map(str::to_owned)], rows.collect()].concat())
}

/// The names of the columns of [`row`].
pub const HEAD: [&str; 5] = ["rank", "host", "workers", "state", "seen"];

/// Returns the indexes of the nodes of each row, which have the same state.
pub fn groups(nodes: &[NodeSnapshot]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut places: HashMap<RowKind<'_>, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let place = *places.entry(RowKind::of(node)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Returns the row of nodes that do not differ in their state.
pub fn row(group: &[&NodeSnapshot]) -> [String; 5] {
    let ranks = group.iter().filter_map(|node| node.group_rank);
    let ranks = fold::numbers(ranks.map(|rank| (rank.0, rank.0)));
    [
        if ranks.is_empty() { "-".to_owned() } else { ranks },
        fold::names(group.iter().map(|node| node.host_name.as_str())),
        workers(group),
        state(group),
        seen(group),
    ]
}

/// The part of a node's state that all nodes of a row have in common.
#[derive(Eq, Hash, PartialEq)]
struct RowKind<'a> {
    is_member: bool,
    state: &'static str,
    why: Option<String>,
    /// The number of standbys that are ready, that import modules, and in all, with the reason why some are missing.
    standbys: Option<(u32, u32, u32, Option<&'a str>)>,
    /// The number of workers of a node that has no ranks for them.
    workers: Option<u32>,
}

impl<'a> RowKind<'a> {
    fn of(node: &'a NodeSnapshot) -> Self {
        let is_member = node.group_rank.is_some();
        let standbys = node.standbys.as_ref().map(|counts| {
            let StandbyCounts { ready, importing, size, obstacle } = counts;
            (*ready, *importing, *size, obstacle.as_deref())
        });
        Self {
            is_member,
            state: node.state.name(),
            why: node.why(),
            standbys,
            workers: Some(node.local_world_size).filter(|_| !is_member),
        }
    }
}

/// Returns the ranks of the workers, or their number in parentheses.
fn workers(nodes: &[&NodeSnapshot]) -> String {
    let ranks = nodes.iter().filter_map(|node| {
        let first = node.first_global_rank?.0;
        Some((first, first.saturating_add(node.local_world_size.saturating_sub(1))))
    });
    let ranks = fold::numbers(ranks);
    match nodes {
        _ if !ranks.is_empty() => ranks,
        [] => String::new(),
        [node] => format!("({})", node.local_world_size),
        [node, ..] => format!("({} each)", node.local_world_size),
    }
}

/// Returns the state of nodes that are in one row, with the progress report of the first of them that has one.
fn state(nodes: &[&NodeSnapshot]) -> String {
    let [node, ..] = nodes else { return String::new() };
    let mut text = match node.why() {
        Some(why) => format!("{}: {why}", node.state.name()),
        None => node.state.name().to_owned(),
    };
    let mut reports = nodes.iter().filter_map(|node| Some((node, node.progress.as_deref()?)));
    if let Some((reporter, report)) = reports.next() {
        // A worker's text must not contain control characters, which could move the cursor.
        let report = report.replace(char::is_control, " ");
        let is_of_all = nodes.iter().all(|node| node.progress == reporter.progress);
        // Writing to a string does not fail.
        let _ = match is_of_all {
            true => write!(text, ", progress \"{report}\""),
            false => write!(text, ", progress of {} \"{report}\"", reporter.host_name),
        };
    }
    if let Some(counts) = &node.standbys {
        let _ = write!(text, ", {}", standbys(counts));
    }
    text
}

/// Returns the longest time since a message of one of the nodes.
fn seen(nodes: &[&NodeSnapshot]) -> String {
    let longest = nodes.iter().map(|node| node.last_seen_ms).max().unwrap_or(0);
    format!("{:.1} s ago", longest as f64 / 1000.0)
}

/// Describes the standbys of a node.
pub fn standbys(counts: &StandbyCounts) -> String {
    let StandbyCounts { ready, importing, size, obstacle } = counts;
    match (importing, obstacle) {
        (0, None) => format!("standbys {ready}/{size}"),
        (0, Some(obstacle)) => format!("standbys {ready}/{size} ({obstacle})"),
        (importing, _) => format!("standbys {ready}/{size} ({importing} importing)"),
    }
}

fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::snapshot::NodeStateName;

    use super::*;
    use crate::testing::nodes;

    fn lines(table: &str) -> Vec<&str> {
        table.lines().map(str::trim_start).collect()
    }

    /// A job of 10,000 nodes takes a row for each state of its nodes.
    #[test]
    fn large_jobs_take_few_rows() {
        let mut nodes = nodes(9_982, 18);
        nodes[4410].state = NodeStateName::Lost;
        nodes[4410].reason = Some("its agent has ended".to_owned());
        (nodes[4410].group_rank, nodes[4410].first_global_rank) = (None, None);
        nodes[4410].last_seen_ms = 12_345;
        let expected = [
            "rank              host                workers              state                      seen",
            "0-4409,4411-9981  n[0-4409,4411-9981]  0-35279,35288-79855  running                    0.1 s ago",
            "-                 n4410               (8)                  lost: its agent has ended  12.3 s ago",
            "-                 n[9982-9999]        (8 each)             spare                      0.1 s ago",
        ];
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let table = folded(&nodes);
        let table: Vec<String> = lines(&table).into_iter().map(words).collect();
        assert_eq!(table, expected.map(words));
    }

    /// Progress reports do not unfold a row, and the report of one node is not shown as that of all.
    #[test]
    fn progress_does_not_unfold_rows() {
        let mut nodes = nodes(3, 0);
        for node in &mut nodes {
            node.progress = Some("step\t7".to_owned());
        }
        assert!(lines(&folded(&nodes))[1].contains("running, progress \"step 7\""));
        nodes[0].progress = None;
        let table = folded(&nodes);
        assert_eq!(lines(&table).len(), 2);
        assert!(table.contains("running, progress of n1 \"step 7\""), "{table}");
    }

    /// Without folding, each node has a row with its address.
    #[test]
    fn nodes_are_listed() {
        let table = of_nodes(&nodes(2, 1));
        let rows: Vec<Vec<&str>> =
            lines(&table).into_iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..5], ["0", "n0", "10.0.0.0", "0-7", "running"]);
        assert_eq!(rows[3][..5], ["-", "n2", "10.0.0.2", "(8)", "spare"]);
    }
}
