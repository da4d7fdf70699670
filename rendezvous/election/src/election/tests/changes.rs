//! Changes of the voters.

use ragent_rendezvous::{
    heir::{Member, MembersReport},
    limits::VOTERS_MAX,
};

use super::{other_jobs::uid, *};
use crate::election::message::VoterSlot;

impl Voters {
    /// Creates `count` processes, of which the first ones are listed.
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
    pub(super) fn listed(count: usize, listed: usize) -> Self {
        let now = Instant::now();
        let voters = (0..count).map(|place| voter(now, place, listed)).collect();
        Self {
            now,
            voters,
            is_down: vec![false; count],
            seen: vec![Vec::new(); count],
            links: vec![BTreeSet::new(); count],
        }
    }

    /// Lets a leader be elected, and lets it complete the first round.
    fn begin(&mut self) -> usize {
        self.pass(millis(4_000));
        let leader = self.leader().expect("a leader");
        self.voters[leader].handle_remember(self.now, job_state(1)).expect("it leads");
        self.deliver();
        leader
    }

    /// Reports that the voters of all processes that run are members.
    fn register(&mut self, wanted: usize) {
        let up = (0..self.voters.len()).filter(|place| !self.is_down[*place]);
        let members = self.members(up);
        let leader = self.leader().expect("a leader");
        let report = MembersReport { members, wanted, has_nodes: true };
        self.voters[leader].handle_members(self.now, report);
        self.deliver();
    }

    fn members(&self, places: impl Iterator<Item = usize>) -> Vec<Member> {
        let member = |place: usize| {
            let ElectionSettings { voter, address, .. } = &self.voters[place].settings;
            Member { voter: *voter, address: address.clone() }
        };
        places.map(member).collect()
    }

    /// Returns the places of the voters in the newest list, as the voter at `place` knows it.
    fn list(&self, place: usize) -> Vec<Option<u64>> {
        let list = &self.voters[place].replica().lists;
        assert_eq!(list.before, None, "no change is in progress");
        list.last.iter().map(|slot| slot.voter.map(|voter| voter.0)).collect()
    }
}

/// With the first round, the voters are known by their identities. A listed host that was not there is
/// none of them.
#[test]
fn first_round_gives_the_slots_to_voters() {
    let mut voters = Voters::listed(3, 3);
    voters.is_down[2] = true;
    let leader = voters.begin();
    assert_eq!(voters.list(leader), [Some(0), Some(1), None]);
    assert_eq!(voters.list(1 - leader), [Some(0), Some(1), None]);
}

/// A listed host whose first grant comes after the first round can become a voter: it is still connected to the leader when it
/// learns the list in which it is missing.
#[test]
fn late_host_stays_connected() {
    let mut voters = Voters::listed(3, 3);
    voters.is_down[2] = true;
    voters.pass(millis(4_000));
    let (leader, now) = (voters.leader().expect("a leader"), voters.now);
    let late = &mut voters.voters[2];
    late.handle_registered(now, Some(uid("job")));
    assert!(late.connections().contains(&address(leader)));
    voters.voters[leader].handle_remember(now, job_state(1)).expect("it leads");
    let sent = |effect| match effect {
        Effect::Send { to, message } if to == address(2) => Some(message),
        _ => None,
    };
    let renewal = iter::from_fn(|| voters.voters[leader].poll_effect()).find_map(sent);
    let answer =
        voters.voters[2].handle_request(now, renewal.expect("a renewal")).expect("an answer");
    assert!(voters.voters[2].is_outside());
    assert!(answer.body.is_granted && answer.body.is_connected, "{answer:?}");
    voters.is_down[2] = false;
    voters.deliver();
    voters.register(3);
    voters.pass(millis(3_000));
    assert_eq!(voters.list(leader), [Some(0), Some(1), Some(2)]);
}

/// A voter that is lost is replaced by a member after 30 s, and the lease of the leader does not end.
#[test]
fn silent_voter_is_replaced() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.register(3);
    let lost = (leader + 1) % 3;
    voters.is_down[lost] = true;
    voters.pass(millis(29_000));
    assert!(voters.list(leader).contains(&Some(lost as u64)));
    voters.pass(millis(3_000));
    assert_eq!(voters.list(leader).iter().filter(|voter| **voter == Some(3)).count(), 1);
    assert!(!voters.list(leader).contains(&Some(lost as u64)));
    assert_eq!(voters.list(3), voters.list(leader), "the new voter knows the list");
    assert_eq!(voters.led(leader).len(), 1);
    let changes = voters.seen[leader].iter().filter(|e| matches!(e, Effect::Voters(_)));
    assert_eq!(changes.count(), 1);
    // The new voter counts: without the other listed one, there is still a majority.
    voters.is_down[leader] = true;
    voters.pass(millis(5_000));
    assert!(voters.leader().is_some());
}

