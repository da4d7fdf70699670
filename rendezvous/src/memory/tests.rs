//! Buddies, sources, and which checkpoints are whole, enough or shown.

use super::*;
use crate::{
    fixture::SECOND,
    limits::HOST_TALLIES_MAX,
    memory::fixture::{MemoryJob, checkpoint, dcp, part, replicated},
    message::{HealthClass, NodeNotice, NodeState, Part, Unhealthy},
    snapshot::{MemoryBytes, MemoryStatus},
};

const OWN: PartPlace = PartPlace::Own;
const COPY: PartPlace = PartPlace::Copy;

fn running(names: &[&str]) -> MemoryJob {
    MemoryJob::running(1, 3, names, |_| {})
}

fn id(step: u64) -> CheckpointId {
    checkpoint(1, step)
}

impl MemoryJob {
    fn rank(&mut self, name: &str) -> GroupRank {
        self.t.group().member(&NodeId::new(name)).expect("a member").rank
    }

    /// Returns the address of the node that keeps the copies of a node, and the node whose copies it keeps.
    fn pair(&mut self, name: &str) -> (Option<String>, Option<u32>) {
        let rank = self.rank(name);
        let table = self.t.group().table.as_ref().expect("a table");
        let admission = table.admission(rank).expect("a member");
        let admission = self.memory.complete(admission);
        (admission.buddy, admission.ward.map(|ward| ward.0))
    }

    /// Returns the step with which a node begins its round, and the sources of its part.
    fn plan(&mut self, name: &str) -> Option<(u64, String)> {
        let plan = self.memory.plan.clone()?.plan(self.rank(name));
        Some((plan.checkpoint.step, plan.sources.join(" ")))
    }

    fn whole(&self) -> Option<CheckpointId> {
        self.memory.whole(&self.t.job)
    }

    /// Reports an obstacle of node `a`. Returns the text of the status.
    fn obstacle(&mut self, parts: &[Part], text: &str) -> Option<String> {
        let report = self.report("a", parts);
        self.follow("a", MemoryReport { obstacle: Some(text.to_owned()), ..report });
        self.status()?.text
    }

    fn status(&self) -> Option<MemoryStatus> {
        self.memory.status(self.t.job.clock, &self.t.job)
    }
}

/// Each node keeps the copies of another one, unless its machine is unhealthy or it has no address.
#[test]
fn buddies_can_keep_copies() {
    let both = |change: &dyn Fn(&mut MemoryJob)| {
        let mut job = running(&["a", "b"]);
        change(&mut job);
        job.begin_round(&["a", "b"]);
        [job.pair("a"), job.pair("b")]
    };
    let (to_a, to_b) = (Some("a:1".to_owned()), Some("b:1".to_owned()));
    assert_eq!(both(&|_| {}), [(to_b, Some(1)), (to_a.clone(), Some(0))]);
    let only_b = [(None, Some(1)), (to_a, None)];
    let (class, kind, reason) = (HealthClass::Replace, "xid_79".to_owned(), String::new());
    let unhealthy = Some(Box::new(Unhealthy { class, kind, reason }));
    assert_eq!(both(&|job| job.t.report("b", |it| it.unhealthy = unhealthy.clone())), only_b);
    let no_address = MemoryReport::default();
    assert_eq!(both(&|job| assert_eq!(job.follow("b", no_address.clone()), None)), only_b);
}

