use std::time::Duration;

use ragent_rendezvous::{
    ids::{RoundId, VoterAddress},
    message::{Admission, Assignment, NodeState, RefuseReason, StepProgress, StepSource},
    settings::{Leases, NodeRange, SharedSettings, Timeouts},
};

use super::*;
use crate::{agent::Ending, memory::MemorySettings, steps::NodeSteps, supervisor::GroupEnd};

const MS: Duration = Duration::from_millis(1);
const ONE: StreamNumber = StreamNumber(1);

fn shared() -> SharedSettings {
    let nodes = NodeRange::new(1, 1).unwrap();
    let timeouts = Timeouts { stop_grace: 1000 * MS, join: 600_000 * MS, ..Timeouts::default() };
    SharedSettings { timeouts, ..SharedSettings::new(nodes) }
}

fn node() -> (Node, Instant) {
    let settings = AgentSettings {
        memory: MemorySettings::off(),
        shared: shared(),
        silence: Duration::ZERO,
        known_round: KnownRound::default(),
        runs_unleased: false,
        has_voters: false,
        has_standbys: false,
        leases: Leases::default(),
        seed: 7,
    };
    let now = crate::some_instant();
    (Node::new(now, settings), now)
}

fn effects(node: &mut Node) -> Vec<Effect> {
    std::iter::from_fn(|| node.poll_effect()).collect()
}

fn welcome(term: u64) -> Welcome {
    Welcome {
        term: Term(term),
        job_uid: JobUid::new("uid"),
        coordinator: "a".to_owned(),
        leases: Leases::default(),
        voters: Vec::new(),
        lease_left: None,
    }
}

fn admission(round: u64) -> Admission {
    Admission {
        round: RoundId { term: Term(1), round: Round(round) },
        group_world_size: 1,
        world_size: 1,
        role_world_size: 1,
        master_address: "10.0.0.1".to_owned(),
        master_port: 4000,
        ..Admission::default()
    }
}

/// A node that is ready on its first stream.
fn ready() -> (Node, Instant) {
    let (mut node, now) = node();
    node.handle_timeout(now);
    node.tell(now, |agent| agent.handle_store_open(now, 4000));
    assert!(effects(&mut node).contains(&Effect::Dial(ONE)));
    assert!(!node.is_registered());
    let claims = node.handle_connected(now, ONE).expect("the attempt is under way");
    assert_eq!(claims.report.state, NodeState::Ready { store_port: 4000 });
    assert!(node.handle_welcome(now, ONE, &welcome(1)));
    assert!(effects(&mut node).contains(&Effect::Renew(Some(now + 2400 * MS))));
    assert!(node.is_registered());
    (node, now)
}

/// Lets time pass without any answer. Returns the last stream that was dialed.
fn pass(node: &mut Node, now: &mut Instant, time: Duration) -> Option<StreamNumber> {
    let end = *now + time;
    let mut dialed = None;
    while let Some(at) = node.poll_timeout().filter(|at| *at <= end) {
        *now = at.max(*now);
        node.handle_timeout(*now);
        for effect in effects(node) {
            if let Effect::Dial(stream) = effect {
                dialed = Some(stream);
            }
        }
    }
    *now = end;
    dialed
}

/// A node claims the term of its coordinator when its lease is over: the next coordinator needs a higher one.
#[test]
fn lost_term_is_claimed_without_a_lease() {
    let (mut node, mut now) = ready();
    let stream = pass(&mut node, &mut now, 700 * MS).expect("the stream is silent");
    let claims = node.handle_connected(now, stream).expect("the attempt is under way");
    assert_eq!(claims.lost_term, Term(0), "it has a lease");
    let (mut node, mut now) = ready();
    let stream = pass(&mut node, &mut now, 3_000 * MS).expect("the stream is silent");
    let claims = node.handle_connected(now, stream).expect("the attempt is under way");
    assert_eq!(claims.lost_term, Term(1));
}

