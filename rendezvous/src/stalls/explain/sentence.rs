//! Writes the sentence of a cause. It contains only what is known: a rank "has not launched" a collective, "has launched but
//! not finished" it, or "is stopped".

use super::{
    Own, OwnWait,
    causes::{self, Cause, Side},
    evidence::{Evidence, Worker},
    group::{Group, Launch},
    names::{NAMED_RANKS, Ranks, count, cut},
    stacks,
};
use crate::snapshot::{STALL_TEXT_MAX, grouped};

/// The most groups of a cycle that are named.
const NAMED_WAITS: usize = 4;

/// Returns the sentence.
pub(super) fn of(cause: &Cause<'_>, evidence: &Evidence<'_>, own: &Own) -> String {
    let mut text = match cause {
        Cause::Own(wait) => of_ragent(wait),
        Cause::Slow { group, launch } => format!(
            "the job does not hang: collectives went on within 10 s, such as {}",
            numbered(launch, &evidence.groups[*group])
        ),
        Cause::NoStore { ranks, reached } => without_store(ranks, *reached, own),
        Cause::Mismatch { group, number, sides, is_clear } => {
            mismatch(&evidence.groups[*group], *number, sides, *is_clear, own)
        }
        Cause::Missing { group, ranks, is_stopped: true, .. } => {
            let who = Ranks::new(ranks, own);
            let verb = who.verb("has", "have");
            let launch = missed(&evidence.groups[*group]);
            format!("{} stopped, and {verb} not launched {launch}", who.with("is", "are"))
        }
        Cause::Missing { group, ranks, .. } => {
            let who = Ranks::new(ranks, own);
            let worker = |rank| evidence.workers.get(rank);
            let in_torch = ranks.iter().all(|rank| worker(rank).is_some_and(Worker::is_in_torch));
            let waits = if in_torch {
                format!(
                    "; {} in another one, which is not known",
                    who.verb("it waits", "they wait")
                )
            } else {
                String::new()
            };
            let launch = missed(&evidence.groups[*group]);
            format!("{} not launched {launch}{waits}", who.with("has", "have"))
        }
        Cause::NoPartner { group, ranks } => {
            let group = &evidence.groups[*group];
            let who = Ranks::new(ranks, own);
            let mut waiting = group.members.iter().filter(|member| member.launch.is_open());
            let waits = waiting.next().map(|member| {
                let name = Ranks::new(&[member.rank], own).text;
                format!("; {name} waits in {}", numbered(&member.launch, group))
            });
            format!("{} in no collective{}", who.with("is", "are"), waits.unwrap_or_default())
        }
        Cause::Stopped { group, ranks } => {
            let group = &evidence.groups[*group];
            let who = Ranks::new(ranks, own);
            let launch = ranks.first().and_then(|rank| group.member(*rank)).map(|m| m.launch);
            let launch = launch.map(|launch| numbered(&launch, group)).unwrap_or_default();
            format!(
                "{} stopped, and {} launched but not finished {launch}",
                who.with("is", "are"),
                who.verb("has", "have")
            )
        }
        Cause::Unknown { group, ranks, is_stopped } => {
            let group = &evidence.groups[*group];
            let who = Ranks::new(ranks, own);
            let who = match (ranks.is_empty(), is_stopped) {
                (true, _) => format!("nothing is known of {}", count(group.unknown())),
                (false, false) => format!("nothing is known of {}", who.text),
                (false, true) => format!("{} stopped", who.with("is", "are")),
            };
            let open = group.count(|launch| launch.is_open());
            format!(
                "{who}; {} {} launched but not finished {}",
                count(open),
                if open == 1 { "has" } else { "have" },
                numbered(&top(group), group)
            )
        }
        Cause::Cycle(path) => cycle(path, evidence, own),
        Cause::AllSend { group } => {
            let group = &evidence.groups[*group];
            let ranks: Vec<_> = group.members.iter().map(|member| member.rank).collect();
            let who = Ranks::new(&ranks, own);
            let launch = top(group);
            format!(
                "{} for each other, such as in {}",
                who.with("waits", "wait"),
                numbered(&launch, group)
            )
        }
        Cause::Unfinished { group, launch, ranks } => {
            let group = &evidence.groups[*group];
            let who = Ranks::new(ranks, own);
            let others = (group.members.len() - ranks.len()) as u64;
            format!(
                "{} launched but not finished {}; {} {}",
                who.with("has", "have"),
                numbered(launch, group),
                count(others),
                if others == 1 { "has" } else { "have" }
            )
        }
        Cause::Equal { group, launch } => format!(
            "{} has not finished; all ranks have launched it: the network or a GPU is stuck",
            numbered(launch, &evidence.groups[*group])
        ),
        Cause::NoCounts => stacks::of(evidence, own),
    };
    text.push_str(&origin(cause, evidence));
    cut(text, STALL_TEXT_MAX)
}

