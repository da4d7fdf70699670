//! Suggests changes to a job, by the numbers of its time account.

use std::{cmp::Reverse, collections::BTreeMap};

use ragent_base::report::time_text::short_time;
use ragent_rendezvous::snapshot::{NodeSnapshot, NodeStateName, Snapshot};
use serde::Serialize;

use crate::commands::events::JournalEntry;

/// A change that would help.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Advice {
    /// The flag, or what to add.
    what: &'static str,
    /// The sentence for people.
    pub(super) text: String,
}

/// Less than this time, in milliseconds, lost in a state is worth no advice.
const LOST_MIN_MS: u64 = 10_000;

/// Returns the changes that the numbers of a job support.
pub(super) fn of(snapshot: &Snapshot) -> Vec<Advice> {
    let time = &snapshot.time;
    let lost = time.known_ms().saturating_sub(time.of("productive")).saturating_add(time.redone_ms);
    // A state is worth a change if it takes a quarter of the lost time.
    let weighs = |state: &str| {
        let ms = time.of(state);
        (ms >= LOST_MIN_MS && ms.saturating_mul(4) >= lost)
            .then(|| format!("{} of the {} lost was {state}", short_time(ms), short_time(lost)))
    };
    let restarted = snapshot.round.0 > 1;
    let has_standbys = snapshot.nodes.iter().any(|node| node.standbys.is_some());
    let has_spares = snapshot.nodes.iter().any(|node| node.state.name() == "spare");
    let mut advice = Vec::new();
    if let Some(why) = weighs("starting").filter(|_| restarted && !has_standbys) {
        let text = format!("`--standby MODULES` imports modules before a failure: {why}");
        advice.push(Advice { what: "--standby", text });
    }
    if let Some(why) = weighs("waiting").filter(|_| restarted && !has_spares) {
        let text = format!(
            "more agents than MAX of `--nnodes` wait as spares and replace a lost node at once: {why}"
        );
        advice.push(Advice { what: "spares", text });
    }
    if let Some(why) = weighs("stopping") {
        let text = format!("a shorter `--shutdown-timeout`, or workers that end on SIGTERM: {why}");
        advice.push(Advice { what: "--shutdown-timeout", text });
    }
    if let Some(why) = weighs("hung") {
        let text = format!("a shorter `--hang-timeout` finds a hang earlier: {why}");
        advice.push(Advice { what: "--hang-timeout", text });
    }
    advice
}

/// Returns the changes by which checkpoints in memory would save time.
pub(super) fn of_memory(snapshot: &Snapshot) -> Vec<Advice> {
    let mut advice = Vec::new();
    match &snapshot.memory {
        Some(memory) => {
            let text = memory.text.as_deref().unwrap_or_default();
            if text.contains("the job has no secret") {
                let text = "a secret (`ragent secret --init`, on all nodes) lets agents copy checkpoints in \
                            memory to other nodes: without copies, the loss of a node costs the steps since \
                            the last checkpoint on disk";
                advice.push(Advice { what: "secret", text: text.to_owned() });
            }
        }
        None => {
            let (lost, all) = (snapshot.time.redone_ms, snapshot.time.known_ms());
            // One percent of the time is worth a change of the script.
            if lost >= LOST_MIN_MS && lost.saturating_mul(100) >= all {
                let text = format!(
                    "checkpoints in memory (`memory.save` of `ragent.checkpoint`) every few steps: {} of {} \
                     were steps that were done again",
                    short_time(lost),
                    short_time(all)
                );
                advice.push(Advice { what: "memory", text });
            }
        }
    }
    advice
}

/// The number of nodes that are named for lost leases, those with the most lost leases first.
const ADVICE_NODES_MAX: usize = 4;

/// The number of lost leases at which a registered node is named.
const LOST_LEASES_MIN: usize = 3;

