//! Looks at the workers of a stalled round.

use super::{
    fixture::{Did, Fixture, SECOND},
    memory,
    stalling::{recorded, stall, train, training},
};
use crate::{
    event::EventKind,
    ids::GlobalRank,
    message::{
        Digest, FromNode, GroupLook, Launched, LookPart, MemoryReport, NodeReport, NodeState,
        WorkerLook,
    },
};

/// Two nodes of a worker each, a second before their job stalls.
fn nearly_stalled() -> Fixture {
    let mut t = training();
    t.live(&["a", "b"], 59 * SECOND);
    t
}

/// Returns the messages without echoes.
fn sent(did: Vec<Did>) -> Vec<Did> {
    did.into_iter().filter(|did| !matches!(did, Did::Echo(_))).collect()
}

/// Returns an answer of a node to the first look: its rank has launched this collective, or the one before.
pub(super) fn digest(t: &Fixture, name: &str, part: LookPart, number: u64) -> Digest {
    let rank = GlobalRank(t.admissions[name].group_rank.0);
    let launched = Launched {
        operation: "all_reduce".to_owned(),
        number,
        is_finished: number < 7,
        count: 1,
        ranks: vec![rank],
    };
    let group = GroupLook { name: "world".to_owned(), size: 2, launched: vec![launched] };
    let line = Some("load_batch at data.py:88".to_owned());
    let worker = WorkerLook { rank, line, ..WorkerLook::default() };
    let (workers, groups) = (vec![worker], vec![group]);
    Digest { workers, groups, ..Digest::new(t.rounds[name], 1, part) }
}

pub(super) fn answer(t: &mut Fixture, name: &str, part: LookPart, number: u64) {
    let digest = digest(t, name, part, number);
    assert_eq!(t.message(name, FromNode::Digest(digest)), []);
}

const TEXT: &str = "rank 1 on b has not launched all_reduce 7 of the group of 2 ranks, which 1 rank has launched (records \
                    of torch; unchanged after 10 s)";

/// All nodes look when a stall begins, and again after ten seconds. The explanation is shown at once, and recorded when
/// the look is over.
#[test]
fn stall_is_explained() {
    let mut t = nearly_stalled();
    let first = |name| Did::Look(name, 1, LookPart::First);
    assert_eq!(sent(t.live(&["a", "b"], SECOND)), [first("a"), first("b")]);
    answer(&mut t, "a", LookPart::First, 7);
    assert_eq!(stall(&t).unwrap().text, None);
    answer(&mut t, "b", LookPart::First, 6);
    let shown = stall(&t).unwrap();
    let text = TEXT.replace("; unchanged after 10 s", "");
    assert_eq!((shown.text, shown.rank), (Some(text), None));
    assert_eq!(shown.facts, ["it is in load_batch at data.py:88"]);
    let second = |name| Did::Look(name, 1, LookPart::Second);
    assert_eq!(sent(t.live(&["a", "b"], 10 * SECOND)), [second("a"), second("b")]);
    answer(&mut t, "a", LookPart::Second, 7);
    assert_eq!(recorded(&mut t).len(), 1);
    answer(&mut t, "b", LookPart::Second, 6);
    let rank = Some(GlobalRank(1));
    let shown = stall(&t).unwrap();
    assert_eq!((shown.text.as_deref(), shown.rank), (Some(TEXT), rank));
    let explained = EventKind::StallExplained { text: TEXT.to_owned(), rank };
    assert_eq!(recorded(&mut t), [explained]);
    assert_eq!(sent(t.live(&["a", "b"], 100 * SECOND)), []);
    let shown = stall(&t).unwrap();
    assert_eq!(shown.text.as_deref(), Some(TEXT));
}

/// A node that registers again receives the look of the round, until it is over.
#[test]
fn look_is_repeated_on_new_streams() {
    let mut t = nearly_stalled();
    t.live(&["a", "b"], SECOND);
    let did = t.register("b", NodeState::Running);
    assert!(did.contains(&Did::Look("b", 1, LookPart::First)), "{did:?}");
    for part in [LookPart::First, LookPart::Second] {
        answer(&mut t, "a", part, 7);
        answer(&mut t, "b", part, 6);
        t.live(&["a", "b"], 10 * SECOND);
    }
    let did = t.register("b", NodeState::Running);
    assert!(!did.iter().any(|did| matches!(did, Did::Look(..))), "{did:?}");
}

/// If workers wait for memory, the host is named to which the copy is slow.
#[test]
fn waits_for_memory_are_explained() {
    let mut t = memory::running(2, 2, &["a", "b"]);
    train(&mut t, &["a", "b"], 1..=10);
    t.live(&["a", "b"], 61 * SECOND);
    let waits_for_buffer = Some(GlobalRank(1));
    let report = MemoryReport { waits_for_buffer, ..t.memory_of("b", &[]) };
    t.message("b", FromNode::MemoryReport(report));
    answer(&mut t, "a", LookPart::First, 7);
    answer(&mut t, "b", LookPart::First, 6);
    let shown = stall(&t).unwrap();
    let text = "rank 1 waits for memory: the copy to a is slow";
    assert_eq!((shown.text.as_deref(), shown.rank), (Some(text), None));
}

impl Fixture {
    /// Reports the number of looks that were requested on `name` so far.
    fn request_look(&mut self, name: &str, looks: u32) -> Vec<Did> {
        let mut report = NodeReport::new(self.rounds[name], NodeState::Running);
        report.requests.looks = looks;
        sent(self.message(name, FromNode::NodeReport(report)))
    }

    /// Returns the number of the newest look that is shown, and its places.
    fn places(&self) -> Option<(u64, Vec<(String, u32)>)> {
        let look = self.machine.snapshot(self.now).look?;
        let places = look.places.into_iter().map(|place| (place.text, place.count));
        Some((look.number, places.collect()))
    }
}

/// Answers a look of both nodes in the part, without collectives.
fn show(t: &mut Fixture, number: u64, part: LookPart) {
    for name in ["a", "b"] {
        let digest = digest(t, name, part, 7);
        let groups = Vec::new();
        t.message(name, FromNode::Digest(Digest { look: number, groups, ..digest }));
    }
}

/// A look that a person asks for shows the places of the workers, and begins no stall. A step does not end it.
#[test]
fn requested_look_shows_places() {
    let mut t = training();
    let first = |name| Did::Look(name, 1, LookPart::First);
    assert_eq!(t.request_look("a", 1), [first("a"), first("b")]);
    assert_eq!(t.request_look("a", 1), [], "the same request");
    assert_eq!(t.request_look("b", 1), [], "its answer is awaited");
    assert_eq!(t.places(), None);
    show(&mut t, 1, LookPart::First);
    let place = ("load_batch (data.py:88)".to_owned(), 2);
    assert_eq!(t.places(), Some((1, vec![place.clone()])));
    train(&mut t, &["a", "b"], 11..=15);
    let second = |name| Did::Look(name, 1, LookPart::Second);
    assert_eq!(sent(t.live(&["a", "b"], 10 * SECOND)), [second("a"), second("b")]);
    assert_eq!((stall(&t), recorded(&mut t)), (None, vec![]));
}
