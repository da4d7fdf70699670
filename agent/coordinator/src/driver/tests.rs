//! The driver arms the machine's deadlines, sends its messages, and compensates for its own pauses. The rendezvous
//! rules have their own tests. The clock is paused: it jumps to the next deadline when no task is ready.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ragent_base::testing::registration;
use ragent_election::election::message::VoterSlot;
use ragent_leadership::{Commands, Leader, Means, RunningLeadership, Stored, fixed};
use ragent_rendezvous::{
    event::EventId,
    grant::Grant,
    heir::Member,
    ids::{JobUid, NodeId, Round, RunId, StreamNumber, Term, VoterId},
    message::{Assignment, WaitReason},
    settings::{JobState, Leases, Settings},
    snapshot::{NodeSnapshot, NodeStateName},
    voter_count::VoterCount,
};
use tokio::task::JoinHandle;

use super::*;

const RUN: &str = "job";

/// A running coordinator, and the streams of its agents.
struct Fixture {
    inputs: Inputs,
    /// The endpoint of the coordinator, as sent to other agents.
    known: watch::Receiver<CoordinatorAddress>,
    /// The addresses known to the port.
    registered_nodes: watch::Receiver<RegisteredNodes>,
    task: JoinHandle<CoordinatorEnd>,
}

impl Fixture {
    fn new() -> Self {
        let settings = settings();
        let job_state = JobState::new(JobUid::new("uid"));
        let (inputs, queue) = mpsc::channel(limits::COORDINATOR_QUEUE);
        let here = CoordinatorAddress { term: Term(0), endpoint: "here:1".to_owned() };
        let (registered, known) = watch::channel(here);
        let (registered_nodes, port_knows) = watch::channel(RegisteredNodes::default());
        let RunningLeadership { leadership, commands, .. } = fixed::start(None, Some(job_state));
        let Leader::Here(mandate) = leadership.leader.borrow().clone() else {
            panic!("no other process can lead")
        };
        let place = Place {
            leadership,
            endpoint: VoterAddress::new("here:1"),
            registered_nodes,
            registered,
            awaits_excluded: false,
        };
        let coordination = Coordination::new(settings, &mandate, place, Records::default());
        let task = tokio::spawn(async move {
            let end = drive(coordination, queue).await;
            drop(commands);
            end
        });
        Self { inputs, known, registered_nodes: port_knows, task }
    }

    /// Registers a ready node, in a job of one to three nodes.
    async fn register(&self, name: &str) -> mpsc::Receiver<FromCoordinator> {
        self.register_from(name, None).await
    }

    /// Registers a ready node over a stream from an address.
    async fn register_from(
        &self,
        name: &str,
        from: Option<PeerAddress>,
    ) -> mpsc::Receiver<FromCoordinator> {
        let (answers, queue) = mpsc::channel(limits::STREAM_QUEUE);
        let registration = Box::new(registration(name));
        self.inputs
            .send(Input::Registration {
                registration,
                proof: None,
                from,
                answers,
                taken: oneshot::channel().0,
            })
            .await
            .unwrap();
        queue
    }

    async fn keep_alive(&self, name: &str, sequence: u64) {
        let peer = registration(name).peer();
        let message = FromNode::KeepAlive {
            sequence,
            asks_reason: false,
            progress: None,
            checkpoint: None,
            save_failed: None,
        };
        self.inputs.send(Input::Message(peer, message)).await.unwrap();
    }

    /// Returns the state of a node; `None` if the node is not known.
    async fn state_of(&self, name: &str) -> Option<NodeStateName> {
        let nodes = snapshot(&self.inputs).await.unwrap().nodes;
        nodes.iter().find(|node| node.host_name == name).map(|node| node.state)
    }
}

fn settings() -> Settings {
    Settings {
        run_id: RunId::new(RUN),
        coordinator: "c".to_owned(),
        host: None,
        shared: None,
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: true,
        leases: Leases::default(),
        begins_at: None,
    }
}

/// Returns the next message on a stream.
async fn next_message(stream: &mut mpsc::Receiver<FromCoordinator>) -> ToNode {
    match stream.recv().await {
        Some(FromCoordinator::Message(message)) => message,
        Some(FromCoordinator::Welcomed(welcome, _)) => ToNode::Welcome(welcome),
        other => panic!("not a message of a coordinator: {other:?}"),
    }
}

