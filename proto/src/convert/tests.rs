//! Every message is received as it was sent, and malformed messages are refused.

use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;
use prost::Message;
use ragent_rendezvous::{
    event::{RestartCause, RestartCost, RestartStages, RestartSum},
    heir::Member,
    ids::{
        GlobalRank, GroupRank, JobUid, LocalRank, NodeId, RoleRank, Round, RoundId, RunId,
        StreamNumber, Term, VoterAddress, VoterId,
    },
    known_job::{KnownJob, Leads},
    message::{
        Admission, Assignment, CheckedOwners, Checkpoint, DepartedNode, DepartedNodes, Departure,
        EvictReason, FromNode, Guidance, JobResult, KnownRound, NOTICE_HOSTS_MAX, NOTICE_TEXT_MAX,
        NodeDescription, NodeNotice, NodeReport, NodeState, Notice, NoticeKind, Outcome,
        RefuseReason, RefusedClients, Registration, Requests, RestartReason, STEP_MAX, Saved,
        StandbyCounts, StepProgress, StepSource, StoreConnection, StoreConnections, StoreUnreached,
        ToNode, WaitReason, Welcome, WorkerEnd, WorkerFailure,
    },
    settings::{Leases, NodeRange, SharedSettings, StoreAccess, Timeouts},
    snapshot::{
        CheckpointTimes, Explanation, JobProgress, JobTime, NodeSnapshot, NodeStateName, PhaseName,
        RefusedPeer, RestartsByCause, Saving, Snapshot, StateTime, Unreached, VoterStatus,
    },
};
use serde_json::{Value, json};

use super::*;
use crate::Proof;

fn round() -> RoundId {
    RoundId { term: Term(3), round: Round(41) }
}

fn settings() -> SharedSettings {
    let nodes = NodeRange::new(2, 8).unwrap();
    SharedSettings {
        nodes,
        max_restarts: 3,
        timeouts: Timeouts::default(),
        fixed_ranks: false,
        store_access: StoreAccess::Any,
        notice: Duration::from_secs(60),
        no_progress_limit: 3,
    }
}

fn ends() -> [WorkerEnd; 5] {
    [
        WorkerEnd::Exited(-1),
        WorkerEnd::Signaled(34),
        WorkerEnd::NotStarted("no such file".to_owned()),
        WorkerEnd::KeeperLost,
        WorkerEnd::StandbyUnfit("line 1 of train.py sets TORCH_LOGS".into()),
    ]
}

fn failure(end: WorkerEnd) -> WorkerFailure {
    WorkerFailure {
        host_name: "node1".to_owned(),
        round: round(),
        global_rank: GlobalRank(9),
        local_rank: LocalRank(1),
        pid: 4711,
        end,
        age: Duration::from_micros(1_234_567),
        message: Some("ValueError".to_owned()),
        error_file: None,
        stderr_tail: "one\ntwo".to_owned(),
        is_final: true,
        error_file_age: Some(Duration::from_micros(1_500_001)),
    }
}

fn departed_nodes() -> DepartedNodes {
    let ways = [Departure::AgentEnded, Departure::Silent, Departure::NotReady, Departure::Left];
    let ago = Duration::from_millis(602_500);
    let departed = ways.map(|how| DepartedNode { host_name: "node2".to_owned(), how, ago });
    DepartedNodes { first: departed.to_vec(), more: 3 }
}

fn outcomes() -> Vec<Outcome> {
    let results = [
        JobResult::Succeeded,
        JobResult::Saved { step: 48_210 },
        JobResult::NoProgress { rounds: (5..13).map(Round).collect(), step: Some(STEP_MAX) },
        JobResult::BudgetSpent,
        JobResult::JoinTimeout {
            present: 1,
            min: 2,
            waited: Duration::from_secs(600),
            after: Round(2),
            departed: Box::new(departed_nodes()),
        },
        JobResult::RecoveryTimeout { present: 1, needed: 3, waited: Duration::from_secs(600) },
        JobResult::AllLeft,
        JobResult::LoopbackMaster { address: "::1".to_owned(), host_name: "a".to_owned() },
        JobResult::AllQuarantined,
        JobResult::FinalFailure,
        JobResult::RestartLoop { rounds: 100 },
        JobResult::OtherJob { endpoint: "n7:29400".to_owned(), born_ms: u64::MAX },
    ];
    let outcome = |result| Outcome {
        result,
        first_failure: Some(failure(WorkerEnd::Exited(1))),
        other_failures: 2,
        further_failures: vec![failure(WorkerEnd::Signaled(9))],
        restarts_used: 3,
        complete_step: Some(48_210),
    };
    results.into_iter().map(outcome).collect()
}