/// A member that does not answer, and whose loss is not known yet, does not become a voter.
#[test]
fn silent_member_does_not_become_a_voter() {
    let mut voters = Voters::listed(5, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    let lost = (leader + 1) % 3;
    voters.is_down[lost] = true;
    voters.pass(millis(28_000));
    voters.is_down[3] = true;
    voters.pass(millis(4_000));
    assert!(!voters.list(leader).contains(&Some(lost as u64)));
    assert!(voters.list(leader).contains(&Some(4)));
    let is_of_lost = |slot: &VoterSlot| slot.voter == Some(VoterId(3));
    let has_lost =
        |effect: &Effect| matches!(effect, Effect::Voters(list) if list.iter().any(is_of_lost));
    assert!(!voters.seen[leader].iter().any(has_lost), "it was never a voter");
}

/// A change begins only if the lease of the leader lasts long enough under both lists.
#[test]
fn change_waits_for_the_lease() {
    let mut voters = Voters::listed(5, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    let others = (0..3).filter(|place| *place != leader);
    others.clone().for_each(|place| voters.is_down[place] = true);
    voters.pass(millis(1_200));
    let members = voters.members(0..5);
    let report = MembersReport { members, wanted: 5, has_nodes: true };
    voters.voters[leader].handle_members(voters.now, report);
    voters.deliver();
    assert_eq!(voters.list(leader).len(), 3);
    others.for_each(|place| voters.is_down[place] = false);
    voters.pass(millis(1_000));
    assert_eq!(voters.list(leader).len(), 5);
    assert_eq!(voters.led(leader).len(), 1, "its lease did not end");
}

/// A job with one voter has three as soon as three members register, and then survives the loss of the first one.
#[test]
fn voters_are_added() {
    let mut voters = Voters::listed(4, 1);
    assert_eq!(voters.begin(), 0);
    voters.register(3);
    voters.pass(millis(1_000));
    assert_eq!(voters.list(0), [Some(0), Some(1), Some(2)]);
    assert_eq!(voters.led(0).len(), 1, "its lease did not end");
    // The list of the first round, both lists during the change, and the new one.
    for (place, lists) in [(0, 3), (1, 3)] {
        let stored = voters.seen[place].iter().filter(|effect| **effect == Effect::Store);
        assert_eq!(stored.count(), lists, "{place}");
    }
    voters.is_down[0] = true;
    voters.pass(millis(4_000));
    let second = voters.leader().expect("another leader");
    voters.register(3);
    voters.pass(millis(40_000));
    assert_eq!(voters.list(second).len(), 3);
    assert!(!voters.list(second).contains(&Some(0)), "it was replaced");
}

/// Hosts can be lost one after another, as long as their voters are replaced in between.
#[test]
fn hosts_are_lost_one_after_another() {
    let mut voters = Voters::listed(7, 3);
    voters.begin();
    for _ in 0..4 {
        voters.register(3);
        let leader = voters.leader().expect("a leader");
        voters.is_down[leader] = true;
        voters.pass(millis(5_000));
        voters.register(3);
        voters.pass(millis(40_000));
    }
    // The leader keeps nothing about addresses to which it no longer connects.
    let leader = &voters.voters[voters.leader().expect("a leader")];
    let needed = leader.connections();
    assert!(leader.answered().keys().chain(&leader.connected).all(|at| needed.contains(at)));
}

/// A voter that leaves is replaced at once, and is then not needed. Without another member it is not
/// replaced.
#[test]
fn leaving_voter_is_replaced() {
    for (count, is_replaced) in [(4, true), (3, false)] {
        let mut voters = Voters::listed(count, 3);
        let leader = voters.begin();
        voters.register(3);
        voters.pass(millis(1_000));
        let leaving = (leader + 1) % 3;
        voters.voters[leaving].handle_leaving(voters.now);
        voters.deliver();
        voters.pass(millis(500));
        assert!(voters.voters[leaving].may_end());
        assert_eq!(voters.voters[leaving].is_needed(), !is_replaced);
        assert_eq!(!voters.list(leader).contains(&Some(leaving as u64)), is_replaced);
    }
}

/// A voter that leaves is replaced before a silent one, because its process waits for that.
#[test]
fn leaving_voter_is_replaced_first() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    let mut others = (0..3).filter(|place| *place != leader);
    let (silent, leaving) = (others.next().expect("a place"), others.next().expect("a place"));
    voters.is_down[silent] = true;
    voters.is_down[3] = true;
    voters.register(3);
    voters.pass(millis(35_000));
    voters.is_down[3] = false;
    voters.voters[leaving].handle_leaving(voters.now);
    voters.deliver();
    voters.register(3);
    voters.pass(millis(1_000));
    let list = voters.list(leader);
    assert!(list.contains(&Some(3)) && list.contains(&Some(silent as u64)), "{list:?}");
}

/// A voter has asked to leave, and is started again instead: it is not replaced any more.
#[test]
fn voter_that_returns_is_not_replaced() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.is_down[3] = true;
    voters.register(3);
    let returning = (leader + 1) % 3;
    voters.voters[returning].handle_leaving(voters.now);
    voters.deliver();
    voters.restart(returning, Term(0));
    voters.pass(millis(5_000));
    voters.is_down[3] = false;
    voters.register(3);
    voters.pass(millis(3_000));
    assert!(voters.list(leader).contains(&Some(returning as u64)));
}