async fn next_assignment(stream: &mut mpsc::Receiver<FromCoordinator>) -> Assignment {
    loop {
        if let ToNode::Assignment(assignment) = next_message(stream).await {
            return assignment;
        }
    }
}

/// A registration whose stream was closed while it waited is skipped.
#[tokio::test(start_paused = true)]
async fn closed_registration_is_skipped() {
    let t = Fixture::new();
    let (answers, queue) = mpsc::channel(limits::STREAM_QUEUE);
    drop(queue);
    let registration = Box::new(registration("closed"));
    let taken = oneshot::channel().0;
    let input = Input::Registration { registration, proof: None, from: None, answers, taken };
    t.inputs.send(input).await.unwrap();
    let _stream = t.register("open").await;
    assert_eq!(t.state_of("closed").await, None);
    assert!(t.state_of("open").await.is_some());
}

/// Messages in the name of a node are refused without the proof of its welcome: a registration with a
/// later number, and a death notice.
#[tokio::test(start_paused = true)]
async fn proof_is_needed() {
    let t = Fixture::new();
    let mut stream = t.register("a").await;
    let Some(FromCoordinator::Welcomed(_, proof)) = stream.recv().await else { panic!() };
    t.keep_alive("a", 1).await;
    let death_notice = |proof| {
        let (node, round) = (NodeId::new("a"), Round(0));
        t.inputs.send(Input::DeathNotice(DeathNotice { node, round, proof }))
    };
    for wrong in [None, Some(Proof([9; 16]))] {
        let (answers, mut impostor) = mpsc::channel(limits::STREAM_QUEUE);
        let mut later = Box::new(registration("a"));
        later.stream = StreamNumber(1_000_000_000);
        let (taken, is_taken) = oneshot::channel();
        let input =
            Input::Registration { registration: later, proof: wrong, from: None, answers, taken };
        t.inputs.send(input).await.unwrap();
        assert!(is_taken.await.is_err(), "its later messages count");
        assert_eq!(impostor.recv().await, Some(FromCoordinator::OtherAgent));
        assert_eq!(impostor.recv().await, None);
        death_notice(wrong).await.unwrap();
        assert_eq!(t.state_of("a").await, Some(NodeStateName::Joined));
    }
    t.keep_alive("a", 2).await;
    while next_message(&mut stream).await
        != (ToNode::Echo { sequence: 2, reason: None, lease_left: None, memory_whole: None })
    {}
    death_notice(Some(proof)).await.unwrap();
    assert_eq!(t.state_of("a").await, None);
}

/// Rank 0 accepts workers from the source address of a member's stream, as behind NAT.
#[tokio::test(start_paused = true)]
async fn observed_addresses_are_members() {
    let t = Fixture::new();
    let nat: IpAddr = "192.0.2.7".parse().unwrap();
    let here = PeerAddress { ip: "127.0.0.1".parse().unwrap(), is_here: true, is_own_user: true };
    let far = PeerAddress { ip: nat, is_here: false, is_own_user: false };
    let mut first = t.register_from("a", Some(here)).await;
    let _others = (t.register_from("b", Some(far)).await, t.register_from("c", None).await);
    let admission = loop {
        if let Assignment::Admit(admission) = next_assignment(&mut first).await {
            break admission;
        }
    };
    assert_eq!(admission.group_rank.0, 0);
    assert_eq!(admission.store_clients, ["10.0.0.1".parse::<IpAddr>().unwrap(), nat]);
    // The port does not count addresses of its own machine, because other programs use them, too.
    assert_eq!(
        *t.registered_nodes.borrow(),
        RegisteredNodes { addresses: [nat].into(), world_size: 3 }
    );
    let observed = |node: &NodeSnapshot| (node.host_name.clone(), node.observed);
    let observed: Vec<_> = snapshot(&t.inputs).await.unwrap().nodes.iter().map(observed).collect();
    let (a, b, c) = (Some(here.ip), Some(nat), None);
    assert_eq!(observed, [("a".to_owned(), a), ("b".to_owned(), b), ("c".to_owned(), c)]);
}

