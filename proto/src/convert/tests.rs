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
        Activity, Admission, Assignment, Checkpoint, CheckpointId, DepartedNode, DepartedNodes,
        Departure, Digest, EvictReason, FromNode, GroupLook, Guidance, HARDWARE_FACTS_MAX,
        HardwareFact, HealthClass, Hung, JobResult, KnownRound, LINE_MAX, Launched, Look, LookPart,
        MEMORY_BYTES_MAX, MemoryKind, MemoryPlan, MemoryReport, MemoryUnusable, NOTICE_HOSTS_MAX,
        NOTICE_TEXT_MAX, NodeDescription, NodeNotice, NodeReport, NodeState, Notice, NoticeKind,
        OomKill, Outcome, PARTS_MAX, Part, PartPlace, PartSources, RefuseReason, RefusedClients,
        Registration, Replaced, Requests, RestartReason, STEP_MAX, Saved, StandbyCounts,
        StepProgress, StepSource, StoreUnreached, ToNode, Unhealthy, UnusableReason, WaitReason,
        Welcome, WorkerEnd, WorkerFailure, WorkerLook,
    },
    settings::{Leases, NodeRange, SharedSettings, StoreAccess, Timeouts},
    snapshot::{
        CheckpointTimes, Explanation, JobLook, JobProgress, JobTime, LOOK_PLACES_MAX, LookPlace,
        MemoryBytes, MemoryStatus, NodeSnapshot, NodeStateName, PhaseName, RefusedPeer,
        RestartsByCause, STALL_FACTS_MAX, STALL_TEXT_MAX, Saving, Snapshot, Stall, StateTime,
        Unreached, VoterStatus,
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
        hang_auto: true,
        as_torchrun: true,
        memory_copies: 0,
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
        hardware: vec![
            HardwareFact {
                text: "x".repeat(LINE_MAX),
                age: Some(Duration::from_micros(1_634_567)),
            };
            HARDWARE_FACTS_MAX
        ],
        oom: Some(OomKill::Probable),
        before_load: true,
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
        JobResult::OtherJob { endpoint: "n7:29400".to_owned(), born_ms: Some(u64::MAX) },
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
            failure_domain: "rack7".to_owned(),
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
            unhealthy: Some(Box::new(unhealthy(HealthClass::Replace))),
            memory_unusable: Some(Box::new(memory_unusable(UnusableReason::Script))),
        },
        memory: Some(memory_report()),
    }
}