/// A job with the most voters that a message may name.
pub(super) fn known_job() -> KnownJob {
    let voters = (0..10).map(|n| VoterAddress::new(format!("n{n}:29400"))).collect();
    let leads = Some(Leads { born_ms: u64::MAX, term: Term(9 << 16 | 3), has_nodes: true });
    KnownJob { uid: JobUid::new("uid"), voters, leads }
}

fn registration(state: NodeState) -> Registration {
    Registration {
        job: Some(known_job()),
        ended: vec![JobUid::new("ended")],
        waited: Duration::from_millis(2_999),
        protocol_version: 1,
        run_id: RunId::new("job7"),
        job_uid: Some(JobUid::new("uid")),
        stream: StreamNumber(12),
        node: NodeDescription {
            voter: Some(Member { voter: VoterId(7), address: VoterAddress::new("n1:1") }),
            node_id: NodeId::new("node1_17_ab"),
            host_name: "node1".to_owned(),
            address: "10.0.0.1".to_owned(),
            observed: None,
            addresses: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
            agent_port: 29400,
            role: "default".to_owned(),
            script: "train.py".to_owned(),
            load: "load 9.0 on 2 processors".to_owned(),
            local_world_size: 8.try_into().unwrap(),
            node_rank: Some(0),
        },
        settings: settings(),
        known_round: KnownRound { round: round(), size: 4, group_rank: Some(GroupRank(0)) },
        restarts_used: 1,
        charged_through: Round(40),
        report: NodeReport {
            round: round(),
            state,
            failure: None,
            lease_expired: false,
            notice: Some(NodeNotice {
                ends_job: false,
                left: Duration::from_millis(59_500),
                text: "SIGTERM".to_owned(),
            }),
            saved: Some(Saved { notice: 3, step: 48_210, is_whole: true }),
            requests: Requests { saves: 2, looks: 1 },
        },
    }
}

fn refused_clients() -> RefusedClients {
    let addresses = ["172.20.0.5", "2001:db8::5"].map(|text| text.parse().unwrap());
    RefusedClients { round: round(), addresses: addresses.to_vec() }
}

fn store_connections() -> StoreConnections {
    let clients = ["172.20.0.5:40000", "[2001:db8::5]:1"];
    let store = "172.20.0.1:29500".parse().unwrap();
    let connections = (7..).zip(clients).map(|(number, client)| {
        let client = client.parse().unwrap();
        StoreConnection { number, client, store }
    });
    let connections = connections.collect();
    StoreConnections { round: round(), connections, is_only_member: true }
}

fn checked_owners() -> CheckedOwners {
    CheckedOwners { round: round(), numbers: vec![7, u64::MAX], denied: vec![0] }
}

fn from_agent() -> Vec<FromAgent> {
    let states = [
        NodeState::Preparing,
        NodeState::Ready { store_port: 41000 },
        NodeState::Running,
        NodeState::Stopping,
        NodeState::Succeeded,
        NodeState::Leaving { reaped: true },
    ];
    let proofs = [None, Some(Proof([7; 16]))].into_iter().cycle();
    let jobs = [None, Some(known_job())].into_iter().cycle();
    let registrations = states.into_iter().zip(jobs).zip(proofs);
    let registrations = registrations.map(|((state, job), proof)| FromAgent::Registration {
        registration: Box::new(Registration { job, ..registration(state) }),
        proof,
        lost_term: Term(5),
    });
    let reports = ends().map(|end| {
        let failure = Some(Box::new(failure(end)));
        let report = NodeReport {
            round: round(),
            state: NodeState::Stopping,
            failure,
            lease_expired: false,
            notice: None,
            saved: None,
            requests: Requests::default(),
        };
        FromAgent::Message(FromNode::NodeReport(report))
    });
    let others = [
        FromNode::KeepAlive {
            sequence: u64::MAX,
            asks_reason: false,
            progress: None,
            checkpoint: None,
        },
        FromNode::KeepAlive {
            sequence: 1,
            asks_reason: true,
            progress: Some(step_progress()),
            checkpoint: Some(Checkpoint {
                step: 48_210,
                is_whole: true,
                cost: Some(Duration::from_millis(9_800)),
            }),
        },
        FromNode::Alive { round: round() },
        FromNode::Goodbye,
        FromNode::RefusedClients(refused_clients()),
        FromNode::CheckOwners(store_connections()),
        FromNode::CheckedOwners(checked_owners()),
        FromNode::Progress { text: "step 120".to_owned() },
        FromNode::Standbys(standbys()),
        FromNode::StoreUnreached(StoreUnreached {
            round: refused_clients().round,
            address: "10.0.0.1:45931".to_owned(),
            why: "no answer".to_owned(),
        }),
    ];
    registrations.chain(reports).chain(others.map(FromAgent::Message)).collect()
}