/// If the stream is silent, a new leader is dialed at once, and the attempt that lasts is dropped.
#[test]
fn new_leader_is_dialed_in_place_of_a_silent_one() {
    let (mut node, mut now) = ready();
    let stream = pass(&mut node, &mut now, 1_300 * MS).expect("the stream is silent");
    node.handle_new_leader(now);
    assert!(effects(&mut node).contains(&Effect::Drop(stream)));
    assert!(pass(&mut node, &mut now, Duration::ZERO).is_some());
}

fn admits(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Local(Action::Start(_))))
}

/// An admission that is read after the lease has ended starts nothing, even if no timer fired.
#[test]
fn late_admission_starts_nothing() {
    let (mut node, now) = ready();
    let admit = ToNode::Assignment(Assignment::Admit(admission(1)));
    node.handle_message(now + 2400 * MS, ONE, admit.clone());
    let late = effects(&mut node);
    assert!(!admits(&late) && late.contains(&Effect::LeaseLost), "{late:?}");
    let (mut node, now) = ready();
    node.handle_message(now + 2399 * MS, ONE, admit);
    assert!(admits(&effects(&mut node)));
}

/// Each echo gives one round trip, from the sending of its keep-alive.
#[test]
fn echo_is_taken_once() {
    let (mut node, now) = ready();
    let echo = ToNode::Echo { sequence: 1, reason: None, lease_left: None, memory_whole: None };
    node.handle_message(now + 40 * MS, ONE, echo);
    assert_eq!(node.take_echo().map(|echo| echo.round_trip), Some(40 * MS));
    assert_eq!(node.take_echo(), None);
}

/// A node that is admitted on one stream after it has registered on another ignores the welcome there: that coordinator
/// does not know of its workers. With one coordinator, both streams lead to the same.
#[test]
fn welcome_to_an_outdated_registration_is_ignored() {
    for is_elected in [true, false] {
        let (mut node, now) = ready();
        // The first keep-alive is not echoed.
        let now = now + 700 * MS;
        node.handle_timeout(now);
        let two = StreamNumber(2);
        assert!(effects(&mut node).contains(&Effect::Dial(two)));
        assert!(node.handle_connected(now, two).is_some());
        node.handle_message(now, ONE, ToNode::Assignment(Assignment::Admit(admission(1))));
        assert!(admits(&effects(&mut node)));
        let lease_left = is_elected.then_some(2400 * MS);
        let counts = node.handle_welcome(now, two, &Welcome { lease_left, ..welcome(2) });
        assert_eq!(counts, !is_elected);
        assert_eq!(effects(&mut node).contains(&Effect::Drop(two)), is_elected);
        assert_eq!(node.current(), Some(if is_elected { ONE } else { two }));
    }
}

/// A probe on a stream that another one has replaced is not answered.
#[test]
fn outdated_stream_is_not_answered() {
    let (mut node, now) = ready();
    node.handle_message(now, ONE, ToNode::Assignment(Assignment::Admit(admission(1))));
    let now = now + 700 * MS;
    node.handle_timeout(now);
    let two = StreamNumber(2);
    assert!(node.handle_connected(now, two).is_some());
    assert!(node.handle_welcome(now, two, &welcome(1)));
    effects(&mut node);
    let probe = ToNode::Probe { round: RoundId { term: Term(1), round: Round(1) } };
    node.handle_message(now, ONE, probe.clone());
    assert_eq!(effects(&mut node), []);
    node.handle_message(now, two, probe);
    assert_ne!(effects(&mut node), []);
}

/// A node whose job has ended elsewhere kills its workers, and ends with the outcome.
#[test]
fn outlived_job_ends_the_node() {
    let (mut node, now) = ready();
    node.tell(now, |agent| agent.handle_outlived(None));
    let effects = effects(&mut node);
    assert!(effects.contains(&Effect::Local(Action::Kill)), "{effects:?}");
    assert!(effects.contains(&Effect::Local(Action::Finish(Ending::Outlived))), "{effects:?}");
}