fn refused_clients() -> RefusedClients {
    let addresses = ["172.20.0.5", "2001:db8::5"].map(|text| text.parse().unwrap());
    RefusedClients { round: round(), addresses: addresses.to_vec() }
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
        let report = NodeReport { failure, ..NodeReport::new(round(), NodeState::Stopping) };
        FromAgent::Message(FromNode::NodeReport(report))
    });
    let others = [
        FromNode::KeepAlive {
            sequence: u64::MAX,
            asks_reason: false,
            progress: None,
            checkpoint: None,
            save_failed: Some("no space".to_owned()),
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
            save_failed: None,
        },
        FromNode::Alive { round: round() },
        FromNode::Goodbye,
        FromNode::RefusedClients(refused_clients()),
        FromNode::Progress { text: "step 120".to_owned() },
        FromNode::Standbys(standbys()),
        FromNode::MemoryReport(memory_report()),
        FromNode::MemoryReport(MemoryReport::default()),
        FromNode::Digest(digest()),
        FromNode::Digest(Digest::new(round(), 7, LookPart::First)),
        FromNode::StoreUnreached(StoreUnreached {
            round: refused_clients().round,
            address: "10.0.0.1:45931".to_owned(),
            why: "no answer".to_owned(),
        }),
    ];
    let unusable = unusable_reasons().map(|why| {
        let memory_unusable = Some(Box::new(memory_unusable(why)));
        let report = NodeReport::new(round(), NodeState::Running);
        FromAgent::Message(FromNode::NodeReport(NodeReport { memory_unusable, ..report }))
    });
    let classes = [HealthClass::Reset, HealthClass::Replace, HealthClass::Gone];
    let unhealthy = classes.map(|class| {
        let unhealthy = Some(Box::new(unhealthy(class)));
        let report = NodeReport::new(round(), NodeState::Preparing);
        FromAgent::Message(FromNode::NodeReport(NodeReport { unhealthy, ..report }))
    });
    let reports = reports.into_iter().chain(unusable).chain(unhealthy);
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
        WaitReason::Unhealthy,
        WaitReason::Excluded,
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
        RestartReason::BadMachine {
            host_name: host_name.clone(),
            reason: "GPU 3: XID 79 (fell off the bus)".to_owned(),
        },
    ];
    restarts.extend(unusable_reasons().map(|why| {
        let (host_name, unusable) = (host_name.clone(), memory_unusable(why));
        RestartReason::MemoryUnusable { host_name, unusable }
    }));
    restarts.extend(evictions.map(|how| {
        let host_name = host_name.clone();
        RestartReason::NodeLost { host_name, how }
    }));
    restarts.extend(ends().map(|end| {
        let (host_name, global_rank) = (host_name.clone(), GlobalRank(5));
        RestartReason::WorkerFailed { host_name, global_rank, end, oom: None, hardware: Vec::new() }
    }));
    restarts.extend([OomKill::Probable].map(|oom| {
        let (host_name, end) = (host_name.clone(), WorkerEnd::Signaled(9));
        let hardware = vec!["x".repeat(LINE_MAX); HARDWARE_FACTS_MAX];
        let (global_rank, oom) = (GlobalRank(5), Some(oom));
        RestartReason::WorkerFailed { host_name, global_rank, end, oom, hardware }
    }));
    let admission = Admission {
        round: round(),
        group_rank: GroupRank(1),
        group_world_size: 4,
        first_global_rank: GlobalRank(8),
        world_size: 32,
        first_role_rank: RoleRank(8),
        role_world_size: 32,
        restart_count: 2,
        restarts_forgiven: 1,
        charged_through: Round(40),
        master_address: "fe80::1".to_owned(),
        master_port: 41001,
        store_clients: vec!["10.0.0.2".parse().unwrap()],
        rounds_without_progress: 2,
        saved_step: Some(48_210),
        memory: Some(Box::new(memory_plan())),
        buddy: Some("n2:41001".to_owned()),
        ward: Some(GroupRank(3)),
        replaced: Some(Replaced { host: "n3".to_owned(), by: "n7".to_owned() }),
    };
    let from_disk =
        Admission { memory: None, buddy: None, ward: None, replaced: None, ..admission.clone() };
    let mut all = vec![Assignment::Admit(admission), Assignment::Admit(from_disk)];
    all.push(Assignment::Dismiss);
    let kept = [None, Some(checkpoint_id())].into_iter().cycle();
    all.extend(waits.into_iter().zip(kept).map(|(reason, memory)| Assignment::Wait {
        round: round(),
        reason,
        memory,
    }));
    all.extend(evictions.map(|reason| Assignment::Evict { round: round(), reason }));
    let complete_step = Some(48_210);
    all.extend(restarts.into_iter().map(|reason| Assignment::Restart {
        round: round(),
        reason,
        complete_step,
        memory_step: Some(48_220),
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
        ToNode::Echo { sequence: 7, reason: None, lease_left: None, memory_whole: None },
        ToNode::Echo {
            sequence: 8,
            reason: Some(Explanation { kind: "last_call".into(), text: "last call".into() }),
            lease_left: Some(Duration::from_millis(1_234)),
            memory_whole: Some(checkpoint_id()),
        },
        ToNode::Probe { round: round() },
        ToNode::HostLeaving,
        ToNode::Guidance(Guidance { round: round(), ..Guidance::default() }),
        ToNode::Guidance(guidance(LookPart::First, true)),
        ToNode::Guidance(guidance(LookPart::Second, false)),
        ToNode::Voters(vec![VoterAddress::new("n4:29400")]),
        ToNode::RefusedClients(refused_clients()),
    ];
    all.extend(notices().map(|notice| {
        let notice = Some(notice);
        ToNode::Guidance(Guidance { round: round(), notice, ..Guidance::default() })
    }));
    all.extend(refusals.into_iter().map(ToNode::Refuse));
    all.extend(assignments().into_iter().map(ToNode::Assignment));
    let elsewhere = CoordinatorAddress { term: Term(3), endpoint: "node0:29400".to_owned() };
    let mut all: Vec<_> = all.into_iter().map(FromCoordinator::Message).collect();
    all.push(FromCoordinator::Elsewhere(elsewhere));
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

pub(super) fn checkpoint_id() -> CheckpointId {
    CheckpointId { round: round(), step: STEP_MAX }
}

/// A report with the most parts.
fn memory_report() -> MemoryReport {
    let part = |number| Part {
        checkpoint: checkpoint_id(),
        group_rank: GroupRank(number),
        nodes: 16,
        first_global_rank: GlobalRank(8 * number),
        local_ranks: 8.try_into().unwrap(),
        kind: if number == 0 { MemoryKind::State } else { MemoryKind::Dcp },
        is_replicated: number == 1,
        place: match number % 3 {
            0 => PartPlace::Own,
            1 => PartPlace::Copy,
            _ => PartPlace::Leftover,
        },
        bytes: MEMORY_BYTES_MAX,
        is_alone: number == 2,
    };
    MemoryReport {
        round: round(),
        parts: (0..16).map(part).collect(),
        needed: 245_000_000_000,
        limit: MEMORY_BYTES_MAX,
        address: Some("[2001:db8::5]:41000".to_owned()),
        obstacle: Some("x".repeat(LINE_MAX)),
        waits_for_buffer: Some(GlobalRank(5)),
        cost: Some(Duration::from_millis(20)),
        fetch_time: Some(Duration::from_millis(5_012)),
        oom_kills: Some(u64::MAX),
    }
}

fn memory_plan() -> MemoryPlan {
    let part = |number| PartSources {
        group_rank: GroupRank(number),
        first_global_rank: GlobalRank(8 * number),
        local_ranks: 8.try_into().unwrap(),
        sources: vec![format!("n{number}:41000")],
    };
    MemoryPlan {
        checkpoint: checkpoint_id(),
        kind: MemoryKind::Dcp,
        sources: vec!["n0:41000".to_owned(), "10.0.0.2:65535".to_owned()],
        is_resharded: true,
        all_sources: (0..4).map(part).collect(),
    }
}

fn unusable_reasons() -> [UnusableReason; 3] {
    let sources = vec!["n0:41000".to_owned(), "n1:41000".to_owned()];
    [UnusableReason::Sum, UnusableReason::Script, UnusableReason::SourceGone { sources }]
}

fn memory_unusable(why: UnusableReason) -> MemoryUnusable {
    MemoryUnusable { checkpoint: checkpoint_id(), why, text: "x".repeat(LINE_MAX) }
}

fn unhealthy(class: HealthClass) -> Unhealthy {
    let (kind, reason) = ("xid_79".to_owned(), "GPU 3: XID 79 (fell off the bus)".to_owned());
    Unhealthy { class, kind, reason }
}

fn guidance(part: LookPart, if_stopped: bool) -> Guidance {
    Guidance {
        round: round(),
        look: Some(Look { number: 7, part }),
        hung: Some(Hung { rank: GlobalRank(118), time: Duration::from_secs(900), if_stopped }),
        memory_off: Some("n17 has 40 GB and needs 84".to_owned()),
        ..Guidance::default()
    }
}

/// A digest with each kind of content.
fn digest() -> Digest {
    let activities =
        [None, Some(Activity::Collective), Some(Activity::Wait), Some(Activity::Other)];
    let worker = |(rank, activity)| WorkerLook {
        rank: GlobalRank(rank),
        activity,
        state: (rank > 0).then_some('D'),
        has_reached_store: (rank > 0).then_some(rank > 1),
        line: (rank > 0).then(|| "load_batch at data.py:88".to_owned()),
        waits_in: (rank > 0).then(|| "rpc_wait_bit_killable (NFS)".to_owned()),
    };
    let launched = |number: u64, ranks: Vec<u32>| Launched {
        operation: if number > 0 { "all_reduce [1024] float".to_owned() } else { String::new() },
        number,
        is_finished: number == 1,
        count: 509,
        ranks: ranks.into_iter().map(GlobalRank).collect(),
    };
    let group = GroupLook {
        name: "default_pg".to_owned(),
        size: 512,
        launched: vec![launched(u64::MAX, (0..32).collect()), launched(0, Vec::new())],
    };
    Digest {
        round: round(),
        look: u64::MAX,
        part: LookPart::Second,
        workers: (0..).zip(activities).map(worker).collect(),
        groups: vec![group],
        facts: vec!["x".repeat(LINE_MAX); 4],
        logs: Some("/logs/run7_x/attempt_2".to_owned()),
        is_cut: false,
    }
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
        unhealthy: Some("GPU 3: XID 79 (fell off the bus)".to_owned()),
        excluded: Some("drained".to_owned()),
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
        restarts_forgiven: 1,
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
        save_failed: Some("no space".to_owned()),
        stall: Some(Stall {
            step: Some(48_210),
            for_ms: 250_000,
            limit_ms: 60_000,
            text: Some("x".repeat(STALL_TEXT_MAX)),
            facts: vec!["GPU 6 of n14: nothing unusual".to_owned(); STALL_FACTS_MAX],
            rank: Some(GlobalRank(118)),
        }),
        look: Some(JobLook {
            number: 7,
            age_ms: 12_000,
            text: Some("x".repeat(STALL_TEXT_MAX)),
            places: vec![
                LookPlace {
                    text: "all_reduce (train.py:7)".to_owned(),
                    count: 511,
                    ranks: vec![(0, 117), (119, 511)],
                    stack: Some("n0:/logs/run7_x/attempt_2/0/stack.txt".to_owned()),
                };
                LOOK_PLACES_MAX
            ],
            further: 3,
            unknown: 8,
            has_stacks: true,
            has_lines: true,
        }),
        memory: Some(MemoryStatus {
            step: Some(48_210),
            is_copied: true,
            age_ms: Some(2_500),
            cost_ms: Some(20),
            needed: 245_000_000_000,
            limit: MEMORY_BYTES_MAX,
            bytes: MemoryBytes { own: 61_200_000_000, copy: 7, leftover: 8 },
            copy_ms: Some(1_500),
            waited_ms: 300,
            text: Some("waits: the copy from n3 to n1 is slow".to_owned()),
        }),
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
    state_from_json(&json.to_string()).map_err(|error| *error.downcast().unwrap())
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

/// The steps of a state, and its time of a step, are checked.
#[test]
fn malformed_states_are_refused() {
    let refusal = |part: &'static str, field: &'static str, value: Value| {
        received(json(|json| json[part][field] = value)).unwrap_err()
    };
    for (part, field, error) in [
        ("progress", "step", "progress.step"),
        ("progress", "highest", "progress.step"),
        ("progress", "steps_left", "progress.step"),
        ("stall", "step", "stall.step"),
        ("memory", "step", "memory.step"),
    ] {
        assert_eq!(refusal(part, field, json!(1_u64 << 53)), Malformed::OutOfRange(error));
    }
    let far = received(json(|json| json["saved_step"] = json!(1_u64 << 53)));
    assert_eq!(far, Err(Malformed::OutOfRange("saved_step")));
    let slow = refusal("progress", "step_ms", json!(1e15));
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

/// Returns the error of a value whose encoded form `change` makes invalid.
fn refused<Domain, Wire>(value: Domain, change: impl FnOnce(&mut Wire)) -> Malformed
where
    Wire: From<Domain>,
    Domain: TryFrom<Wire, Error = Malformed> + std::fmt::Debug,
{
    let mut wire = Wire::from(value);
    change(&mut wire);
    Domain::try_from(wire).unwrap_err()
}

/// Every field of a report about checkpoints in memory is checked.
#[test]
fn malformed_reports_of_memory_are_refused() {
    let report = |change: &dyn Fn(&mut v1::MemoryReport)| refused(memory_report(), change);
    let part = |change: &dyn Fn(&mut v1::Part)| report(&|report| change(&mut report.parts[3]));
    let id = |change: &dyn Fn(&mut v1::CheckpointId)| {
        part(&|part| change(part.checkpoint.as_mut().unwrap()))
    };
    assert_eq!(report(&|r| r.round = None), Malformed::Missing("memory_report.round"));
    let too_long = Malformed::TooLong { field: "memory_report.parts", len: 17, limit: PARTS_MAX };
    assert_eq!(report(&|r| r.parts.push(v1::Part::default())), too_long);
    let far = MEMORY_BYTES_MAX + 1;
    assert_eq!(report(&|r| r.needed = far), Malformed::OutOfRange("memory_report.needed"));
    assert_eq!(report(&|r| r.limit = u64::MAX), Malformed::OutOfRange("memory_report.limit"));
    let field = "memory_report.address";
    assert_eq!(report(&|r| r.address = Some(String::new())), Malformed::Missing(field));
    for wrong in ["n1", "n1:", ":41000", "n1:0", "n1:65536", "n1:x", "n\u{1b}:1"] {
        let error = report(&|r| r.address = Some(wrong.to_owned()));
        assert_eq!(error, Malformed::OutOfRange(field), "{wrong}");
    }
    let field = "memory_report.obstacle";
    let long = report(&|r| r.obstacle = Some("x".repeat(201)));
    assert_eq!(long, Malformed::TooLong { field, len: 201, limit: LINE_MAX });
    assert_eq!(report(&|r| r.obstacle = Some("a\nb".into())), Malformed::OutOfRange(field));
    let field = "memory_report.cost_ms";
    assert_eq!(report(&|r| r.cost_ms = Some(u64::MAX)), Malformed::OutOfRange(field));
    let field = "memory_report.fetch_ms";
    assert_eq!(report(&|r| r.fetch_ms = Some(u64::MAX)), Malformed::OutOfRange(field));
    assert_eq!(part(&|p| p.checkpoint = None), Malformed::Missing("part.checkpoint"));
    assert_eq!(part(&|p| p.group_rank = 16), Malformed::OutOfRange("part.group_rank"));
    assert_eq!(part(&|p| p.nodes = 65_537), Malformed::OutOfRange("part.nodes"));
    assert_eq!(part(&|p| p.nodes = 0), Malformed::OutOfRange("part.group_rank"));
    for ranks in [0, 65_537] {
        let error = part(&|p| p.local_ranks = ranks);
        assert_eq!(error, Malformed::OutOfRange("part.local_ranks"));
    }
    let error = part(&|p| p.first_global_rank = u32::MAX - 7);
    assert_eq!(error, Malformed::OutOfRange("part.local_ranks"));
    assert_eq!(part(&|p| p.bytes = far), Malformed::OutOfRange("part.bytes"));
    for unknown in [0, 77] {
        assert_eq!(part(&|p| p.kind = unknown), Malformed::OutOfRange("memory.kind"));
        assert_eq!(part(&|p| p.place = unknown), Malformed::OutOfRange("part.place"));
    }
    assert_eq!(id(&|id| id.round = None), Malformed::Missing("checkpoint_id.round"));
    assert_eq!(id(&|id| id.step = STEP_MAX + 1), Malformed::OutOfRange("checkpoint_id.step"));
    let at = |term, round| id(&move |id| id.round = Some(v1::RoundId { term, round }));
    assert_eq!(at(u64::MAX, 1), Malformed::OutOfRange("checkpoint_id.term"));
    assert_eq!(at(1, u64::MAX), Malformed::OutOfRange("checkpoint_id.round"));
}

/// Every field of a plan about a checkpoint in memory is checked, and so is a report that it cannot be used.
#[test]
fn malformed_plans_of_memory_are_refused() {
    let plan = |change: &dyn Fn(&mut v1::MemoryPlan)| refused(memory_plan(), change);
    assert_eq!(plan(&|p| p.checkpoint = None), Malformed::Missing("memory.checkpoint"));
    assert_eq!(plan(&|p| p.kind = 0), Malformed::OutOfRange("memory.kind"));
    let too_long = Malformed::TooLong { field: "memory.sources", len: 3, limit: 2 };
    assert_eq!(plan(&|p| p.sources.push("n3:1".into())), too_long);
    assert_eq!(plan(&|p| p.sources[0] = "n3".into()), Malformed::OutOfRange("memory.sources"));
    let field = "part_sources.sources";
    let part = |change: &dyn Fn(&mut v1::PartSources)| plan(&|p| change(&mut p.all_sources[1]));
    assert_eq!(part(&|p| p.sources.clear()), Malformed::Missing(field));
    let too_long = Malformed::TooLong { field, len: 3, limit: 2 };
    assert_eq!(part(&|p| p.sources = vec!["n3:1".into(); 3]), too_long);
    assert_eq!(part(&|p| p.local_ranks = 0), Malformed::OutOfRange("part_sources.local_ranks"));
    let field = "memory.all_sources";
    let many = plan(&|p| p.all_sources = vec![p.all_sources[0].clone(); 16_385]);
    assert_eq!(many, Malformed::TooLong { field, len: 16_385, limit: 16_384 });
    let long = plan(&|p| p.all_sources[3].sources[0] = "x".repeat(768 << 10));
    assert_eq!(long, Malformed::TooLong { field, len: (768 << 10) + 24, limit: 768 << 10 });

    let gone = memory_unusable(unusable_reasons()[2].clone());
    let unusable = |change: &dyn Fn(&mut v1::MemoryUnusable)| refused(gone.clone(), change);
    assert_eq!(
        unusable(&|u| u.checkpoint = None),
        Malformed::Missing("memory_unusable.checkpoint")
    );
    assert_eq!(unusable(&|u| u.why = None), Malformed::Missing("memory_unusable.why"));
    let field = "memory_unusable.sources";
    let sources = |sources: &[&str]| {
        let sources: Vec<String> = sources.iter().map(|source| (*source).to_owned()).collect();
        let why = v1::memory_unusable::Why::SourceGone(v1::memory_unusable::SourceGone { sources });
        unusable(&|u| u.why = Some(why.clone()))
    };
    assert_eq!(sources(&["n1:1"; 3]), Malformed::TooLong { field, len: 3, limit: 2 });
    assert_eq!(sources(&["n1"]), Malformed::OutOfRange(field));
    let field = "memory_unusable.text";
    let long = unusable(&|u| u.text.push('x'));
    assert_eq!(long, Malformed::TooLong { field, len: 201, limit: LINE_MAX });
    assert_eq!(unusable(&|u| u.text = "\t".into()), Malformed::OutOfRange(field));
}

/// An admission names a buddy with a port, and a ward that is in the round. A restart that names a checkpoint in
/// memory has it.
#[test]
fn malformed_assignments_of_memory_are_refused() {
    let admission = assignments().into_iter().find_map(|assignment| match assignment {
        Assignment::Admit(admission) => Some(admission),
        _ => None,
    });
    let admission =
        |change: &dyn Fn(&mut v1::Admission)| refused(admission.clone().unwrap(), change);
    let field = "admission.buddy";
    assert_eq!(admission(&|a| a.buddy = Some("n2".into())), Malformed::OutOfRange(field));
    assert_eq!(admission(&|a| a.ward = Some(4)), Malformed::OutOfRange("admission.ward"));
    use v1::restart::{BadMachine, MemoryUnusableOn, Reason};
    let restart = |why: Reason| RestartReason::try_from(why).unwrap_err();
    let on = MemoryUnusableOn { host_name: "n1".into(), unusable: None };
    assert_eq!(restart(Reason::MemoryUnusable(on)), Malformed::Missing("restart.unusable"));
    let bad = BadMachine { host_name: "n1".into(), reason: "x".repeat(201) };
    let long = Malformed::TooLong { field: "restart.reason", len: 201, limit: LINE_MAX };
    assert_eq!(restart(Reason::BadMachine(bad)), long);
    let wait = v1::assignment::Assignment::Wait(v1::Wait {
        round: to_round(round()),
        reason: v1::WaitReason::Spare.into(),
        memory: Some(v1::CheckpointId::default()),
    });
    let wait = Assignment::try_from(v1::Assignment { assignment: Some(wait) });
    assert_eq!(wait, Err(Malformed::Missing("checkpoint_id.round")));
    let echo = v1::coordinator_message::Message::Echo(v1::KeepAlive {
        memory_whole: Some(v1::CheckpointId::default()),
        ..v1::KeepAlive::default()
    });
    let echo = FromCoordinator::try_from(v1::CoordinatorMessage { message: Some(echo) });
    assert_eq!(echo, Err(Malformed::Missing("checkpoint_id.round")));
}

/// A job has no or one copy of a checkpoint in memory. A node that does not name the number has one.
#[test]
fn number_of_copies_is_checked() {
    let read = |memory_copies| {
        let message = v1::SharedSettings { memory_copies, ..settings().into() };
        SharedSettings::try_from(message).map(|settings| settings.memory_copies)
    };
    assert_eq!([None, Some(0), Some(1)].map(read), [Ok(1), Ok(0), Ok(1)]);
    assert_eq!(read(Some(2)), Err(Malformed::OutOfRange("settings.memory_copies")));
}

/// Every field of a guidance and of a digest is checked.
#[test]
fn malformed_looks_are_refused() {
    let sent = || guidance(LookPart::First, true);
    let guidance = |change: &dyn Fn(&mut v1::Guidance)| refused(sent(), change);
    assert_eq!(
        guidance(&|g| g.look.as_mut().unwrap().part = 3),
        Malformed::OutOfRange("look.part")
    );
    let far = guidance(&|g| g.hung.as_mut().unwrap().ms = u64::MAX);
    assert_eq!(far, Malformed::OutOfRange("hung.ms"));
    let field = "guidance.memory_off";
    assert_eq!(guidance(&|g| g.memory_off = Some("\n".into())), Malformed::OutOfRange(field));
    let long = guidance(&|g| g.memory_off = Some("x".repeat(201)));
    assert_eq!(long, Malformed::TooLong { field, len: 201, limit: LINE_MAX });

    let small = || Digest { facts: Vec::new(), ..digest() };
    let digest = |change: &dyn Fn(&mut v1::Digest)| refused(small(), change);
    let worker = |change: &dyn Fn(&mut v1::WorkerLook)| digest(&|d| change(&mut d.workers[1]));
    let group = |change: &dyn Fn(&mut v1::GroupLook)| digest(&|d| change(&mut d.groups[0]));
    let launched = |change: &dyn Fn(&mut v1::Launched)| group(&|g| change(&mut g.launched[0]));
    assert_eq!(digest(&|d| d.round = None), Malformed::Missing("digest.round"));
    assert_eq!(digest(&|d| d.part = 0), Malformed::OutOfRange("look.part"));
    let many = digest(&|d| d.workers = vec![v1::WorkerLook::default(); 65]);
    assert_eq!(many, Malformed::TooLong { field: "digest.workers", len: 65, limit: 64 });
    let empty = v1::GroupLook::default();
    let many = digest(&|d| d.groups = vec![empty.clone(); 33]);
    assert_eq!(many, Malformed::TooLong { field: "digest.groups", len: 33, limit: 32 });
    assert_eq!(digest(&|d| d.logs = Some("/a\n".into())), Malformed::OutOfRange("digest.logs"));
    let many = digest(&|d| d.facts = vec![String::new(); 5]);
    assert_eq!(many, Malformed::TooLong { field: "digest.facts", len: 5, limit: 4 });
    let field = "digest.facts";
    assert_eq!(digest(&|d| d.facts = vec!["\u{1b}[2J".into()]), Malformed::OutOfRange(field));
    let long = digest(&|d| d.facts = vec!["x".repeat(2_048)]);
    assert!(matches!(long, Malformed::TooLong { field: "digest", limit: 2_048, .. }), "{long}");
    for wrong in ["DD", "1", "\n", "é"] {
        let error = worker(&|w| w.state = wrong.to_owned());
        assert_eq!(error, Malformed::OutOfRange("worker_look.state"), "{wrong}");
    }
    let field = "worker_look.line";
    let long = worker(&|w| w.line = Some("x".repeat(201)));
    assert_eq!(long, Malformed::TooLong { field, len: 201, limit: LINE_MAX });
    let field = "worker_look.waits_in";
    assert_eq!(worker(&|w| w.waits_in = Some("\r".into())), Malformed::OutOfRange(field));
    let long = group(&|g| g.name = "x".repeat(65));
    assert_eq!(long, Malformed::TooLong { field: "group_look.name", len: 65, limit: 64 });
    let many = group(&|g| g.launched = vec![v1::Launched::default(); 9]);
    assert_eq!(many, Malformed::TooLong { field: "group_look.launched", len: 9, limit: 8 });
    assert_eq!(group(&|g| g.size = 508), Malformed::OutOfRange("launched.count"));
    let long = launched(&|l| l.operation = "x".repeat(65));
    assert_eq!(long, Malformed::TooLong { field: "launched.operation", len: 65, limit: 64 });
    let many = launched(&|l| l.ranks.push(7));
    assert_eq!(many, Malformed::TooLong { field: "launched.ranks", len: 33, limit: 32 });
    assert_eq!(launched(&|l| l.count = 31), Malformed::OutOfRange("launched.ranks"));
}

/// An activity that only a later build knows is unknown.
#[test]
fn later_activities_are_unknown() {
    let mut message = v1::Digest::from(digest());
    message.workers[1].activity = 77;
    assert_eq!(Digest::try_from(message).unwrap().workers[1].activity, None);
}

/// A digest that is too long is cut. The lines of the last workers go first, then workers, groups and facts.
#[test]
fn long_digests_are_cut() {
    let worker = |rank| WorkerLook {
        rank: GlobalRank(rank),
        activity: Some(Activity::Wait),
        line: Some("l".repeat(300)),
        ..WorkerLook::default()
    };
    let read = |workers: u32, groups: usize| {
        let workers = (0..workers).map(worker).collect();
        let sent = Digest { workers, groups: vec![digest().groups.remove(0); groups], ..digest() };
        Digest::try_from(v1::Digest::from(sent)).unwrap()
    };
    let cut = read(64, 1);
    assert_eq!((cut.workers.len(), cut.groups.len(), cut.facts.len()), (64, 1, 4));
    let lines: Vec<bool> = cut.workers.iter().map(|worker| worker.line.is_some()).collect();
    assert!(lines[0] && !lines[63] && lines.is_sorted_by_key(|has_line| !has_line), "{lines:?}");
    let cut = read(64, 32);
    assert!(cut.workers.is_empty() && (1..32).contains(&cut.groups.len()), "{cut:?}");
    assert_eq!(cut.facts.len(), 4);
}

/// Every field about the health of a machine is checked.
#[test]
fn malformed_health_is_refused() {
    let sent = || unhealthy(HealthClass::Gone);
    let unhealthy = |change: &dyn Fn(&mut v1::Unhealthy)| refused(sent(), change);
    assert_eq!(unhealthy(&|u| u.class = 0), Malformed::OutOfRange("unhealthy.class"));
    assert_eq!(unhealthy(&|u| u.kind.clear()), Malformed::Missing("unhealthy.kind"));
    let long = unhealthy(&|u| u.kind = "x".repeat(65));
    assert_eq!(long, Malformed::TooLong { field: "unhealthy.kind", len: 65, limit: 64 });
    let field = "unhealthy.reason";
    assert_eq!(unhealthy(&|u| u.reason = "\u{202e}".into()), Malformed::OutOfRange(field));
    let sent = || failure(WorkerEnd::KeeperLost);
    let failure = |change: &dyn Fn(&mut v1::WorkerFailure)| refused(sent(), change);
    let many = failure(&|f| f.hardware.push(v1::HardwareFact::default()));
    assert_eq!(many, Malformed::TooLong { field: "failure.hardware", len: 5, limit: 4 });
    let long = failure(&|f| f.hardware[0].text.push('x'));
    assert_eq!(long, Malformed::TooLong { field: "hardware_fact.text", len: 201, limit: 200 });
    let far = failure(&|f| f.hardware[0].age_us = Some(u64::MAX));
    assert_eq!(far, Malformed::OutOfRange("hardware_fact.age_us"));
    let mut later = v1::WorkerFailure::from(sent());
    later.oom = 77;
    assert_eq!(WorkerFailure::try_from(later).unwrap().oom, None);
    let long = {
        let mut message = v1::Registration::from(registration(NodeState::Running));
        message.node.as_mut().unwrap().failure_domain = "x".repeat(257);
        Registration::try_from(message).unwrap_err()
    };
    assert_eq!(long, Malformed::TooLong { field: "node.failure_domain", len: 257, limit: 256 });
}

/// Texts of a state are cut, between characters. Malformed JSON is refused.
#[test]
fn long_texts_of_states_are_cut() {
    let limit = limits::MAX_TEXT_LEN;
    let read = received(json(|json| {
        json["job_uid"] = "é\u{202e}".repeat(limit).into();
        json["stall"]["facts"] = json!(["\n".repeat(limit + 1), format!("x{}", "é".repeat(limit))]);
    }))
    .unwrap();
    assert_eq!(read.job_uid.as_str(), "é".repeat(limit / 2));
    let facts = read.stall.unwrap().facts;
    assert_eq!(facts, [" ".repeat(limit), format!("x{}", "é".repeat(limit / 2 - 1))]);
    let sound = json(|_| {}).to_string();
    for wrong in [&sound[..sound.len() - 1], "\"", r#"{"run_id": "\ud800"}"#, r#"{"run_id": "a\"}"#]
    {
        assert!(state_from_json(wrong).is_err(), "{wrong}");
    }
}

/// The largest admission fits into the largest message of a coordinator that an agent reads, 4 MiB.
#[test]
fn largest_admission_fits() {
    let nodes = 16_384;
    let address = format!("{}:41000", "x".repeat((768 << 10) / nodes / 2 - 6));
    let part = PartSources {
        group_rank: GroupRank(u32::MAX),
        first_global_rank: GlobalRank(u32::MAX - 65_536),
        local_ranks: 65_536.try_into().unwrap(),
        sources: vec![address; 2],
    };
    let plan = MemoryPlan { all_sources: vec![part; nodes], ..memory_plan() };
    let admission = Admission {
        group_world_size: 65_536,
        world_size: u32::MAX,
        master_address: "n0".to_owned(),
        master_port: 1,
        store_clients: vec!["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(); 65_536],
        memory: Some(Box::new(plan)),
        ..Admission::default()
    };
    let message = v1::Admission::from(admission.clone());
    assert!(message.encoded_len() < 4 << 20, "{}", message.encoded_len());
    assert_eq!(Admission::try_from(message), Ok(admission));
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

/// Control characters are refused in every name, left out of texts and states, and never sent.
#[test]
fn terminals_are_left_alone() {
    for bad in ["\u{1b}[2J", "\r", "\u{9b}", "\u{7}", "\0", "\u{202e}", "\u{2066}"] {
        let words = received(json(|json| {
            for name in ["run_id", "job_uid", "leader"] {
                json[name] = format!("a{bad}b").into();
            }
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

/// Texts of a node are cut to the length that the other side accepts.
#[test]
fn long_words_are_cut() {
    let long = || "é\n\u{202e}".repeat(300);
    let store = StoreUnreached { round: refused_clients().round, address: long(), why: long() };
    let read = StoreUnreached::try_from(v1::StoreUnreached::from(store)).unwrap();
    assert_eq!([read.address.len(), read.why.len()], [256; 2]);
    assert!(read.why.chars().all(|c| c == 'é'), "{}", read.why);
}