/// The last call is armed: the round is formed when it has ended, after 30 s of keep-alives.
#[tokio::test(start_paused = true)]
async fn last_call_is_armed() {
    let t = Fixture::new();
    let start = clock::now();
    let mut stream = t.register("a").await;
    assert!(matches!(next_message(&mut stream).await, ToNode::Welcome(_)));
    let waits = next_assignment(&mut stream).await;
    assert!(matches!(waits, Assignment::Wait { reason: WaitReason::Gathering, .. }));
    for sequence in 0..29 {
        clock::until(Some(clock::now() + Duration::from_secs(1))).await;
        t.keep_alive("a", sequence).await;
        assert_eq!(
            next_message(&mut stream).await,
            ToNode::Echo { sequence, reason: None, lease_left: None, memory_whole: None }
        );
    }
    assert!(matches!(next_assignment(&mut stream).await, Assignment::Admit(_)));
    assert_eq!(clock::now() - start, Duration::from_secs(30));
}

/// A silent node is evicted when its lease is over.
#[tokio::test(start_paused = true)]
async fn lease_is_armed() {
    let t = Fixture::new();
    let start = clock::now();
    let mut stream = t.register("a").await;
    loop {
        match stream.recv().await {
            Some(FromCoordinator::Message(ToNode::Assignment(Assignment::Evict { .. }))) => break,
            Some(_) => {}
            None => panic!("the stream ended before its node was given up"),
        }
    }
    assert_eq!(clock::now() - start, Leases::default().coordinator);
}

/// A coordinator that was paused past every lease handles all messages before it evicts a node.
#[tokio::test(start_paused = true)]
async fn paused_coordinator_evicts_no_one() {
    let t = Fixture::new();
    let (_a, _b) = (t.register("a").await, t.register("b").await);
    assert_eq!(t.state_of("a").await, Some(NodeStateName::Joined));
    for sequence in 1..3 {
        // Time passes for all nodes, but the coordinator does not run.
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::task::yield_now().await;
        for name in ["a", "b"] {
            t.keep_alive(name, sequence).await;
            assert_eq!(t.state_of(name).await, Some(NodeStateName::Joined));
        }
    }
    // A node that is silent for a lease after that is evicted.
    clock::until(Some(clock::now() + Duration::from_secs(2))).await;
    t.keep_alive("a", 9).await;
    clock::until(Some(clock::now() + Duration::from_secs(2))).await;
    assert_eq!(t.state_of("a").await, Some(NodeStateName::Joined));
    assert_eq!(t.state_of("b").await, None);
}

/// A stream is dropped if its agent does not read. It delays no other stream.
#[tokio::test(start_paused = true)]
async fn slow_reader_is_dropped() {
    let t = Fixture::new();
    let (mut slow, mut quick) = (t.register("slow").await, t.register("quick").await);
    for sequence in 0..(2 * limits::STREAM_QUEUE as u64) {
        t.keep_alive("slow", sequence).await;
    }
    t.keep_alive("quick", 7).await;
    while next_message(&mut quick).await
        != (ToNode::Echo { sequence: 7, reason: None, lease_left: None, memory_whole: None })
    {}
    let mut known_round = 0;
    while slow.recv().await.is_some() {
        known_round += 1;
    }
    assert_eq!(known_round, limits::STREAM_QUEUE);
}

/// A coordinator that steps down sends the new endpoint to all agents, and ends.
#[tokio::test(start_paused = true)]
async fn steps_down() {
    let t = Fixture::new();
    let mut stream = t.register("a").await;
    stream.recv().await.expect("the node waits for others");
    let elsewhere = Endpoint { host: "10.0.0.9".to_owned(), port: 29400 };
    t.inputs.send(Input::StepDown(elsewhere)).await.unwrap();
    let mut last = None;
    while let Some(message) = stream.recv().await {
        last = Some(message);
    }
    let Some(FromCoordinator::Elsewhere(elsewhere)) = last else { panic!("{last:?}") };
    assert_eq!(elsewhere.endpoint, "10.0.0.9:29400");
    assert_eq!(*t.known.borrow(), elsewhere);
    assert_eq!(t.task.await.unwrap(), CoordinatorEnd::SteppedDown(elsewhere));
}

