//! Requests to confirm the users of connections to a round's store.

use super::fixture::{Did, Fixture, ready};
use crate::{
    ids::{Round, RoundId},
    limits::{ASKED_MEMBERS_MAX, CHECKED_ADDRESSES_MAX, OWNER_CHECK_INTERVAL},
    message::{
        CheckedOwners, FromNode, NodeState, STORE_CONNECTIONS_MAX, StoreConnection,
        StoreConnections,
    },
};

/// Registers `name`, whose workers connect from `address`.
fn join(t: &mut Fixture, name: &'static str, address: &str, state: NodeState) -> Vec<Did> {
    let mut registration = t.registration_of(name, state);
    registration.node.addresses = vec![address.parse().unwrap()];
    t.register_with(registration)
}

/// Starts a round of nodes at these addresses. The first one has rank 0.
fn run(t: &mut Fixture, nodes: &[(&'static str, &str)]) {
    for (name, address) in nodes {
        join(t, name, address, ready());
    }
    for (name, _) in nodes {
        t.report(name, NodeState::Running);
    }
    t.drain();
    assert_eq!(t.admissions.len(), nodes.len());
}

/// Returns the request of rank 0 for a connection from each of `clients`.
fn ask(round: RoundId, clients: &[&str]) -> FromNode {
    let connections = (1..).zip(clients).map(|(number, client)| StoreConnection {
        number,
        client: client.parse().unwrap(),
        store: "10.0.0.1:29500".parse().unwrap(),
    });
    let connections = connections.collect();
    FromNode::CheckOwners(StoreConnections { round, connections, is_only_member: false })
}

/// The member at the address of a connection is asked, under either spelling of the address, and its answer
/// reaches rank 0.
#[test]
fn member_at_the_address_is_asked() {
    let mut t = Fixture::new(3, 3);
    run(&mut t, &[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")]);
    let round = t.rounds["a"];
    let clients = ["10.0.0.2:1", "[::ffff:10.0.0.3]:1", "10.0.0.9:1", "10.0.0.2:2"];
    let asked = t.message("a", ask(round, &clients));
    assert_eq!(
        asked,
        [Did::CheckOwners("b", vec![1, 4], true), Did::CheckOwners("c", vec![2], true)]
    );
    let answer = t.message("b", checked(round, &[1], &[]));
    assert_eq!(answer, [Did::CheckedOwners("a", vec![1], vec![])]);
}

/// The first answer is sent at once. The next ones share a message.
#[test]
fn answers_share_messages() {
    let mut t = Fixture::new(3, 3);
    run(&mut t, &[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")]);
    let round = t.rounds["a"];
    assert_eq!(
        t.message("b", checked(round, &[1], &[])),
        [Did::CheckedOwners("a", vec![1], vec![])]
    );
    assert_eq!(t.message("b", checked(round, &[2], &[3])), []);
    assert_eq!(t.message("c", checked(round, &[4], &[])), []);
    assert_eq!(t.advance(OWNER_CHECK_INTERVAL), [Did::CheckedOwners("a", vec![2, 4], vec![3])]);
    assert_eq!(t.advance(OWNER_CHECK_INTERVAL), []);
    let many: Vec<u64> = (0..STORE_CONNECTIONS_MAX as u64).collect();
    let answers: usize = (0..3).map(|_| t.message("b", checked(round, &many, &[])).len()).sum();
    assert_eq!(answers, 3, "full messages are sent at once");
}

fn checked(round: RoundId, numbers: &[u64], denied: &[u64]) -> FromNode {
    let (numbers, denied) = (numbers.to_vec(), denied.to_vec());
    FromNode::CheckedOwners(CheckedOwners { round, numbers, denied })
}

/// Only rank 0 of the running round may ask, and only members of that round may answer.
#[test]
fn only_members_of_the_round_take_part() {
    let mut t = Fixture::new(2, 2);
    run(&mut t, &[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
    join(&mut t, "x", "10.0.0.3", ready());
    let round = t.rounds["a"];
    let earlier = RoundId { round: Round(0), ..round };
    let checked = |round| checked(round, &[1], &[]);
    assert_eq!(t.message("b", ask(round, &["10.0.0.1:1"])), []);
    assert_eq!(t.message("a", ask(earlier, &["10.0.0.2:1"])), []);
    assert_eq!(t.message("a", ask(round, &["10.0.0.3:1"])), []);
    assert_eq!(t.message("x", checked(round)), []);
    assert_eq!(t.message("b", checked(earlier)), []);
    assert_eq!(t.message("b", checked(round)), [Did::CheckedOwners("a", vec![1], vec![])]);
}

/// A member that registers again with another address is asked for that address.
#[test]
fn new_addresses_count() {
    let mut t = Fixture::new(2, 2);
    run(&mut t, &[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
    let question = ask(t.rounds["a"], &["10.0.0.7:1"]);
    assert_eq!(t.message("a", question.clone()), []);
    join(&mut t, "b", "10.0.0.7", NodeState::Running);
    assert_eq!(t.message("a", question), [Did::CheckOwners("b", vec![1], true)]);
}

/// A limited number of members is asked for one connection, and none without a stream.
#[test]
fn checks_are_limited() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut t = Fixture::new(2, 6);
    run(&mut t, &names.map(|name| (name, "10.0.0.1")));
    let question = ask(t.rounds["a"], &["10.0.0.1:1"]);
    let asked =
        names.iter().take(ASKED_MEMBERS_MAX).map(|name| Did::CheckOwners(name, vec![1], false));
    assert_eq!(t.message("a", question.clone()), asked.collect::<Vec<_>>());
    // The streams of all others but one have ended.
    for name in ["b", "c", "d", "e"] {
        let peer = t.peer(name);
        t.machine.handle_detached(t.now, peer);
    }
    t.drain();
    let asked = ["a", "f"].map(|name| Did::CheckOwners(name, vec![1], false));
    assert_eq!(t.message("a", question), asked);
}

/// A member that registers again and again with other addresses is asked for the newest ones only.
#[test]
fn addresses_of_a_member_are_limited() {
    let mut t = Fixture::new(2, 2);
    run(&mut t, &[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
    let round = t.rounds["a"];
    // The members are noted with the first question.
    t.message("a", ask(round, &["10.0.0.2:1"]));
    for number in 0..CHECKED_ADDRESSES_MAX {
        join(&mut t, "b", &format!("10.1.0.{number}"), NodeState::Running);
    }
    assert_eq!(t.message("a", ask(round, &["10.0.0.2:1"])), []);
    let newest = ask(round, &["10.1.0.0:1", "10.1.0.63:1"]);
    assert_eq!(t.message("a", newest.clone()), [Did::CheckOwners("b", vec![1, 2], true)]);
    // An address that is named again is new again.
    join(&mut t, "b", "10.1.0.0", NodeState::Running);
    join(&mut t, "b", "10.2.0.0", NodeState::Running);
    assert_eq!(t.message("a", newest), [Did::CheckOwners("b", vec![1, 2], true)]);
    assert_eq!(t.message("a", ask(round, &["10.1.0.1:1"])), []);
}