fn assignments() -> Vec<Assignment> {
    let waits = [
        WaitReason::Gathering,
        WaitReason::NextRound,
        WaitReason::Spare,
        WaitReason::Quarantined,
        WaitReason::Recovering,
        WaitReason::Ending,
    ];
    let evictions = [
        EvictReason::DeathNotice,
        EvictReason::Silent,
        EvictReason::NotBack,
        EvictReason::Quarantined,
    ];
    let host_name = "node2".to_owned();
    let mut restarts = vec![
        RestartReason::CoordinatorLost { host_name: Some("node1".to_owned()) },
        RestartReason::CoordinatorLost { host_name: None },
        RestartReason::CoordinatorRestarted,
        RestartReason::HostLeft,
        RestartReason::NodesWaiting { waiting: 2 },
        RestartReason::NodeLeft { host_name: host_name.clone() },
        RestartReason::Notice { kind: NoticeKind::Leave, hosts: vec![host_name.clone(); 8] },
    ];
    restarts.extend(evictions.map(|how| {
        let host_name = host_name.clone();
        RestartReason::NodeLost { host_name, how }
    }));
    restarts.extend(ends().map(|end| {
        let (host_name, global_rank) = (host_name.clone(), GlobalRank(5));
        RestartReason::WorkerFailed { host_name, global_rank, end }
    }));
    let admission = Admission {
        round: round(),
        group_rank: GroupRank(1),
        group_world_size: 4,
        first_global_rank: GlobalRank(8),
        world_size: 32,
        first_role_rank: RoleRank(8),
        role_world_size: 32,
        restart_count: 1,
        charged_through: Round(40),
        master_address: "fe80::1".to_owned(),
        master_port: 41001,
        store_clients: vec!["10.0.0.2".parse().unwrap()],
        rounds_without_progress: 2,
        saved_step: Some(48_210),
    };
    let mut all = vec![Assignment::Admit(admission), Assignment::Dismiss];
    all.extend(waits.map(|reason| Assignment::Wait { round: round(), reason }));
    all.extend(evictions.map(|reason| Assignment::Evict { round: round(), reason }));
    let complete_step = Some(48_210);
    all.extend(restarts.into_iter().map(|reason| Assignment::Restart {
        round: round(),
        reason,
        complete_step,
    }));
    all.extend(outcomes().into_iter().map(Assignment::Close));
    all
}