/// Spares give their parts too, although no round has admitted them. Nodes that leave or are not connected do not.
#[test]
fn sources_stay() {
    let plan = |change: &dyn Fn(&mut MemoryJob)| {
        let mut job = running(&["a", "b"]);
        job.hold("a", &[part(id(10), 0, 2, OWN)]);
        for (name, parts) in [("y", &[][..]), ("x", &[part(id(10), 1, 2, PartPlace::Leftover)])] {
            job.t.join(name);
            job.hold(name, parts);
        }
        change(&mut job);
        job.begin_round(&["a", "y"]);
        job.plan("y")
    };
    let notice = || Some(NodeNotice { ends_job: false, left: SECOND, text: String::new() });
    let state = NodeState::Leaving { reaped: true };
    assert_eq!(plan(&|_| {}), Some((10, "x:1".to_owned())));
    assert_eq!(plan(&|job| job.t.report("x", |it| it.notice = notice())), None);
    assert_eq!(plan(&|job| job.t.report("x", |it| it.state = state)), None);
    let detach = |job: &mut MemoryJob| {
        job.t.job.roster.get_mut(&NodeId::new("x")).expect("a node").attached = false;
    };
    assert_eq!(plan(&detach), None);
}

/// Parts that were reported before the admission do not count for the round, although a plan may use them.
#[test]
fn earlier_reports_make_nothing_whole() {
    let mut job = running(&["a", "b"]);
    let late = job.report("b", &[part(id(10), 1, 2, OWN), part(id(10), 0, 2, COPY)]);
    job.hold_both(id(10));
    assert_eq!(job.whole(), Some(id(10)));
    job.begin_round(&["a", "b"]);
    assert_eq!((job.whole(), job.plan("a")), (None, Some((10, String::new()))));
    job.hold("a", &[part(id(10), 0, 2, OWN), part(id(10), 1, 2, COPY)]);
    job.follow("b", late);
    assert_eq!(job.whole(), None);
    job.hold_both(id(10));
    assert_eq!(job.whole(), Some(id(10)));
    job.t.end_round();
    assert_eq!(job.whole(), None, "no echo names it between rounds");
}

/// A node that waits keeps its parts of the checkpoint with which the round began. After a takeover, it keeps all: the plan is not known.
#[test]
fn waiting_nodes_keep_what_they_hold() {
    let mut job = running(&["a", "b"]);
    assert_eq!(job.memory.kept_for_round(&job.t.job), Some(CheckpointId::default()), "from disk");
    job.hold_both(id(10));
    job.begin_round(&["a", "b"]);
    assert_eq!(job.memory.kept_for_round(&job.t.job), Some(id(10)));
    job.memory.tried.void(id(10));
    assert_eq!(job.memory.kept_for_round(&job.t.job), Some(CheckpointId::default()));
    job.memory = JobMemory::new(&job.t.job.state);
    job.hold("a", &[part(id(10), 0, 2, OWN)]);
    assert_eq!(job.memory.kept_for_round(&job.t.job), None);
}

/// Once all nodes without a part have fetched theirs, an event names them. It is recorded once.
#[test]
fn fetched_parts_are_recorded() {
    let mut job = running(&["a", "b"]);
    job.hold_both(id(10));
    job.t.join("x");
    job.begin_round(&["b", "x"]);
    assert_eq!(job.plan("x"), Some((10, "b:1 a:1".to_owned())));
    job.t.events();
    for seconds in [5, 6] {
        let report = job.report("x", &[part(id(10), 0, 2, OWN)]);
        job.follow("x", MemoryReport { fetch_time: Some(seconds * SECOND), ..report });
    }
    let nodes = vec!["x".to_owned()];
    let fetched = EventKind::MemoryFetched { nodes, fetching: 1, bytes: 10, longest_ms: 5_000 };
    assert_eq!(job.t.events(), [fetched]);
}

