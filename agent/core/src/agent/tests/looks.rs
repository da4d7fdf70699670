//! Looks at the workers: once for each new number and part, spread in large rounds, and sent again.

use ragent_rendezvous::message::{Digest, Guidance, Hung, Look, LookPart};

use super::*;
use crate::agent::LookOrder;

impl Fixture {
    /// A node whose workers run in a round of this many nodes.
    fn running_of(nodes: u32, master_address: &str) -> Self {
        let mut t = Self::ready();
        let master_address = master_address.to_owned();
        let group_world_size = nodes;
        let admission = Admission { group_world_size, master_address, ..admission(1, 1) };
        t.assign(Assignment::Admit(admission));
        t
    }

    fn look(&mut self, look: Option<Look>) -> Vec<Effect> {
        let guidance = Guidance { round: round(1, 1), look, ..Guidance::default() };
        self.agent.handle_guidance(self.now, guidance);
        self.effects()
    }

    fn answer(&mut self, number: u64, part: LookPart) -> Vec<Effect> {
        self.agent.handle_digest(digest(number, part));
        self.effects()
    }

    fn wait(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.agent.handle_timeout(self.now);
        self.effects()
    }
}

fn digest(look: u64, part: LookPart) -> Digest {
    Digest::new(round(1, 1), look, part)
}

fn part_of(number: u64, part: LookPart) -> Option<Look> {
    Some(Look { number, part })
}

fn ordered(number: u64, part: LookPart) -> Effect {
    let order = LookOrder { round: round(1, 1), number, part, shows_lines: false };
    Effect::Local(Action::Look(order))
}

fn sent(number: u64, part: LookPart) -> Effect {
    Effect::Send(FromNode::Digest(digest(number, part)))
}

/// The node looks once for each number and part.
#[test]
fn each_part_is_looked_at_once() {
    let mut t = Fixture::running();
    let first = part_of(1, LookPart::First);
    assert_eq!(t.look(first), [ordered(1, LookPart::First)]);
    assert_eq!(t.look(first), []);
    assert_eq!(t.look(None), []);
    assert_eq!(t.look(first), []);
    let second = part_of(1, LookPart::Second);
    assert_eq!(t.look(second), [ordered(1, LookPart::Second)]);
    let later = part_of(2, LookPart::First);
    assert_eq!(t.look(later), [ordered(2, LookPart::First)]);
}

/// A node does not look at the workers of another round, nor when none run.
#[test]
fn other_rounds_are_not_looked_at() {
    let first = part_of(1, LookPart::First);
    let mut t = Fixture::running();
    let guidance = Guidance { round: round(1, 2), look: first, ..Guidance::default() };
    t.agent.handle_guidance(t.now, guidance);
    assert_eq!(t.effects(), []);
    t.finished(GroupEnd::Succeeded);
    assert_eq!(t.look(first), []);
    let mut t = Fixture::running_of(257, "10.0.0.1");
    assert_eq!(t.look(first), []);
    t.restart(round(1, 1));
    assert_eq!(t.wait(limits::LOOK_SPREAD), []);
}

/// In a round of more than 256 nodes, a node waits for a time of its own, which is below two seconds. A stall that
/// ends meanwhile needs no look.
#[test]
fn large_rounds_spread_their_looks() {
    let (first, second) = (part_of(1, LookPart::First), part_of(1, LookPart::Second));
    let mut t = Fixture::running_of(256, "10.0.0.1");
    assert_eq!(t.look(first), [ordered(1, LookPart::First)]);
    let mut t = Fixture::running_of(257, "10.0.0.1");
    t.agent.settings.seed = 5_999;
    assert_eq!(t.look(first), []);
    assert_eq!(t.agent.poll_timeout(), Some(t.now + 1_999 * SECOND / 1_000));
    assert_eq!(t.wait(SECOND), []);
    assert_eq!(t.look(first), []);
    assert_eq!(t.wait(SECOND), [ordered(1, LookPart::First)]);
    assert_eq!(t.wait(2 * SECOND), []);
    assert_eq!(t.look(second), []);
    assert_eq!(t.look(None), []);
    assert_eq!(t.wait(2 * SECOND), []);
}

/// Lines of Python leave the node if connections are encrypted, or if there is certainly no other machine.
#[test]
fn lines_need_encryption_or_one_machine() {
    let shows_lines = |nodes, master, is_secured| {
        let mut t = Fixture::ready();
        t.agent.settings.memory.is_secured = is_secured;
        let admission = Admission {
            group_world_size: nodes,
            master_address: String::from(master),
            ..admission(1, 1)
        };
        t.assign(Assignment::Admit(admission));
        let effects = t.look(part_of(1, LookPart::First));
        let [Effect::Local(Action::Look(order))] = effects[..] else { panic!("{effects:?}") };
        order.shows_lines
    };
    assert!(!shows_lines(2, "10.0.0.1", false) && !shows_lines(2, "node0", false));
    assert!(shows_lines(2, "10.0.0.1", true));
    assert!(!shows_lines(1, "10.0.0.1", false) && shows_lines(1, "localhost", false));
    assert!(shows_lines(2, "127.0.0.1", false) && shows_lines(2, "::1", false));
}

/// The answers to the newest look are sent again on a new stream. Others are dropped.
#[test]
fn answers_are_sent_again() {
    let mut t = Fixture::running();
    assert_eq!(t.answer(1, LookPart::First), []);
    t.look(part_of(1, LookPart::First));
    assert_eq!(t.answer(1, LookPart::First), [sent(1, LookPart::First)]);
    assert_eq!(t.answer(0, LookPart::First), []);
    t.look(part_of(1, LookPart::Second));
    assert_eq!(t.answer(1, LookPart::Second), [sent(1, LookPart::Second)]);
    let effects = t.welcome(1);
    assert_eq!(effects[1..], [sent(1, LookPart::First), sent(1, LookPart::Second)]);
    t.look(part_of(2, LookPart::First));
    assert_eq!(t.welcome(1).len(), 1);
    t.answer(2, LookPart::First);
    t.finished(GroupEnd::Stopped);
    assert_eq!(t.answer(2, LookPart::First), []);
    assert_eq!(t.welcome(1).len(), 1);
}

/// A worker that counts as hung is passed on once, until that changes.
#[test]
fn hung_worker_is_passed_on_once() {
    let mut t = Fixture::running();
    let mut hung = |number, hung: Option<Hung>| {
        let guidance = Guidance { round: round(1, number), hung, ..Guidance::default() };
        t.agent.handle_guidance(t.now, guidance);
        t.effects()
    };
    let of = |rank, seconds, if_stopped| {
        Some(Hung { rank: GlobalRank(rank), time: seconds * SECOND, if_stopped })
    };
    let passed = |hung| Effect::Local(Action::Hung(hung));
    assert_eq!(hung(1, None), []);
    assert_eq!(hung(1, of(1, 70, true)), [passed(of(1, 70, true))]);
    assert_eq!(hung(1, of(1, 71, true)), []);
    assert_eq!(hung(1, of(1, 900, false)), [passed(of(1, 900, false))]);
    assert_eq!(hung(2, of(2, 900, false)), []);
    assert_eq!(hung(1, None), [passed(None)]);
}
