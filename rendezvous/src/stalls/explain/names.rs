//! Names ranks, with their hosts.

use super::{Own, evidence::Worker};
use crate::{ids::LocalRank, snapshot::grouped};

/// The most ranks by name. A number follows.
pub(super) const NAMED_RANKS: usize = 4;

/// Returns a number of ranks.
pub(super) fn count(number: u64) -> String {
    format!("{} {}", grouped(number), if number == 1 { "rank" } else { "ranks" })
}

/// Ranks by name, with their host if it is the same and the job has several.
pub(super) struct Ranks {
    pub(super) text: String,
    is_one: bool,
}

impl Ranks {
    /// Names ranks.
    pub(super) fn new(ranks: &[u32], own: &Own) -> Self {
        let names: Vec<_> = ranks.iter().take(NAMED_RANKS).map(ToString::to_string).collect();
        let others = ranks.len() - names.len();
        let is_one = ranks.len() == 1;
        let mut text = format!("{} {}", if is_one { "rank" } else { "ranks" }, names.join(", "));
        match others {
            0 => {}
            1 => text.push_str(" and 1 other"),
            _ => text.push_str(&format!(" and {} others", grouped(others as u64))),
        }
        if let Some(host) = common_host(ranks, own) {
            text.push_str(&format!(" on {host}"));
        }
        Self { text, is_one }
    }

    /// Returns the ranks with a verb.
    pub(super) fn with(&self, one: &str, several: &str) -> String {
        format!("{} {}", self.text, self.verb(one, several))
    }

    /// Returns the form of a verb.
    pub(super) fn verb<'v>(&self, one: &'v str, several: &'v str) -> &'v str {
        if self.is_one { one } else { several }
    }
}

/// Returns the host of all these ranks, if the job has several nodes.
fn common_host<'o>(ranks: &[u32], own: &'o Own) -> Option<&'o str> {
    if own.nodes.len() < 2 {
        return None;
    }
    let node = own.node_of(*ranks.first()?)?;
    ranks.iter().all(|rank| node.has(*rank)).then_some(&node.host)
}

/// Returns the file with the whole stack of a rank, with its host.
pub(super) fn stack_file(rank: u32, worker: &Worker<'_>, own: &Own) -> Option<String> {
    let logs = worker.digest.logs.as_ref()?;
    let node = own.node_of(rank)?;
    let place = LocalRank(rank.checked_sub(node.first.0)?);
    Some(format!("{}:{}/{place}/stack.txt", node.host, logs.trim_end_matches('/')))
}

/// Returns the part of `text` that has at most `limit` bytes.
pub(crate) fn cut(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}
