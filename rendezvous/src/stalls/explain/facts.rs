//! Lists further facts about the ranks that a sentence names.

use super::{
    Own,
    causes::Cause,
    evidence::{Evidence, Worker},
    names::{cut, stack_file},
};
use crate::{message::LINE_MAX, snapshot::STALL_FACTS_MAX};

/// The hint in jobs whose stacks cannot be read.
const NO_STACKS: &str =
    "install py-spy on the nodes to see lines of the script: `pip install py-spy`";

/// The hint in jobs whose nodes send no lines.
const NO_LINES: &str =
    "give the job a secret to see lines of the script here: `ragent secret --init`";

/// Returns the lines.
pub(super) fn of(cause: &Cause<'_>, evidence: &Evidence<'_>, own: &Own) -> Vec<String> {
    let mut facts = Vec::new();
    match cause {
        // All nodes may have one.
        Cause::Equal { .. } | Cause::Unfinished { .. } => {
            let mut last = None;
            for (rank, worker) in &evidence.workers {
                let node = own.node_of(*rank);
                let Some(node) = node.filter(|node| last.replace(node.first) != Some(node.first))
                else {
                    continue;
                };
                facts.extend(
                    worker.digest.facts.iter().map(|fact| format!("{}: {fact}", node.host)),
                );
                if facts.len() >= STALL_FACTS_MAX {
                    break;
                }
            }
        }
        _ => {
            let named =
                cause.named().first().and_then(|rank| Some((*rank, evidence.workers.get(rank)?)));
            if let Some((rank, worker)) = named {
                facts.extend(activity(worker).filter(|_| !matches!(cause, Cause::NoCounts)));
                facts.extend(worker.digest.facts.iter().cloned());
                // A part of a path leads nowhere.
                let file =
                    stack_file(rank, worker, own).map(|file| format!("its whole stack: {file}"));
                facts.extend(file.filter(|fact| fact.len() <= LINE_MAX));
            }
        }
    }
    let has_any = |has: fn(&Worker<'_>) -> bool| evidence.workers.values().any(has);
    let has_lines = evidence.workers.is_empty() || has_any(|worker| worker.look.line.is_some());
    if !has_lines && matches!(cause, Cause::NoCounts | Cause::Missing { .. }) {
        let has_stacks = has_any(|worker| worker.look.activity.is_some());
        facts.push(if has_stacks { NO_LINES } else { NO_STACKS }.to_owned());
    }
    facts.truncate(STALL_FACTS_MAX);
    facts.into_iter().map(|fact| cut(fact, LINE_MAX)).collect()
}

/// Returns what a rank does, such as `it is in load_batch at data.py:88, state D, in rpc_wait_bit_killable (NFS)`.
fn activity(worker: &Worker<'_>) -> Option<String> {
    let look = worker.look;
    let line = look.line.as_ref().map(|line| format!("in {line}"));
    // Most processes run, or sleep until something happens.
    let state = look.state.filter(|state| !matches!(state, 'R' | 'S' | 'T' | 't'));
    let state = state.map(|state| format!("state {state}"));
    let kernel = look.waits_in.as_ref().map(|place| format!("in {place}"));
    let parts: Vec<_> = [line, state, kernel].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("it is {}", parts.join(", ")))
}