/// A process that has no slot does not wait to be replaced.
#[test]
fn process_without_a_slot_leaves_at_once() {
    let mut voters = Voters::listed(5, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    let (now, other) = (voters.now, (leader + 1) as u64 % 3);
    assert!(voters.voters[leader].handle_leave(now, VoterId(other), &process(other as usize)));
    assert!(!voters.voters[leader].handle_leave(now, VoterId(99), &process(9)));
}

/// The answer of a voter counts more than a report that names another voter at its address.
#[test]
fn voter_that_answers_keeps_its_slot() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.pass(millis(1_000));
    let mut members = voters.members(0..4);
    members.push(Member { voter: VoterId(77), address: address((leader + 1) % 3) });
    let report = MembersReport { members, wanted: 3, has_nodes: true };
    voters.voters[leader].handle_members(voters.now, report);
    voters.pass(millis(5_000));
    assert_eq!(voters.list(leader), [Some(0), Some(1), Some(2)]);
}

/// A leader remembers at most as many leaving voters as a job has, even if more processes ask to be replaced.
#[test]
fn known_leaving_voters_are_bounded() {
    let mut voters = Voters::listed(3, 3);
    let leader = voters.begin();
    let now = voters.now;
    for number in 0..2 * VOTERS_MAX as u64 {
        let process = NodeId::new(format!("p{number}"));
        voters.voters[leader].handle_leave(now, VoterId(100 + number), &process);
    }
    let Role::Leader(role) = &voters.voters[leader].role else { panic!("it leads") };
    assert_eq!(role.membership.leaving.len(), VOTERS_MAX);
}

/// Of two voters that leave, none is replaced by the other.
#[test]
fn leaving_voters_replace_nobody() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    let [first, second] = [1, 2].map(|next| (leader + next) % 3);
    for leaving in [first, second] {
        voters.register(3);
        voters.voters[leaving].handle_leaving(voters.now);
        voters.deliver();
        voters.pass(millis(500));
        assert!(voters.voters[leaving].may_end());
    }
    assert!(!voters.voters[first].is_needed() && voters.voters[second].is_needed());
}

/// A request to leave has a number of its own. Otherwise, the answer to an earlier request could refuse it.
#[test]
fn request_to_leave_has_a_number_of_its_own() {
    let mut voters = Voters::listed(3, 3);
    let leader = voters.begin();
    voters.register(3);
    let leaving = &mut voters.voters[(leader + 1) % 3];
    let before = leaving.sequence;
    leaving.handle_leaving(voters.now);
    let sent = sent(leaving);
    let request = sent.iter().find(|(_, message)| matches!(message.body, Request::Leave));
    assert!(request.expect("it asks to leave").1.sequence > before);
}

/// A voter leaves as soon as it was replaced, although the leader does not know its address any more. A voter that was not replaced waits,
/// even if the leader does not know its address.
#[test]
fn replaced_voter_may_leave() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    let leaving = (leader + 1) % 3;
    let request = voters.voters[leaving].message(voters.now, 1, Request::Leave);
    let waits = |voters: &mut Voters| {
        let answer = voters.voters[leader].handle_stranger(voters.now, request.clone());
        answer.expect("an answer").body.is_granted
    };
    assert!(waits(&mut voters));
    voters.voters[leaving].handle_leaving(voters.now);
    voters.deliver();
    voters.pass(millis(500));
    assert!(!voters.list(leader).contains(&Some(leaving as u64)));
    assert!(!waits(&mut voters));
}