/// Before a node leaves, a checkpoint in memory is enough if the others hold all parts of it since the notice, and the next round can
/// begin with it: it has the same ranks, or other ranks can read it.
#[test]
fn checkpoint_in_memory_is_enough_for_the_next_round() {
    let enough = |min: u32, spare: bool, kind: fn(Part) -> Part, has_address: bool| {
        let mut job = MemoryJob::running(min, 3, &["a", "b", "c"], |_| {});
        if !has_address {
            for name in ["a", "b", "c"] {
                job.follow(name, MemoryReport::default());
            }
            job.begin_round(&["a", "b", "c"]);
        }
        if spare {
            job.t.join("x");
        }
        let (since, leaver) = (job.t.job.clock, NodeId::new("c"));
        job.t.pass(SECOND);
        let of = job.t.job.newest_round().round.0;
        let part = |rank, place| kind(part(checkpoint(of, 20), rank, 3, place));
        for (name, rank) in [("a", 0), ("b", 1), ("c", 2)] {
            job.hold(name, &[part(rank, OWN)]);
        }
        let found = |job: &MemoryJob| {
            job.memory.enough_for_notice(&job.t.job, since, [&leaver].into_iter())
        };
        if !part(0, OWN).is_replicated {
            assert_eq!(found(&job), None, "only the leaver has its part");
            job.hold("a", &[part(0, OWN), part(2, COPY)]);
        }
        found(&job)
    };
    assert_eq!(enough(2, true, |part| part, true), Some(20));
    assert_eq!(enough(2, false, |part| part, true), None, "the ranks would differ");
    assert_eq!(enough(2, false, dcp, true), Some(20));
    assert_eq!(enough(2, false, dcp, false), None, "the others do not reach all parts");
    assert_eq!(enough(3, false, dcp, true), None, "there are too few nodes");
    assert_eq!(enough(2, false, replicated, false), Some(20), "each has it");
    assert_eq!(enough(2, true, replicated, false), None, "a spare cannot fetch it");
}

/// A checkpoint with which two charged rounds have failed is not used again. A newer one that becomes whole in between begins with no
/// strike.
#[test]
fn bad_checkpoint_is_struck_off() {
    let mut job = running(&["a", "b"]);
    job.hold_both(id(10));
    let newer = checkpoint(2, 20);
    for (whole, planned, tries) in [
        (id(10), Some(10), None),
        (newer, Some(20), None),
        (newer, Some(20), Some(1)),
        (newer, None, Some(2)),
    ] {
        job.hold_both(whole);
        job.memory.strike(&job.t.job, job.t.job.newest_round(), &mut job.t.out);
        job.begin_round(&["a", "b"]);
        assert_eq!(job.plan("a").map(|(step, _)| step), planned);
        assert_eq!(job.memory.tried.0.map(|tried| tried.tries), tries);
    }
    let struck = EventKind::MemoryStruck { step: 20, reason: StrikeReason::Failures };
    assert!(job.t.events().contains(&struck));
    let text = job.status().and_then(|status| status.text);
    assert_eq!(text.as_deref(), Some("struck off: two failures after step 20"));
}

/// If ranks of different nodes save different steps, the reason names two nodes with their steps.
#[test]
fn different_steps_are_named() {
    let why = format!("off: rank 0 on a has waited 120 s for a buffer; {DIFFERENT_STEPS}");
    let text = |own: &[u64], other: &[u64]| {
        let mut job = running(&["a", "b"]);
        for (name, rank, steps) in [("a", 0, own), ("b", 1, other)] {
            let parts = steps.iter().map(|step| part(id(*step), rank, 2, OWN));
            job.hold(name, &parts.collect::<Vec<_>>());
        }
        job.obstacle(&[], &why)
    };
    let steps = |text: &str| Some(format!("off: ranks save different steps: {text}"));
    assert_eq!(text(&[110, 120], &[111, 121]), steps("120 on a, 121 on b"));
    assert_eq!(text(&[10, 20], &[]), steps("20 on a, none on b"));
    assert_eq!(text(&[10, 20], &[10, 20]), Some(why.clone()));
}