fn from_coordinator() -> Vec<FromCoordinator> {
    let welcome = Welcome {
        term: Term(3),
        job_uid: JobUid::new("uid"),
        coordinator: "node0".to_owned(),
        leases: Leases::default(),
        voters: ["n0:29400", "n1:29400", "n2:29400"].map(VoterAddress::new).to_vec(),
        lease_left: Some(Duration::from_millis(2_345)),
    };
    let mut refusals = vec![
        RefuseReason::EarlierRun,
        RefuseReason::LoopbackAddress { address: "127.0.0.1".to_owned() },
        RefuseReason::NodeRankTaken { node_rank: 1, host_name: "node1".to_owned() },
        RefuseReason::OtherScript { script: "a.py".to_owned(), host_name: "node1".to_owned() },
        RefuseReason::ProtocolVersion { ours: 2 },
        RefuseReason::RunId { ours: RunId::new("other") },
        RefuseReason::Settings { ours: settings() },
        RefuseReason::TooManyNodes { limit: 9 },
        RefuseReason::NodeRankTooHigh { node_rank: 7, nodes: 2 },
    ];
    refusals.extend(outcomes().into_iter().map(RefuseReason::Closed));
    let mut all = vec![
        ToNode::Echo { sequence: 7, reason: None, lease_left: None },
        ToNode::Echo {
            sequence: 8,
            reason: Some(Explanation { kind: "last_call".into(), text: "last call".into() }),
            lease_left: Some(Duration::from_millis(1_234)),
        },
        ToNode::Probe { round: round() },
        ToNode::HostLeaving,
        ToNode::Guidance(Guidance { round: round(), notice: None }),
        ToNode::Voters(vec![VoterAddress::new("n4:29400")]),
        ToNode::RefusedClients(refused_clients()),
        ToNode::CheckOwners(store_connections()),
        ToNode::CheckedOwners(checked_owners()),
    ];
    all.extend(
        notices().map(|notice| ToNode::Guidance(Guidance { round: round(), notice: Some(notice) })),
    );
    all.extend(refusals.into_iter().map(ToNode::Refuse));
    all.extend(assignments().into_iter().map(ToNode::Assignment));
    let not_here = NotHere { term: Term(3), endpoint: "node0:29400".to_owned() };
    let mut all: Vec<_> = all.into_iter().map(FromCoordinator::Message).collect();
    all.push(FromCoordinator::NotHere(not_here));
    all.push(FromCoordinator::Welcomed(welcome, Proof([8; 16])));
    all.push(FromCoordinator::OtherAgent);
    all
}

fn notices() -> [Notice; 4] {
    let kinds = [NoticeKind::Save, NoticeKind::Members, NoticeKind::Leave, NoticeKind::End];
    kinds.map(|kind| Notice {
        number: u64::MAX,
        kind,
        hosts: vec!["node4".to_owned(); NOTICE_HOSTS_MAX],
        left: (kind != NoticeKind::Save).then_some(Duration::from_millis(59_500)),
        text: "x".repeat(NOTICE_TEXT_MAX),
    })
}

fn step_progress() -> StepProgress {
    StepProgress {
        source: StepSource::Reported,
        lowest: 118,
        highest: 120,
        total: Some(1_000),
        age: Duration::from_millis(250),
    }
}

fn standbys() -> StandbyCounts {
    StandbyCounts { ready: 3, importing: 1, size: 8, obstacle: Some("memory".to_owned()) }
}

fn voter(endpoint: &str, is_leader: bool, silent_for: Duration) -> VoterStatus {
    VoterStatus { endpoint: endpoint.to_owned(), is_leader, silent_for }
}

/// A snapshot of a job whose leader was chosen through etcd.
fn snapshot_with_leader() -> Snapshot {
    Snapshot { leader: Some("n7:41235".to_owned()), voters: Vec::new(), ..snapshot() }
}