/// A node drops the stream to a voter that does not lead, and dials another one.
#[test]
fn voter_that_does_not_lead_is_left() {
    let (mut node, now) = node();
    node.handle_timeout(now);
    node.tell(now, |agent| agent.handle_store_open(now, 4000));
    assert!(node.handle_connected(now, ONE).is_some());
    effects(&mut node);
    node.handle_not_leading(now, ONE, true);
    assert!(effects(&mut node).contains(&Effect::Drop(ONE)));
    node.handle_timeout(now);
    assert!(
        effects(&mut node).contains(&Effect::Dial(StreamNumber(2))),
        "the new leader is dialed"
    );
    node.handle_not_leading(now, ONE, true);
    assert_eq!(effects(&mut node), [], "that stream is dropped already");
}

/// A node follows a process that does not coordinate if that names a new endpoint and no older term.
#[test]
fn node_that_is_sent_elsewhere_follows() {
    for (term, is_new, follows) in [(1, true, true), (1, false, false), (0, true, false)] {
        let (mut node, now) = ready();
        node.handle_message(now, ONE, ToNode::Assignment(Assignment::Admit(admission(1))));
        assert_eq!(node.handle_sent_elsewhere(now, ONE, Term(term), is_new), follows);
        assert!(effects(&mut node).contains(&Effect::Drop(ONE)));
    }
}

/// A refusal by the coordinator ends the node.
#[test]
fn refused_node_ends() {
    let (mut node, now) = ready();
    let reason = RefuseReason::NodeRankTooHigh { node_rank: 2, nodes: 2 };
    node.handle_message(now, ONE, ToNode::Refuse(reason.clone()));
    let ending = Effect::Local(Action::Finish(Ending::Refused(reason)));
    assert!(effects(&mut node).contains(&ending));
}

/// A client that the node's store has refused is reported to the coordinator.
#[test]
fn refused_client_is_reported() {
    let (mut node, now) = ready();
    node.handle_message(now, ONE, ToNode::Assignment(Assignment::Admit(admission(1))));
    effects(&mut node);
    node.tell(now, |agent| {
        agent.handle_client_refused(Round(1), "10.0.0.9".parse().unwrap());
    });
    assert_ne!(effects(&mut node), []);
}

/// The lease of a node that needs none has no end, and its workers outlive a silence.
#[test]
fn unleased_workers_run_on() {
    let settings = AgentSettings {
        memory: MemorySettings::off(),
        shared: shared(),
        silence: Duration::ZERO,
        known_round: KnownRound::default(),
        runs_unleased: true,
        has_voters: false,
        has_standbys: false,
        leases: Leases::default(),
        seed: 7,
    };
    let now = crate::some_instant();
    let mut node = Node::new(now, settings);
    node.handle_timeout(now);
    node.tell(now, |agent| agent.handle_store_open(now, 4000));
    node.handle_connected(now, ONE);
    node.handle_welcome(now, ONE, &welcome(1));
    assert!(effects(&mut node).contains(&Effect::Renew(None)));
    node.handle_message(now, ONE, ToNode::Assignment(Assignment::Admit(admission(1))));
    effects(&mut node);
    node.handle_timeout(now + 60_000 * MS);
    let late = effects(&mut node);
    assert!(
        late.contains(&Effect::LeaseLost) && !late.contains(&Effect::Local(Action::Kill)),
        "{late:?}"
    );
    assert!(!node.agent().report(now).lease_expired);
}

/// A coordinator with a lower term is ignored.
#[test]
fn lower_term_is_not_obeyed() {
    let (mut node, now) = ready();
    node.handle_ended(now, ONE);
    node.handle_timeout(now + 500 * MS);
    let two = StreamNumber(2);
    assert!(effects(&mut node).contains(&Effect::Dial(two)));
    node.agent.handle_welcome(now, &welcome(5));
    node.handle_connected(now + 500 * MS, two);
    assert!(!node.handle_welcome(now + 500 * MS, two, &welcome(4)));
    assert!(effects(&mut node).contains(&Effect::Drop(two)));
    assert!(!node.is_registered());
}