/// A coordinator that voters have elected in term 5. `leadership` is the handle of its voter.
fn elected(leadership: Leadership, registered: watch::Sender<CoordinatorAddress>) -> Coordination {
    let until = clock::now() + Duration::from_secs(600);
    let term = Term(5);
    let grant = Some(Grant { term, until, workers_until: clock::now(), former: None });
    let until = watch::channel(until).1;
    let mandate = Mandate { grant, until, job_state: None, voters: Vec::new() };
    let endpoint = VoterAddress::new("here:1");
    let registered_nodes = watch::channel(RegisteredNodes::default()).0;
    let awaits_excluded = false;
    let place = Place { leadership, endpoint, registered_nodes, registered, awaits_excluded };
    Coordination::new(settings(), &mandate, place, Records::default())
}

/// A leadership by voters, which stores every state at once.
fn chosen_by_voters() -> (Leadership, Commands) {
    let member = Member { voter: VoterId(1), address: VoterAddress::new("here:1") };
    let RunningLeadership { leadership, commands, .. } = fixed::start(None, None);
    (Leadership { means: Means::Voters(member), ..leadership }, commands)
}

/// A voter that does not answer for 3 s is recorded without any input, and its next answer too.
#[tokio::test(start_paused = true)]
async fn silence_of_a_voter_is_recorded() {
    let (leadership, _commands) = chosen_by_voters();
    let (inputs, queue) = mpsc::channel(limits::COORDINATOR_QUEUE);
    let since = clock::now();
    let mut state = Stored::default();
    let slot = |address| VoterSlot { address: VoterAddress::new(address), voter: None };
    state.replica.lists.last = ["here:1", "n1:1"].map(slot).into();
    let (_stored, stored) = watch::channel(state);
    let (answers, answered) = watch::channel(BTreeMap::new());
    let leadership = Leadership { answered, stored, ..leadership };
    let _task = tokio::spawn(drive(
        elected(leadership, watch::Sender::new(CoordinatorAddress::unknown())),
        queue,
    ));
    let mut reader = journal(&inputs).await.unwrap();
    let mut after = None;
    let answer = || answers.send_replace([(VoterAddress::new("n1:1"), clock::now())].into());
    // An answer in the first 3 s postpones the silence.
    clock::until(Some(since + Duration::from_secs(2))).await;
    answer();
    assert_eq!(
        time_of("voter_silent", &mut reader, &mut after).await - since,
        Duration::from_secs(5)
    );
    answer();
    assert_eq!(
        time_of("voter_back", &mut reader, &mut after).await - since,
        Duration::from_secs(5)
    );
    assert_eq!(
        time_of("voter_silent", &mut reader, &mut after).await - since,
        Duration::from_secs(8)
    );
}

/// Waits for the next event of that kind, which concerns the voter n1:1, and returns the current time.
async fn time_of(kind: &str, reader: &mut JournalReader, after: &mut Option<EventId>) -> Instant {
    loop {
        let part = reader.next(*after).await.expect("the coordinator lives");
        *after = part.last;
        if let Some(line) = part.lines.lines().find(|line| line.contains(kind)) {
            assert!(line.contains(r#""data":{"voter":"n1:1"}"#), "{line}");
            return clock::now();
        }
    }
}

/// An elected coordinator steps down in the same way. Others are redirected to the other endpoint even if this process's own agent did not
/// receive it.
#[tokio::test(start_paused = true)]
async fn elected_coordinator_steps_down() {
    let (leadership, _commands) = chosen_by_voters();
    let (inputs, queue) = mpsc::channel(limits::COORDINATOR_QUEUE);
    let registered = watch::Sender::new(CoordinatorAddress::unknown());
    let task = tokio::spawn(drive(elected(leadership, registered.clone()), queue));
    let elsewhere: Endpoint = "10.0.0.9:29400".parse().unwrap();
    inputs.send(Input::StepDown(elsewhere)).await.unwrap();
    let expected = CoordinatorAddress { term: Term(5), endpoint: "10.0.0.9:29400".to_owned() };
    assert_eq!(task.await.unwrap(), CoordinatorEnd::SteppedDown(expected.clone()));
    assert_eq!(*registered.borrow(), expected);
}

/// The coordinator ends when no sender of inputs is left.
#[tokio::test(start_paused = true)]
async fn ends_with_its_inputs() {
    let t = Fixture::new();
    drop(t.inputs);
    t.task.await.unwrap();
}