fn snapshot() -> Snapshot {
    let node = |state| NodeSnapshot {
        node_id: NodeId::new("n"),
        host_name: "node1".to_owned(),
        address: "10.0.0.1".to_owned(),
        observed: Some("10.0.0.1".parse().unwrap()),
        agent_port: 29400,
        group_rank: Some(GroupRank(1)),
        first_global_rank: None,
        local_world_size: 2,
        state,
        last_seen_ms: 17,
        reason: Some("why".to_owned()),
        progress: Some("step 7".to_owned()),
        progress_age_ms: Some(1_200),
        standbys: Some(standbys()),
        load: Some("load 9.0 on 2 processors".to_owned()),
    };
    Snapshot {
        run_id: RunId::new("job7"),
        job_uid: JobUid::new("uid"),
        term: Term(3),
        round: Round(41),
        phase: PhaseName::Running,
        phase_ms: 2_460_000,
        time: JobTime {
            states: vec![StateTime {
                state: "productive".to_owned(),
                ms: 11_000_000,
                settled_ms: 10_999_000,
            }],
            redone_ms: 7,
            now: Some("productive".to_owned()),
        },
        last_restart: Some(RestartCost {
            why: RestartCause::WorkerFailed,
            stages: RestartStages {
                saving_ms: 5,
                stopping_ms: 1,
                waiting_ms: 2,
                rendezvous_ms: 3,
                starting_ms: 4,
            },
            redone_steps: Some(40),
            is_complete: true,
        }),
        restarts: vec![RestartsByCause {
            cause: RestartCause::NodeLost,
            sum: RestartSum { count: 2, cost_ms: 24_000, redone_steps: 80 },
        }],
        min_nodes: 2,
        max_nodes: 8,
        restarts_used: 1,
        max_restarts: 3,
        world_size: 32,
        nodes: vec![node(NodeStateName::Running), node(NodeStateName::Quarantined)],
        incomplete: Some(Explanation { kind: "k".to_owned(), text: "t".to_owned() }),
        refused_clients: refused_clients().addresses,
        refused_peers: vec![RefusedPeer {
            address: refused_clients().addresses[0],
            count: 12,
            reason: "it has another secret".to_owned(),
        }],
        unreached: vec![Unreached {
            host_name: "node0".to_owned(),
            to: "node1 (10.0.0.2:35987)".to_owned(),
            why: "no answer".to_owned(),
        }],
        progress: Some(JobProgress {
            source: StepSource::Read,
            step: 48_210,
            highest: 48_211,
            steps_left: Some(51_790),
            step_time: Some(Duration::from_micros(410_250)),
            age: Duration::from_millis(300),
        }),
        saving: Some(Saving {
            notice: 3,
            kind: NoticeKind::Leave,
            hosts: vec!["node4".to_owned()],
            source: "SIGTERM".to_owned(),
            saved_ranks: 12,
            ranks: 32,
            missing: "12-31".to_owned(),
            left_ms: 53_000,
        }),
        checkpoints: Some(CheckpointTimes {
            every_steps: 5_000,
            every_ms: 2_050_000,
            cost_ms: Some(9_800),
            failure_every_ms: 10_080_000,
            is_rate_measured: true,
            lost: Some(0.106),
            best_ms: Some(434_000),
            best_steps: Some(1_060),
            best_lost: Some(0.044),
        }),
        saved_step: Some(48_000),
        outcome: outcomes().pop(),
        leader: Some("n0:29400".to_owned()),
        voters: vec![
            voter("n0:29400", true, Duration::ZERO),
            voter("n1:29400", false, Duration::from_millis(12_345)),
        ],
    }
}

/// Every message of an agent is received as it was sent.
#[test]
fn agents_are_understood() {
    for sent in from_agent() {
        let bytes = v1::AgentMessage::from(sent.clone()).encode_to_vec();
        let received = v1::AgentMessage::decode(bytes.as_slice()).unwrap();
        assert_eq!(FromAgent::try_from(received), Ok(sent));
    }
}

/// Every message of a coordinator is received as it was sent.
#[test]
fn coordinators_are_understood() {
    for sent in from_coordinator() {
        let bytes = v1::CoordinatorMessage::from(sent.clone()).encode_to_vec();
        let received = v1::CoordinatorMessage::decode(bytes.as_slice()).unwrap();
        assert_eq!(FromCoordinator::try_from(received), Ok(sent));
    }
}

/// Returns a state as JSON, after a change of it.
fn json(change: impl FnOnce(&mut Value)) -> Value {
    let mut json = serde_json::to_value(snapshot()).unwrap();
    change(&mut json);
    json
}

/// Receives a state.
fn received(json: Value) -> Result<Snapshot, Malformed> {
    // As text: from a value, serde reads some types in other ways.
    checked(serde_json::from_str(&json.to_string()).unwrap())
}

/// A state is received as it was sent.
#[test]
fn states_are_understood() {
    for sent in [snapshot(), snapshot_with_leader()] {
        assert_eq!(received(serde_json::to_value(&sent).unwrap()), Ok(sent));
    }
}

/// Fields and names of a later version are left out, and the rest is received.
#[test]
fn later_states_are_understood() {
    let later = json(|json| {
        json["new"] = json!({"field": [1]});
        json["last_restart"]["why"] = json!("new_cause");
        json["restarts"].as_array_mut().unwrap().insert(0, json!({"cause": "new_cause"}));
        json["progress"]["source"] = json!("new_source");
    });
    let expected = Snapshot { last_restart: None, progress: None, ..snapshot() };
    assert_eq!(received(later), Ok(expected));
}