/// A leader that leaves resigns, and asks the next leader to replace it.
#[test]
fn leaving_leader_is_replaced() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.voters[leader].handle_leaving(voters.now);
    voters.deliver();
    assert!(!voters.voters[leader].may_end());
    for _ in 0..20 {
        voters.pass(millis(100));
        if voters.leader().is_some() {
            voters.register(3);
        }
    }
    assert!(voters.voters[leader].may_end());
    let next = voters.leader().expect("another leader");
    assert!(!voters.list(next).contains(&Some(leader as u64)));
}

/// A voter that leaves while the leader dies waits until the next leader knows as many members as the last round had: one
/// that registers late replaces it.
#[test]
fn leaving_voter_waits_for_late_members() {
    let mut voters = Voters::listed(4, 3);
    let leader = voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    let [leaving, next] = [1, 2].map(|step| (leader + step) % 3);
    voters.is_down[leader] = true;
    voters.voters[leaving].handle_leaving(voters.now);
    while voters.leader() != Some(next) {
        voters.pass(millis(100));
    }
    let members = voters.members([next].into_iter());
    for has_nodes in [false, true] {
        let report = MembersReport { members: members.clone(), wanted: 3, has_nodes };
        voters.voters[next].handle_members(voters.now, report);
    }
    voters.deliver();
    voters.pass(millis(300));
    assert!(!voters.voters[leaving].may_end());
    voters.register(3);
    voters.pass(millis(1_000));
    assert!(voters.voters[leaving].may_end() && !voters.voters[leaving].is_needed());
}

/// If no further member registers within three seconds, a voter that leaves is not replaced.
#[test]
fn leaving_voter_waits_only_for_a_while() {
    let mut voters = Voters::listed(3, 3);
    let leader = voters.begin();
    let leaving = (leader + 1) % 3;
    let members = voters.members([leader].into_iter());
    let report = MembersReport { members, wanted: 3, has_nodes: true };
    voters.voters[leader].handle_members(voters.now, report);
    voters.pass(millis(5_000));
    voters.voters[leaving].handle_leaving(voters.now);
    voters.deliver();
    assert!(voters.voters[leaving].may_end());
}

/// A process that has lost its state file is another voter: it does not vote in the place of the former one, and
/// replaces it as a member.
#[test]
fn voter_without_its_file_is_another_one() {
    let mut voters = Voters::listed(3, 3);
    let leader = voters.begin();
    let lost = (leader + 1) % 3;
    voters.lose_file(lost, 77);
    voters.pass(millis(10_000));
    assert_eq!(voters.led(leader).len(), 1);
    assert!(!voters.list(leader).contains(&Some(77)), "it is not a member");
    voters.register(3);
    voters.pass(millis(2_000));
    assert!(voters.list(leader).contains(&Some(77)));
    assert_eq!(voters.led(leader).len(), 1);
}

/// A voter that returns without its state file has another port. It takes the place of the earlier voter at its host, and no
/// second one, even if a third voter leaves at that moment.
#[test]
fn returning_voter_takes_the_place_of_its_host() {
    for leaves in [false, true] {
        let mut voters = Voters::listed(4, 3);
        let leader = voters.begin();
        voters.register(3);
        voters.pass(millis(1_000));
        let [lost, leaving] = [1, 2].map(|next| (leader + next) % 3);
        let mut settings = voters.voters[lost].settings.clone();
        (settings.voter, settings.process) = (VoterId(77), NodeId::new("another"));
        settings.address = VoterAddress::new(format!("host{lost}:1"));
        voters.start(lost, settings, Term(0));
        voters.register(3);
        voters.pass(millis(300));
        if leaves {
            voters.voters[leaving].handle_leaving(voters.now);
            voters.deliver();
        }
        voters.pass(millis(3_000));
        let third = if leaves { 3 } else { leaving };
        let list: BTreeSet<_> = voters.list(leader).into_iter().collect();
        assert_eq!(list, [leader, 77, third].map(|voter| Some(voter as u64)).into());
    }
}

/// A silent voter is waited for, although another agent runs on its machine: it may return with its state.
#[test]
fn agents_of_one_machine_are_not_mixed_up() {
    let mut voters = Voters::listed(5, 3);
    let leader = voters.begin();
    let lost = (leader + 1) % 3;
    for place in [3, 4] {
        let mut settings = voters.voters[place].settings.clone();
        settings.address = VoterAddress::new(format!("host{lost}:{place}"));
        voters.start(place, settings, Term(0));
    }
    voters.register(3);
    voters.is_down[lost] = true;
    voters.register(3);
    voters.pass(millis(10_000));
    assert!(voters.list(leader).contains(&Some(lost as u64)));
}

