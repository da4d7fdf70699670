//! Reads answers of NCCL, and explains them.

use std::net::Ipv4Addr;

use ragent_rendezvous::{
    ids::RoundId,
    message::{Activity, Digest, LookPart, WorkerLook},
    stall::{Own, RankedNode, explain_stall},
};

use super::*;

const RECORDED: &str = include_str!("../answer.json");

/// Four workers on two nodes, of which this is the first.
fn own() -> OwnWorkers {
    OwnWorkers {
        pids: BTreeMap::from([(4_001, GlobalRank(0)), (4_002, GlobalRank(1))]),
        addresses: vec![Ipv4Addr::new(10, 0, 0, 1).into()],
        world_size: 4,
    }
}

/// Returns the groups of an answer that leaves nothing out.
fn read(json: &str) -> Option<Vec<GroupLook>> {
    let Groups { groups, is_cut } = groups(format!("OK\nOK\n{json}").as_bytes(), &own())?;
    assert!(!is_cut);
    Some(groups)
}

fn listed(launched: &Launched) -> (&str, u64, u32, Vec<u32>) {
    let ranks = launched.ranks.iter().map(|rank| rank.0).collect();
    (&launched.operation, launched.number, launched.count, ranks)
}

/// Returns the explanation of a look in which both parts have these groups.
fn explained(groups: &[GroupLook]) -> (String, Option<u32>) {
    explained_with(groups, Vec::new())
}

fn explained_with(groups: &[GroupLook], workers: Vec<WorkerLook>) -> (String, Option<u32>) {
    let digest = |part| Digest {
        workers: workers.clone(),
        groups: groups.to_vec(),
        ..Digest::new(RoundId::default(), 1, part)
    };
    let node = |first| RankedNode {
        host: format!("n{}", first / 2),
        first: GlobalRank(first),
        workers: 2,
    };
    let own = Own { look: 1, nodes: vec![node(0), node(2)], ..Own::default() };
    let explanation = explain_stall(&[digest(LookPart::First), digest(LookPart::Second)], &own);
    (explanation.text, explanation.rank.map(|rank| rank.0))
}

/// The sum of all counts, the communicator of all ranks, and those with a difference are described. The rank of a process
/// in the first one names it in the others.
#[test]
fn differences_are_described() {
    let groups = read(RECORDED).unwrap();
    let [total, whole, pair] = &groups[..] else { panic!("{groups:?}") };
    let sum = 4 * 6_651 - 1 + 2 * 24 + 24 + 23;
    assert_eq!((total.name.as_str(), total.size), ("", 4));
    assert_eq!(listed(&total.launched[0]), ("collective", sum, 4, vec![]));
    assert!(total.launched[0].is_finished && total.launched.len() == 1);
    assert_eq!(whole.size, 4);
    let lists: Vec<_> = whole.launched.iter().map(listed).collect();
    let behind = ("collective", 6_650, 1, vec![3]);
    assert_eq!(lists, [("all_reduce", 6_651, 3, vec![]), behind]);
    let lists: Vec<_> = pair.launched.iter().map(listed).collect();
    assert_eq!(lists, [("all_gather", 24, 1, vec![1]), ("collective", 23, 1, vec![3])]);
    // Its stack shows that it waits for no data either.
    let activity = Some(Activity::Other);
    let last = WorkerLook { rank: GlobalRank(3), activity, ..WorkerLook::default() };
    let (text, rank) = explained_with(&groups, vec![last]);
    let expected = "rank 3 on n1 has not launched all_reduce 6,651 of the group of 4 ranks, which 3 ranks have launched \
                    (NCCL RAS; unchanged after 10 s)";
    assert_eq!((text.as_str(), rank), (expected, Some(3)));
}

/// If no rank differs, the communicator of all ranks shows that the network or a GPU is stuck.
#[test]
fn equal_ranks_are_described() {
    let equal = RECORDED.replace("6649", "6650").replace("\"AllGather\": 11", "\"AllGather\": 12");
    let groups = read(&equal).unwrap();
    assert_eq!(groups.len(), 2);
    let (text, rank) = explained(&groups);
    assert!(text.contains("all ranks have launched it: the network or a GPU is stuck"), "{text}");
    assert_eq!(rank, None);
}