/// Values of a state are checked: their number, their names, their times and their steps.
#[test]
fn malformed_states_are_refused() {
    let refusal = |change: &dyn Fn(&mut Value)| received(json(change)).unwrap_err();
    let voter = |field: &'static str, value: Value| {
        refusal(&move |json| json["voters"][0][field] = value.clone())
    };
    assert_eq!(voter("endpoint", json!("")), Malformed::Missing("voters.endpoint"));
    assert_eq!(voter("silent_ms", json!(u64::MAX)), Malformed::OutOfRange("voters.silent_ms"));
    let many = refusal(&|json| json["voters"] = vec![json["voters"][0].clone(); 6].into());
    assert_eq!(many, Malformed::TooLong { field: "voters", len: 6, limit: 5 });
    let long = refusal(&|json| json["nodes"][0]["host_name"] = "x".repeat(257).into());
    assert_eq!(long, Malformed::TooLong { field: "nodes.host_name", len: 257, limit: 256 });
    for field in ["step", "highest", "steps_left"] {
        let far = refusal(&|json| json["progress"][field] = json!(1_u64 << 53));
        assert_eq!(far, Malformed::OutOfRange("progress.step"), "{field}");
    }
    let slow = refusal(&|json| json["progress"]["step_ms"] = json!(1e15));
    assert_eq!(slow, Malformed::OutOfRange("progress.step_ms"));
    for step_ms in [json!(-1.0), json!(1e300)] {
        let none = received(json(|json| json["progress"]["step_ms"] = step_ms)).unwrap();
        assert_eq!(none.progress, None);
    }
}

/// A missing, too long or meaningless field is refused by name.
#[test]
fn malformed_messages_are_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut v1::Registration)| {
        let mut message = v1::Registration::from(registration(NodeState::Running));
        change(&mut message);
        Registration::try_from(message).unwrap_err()
    };
    let node = |registration: &mut v1::Registration, change: &dyn Fn(&mut v1::Node)| {
        change(registration.node.as_mut().unwrap());
    };
    assert_eq!(refusal(&|a| a.node = None), Malformed::Missing("registration.node"));
    assert_eq!(refusal(&|a| a.run_id.clear()), Malformed::Missing("registration.run_id"));
    for size in [0, 65_537] {
        assert_eq!(
            refusal(&|a| node(a, &|n| n.local_world_size = size)),
            Malformed::OutOfRange("node.local_world_size")
        );
    }
    assert_eq!(
        refusal(&|a| node(a, &|n| n.agent_port = 65_536)),
        Malformed::OutOfRange("node.agent_port")
    );
    assert_eq!(
        refusal(&|a| node(a, &|n| n.host_name = "a\u{1b}[2J".to_owned())),
        Malformed::OutOfRange("node.host_name")
    );
    assert_eq!(
        refusal(&|a| node(a, &|n| n.role = "x".repeat(257))),
        Malformed::TooLong { field: "node.role", len: 257, limit: 256 }
    );
    assert_eq!(
        refusal(&|a| a.settings.as_mut().unwrap().min_nodes = 9),
        Malformed::OutOfRange("settings.min_nodes")
    );
    assert_eq!(
        refusal(&|a| a.ended = vec!["uid".to_owned(); 10]),
        Malformed::TooLong { field: "registration.ended", len: 10, limit: 9 }
    );
    assert_eq!(refusal(&|a| a.ended.push(String::new())), Malformed::Missing("registration.ended"));
    let job = |registration: &mut v1::Registration, change: &dyn Fn(&mut v1::KnownJob)| {
        change(registration.job.as_mut().unwrap());
    };
    assert_eq!(
        refusal(&|a| job(a, &|j| j.job_uid.clear())),
        Malformed::Missing("known_job.job_uid")
    );
    assert_eq!(
        refusal(&|a| job(a, &|j| j.job_uid = "x".repeat(257))),
        Malformed::TooLong { field: "known_job.job_uid", len: 257, limit: 256 }
    );
    assert_eq!(
        refusal(&|a| job(a, &|j| j.voters.push("n10:1".to_owned()))),
        Malformed::TooLong { field: "known_job.voters", len: 11, limit: 10 }
    );
    assert_eq!(
        refusal(&|a| job(a, &|j| j.voters[0].clear())),
        Malformed::Missing("known_job.voters")
    );
    assert_eq!(
        refusal(&|a| job(a, &|j| j.voters[9] = "\u{1b}".to_owned())),
        Malformed::OutOfRange("known_job.voters")
    );
}

