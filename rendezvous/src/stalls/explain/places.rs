//! Lists where the workers of a round are, those in the same place together.

use std::collections::BTreeMap;

use super::{
    Own,
    evidence::{Evidence, Worker},
    names::stack_file,
    stacks::line,
};
use crate::{
    message::{Activity, Digest},
    snapshot::{JobLook, LOOK_PLACES_MAX, LOOK_RANGES_MAX, LookPlace},
};

/// Lists the places of the workers by the digests of a look. The places of the fewest workers come first, because
/// they are the unusual ones.
pub(crate) fn places(digests: &[Digest], own: &Own) -> JobLook {
    let evidence = Evidence::new(digests, own);
    let mut places: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (rank, worker) in &evidence.workers {
        places.entry(place(worker)).or_default().push(*rank);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, ranks)| (ranks.len(), ranks.first().copied()));
    let further = places.split_off(places.len().min(LOOK_PLACES_MAX));
    let further = further.iter().map(|(_, ranks)| ranks.len() as u64).sum();
    let shown = |(text, ranks): (String, Vec<u32>)| {
        let first = ranks.first().and_then(|rank| Some((*rank, evidence.workers.get(rank)?)));
        LookPlace {
            text,
            count: number(ranks.len() as u64),
            stack: first.and_then(|(rank, worker)| stack_file(rank, worker, own)),
            ranks: ranges(&ranks),
        }
    };
    JobLook {
        number: own.look,
        age_ms: 0,
        text: None,
        places: places.into_iter().map(shown).collect(),
        further: number(further),
        unknown: number(own.world_size().saturating_sub(evidence.workers.len() as u64)),
        has_stacks: evidence.workers.values().any(|worker| worker.look.activity.is_some()),
        has_lines: evidence.workers.values().any(|worker| worker.look.line.is_some()),
    }
}

/// Returns the place of a worker.
fn place(worker: &Worker<'_>) -> String {
    let look = worker.look;
    let kernel = look.waits_in.as_ref().map(|place| format!("in the kernel in {place}"));
    let state = look.state.map(|state| format!("in state {state}"));
    let text = line(worker).unwrap_or_else(|| match look.activity {
        Some(Activity::Collective) => "in a collective".to_owned(),
        Some(Activity::Wait) => "waits in torch".to_owned(),
        Some(Activity::Other) => "in no collective".to_owned(),
        None => kernel.clone().or(state).unwrap_or_else(|| "in an unknown state".to_owned()),
    });
    match look.state {
        _ if worker.is_stopped() => format!("{text}, stopped by a signal"),
        // A signal does not end it.
        Some('D') if look.activity.is_some() => {
            let kernel = kernel.map(|kernel| format!(", {kernel}")).unwrap_or_default();
            format!("{text}, state D{kernel}")
        }
        Some('D') if look.waits_in.is_some() => format!("{text}, state D"),
        _ => text,
    }
}

/// Returns the first ranges of these ranks, which are in order.
fn ranges(ranks: &[u32]) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        let full = ranges.len() == LOOK_RANGES_MAX;
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ if full => break,
            _ => ranges.push((rank, rank)),
        }
    }
    ranges
}

fn number(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