/// Ranks that have launched as many collectives, but of another kind, disagree.
#[test]
fn other_kinds_are_described() {
    let other = RECORDED.replacen("\"AllReduce\": 6649", "\"AllReduce\": 6648", 1);
    let last = other.find("\"AllReduce\": 6648").unwrap();
    let before = other[..last].rfind("\"Broadcast\": 1").unwrap();
    let other = format!("{}\"Broadcast\": 3{}", &other[..before], &other[before + 14..]);
    let groups = read(&other).unwrap();
    let lists: Vec<_> = groups[1].launched.iter().map(listed).collect();
    assert_eq!(lists, [("broadcast", 6_651, 1, vec![3]), ("all_reduce", 6_651, 3, vec![])]);
    let (text, _) = explained(&groups);
    assert!(text.starts_with("rank 3 on n1 has launched broadcast as number 6,651"), "{text}");
}

/// A process that has not answered is named by its rank.
#[test]
fn missing_ranks_have_not_answered() {
    let missing = r#""missing_ranks": [{"rank": 3, "host": "10.0.0.2", "pid": 4002, "cuda_dev": 1, "nvml_dev": 1,
        "status": {"unresponsive": true, "considered_dead": false}}]"#;
    let text = RECORDED.replacen("\"missing_ranks\": []", missing, 1);
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["communicators"][0]["ranks"].as_array_mut().unwrap().pop();
    let groups = read(&value.to_string()).unwrap();
    assert_eq!(groups[1].unanswered, [GlobalRank(3)]);
}