/// An agent may report any age, also the longest possible one.
#[test]
fn ages_are_unlimited() {
    let longest = Registration { waited: Duration::MAX, ..registration(NodeState::Running) };
    let received = Registration::try_from(v1::Registration::from(longest)).unwrap();
    assert_eq!(received.waited, Duration::from_millis(u64::MAX));
}

/// An outcome names the endpoint of another job by a name on one line.
#[test]
fn malformed_endpoints_of_other_jobs_are_refused() {
    let refusal = |endpoint: String| {
        let mut message = v1::Outcome::from(outcomes().pop().unwrap());
        let Some(v1::outcome::Result::OtherJob(other)) = &mut message.result else {
            panic!("{message:?}")
        };
        other.endpoint = endpoint;
        Outcome::try_from(message).unwrap_err()
    };
    assert_eq!(refusal("n7\n".to_owned()), Malformed::OutOfRange("outcome.endpoint"));
    let too_long = Malformed::TooLong { field: "outcome.endpoint", len: 257, limit: 256 };
    assert_eq!(refusal("x".repeat(257)), too_long);
}

/// Control characters are refused in every name, left out of texts, and never sent.
#[test]
fn terminals_are_left_alone() {
    for bad in ["\u{1b}[2J", "\r", "\u{9b}", "\u{7}", "\0", "\u{202e}", "\u{2066}"] {
        for name in ["run_id", "job_uid", "leader"] {
            let cursed = received(json(|json| json[name] = bad.into()));
            assert_eq!(cursed, Err(Malformed::OutOfRange(name)));
        }
        let words = received(json(|json| {
            json["incomplete"]["text"] = format!("a{bad}b").into();
            json["nodes"][0]["reason"] = format!("a{bad}b").into();
            json["outcome"]["first_failure"]["stderr_tail"] = format!("a{bad}b").into();
            json["unreached"][0]["why"] = format!("a{bad}b").into();
        }));
        let words = format!("{:?}", words.unwrap());
        assert!(!words.contains(&format!("{bad:?}")[1..]), "{words}");
        let sent = FromAgent::Message(FromNode::Progress { text: format!("a{bad}b") });
        let received = FromAgent::try_from(v1::AgentMessage::from(sent)).unwrap();
        let FromAgent::Message(FromNode::Progress { text }) = received else {
            panic!("{received:?}")
        };
        assert!(text.starts_with('a') && text.ends_with('b') && !text.contains(bad));
    }
    assert_eq!(text("a\tb\n".to_owned(), "x", 9), Ok("a\tb\n".to_owned()));
    for bad in ["\n", "\u{202e}", "\u{2066}"] {
        assert_eq!(name(bad.to_owned(), "x"), Err(Malformed::OutOfRange("x")));
    }
}

/// Leases with which workers would still run after they were replaced are refused.
#[test]
fn endless_leases_are_refused() {
    let welcome = |agent: u64, coordinator: u64| {
        let from = from_coordinator().into_iter();
        let welcome = from.filter(|sent| matches!(sent, FromCoordinator::Welcomed(..)));
        let mut message = v1::CoordinatorMessage::from(welcome.last().unwrap());
        let Some(v1::coordinator_message::Message::Welcome(welcome)) = &mut message.message else {
            panic!("{message:?}")
        };
        (welcome.agent_lease_ms, welcome.coordinator_lease_ms) = (agent, coordinator);
        FromCoordinator::try_from(message)
    };
    assert!(welcome(2_400, 3_000).is_ok() && welcome(59_999, 60_000).is_ok());
    for (agent, coordinator) in [(2_400, 60_001), (60_000, 70_000), (3_000, 3_000), (3_001, 3_000)]
    {
        let refused = Err(Malformed::OutOfRange("welcome.coordinator_lease_ms"));
        assert_eq!(welcome(agent, coordinator), refused);
    }
}

proptest! {
    /// A conversion never panics, however its bytes were cut or changed.
    #[test]
    fn no_bytes_panic(
        which in 0_usize..64,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let agents = from_agent();
        let mut bytes =
            v1::AgentMessage::from(agents[which % agents.len()].clone()).encode_to_vec();
        let place = at.index(bytes.len().max(1));
        if let Some(target) = bytes.get_mut(place) {
            *target = byte;
        }
        for bytes in [bytes, noise] {
            if let Ok(message) = v1::AgentMessage::decode(bytes.as_slice()) {
                let _ = FromAgent::try_from(message);
            }
            if let Ok(message) = v1::CoordinatorMessage::decode(bytes.as_slice()) {
                let _ = FromCoordinator::try_from(message);
            }
        }
    }
}