/// After a welcome with a list of voters, an attempt that is not answered is abandoned early, so that another voter is
/// dialed. A later welcome without a list does not change that.
#[test]
fn welcome_names_alternatives() {
    for voters in [Vec::new(), ["a:1", "b:1", "c:1"].map(VoterAddress::new).to_vec()] {
        let (mut node, now) = ready();
        let has_alternatives = !voters.is_empty();
        let mut begin = now;
        for (number, voters) in [(2, voters), (3, Vec::new())] {
            let stream = StreamNumber(number);
            node.handle_ended(begin, StreamNumber(number - 1));
            begin += 100 * MS;
            node.handle_timeout(begin);
            assert!(effects(&mut node).contains(&Effect::Dial(stream)));
            node.handle_connected(begin, stream);
            assert!(node.handle_welcome(begin, stream, &Welcome { voters, ..welcome(1) }));
        }
        let last = StreamNumber(4);
        node.handle_ended(begin, StreamNumber(3));
        node.handle_timeout(begin + 100 * MS);
        assert!(effects(&mut node).contains(&Effect::Dial(last)));
        node.handle_connected(begin + 100 * MS, last);
        node.handle_timeout(begin + 700 * MS);
        assert_eq!(effects(&mut node).contains(&Effect::Drop(last)), has_alternatives);
    }
}

/// Messages on a dropped stream have no effect.
#[test]
fn dropped_stream_is_not_read() {
    let (mut node, now) = ready();
    node.handle_ended(now, ONE);
    let admit = ToNode::Assignment(Assignment::Admit(admission(1)));
    node.handle_message(now, ONE, admit);
    assert!(!admits(&effects(&mut node)));
    assert_eq!(node.handle_connected(now, ONE), None);
    assert!(!node.handle_sent_elsewhere(now, ONE, Term(9), true));
}

/// Keep-alives carry the training step of the workers with its age, until the workers have ended.
#[test]
fn keep_alives_carry_the_step() {
    let (mut node, now) = ready();
    node.handle_message(now, ONE, ToNode::Assignment(Assignment::Admit(admission(1))));
    effects(&mut node);
    let sent = |node: &mut Node, at| {
        node.handle_timeout(at);
        effects(node).into_iter().find_map(|effect| match effect {
            Effect::Send { message: FromNode::KeepAlive { progress, .. }, .. } => Some(progress),
            _ => None,
        })
    };
    let interval = Leases::default().keep_alive_interval;
    assert_eq!(sent(&mut node, now + interval), Some(None));
    let (source, lowest, highest, total) = (StepSource::Read, 7, 9, None);
    node.tell(now + interval, |agent| {
        agent.handle_steps(NodeSteps { source, lowest, highest, total, at: now + interval });
    });
    let age = interval;
    let progress = StepProgress { source, lowest, highest, total, age };
    assert_eq!(sent(&mut node, now + 2 * interval), Some(Some(progress)));
    node.tell(now + 2 * interval, |agent| {
        agent.handle_finished(now + 2 * interval, GroupEnd::Stopped);
    });
    effects(&mut node);
    assert_eq!(sent(&mut node, now + 3 * interval), Some(None));
}

/// An attempt without an answer is soon given up once other voters are known, unless its voter has accepted it.
#[test]
fn unanswered_attempt_is_replaced_if_voters_are_known() {
    let is_replaced = |voters: Option<Vec<VoterAddress>>, is_accepted: bool| {
        let (mut node, mut now) = node();
        assert_eq!(pass(&mut node, &mut now, Duration::ZERO), Some(ONE));
        assert!(node.handle_connected(now, ONE).is_some());
        if let Some(voters) = voters {
            node.handle_message(now, ONE, ToNode::Voters(voters));
        }
        if is_accepted {
            node.handle_accepted(now, ONE);
        }
        pass(&mut node, &mut now, 1_500 * MS).is_some()
    };
    let voters = || Some(vec![VoterAddress::new("b:1")]);
    assert!(!is_replaced(None, false));
    assert!(!is_replaced(Some(Vec::new()), false));
    assert!(is_replaced(voters(), false));
    assert!(!is_replaced(voters(), true));
}

/// A message on a stream that is not welcomed yet does not count.
#[test]
fn messages_before_the_welcome_do_not_count() {
    let (mut node, now) = node();
    node.handle_timeout(now);
    assert!(node.handle_connected(now, ONE).is_some());
    effects(&mut node);
    node.handle_message(now, ONE, ToNode::HostLeaving);
    assert_eq!(effects(&mut node), []);
}
