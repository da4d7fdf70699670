//! Counts what a thousand nodes cost the coordinator, in effects. Benches measure the time.

use std::{
    iter,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    ids::{GlobalRank, JobUid, LocalRank, NodeId, Peer, Round, RoundId, RunId, StreamNumber},
    message::{
        Assignment, FromNode, KnownRound, NodeDescription, NodeReport, NodeState, PROTOCOL_VERSION,
        Registration, ToNode, WorkerEnd, WorkerFailure,
    },
    settings::{JobState, Leases, NodeRange, Settings, SharedSettings},
    voter_count::VoterCount,
};

const NODES: u32 = 1_000;

fn shared() -> SharedSettings {
    let nodes = NodeRange::new(NODES, NODES).expect("min is max");
    SharedSettings { max_restarts: 3, ..SharedSettings::new(nodes) }
}

fn peer(n: u32) -> Peer {
    Peer { node: NodeId::new(format!("node{n}")), stream: StreamNumber(1) }
}

fn registration(n: u32) -> Registration {
    Registration {
        ended: Vec::new(),
        job: None,
        waited: Duration::MAX,
        protocol_version: PROTOCOL_VERSION,
        run_id: RunId::new("run"),
        job_uid: None,
        stream: StreamNumber(1),
        node: NodeDescription {
            node_id: peer(n).node,
            host_name: format!("node{n}"),
            address: format!("node{n}.example"),
            observed: None,
            addresses: Vec::new(),
            agent_port: 1,
            role: "default".to_owned(),
            script: "train.py".to_owned(),
            load: String::new(),
            failure_domain: String::new(),
            local_world_size: NonZeroU32::MIN,
            node_rank: None,
            voter: None,
        },
        settings: shared(),
        known_round: KnownRound::default(),
        restarts_used: 0,
        charged_through: Round(0),
        report: report(RoundId::default(), NodeState::Ready { store_port: 1 }),
        memory: None,
    }
}

fn report(round: RoundId, state: NodeState) -> NodeReport {
    NodeReport::new(round, state)
}

fn failure(round: RoundId) -> WorkerFailure {
    WorkerFailure {
        host_name: "node0".to_owned(),
        round,
        global_rank: GlobalRank(0),
        local_rank: LocalRank(0),
        pid: 1,
        end: WorkerEnd::Signaled(9),
        age: Duration::ZERO,
        message: None,
        error_file: None,
        stderr_tail: String::new(),
        is_final: false,
        error_file_age: None,
        hardware: Vec::new(),
        oom: None,
    }
}

fn effects(rendezvous: &mut Rendezvous) -> Vec<Effect> {
    let effects = iter::from_fn(|| rendezvous.poll_effect());
    effects.filter(|effect| !matches!(effect, Effect::Record(_))).collect()
}

/// Registration, keep-alives, a failure and the next round cost each node a fixed number of
/// messages.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
fn thousand_nodes_cost_a_few_messages_each() {
    let now = Instant::now();
    let settings = Settings {
        run_id: RunId::new("run"),
        coordinator: "c".to_owned(),
        host: None,
        shared: Some(shared()),
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: true,
        leases: Leases::default(),
        begins_at: None,
    };
    let mut rendezvous = Rendezvous::new(now, settings, JobState::new(JobUid::new("job")), None);
    effects(&mut rendezvous);

    let mut round = RoundId::default();
    for n in 0..NODES {
        rendezvous.handle_registration(now, registration(n));
        let sent = effects(&mut rendezvous);
        let is_last = n + 1 == NODES;
        // Each node is welcomed and waits. The last node completes the round: welcome, state file, all admitted.
        assert_eq!(sent.len(), if is_last { 2 + NODES as usize } else { 2 });
        for effect in sent {
            if let Effect::Send {
                message: ToNode::Assignment(Assignment::Admit(admission)), ..
            } = effect
            {
                round = admission.round;
            }
        }
    }
    for n in 0..NODES {
        let running = FromNode::NodeReport(report(round, NodeState::Running));
        rendezvous.handle_message(now, peer(n), running);
        rendezvous.handle_message(
            now,
            peer(n),
            FromNode::KeepAlive {
                sequence: 1,
                asks_reason: false,
                progress: None,
                checkpoint: None,
            },
        );
        // When the workers of all nodes run, the cost of their start is stored.
        let stored = usize::from(n + 1 == NODES);
        assert_eq!(effects(&mut rendezvous).len(), 1 + stored, "an echo and nothing else");
    }
    let failure = Some(Box::new(failure(round)));
    let failed = NodeReport { failure, ..report(round, NodeState::Stopping) };
    rendezvous.handle_message(now, peer(0), FromNode::NodeReport(failed));
    assert_eq!(effects(&mut rendezvous).len(), 2 * (NODES as usize - 1), "restart and probe");
    let mut count = 0;
    for n in 0..NODES {
        rendezvous.handle_message(now, peer(n), FromNode::Alive { round });
        let ready = report(round, NodeState::Ready { store_port: 1 });
        rendezvous.handle_message(now, peer(n), FromNode::NodeReport(ready));
        count += effects(&mut rendezvous).len();
    }
    // Each node waits and is admitted, except the last, which does not wait. The state file is written twice.
    assert_eq!(count, 2 * NODES as usize - 1 + 2);
}