/// Writes inputs for the fuzz targets of the agent: each message, after the byte that selects its kind.
#[test]
#[ignore = "it writes a part of the corpus, which is committed"]
fn seeds_are_written() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/fuzz/corpus"));
    let write = |target: &str, kind: u8, messages: Vec<Vec<u8>>| {
        let folder = folder.join(target);
        fs::create_dir_all(&folder).unwrap();
        for (number, message) in messages.iter().enumerate() {
            let seed = [&[kind], &message[..]].concat();
            fs::write(folder.join(format!("message-{kind}-{number:03}")), seed).unwrap();
        }
    };
    let of_agent = from_agent().into_iter().map(|message| {
        let bytes = v1::AgentMessage::from(message).encode_to_vec();
        [&u16::try_from(bytes.len()).unwrap().to_le_bytes()[..], &bytes].concat()
    });
    write("registration", 0, of_agent.collect());
    let texts = ["\u{1b}[2J", "\u{202e}x", "\u{9b}"].map(|text| {
        let message = v1::agent_message::Message::Progress(v1::Progress { text: text.to_owned() });
        let bytes = v1::AgentMessage { message: Some(message) }.encode_to_vec();
        [&u16::try_from(bytes.len()).unwrap().to_le_bytes()[..], &bytes].concat()
    });
    write("registration", 2, texts.to_vec());
    let of_coordinator = from_coordinator().into_iter();
    let of_coordinator =
        of_coordinator.map(|message| v1::CoordinatorMessage::from(message).encode_to_vec());
    write("coordinator", 0, of_coordinator.collect());
    let welcome = from_coordinator().into_iter().find_map(|message| match message {
        FromCoordinator::Welcomed(welcome, proof) => Some((welcome, proof)),
        _ => None,
    });
    let leases = [(1, 2, 60_000), (1, 2, 60_001), (0, 2, 3), (2, 2, 3), (1, 3, 3)];
    let welcomes = leases.map(|(interval, agent, coordinator)| {
        let (mut welcome, proof) = welcome.clone().unwrap();
        welcome.leases = Leases {
            keep_alive_interval: Duration::from_millis(interval),
            agent: Duration::from_millis(agent),
            coordinator: Duration::from_millis(coordinator),
        };
        v1::CoordinatorMessage::from(FromCoordinator::Welcomed(welcome, proof)).encode_to_vec()
    });
    write("coordinator", 2, welcomes.to_vec());
    let states = [snapshot(), snapshot_with_leader()];
    let states = states.map(|state| serde_json::to_vec(&state).unwrap());
    write("coordinator", 1, states.to_vec());
    let of_voters = voter::tests::all().into_iter();
    let of_voters = of_voters.map(|message| voter::encode(&voter::tests::header(), message));
    write("elect", 0, of_voters.collect());
    let far = voter::tests::all().into_iter().take(3).enumerate().map(|(field, message)| {
        let encoded = voter::encode(&voter::tests::header(), message);
        let mut message = v1::VoterMessage::decode(encoded.as_slice()).unwrap();
        let version = message.version.as_mut().unwrap();
        *[&mut message.highest, &mut version.term, &mut version.number][field] = u64::MAX;
        message.encode_to_vec()
    });
    write("elect", 2, far.collect());
    write("elect", 1, vec![claim::encode(claim::tests::record())]);
}

/// Texts of a node or a coordinator are cut to the length that the other side accepts.
#[test]
fn long_words_are_cut() {
    let long = || "é\n\u{202e}".repeat(300);
    let unreached = Unreached { host_name: long(), to: long(), why: long() };
    let read = checked(Snapshot { unreached: vec![unreached], ..snapshot() }).unwrap();
    let [read] = &read.unreached[..] else { panic!("{read:?}") };
    assert_eq!([&read.host_name, &read.to, &read.why].map(|text| text.len()), [256; 3]);
    assert!(read.to.chars().all(|c| c == 'é'), "{}", read.to);
    let store = StoreUnreached { round: refused_clients().round, address: long(), why: long() };
    let read = StoreUnreached::try_from(v1::StoreUnreached::from(store)).unwrap();
    assert_eq!([read.address.len(), read.why.len()], [256; 2]);
}
