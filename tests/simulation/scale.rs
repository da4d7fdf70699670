//! Counts what a thousand nodes cost the coordinator, in effects. Benches measure the time.

use std::{iter, time::Instant};

use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    ids::{GlobalRank, JobUid, LocalRank, NodeId, Peer, RoundId, RunId, StreamNumber},
    message::{
        Assignment, FromNode, NodeDescription, NodeReport, NodeState, Registration, ToNode,
        WorkerEnd, WorkerFailure,
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
    Registration::new(
        RunId::new("run"),
        NodeDescription {
            agent_port: 1,
            script: "train.py".to_owned(),
            ..NodeDescription::new(peer(n).node, format!("node{n}"), format!("node{n}.example"))
        },
        shared(),
        NodeState::Ready { store_port: 1 },
    )
}

fn report(round: RoundId, state: NodeState) -> NodeReport {
    NodeReport::new(round, state)
}

fn failure(round: RoundId) -> WorkerFailure {
    WorkerFailure::new("node0", round, (GlobalRank(0), LocalRank(0)), 1, WorkerEnd::Signaled(9))
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
                save_failed: None,
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
    // Each node waits and is admitted, except the last, which does not wait. The state file is written once.
    assert_eq!(count, 2 * NODES as usize - 1 + 1);
}