/// A listed host that returns without its state file, while all voters are on other hosts, learns of the job from these
/// instead of beginning another one. As a member, it receives the state of the job.
#[test]
fn returning_host_learns_of_the_job() {
    let mut voters = Voters::listed(4, 1);
    voters.begin();
    voters.register(3);
    voters.pass(millis(1_000));
    voters.is_down[0] = true;
    voters.pass(millis(4_000));
    voters.register(3);
    voters.pass(millis(40_000));
    let leader = voters.leader().expect("a leader");
    voters.lose_file(0, 77);
    voters.pass(millis(10_000));
    assert_eq!(voters.leader(), Some(leader));
    assert_eq!(voters.led(0).len(), 0, "it began no other job");
    assert!(!voters.voters[0].replica().has_round(), "it is not a member");
    voters.register(3);
    voters.pass(millis(1_000));
    assert!(voters.voters[0].replica().has_round());
    assert_eq!(voters.leader(), Some(leader));
}

/// The lists of a later term replace those of an earlier one, however many changes the earlier leader has written.
#[test]
fn lists_of_the_later_term_count() {
    let mut voters = Voters::listed(4, 3);
    let first = voters.begin();
    for round in 2..20 {
        voters.voters[first].handle_remember(voters.now, job_state(round)).expect("it leads");
        voters.deliver();
    }
    voters.is_down[first] = true;
    voters.pass(millis(5_000));
    voters.register(3);
    voters.pass(millis(30_000));
    let next = voters.leader().expect("another leader");
    assert!(!voters.list(next).contains(&Some(first as u64)), "it was replaced");
    let [old, new] = [first, next].map(|place| voters.voters[place].replica().version);
    assert!(old.term < new.term && old.number > new.number);
    voters.is_down[first] = false;
    voters.pass(millis(2_000));
    assert_eq!(voters.list(first), voters.list(next));
    assert_eq!(voters.leader(), Some(next));
}

/// A list with more voters than a job may have is not taken over.
#[test]
fn lists_are_limited() {
    let mut voters = Voters::listed(1, 1);
    let slots = (0..=VOTERS_MAX).map(address).collect::<Vec<_>>();
    let lists = Lists::listed(&slots);
    let version = Version { term: Term(9), number: 1 };
    let replica = Box::new(Replica { version, lists, job_state: Some(job_state(1)) });
    let mut from = voter(voters.now, 1, 2);
    from.voter.take(&replica);
    let renew = Request::Renew { term: Term(9), replica, is_copied: false };
    let request = from.message(voters.now, 1, renew);
    voters.voters[0].handle_request(voters.now, request);
    assert!(!voters.voters[0].replica().has_round());
}

/// Two processes each lead the job that they have begun. Without a round, one steps down for the other: it never leads
/// again, and becomes a voter as any other member does.
#[test]
fn process_gives_way_before_the_first_round() {
    let mut voters = Voters::listed(3, 1);
    let settings = voters.voters[1].settings.clone();
    let listed = vec![address(1)];
    voters.voters[1] =
        Election::new(voters.now, ElectionSettings { listed, ..settings }, empty(), Term(0));
    voters.pass(millis(4_000));
    assert_eq!(
        [0, 1, 2].map(|place| voters.voters[place].leads_until().is_some()),
        [true, true, false]
    );
    voters.voters[1].handle_remember(voters.now, job_state(0)).expect("it leads");
    voters.voters[1].handle_stepping_down(voters.now, address(0));
    voters.deliver();
    let stepped_down = &voters.voters[1];
    assert!(stepped_down.is_outside() && stepped_down.leads_until().is_none());
    assert_eq!(stepped_down.replica().job_state, None);
    assert!(voters.seen[1].contains(&Effect::Follow { leader: None }));
    voters.pass(millis(60_000));
    assert_eq!(voters.led(1).len(), 1);
    assert_eq!(voters.begin(), 0);
    voters.register(3);
    voters.pass(millis(1_000));
    voters.register(3);
    assert_eq!(voters.list(1), [Some(0), Some(1), Some(2)]);
    voters.is_down[0] = true;
    voters.pass(millis(5_000));
    assert!(voters.leader().is_some());
}

/// With a round, a process does not step down; nor does it step down for itself.
#[test]
fn process_stays_after_the_first_round() {
    let mut voters = Voters::listed(2, 1);
    voters.pass(millis(4_000));
    voters.voters[0].handle_stepping_down(voters.now, address(0));
    assert_eq!(voters.begin(), 0);
    voters.voters[0].handle_stepping_down(voters.now, address(1));
    voters.pass(millis(1_000));
    assert_eq!(voters.leader(), Some(0));
    assert_eq!(voters.led(0).len(), 1);
}