/// Returns the advice about nodes that lose their lease again and again although they are registered. Their host is not lost, so the cause
/// is another one.
pub(super) fn of_leases(snapshot: &Snapshot, entries: &[JournalEntry]) -> Vec<Advice> {
    let is_there = |node: &&NodeSnapshot| node.state != NodeStateName::Lost;
    let there = snapshot.nodes.iter().filter(is_there);
    let there = there.map(|node| (node.host_name.as_str(), node.load.as_deref()));
    let there: BTreeMap<&str, Option<&str>> = there.collect();
    let mut lost: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        let is_lost_lease = match entry.kind.as_str() {
            "node_lost" => entry.data["how"] == "silent",
            kind => kind == "node_lease_expired",
        };
        if let Some(host) = entry.host.as_deref().filter(|_| is_lost_lease) {
            *lost.entry(host).or_default() += 1;
        }
    }
    let is_repeated =
        |(host, times): &(&str, usize)| *times >= LOST_LEASES_MIN && there.contains_key(host);
    let mut repeated: Vec<_> = lost.into_iter().filter(is_repeated).collect();
    repeated.sort_by_key(|(_, times)| Reverse(*times));
    let advice = repeated.into_iter().map(|(host, times)| {
        let load = there.get(host).copied().flatten();
        let load = load.map_or_else(String::new, |load| format!(" (when it came back: {load})"));
        let text = format!(
            "{host} has lost its lease {times} times and came back{load}: it lacks processor time, or its network drops packets"
        );
        Advice { what: "leases", text }
    });
    advice.take(ADVICE_NODES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::empty_snapshot;
    use ragent_base::testing::nodes;
    use ragent_rendezvous::{
        ids::Round,
        snapshot::{JobTime, MemoryStatus, StateTime},
    };

    use super::*;

    fn job(states: &[(&str, u64)]) -> Snapshot {
        let states = states.iter().map(|(state, seconds)| StateTime {
            state: (*state).to_owned(),
            ms: seconds * 1000,
            settled_ms: seconds * 1000,
        });
        let time = JobTime { states: states.collect(), ..JobTime::default() };
        Snapshot { round: Round(2), time, ..empty_snapshot() }
    }

    /// Each state that takes much of the lost time has its advice, with the numbers.
    #[test]
    fn advice_follows_the_numbers() {
        let what = |states: &[(&str, u64)]| -> Vec<&'static str> {
            of(&job(states)).iter().map(|advice| advice.what).collect()
        };
        assert_eq!(what(&[("productive", 500), ("starting", 60)]), ["--standby"]);
        assert_eq!(what(&[("productive", 500), ("waiting", 60), ("starting", 5)]), ["spares"]);
        assert_eq!(
            what(&[("stopping", 30), ("hung", 40)]),
            ["--shutdown-timeout", "--hang-timeout"]
        );
        let starting = &of(&job(&[("productive", 500), ("starting", 60)]))[0];
        assert!(
            starting.text.ends_with("1 min 0 s of the 1 min 0 s lost was starting"),
            "{starting:?}"
        );
    }

    /// Without a secret there are no copies. Many steps that are done again are a reason to save in memory.
    #[test]
    fn memory_is_advised() {
        let what = |snapshot: &Snapshot| -> Vec<&'static str> {
            of_memory(snapshot).iter().map(|advice| advice.what).collect()
        };
        let redone = |seconds: u64, memory: Option<&str>| {
            let mut snapshot = job(&[("productive", 2_000)]);
            snapshot.time.redone_ms = seconds * 1000;
            let text = memory.map(str::to_owned);
            snapshot.memory = memory.map(|_| MemoryStatus { text, ..MemoryStatus::default() });
            snapshot
        };
        let no_secret = "no copies: the job has no secret (ragent secret --init)";
        assert_eq!(what(&redone(60, Some(no_secret))), ["secret"]);
        assert_eq!(what(&redone(60, Some("off: n1 has --memory-limit 0"))), [""; 0]);
        assert_eq!(what(&redone(60, None)), ["memory"]);
        assert_eq!(what(&redone(19, None)), [""; 0]);
        let text = &of_memory(&redone(60, None))[0].text;
        assert!(
            text.ends_with("1 min 0 s of 33 min 20 s were steps that were done again"),
            "{text}"
        );
    }

    /// A node that is there and loses its lease repeatedly is named. A node that is gone, or was lost for another reason, is not.
    #[test]
    fn node_that_loses_leases_is_named() {
        let mut nodes = nodes(3, 1);
        nodes[2].state = NodeStateName::Lost;
        nodes.iter_mut().for_each(|node| node.load = Some("load 9.0 on 2 processors".to_owned()));
        let snapshot = Snapshot { nodes, ..empty_snapshot() };
        let entry = |kind: &str, host: &str, how: &str| {
            let line = serde_json::json!({
                "schema": 1, "id": "2.1", "at": "2026-11-21T20:31:07Z", "round": 7, "kind": kind,
                "host": host, "cause": null, "text": "", "data": {"how": how},
            });
            JournalEntry::read(&line.to_string()).expect("an event")
        };
        let silent = |host| entry("node_lost", host, "silent");
        let expired = |host| entry("node_lease_expired", host, "");
        let killed = |host| entry("node_lost", host, "death_notice");
        let mut entries = vec![silent("n1"), expired("n1")];
        entries.extend([(); 3].map(|()| silent("n2")));
        entries.extend([(); 3].map(|()| killed("n3")));
        assert_eq!(of_leases(&snapshot, &entries), []);
        entries.push(expired("n1"));
        let advice = of_leases(&snapshot, &entries);
        assert_eq!(advice.len(), 1);
        let expected = "n1 has lost its lease 3 times and came back (when it came back: load 9.0 on 2 processors)";
        assert!(advice[0].text.starts_with(expected), "{advice:?}");
    }

    /// Nothing is advised if little time was lost, or if a restart would change nothing.
    #[test]
    fn no_advice_without_numbers() {
        assert_eq!(of(&job(&[("productive", 500), ("starting", 9)])), []);
        assert_eq!(of(&job(&[("starting", 60), ("waiting", 500)])).len(), 1);
        let first = Snapshot { round: Round(1), ..job(&[("starting", 60)]) };
        assert_eq!(of(&first), []);
        assert_eq!(of(&empty_snapshot()), []);
    }
}