/// An answer without a worker of this node is dropped: the same process id on another machine, and another process of this
/// one, belong to other jobs.
#[test]
fn answers_of_other_jobs_are_dropped() {
    assert!(read(&RECORDED.replace("10.0.0.1", "10.0.0.3")).is_none());
    let others = RECORDED.replace("4001", "5001").replace("4002", "5002");
    assert!(read(&others).is_none());
    assert!(read(r#"{"communicators": []}"#).is_none());
}

/// Without a communicator of all ranks, those that others wait for are named by host and process id.
#[test]
fn processes_are_named_without_ranks() {
    let mut value: serde_json::Value = serde_json::from_str(RECORDED).unwrap();
    value["communicators"].as_array_mut().unwrap().remove(0);
    for rank in value["communicators"].as_array_mut().unwrap() {
        let ranks = rank["ranks"].as_array_mut().unwrap();
        for rank in ranks.iter_mut().filter(|rank| rank["host"] == "10.0.0.2") {
            rank["host"] = "10.0.0.2\u{1b}".into();
        }
    }
    let groups = read(&value.to_string()).unwrap();
    let [_, pair] = &groups[..] else { panic!("{groups:?}") };
    let processes: Vec<_> = pair.launched.iter().map(|list| list.processes.clone()).collect();
    assert_eq!(processes, [vec![], vec!["process 4002 on 10.0.0.2".to_owned()]]);
    let (text, blamed) = explained(&groups);
    let expected = "1 rank (process 4002 on 10.0.0.2) has not launched all_gather 24";
    assert!(text.starts_with(expected) && blamed.is_none(), "{text}");
}

/// Text of another form is dropped.
#[test]
fn other_forms_are_dropped() {
    for wrong in ["", "{", "[]", "7", "{}", r#"{"communicators": 7}"#] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    assert_eq!(groups(RECORDED.as_bytes(), &own()), None, "without a confirmation");
    assert_eq!(read(&RECORDED.replacen("\"AllGather\": 11", "\"AllGather\": -11", 1)), None);
}

/// Returns true if something is left out of the description of communicators in which the first ranks have launched so many
/// collectives, and `missing` further ranks of the first one have not answered. That one has all ranks.
fn is_cut(communicators: &[&[u32]], missing: u32) -> bool {
    let process =
        |rank: u32| format!(r#""rank": {rank}, "host": "10.0.0.1", "pid": {}"#, 4_001 + rank);
    let communicator = |(number, counts): (usize, &&[u32])| {
        let rank = |(rank, count)| {
            format!(r#"{{{}, "collective_counts": {{"AllReduce": {count}}}}}"#, process(rank))
        };
        let ranks: Vec<String> = (0..).zip(*counts).map(rank).collect();
        let known = u32::try_from(counts.len()).unwrap();
        let size = if number == 0 { known + missing } else { known };
        let missing: Vec<_> = (known..size).map(|rank| format!("{{{}}}", process(rank))).collect();
        format!(
            r#"{{"hash": "{number}", "size": {size}, "ranks": [{}], "missing_ranks": [{}]}}"#,
            ranks.join(","),
            missing.join(",")
        )
    };
    let all: Vec<String> = communicators.iter().enumerate().map(communicator).collect();
    let json = format!("OK\nOK\n{{\"communicators\": [{}]}}", all.join(","));
    let world_size = u32::try_from(communicators[0].len()).unwrap() + missing;
    groups(json.as_bytes(), &OwnWorkers { world_size, ..own() }).unwrap().is_cut
}

/// A description shows that something was left out: launches, ranks, groups, or ranks that have not answered.
#[test]
fn cuts_are_shown() {
    let numbers = |last: u32| (0..=last).collect::<Vec<_>>();
    assert!(!is_cut(&[&numbers(7)], 0));
    assert!(is_cut(&[&numbers(8)], 0));
    // Most ranks need no list. There is room for 256 in all other lists.
    let behind = |ahead: usize, ranks: usize| [vec![2; ahead], vec![1; ranks]].concat();
    assert!(!is_cut(&[&behind(300, 100), &behind(78, 78)], 0));
    assert!(is_cut(&[&behind(300, 100), &behind(79, 78)], 0));
    assert!(!is_cut(&[&[2; 40]], 32));
    assert!(is_cut(&[&[2; 40]], 33));
    let pair: &[u32] = &[2, 1];
    let all = [&[3, 2, 1][..]];
    assert!(!is_cut(&[&all[..], &vec![pair; 30]].concat(), 0));
    assert!(is_cut(&[&all[..], &vec![pair; 31]].concat(), 0));
}

/// Lists are bounded however many ranks and communicators there are, and control characters are removed.
#[test]
fn descriptions_are_bounded() {
    let rank = |rank: u32, count: u32| {
        format!(
            r#"{{"rank": {rank}, "host": "10.0.0.1", "pid": {}, "collective_counts": {{"All\u001bReduce{}": {count}}}}}"#,
            4_001 + rank,
            "x".repeat(200)
        )
    };
    let communicator = |number: u32, counts: u32| {
        let ranks: Vec<String> = (0..200).map(|number| rank(number, number % counts)).collect();
        let hash = "\u{e4}".repeat(100);
        format!(
            r#"{{"hash": "{number}{hash}", "secondary_hash": "\u0007", "size": 200, "ranks": [{}]}}"#,
            ranks.join(",")
        )
    };
    let all: Vec<String> = (2..80).map(|number| communicator(number, number)).collect();
    let json = format!(r#"{{"communicators": [{}]}}"#, all.join(","));
    let own = OwnWorkers { world_size: 200, ..own() };
    let Groups { groups, is_cut } = groups(format!("OK\nOK\n{json}").as_bytes(), &own).unwrap();
    assert!(groups.len() <= DIGEST_GROUPS_MAX && is_cut);
    for group in &groups {
        assert!(group.name.len() <= GROUP_NAME_MAX && group.launched.len() <= LAUNCHES_MAX);
        assert!(group.launched.iter().all(|list| list.ranks.len() <= LISTED_RANKS_MAX));
        assert!(group.launched.iter().all(|list| list.processes.len() <= LISTED_PROCESSES_MAX));
        let mut texts = group.launched.iter().map(|launched| &launched.operation);
        assert!(texts.all(|text| text.len() <= GROUP_NAME_MAX && !text.contains('\u{1b}')));
        assert!(!group.name.contains('\u{7}'));
    }
}