/// Returns the origin of the evidence, and that it has not changed.
fn origin(cause: &Cause<'_>, evidence: &Evidence<'_>) -> String {
    let is_judged = !matches!(cause, Cause::Own(_) | Cause::Slow { .. } | Cause::NoCounts);
    let source = cause.group(evidence).filter(|_| is_judged).map(|_| "records of torch");
    let unchanged = "unchanged after 10 s";
    match (source, is_judged && causes::is_unchanged(cause, evidence)) {
        (Some(source), true) => format!(" ({source}; {unchanged})"),
        (Some(source), false) => format!(" ({source})"),
        (None, true) => format!(" ({unchanged})"),
        (None, false) => String::new(),
    }
}

fn of_ragent(wait: &OwnWait) -> String {
    match wait {
        OwnWait::Memory { rank, to: Some(to) } => {
            format!("rank {rank} waits for memory: the copy to {to} is slow")
        }
        OwnWait::Memory { rank, to: None } => {
            format!("rank {rank} waits for memory: the copy is slow")
        }
        OwnWait::Notice => "the ranks may save, because of a notice".to_owned(),
    }
}

fn without_store(ranks: &[u32], reached: u64, own: &Own) -> String {
    let who = Ranks::new(ranks, own);
    let store = own.store.as_ref().map_or(String::new(), |store| format!(" at {store}"));
    let refused = own.refused.map_or(String::new(), |address| {
        format!("; the store has refused connections from {address}")
    });
    format!(
        "{} not reached the store{store}; {} of {} have{refused}",
        who.with("has", "have"),
        grouped(reached),
        grouped(own.world_size())
    )
}

/// Returns the collective in which ranks wait, and their number.
fn missed(group: &Group<'_>) -> String {
    let launch = top(group);
    let launched = group.count(|other| other.number >= launch.number);
    let have = if launched == 1 { "has" } else { "have" };
    format!("{}, which {} {have} launched", numbered(&launch, group), count(launched))
}

fn mismatch(
    group: &Group<'_>,
    number: u64,
    sides: &[Side<'_>],
    is_clear: bool,
    own: &Own,
) -> String {
    let size = count(u64::from(group.size));
    let place = format!("number {} of the group of {size}", grouped(number));
    let who = |side: &Side<'_>| Ranks::new(&side.ranks, own).with("has", "have");
    let [most, rest @ ..] = sides else { return place };
    match rest {
        [other] if is_clear => format!(
            "{} launched {} as {place}, and {} {} launched {}",
            who(other),
            other.operation,
            count(most.ranks.len() as u64),
            if most.ranks.len() == 1 { "has" } else { "have" },
            most.operation
        ),
        _ => {
            let all = sides.iter().take(NAMED_RANKS);
            let all: Vec<_> =
                all.map(|side| format!("{} launched {}", who(side), side.operation)).collect();
            format!("as {place}, {}", all.join("; "))
        }
    }
}

fn cycle(path: &[(usize, u32)], evidence: &Evidence<'_>, own: &Own) -> String {
    let name = |rank: u32| Ranks::new(&[rank], own).text;
    let Some((_, last)) = path.last() else { return String::new() };
    let mut text = name(*last);
    for (place, (index, rank)) in path.iter().enumerate().take(NAMED_WAITS) {
        let group = &evidence.groups[*index];
        let which = if place == 0 { "" } else { ", which" };
        text.push_str(&format!(
            "{which} waits in {} for {}",
            numbered(&top(group), group),
            name(*rank)
        ));
    }
    if path.len() > NAMED_WAITS {
        let more = path.len() - NAMED_WAITS;
        text.push_str(&format!(", which waits in a chain of {more} more for {}", name(*last)));
    }
    text.push_str(": they have called the collectives of these groups in different orders");
    text
}

/// Returns the highest collective in which a rank waits.
pub(super) fn top<'a>(group: &Group<'a>) -> Launch<'a> {
    let mut open = group.counts.keys().filter(|launch| launch.is_open());
    let numbered = open.clone().rfind(|launch| !launch.is_point_to_point());
    let none = Launch { number: 0, operation: "", is_finished: false };
    numbered.or_else(|| open.next_back()).copied().unwrap_or(none)
}

/// Returns the name of a collective, such as `all_reduce 6,650 of the group of 512 ranks`.
fn numbered(launch: &Launch<'_>, group: &Group<'_>) -> String {
    let name = if launch.name().is_empty() { "operation" } else { launch.name() };
    let size = count(u64::from(group.size));
    format!("{name} {} of the group of {size}", grouped(launch.number))
}