/// The status names the newest whole step, and what is in the way of a newer one.
#[test]
fn status_of_memory() {
    let mut job = running(&["a", "b"]);
    assert_eq!(job.status(), None, "nothing was saved");
    job.hold_both(id(48_210));
    job.t.pass(SECOND);
    let status = job.status().expect("a step");
    assert_eq!((status.step, status.is_copied), (Some(48_210), true));
    assert_eq!((status.age_ms, status.text), (Some(1_000), None));
    let no_secret = "no copies: the job has no secret (ragent secret --init)";
    for (obstacle, text) in [
        ("n2 does not answer n0", "step 48,210 whole, not copied: n2 does not answer n0"),
        ("not copied from n0: n2 is full", "step 48,210 whole, not copied from n0: n2 is full"),
        // The agent knows the address of its buddy, and the coordinator its name.
        ("not copied: b:1 is full", "step 48,210 whole, not copied: b (b:1) is full"),
        (no_secret, no_secret),
    ] {
        let shown = job.obstacle(&[part(id(48_210), 0, 2, OWN)], obstacle);
        assert_eq!(shown.as_deref(), Some(text));
    }
    let slow = MemoryReport {
        waits_for_buffer: Some(GlobalRank(1)),
        obstacle: Some("the copy from n3 to n1 is slow".to_owned()),
        cost: Some(SECOND / 50),
        needed: 245,
        limit: 667,
        ..job.report("b", &[])
    };
    job.follow("b", slow);
    let status = job.status().expect("a step");
    assert_eq!(status.text.as_deref(), Some("waits: the copy from n3 to n1 is slow"));
    assert_eq!((status.cost_ms, status.needed, status.limit), (Some(20), 245, 667));
}

/// The number of hosts that are remembered is bounded.
#[test]
fn few_lost_hosts_are_remembered() {
    let mut job = running(&["a", "b"]);
    let parts = vec![part(id(10), 0, 2, OWN)];
    let report = MemoryReport { oom_kills: Some(1), parts, ..MemoryReport::default() };
    for host in 0..=HOST_TALLIES_MAX {
        job.memory.remember_kills(&host.to_string(), &report);
    }
    assert_eq!(job.memory.lost_hosts.len(), HOST_TALLIES_MAX);
}

/// The age of a checkpoint goes on in the next round.
#[test]
fn age_is_counted_over_rounds() {
    let mut job = running(&["a", "b"]);
    job.hold_both(id(10));
    job.t.pass(SECOND);
    job.begin_round(&["a", "b"]);
    job.t.pass(SECOND);
    assert_eq!(job.status().and_then(|status| status.age_ms), Some(2_000));
}

/// The status shows how much is kept, how old the newest copies are, and how long a `save` has waited.
#[test]
fn sums_of_memory() {
    let mut job = running(&["a", "b"]);
    let times = |job: &MemoryJob| job.status().map(|status| (status.copy_ms, status.waited_ms));
    job.hold("a", &[part(id(10), 0, 2, OWN)]);
    job.t.pass(SECOND);
    job.hold("b", &[part(id(10), 1, 2, OWN), part(id(10), 0, 2, COPY)]);
    assert_eq!(times(&job), Some((None, 0)));
    job.t.pass(SECOND / 2);
    let report = job.report("a", &[part(id(10), 0, 2, OWN), part(id(10), 1, 2, COPY)]);
    let waits_for_buffer = Some(GlobalRank(0));
    job.follow("a", MemoryReport { waits_for_buffer, ..report.clone() });
    assert_eq!(times(&job), Some((Some(1_500), 0)));
    let bytes = MemoryBytes { own: 20, copy: 20, leftover: 0 };
    assert_eq!(job.status().map(|status| status.bytes), Some(bytes));
    job.t.pass(SECOND);
    assert_eq!(times(&job), Some((Some(1_500), 1_000)));
    job.follow("a", report);
    job.t.pass(SECOND);
    job.begin_round(&["a", "b"]);
    assert_eq!(times(&job), Some((Some(1_500), 1_000)), "in the next round too");
}

/// Amounts of memory have two or three digits.
#[test]
fn amounts_are_short() {
    let shown = [3_200_000, 64_000_000, 3_200_000_000, 61_000_000_000].map(crate::snapshot::size);
    assert_eq!(shown, ["3.2 MB", "64 MB", "3.2 GB", "61 GB"]);
}
