//! Tests the sentence of each rule, word by word.

use super::fixture::*;
use crate::{
    ids::GlobalRank,
    message::{Activity, Digest, Launched, WorkerLook},
    stall::{OwnWait, explain_stall},
};

/// A rank that has not launched what all others have is named, with what it does and the facts of its node.
#[test]
fn missing_rank_is_named() {
    let own = hosts(64, 8);
    let mut names = own.clone();
    names.nodes[14].host = "n14".to_owned();
    let lists = |node: u32| {
        let (late, others): (Vec<_>, Vec<_>) =
            (8 * node..8 * node + 8).partition(|rank| *rank == 118);
        vec![launched("all_reduce", 6_650, &others), finished("all_reduce", 6_649, &late)]
    };
    let of = |node, workers| digest(vec![records("c1", 512, lists(node))], workers);
    let mut late = worker(118, Activity::Other, "load_batch at data.py:88");
    late.state = Some('D');
    late.waits_in = Some("rpc_wait_bit_killable (NFS)".to_owned());
    let mut of_node = of(14, vec![late]);
    of_node.facts = vec![
        "GPU 6 of n14: nothing unusual; port mlx5_1: link_downed grew by 1 in this round"
            .to_owned(),
    ];
    let others = (0..64).filter(|node| *node != 14).map(|node| of(node, Vec::new()));
    let explanation = explain_stall(&twice(others.chain([of_node]).collect()), &names);
    assert_eq!(
        explanation.text,
        "rank 118 on n14 has not launched all_reduce 6,650 of the group of 512 ranks, which 511 ranks have launched \
         (records of torch; unchanged after 10 s)"
    );
    assert_eq!(
        explanation.facts,
        [
            "it is in load_batch at data.py:88, state D, in rpc_wait_bit_killable (NFS)",
            "GPU 6 of n14: nothing unusual; port mlx5_1: link_downed grew by 1 in this round",
            "its whole stack: n14:/logs/run7_x/attempt_2/6/stack.txt",
        ]
    );
    assert_eq!(explanation.rank, Some(GlobalRank(118)));
}

/// While ragent itself makes the workers wait, no rank is blamed.
#[test]
fn own_waits_come_first() {
    let mut own = own(&[("n0", 2)]);
    let lists = vec![launched("all_reduce", 2, &[0]), finished("all_reduce", 1, &[1])];
    let digests = vec![digest(vec![records("g", 2, lists)], Vec::new())];
    let wait =
        |to: Option<&str>| Some(OwnWait::Memory { rank: GlobalRank(5), to: to.map(str::to_owned) });
    own.wait = wait(Some("n17"));
    let text = "rank 5 waits for memory: the copy to n17 is slow";
    assert_eq!(explain(digests.clone(), &own), (text.to_owned(), None));
    own.wait = wait(None);
    let text = "rank 5 waits for memory: the copy is slow";
    assert_eq!(explain(digests.clone(), &own), (text.to_owned(), None));
    own.wait = Some(OwnWait::Notice);
    let text = "the ranks may save, because of a notice";
    assert_eq!(explain(digests, &own), (text.to_owned(), None));
}

/// A rank without a connection to the store is named, unless it has launched a collective, or no rank has one.
#[test]
fn rank_without_store_is_named() {
    let mut own = hosts(4, 8);
    let looks = |without: &[u32]| {
        let look = |rank| WorkerLook {
            rank: GlobalRank(rank),
            has_reached_store: Some(!without.contains(&rank)),
            ..WorkerLook::default()
        };
        vec![digest(Vec::new(), (0..32).map(look).collect())]
    };
    let text = "rank 17 on n2 has not reached the store at 10.0.0.1:41000; 31 of 32 have (unchanged after 10 s)";
    assert_eq!(explain(looks(&[17]), &own), (text.to_owned(), Some(17)));
    let explanation = explain_stall(&looks(&[17]), &own);
    let text = "rank 17 on n2 has not reached the store at 10.0.0.1:41000; 31 of 32 have";
    assert_eq!((explanation.text.as_str(), explanation.rank), (text, None), "one part only");
    own.refused = Some([10, 0, 0, 9].into());
    let text = "ranks 16, 17 on n2 have not reached the store at 10.0.0.1:41000; 30 of 32 have; the store has refused \
                connections from 10.0.0.9 (unchanged after 10 s)";
    assert_eq!(explain(looks(&[16, 17]), &own), (text.to_owned(), Some(16)));
    let all: Vec<_> = (0..32).collect();
    let text = "nothing is known of the workers, except that they run";
    assert_eq!(explain(looks(&all), &own), (text.to_owned(), None), "the job may not use it");
    let mut digests = looks(&[17]);
    let lists = vec![launched("barrier", 2, &[16]), finished("barrier", 1, &[17])];
    digests[0].groups.push(records("g", 2, lists));
    let text = "rank 17 on n2 has not launched barrier 2 of the group of 2 ranks, which 1 rank has launched (records of \
                torch; unchanged after 10 s)";
    assert_eq!(explain(digests, &own), (text.to_owned(), Some(17)));
}

/// Ranks with another collective at the same number are named. Without a majority, both sides are.
#[test]
fn other_collective_is_named() {
    let own = hosts(4, 1);
    let lists = |operation, ranks: &[u32]| {
        let others: Vec<_> = (0..4).filter(|rank| !ranks.contains(rank)).collect();
        let lists =
            vec![launched("all_reduce [4] float", 7, &others), launched(operation, 7, ranks)];
        vec![digest(vec![records("g", 4, lists)], Vec::new())]
    };
    let text = "rank 2 on n2 has launched broadcast [4] float as number 7 of the group of 4 ranks, and 3 ranks have \
                launched all_reduce [4] float (records of torch; unchanged after 10 s)";
    assert_eq!(explain(lists("broadcast [4] float", &[2]), &own), (text.to_owned(), Some(2)));
    let text = "rank 3 on n3 has launched all_reduce [8] float as number 7 of the group of 4 ranks, and 3 ranks have \
                launched all_reduce [4] float (records of torch; unchanged after 10 s)";
    assert_eq!(explain(lists("all_reduce [8] float", &[3]), &own), (text.to_owned(), Some(3)));
    let text = "as number 7 of the group of 4 ranks, ranks 0, 1 have launched all_reduce [4] float; ranks 2, 3 have \
                launched barrier (records of torch; unchanged after 10 s)";
    assert_eq!(explain(lists("barrier", &[2, 3]), &own), (text.to_owned(), None));
    // Parts of different sizes are usual here.
    let uneven = vec![launched("all_to_all [4]", 7, &[0]), launched("all_to_all [6]", 7, &[1])];
    let digests = vec![digest(vec![records("g", 2, uneven)], Vec::new())];
    assert!(explain(digests, &own).0.contains("all ranks have launched it"));
}

/// A missing rank that waits in another group is not to blame: the search goes on there.
#[test]
fn waits_lead_to_other_groups() {
    let own = own(&[("n0", 4)]);
    let groups = vec![
        records("a", 2, vec![launched("all_reduce", 5, &[0]), finished("all_reduce", 4, &[1])]),
        records("b", 2, vec![launched("all_gather", 3, &[1]), finished("all_gather", 2, &[3])]),
    ];
    let text = "rank 3 has not launched all_gather 3 of the group of 2 ranks, which 1 rank has launched (records of \
                torch; unchanged after 10 s)";
    assert_eq!(explain(vec![digest(groups.clone(), Vec::new())], &own), (text.to_owned(), Some(3)));
    // Its stack shows that it is in a collective that no record contains.
    let waits = vec![worker(3, Activity::Collective, "all_reduce at t.py:7")];
    let text = "rank 3 has not launched all_gather 3 of the group of 2 ranks, which 1 rank has launched; it waits in \
                another one, which is not known (records of torch; unchanged after 10 s)";
    assert_eq!(explain(vec![digest(groups, waits)], &own), (text.to_owned(), None));
}

/// More than four ranks are a number. The larger part of a group is not blamed.
#[test]
fn many_missing_ranks_are_counted() {
    let own = hosts(2, 8);
    let missing = |ranks: &[u32]| {
        let others: Vec<_> = (0..16).filter(|rank| !ranks.contains(rank)).collect();
        let lists = vec![launched("all_reduce", 9, &others), finished("all_reduce", 8, ranks)];
        explain(vec![digest(vec![records("g", 16, lists)], Vec::new())], &own)
    };
    let tail = "of the group of 16 ranks, which";
    let end = "(records of torch; unchanged after 10 s)";
    let text = format!(
        "ranks 1, 2, 3, 9 and 2 others have not launched all_reduce 9 {tail} 10 ranks have launched {end}"
    );
    assert_eq!(missing(&[1, 2, 3, 9, 10, 12]), (text, Some(1)));
    let text = format!(
        "ranks 8, 9 on n1 have not launched all_reduce 9 {tail} 14 ranks have launched {end}"
    );
    assert_eq!(missing(&[8, 9]), (text, Some(8)));
    let (text, blamed) = missing(&(1..16).collect::<Vec<_>>());
    assert!(text.ends_with(&format!("{tail} 1 rank has launched {end}")), "{text}");
    assert_eq!(blamed, None);
}

/// Ranks that wait for each other in two groups are named together, and not blamed.
#[test]
fn cycles_are_named() {
    let own = own(&[("n0", 2), ("n1", 2)]);
    let groups = vec![
        records("a", 2, vec![launched("all_reduce", 5, &[0]), finished("all_reduce", 4, &[2])]),
        records("b", 2, vec![launched("all_gather", 3, &[2]), finished("all_gather", 2, &[0])]),
    ];
    let text = "rank 0 on n0 waits in all_reduce 5 of the group of 2 ranks for rank 2 on n1, which waits in all_gather 3 \
                of the group of 2 ranks for rank 0 on n0: they have called the collectives of these groups in different \
                orders (records of torch; unchanged after 10 s)";
    assert_eq!(explain(vec![digest(groups.clone(), Vec::new())], &own), (text.to_owned(), None));
    // Data between two ranks has a number of another kind.
    let mut with_pairs = groups;
    with_pairs[1].size = 3;
    with_pairs[1].launched.push(launched("recv", 99, &[3]));
    let (text, _) = explain(vec![digest(with_pairs, Vec::new())], &own);
    assert!(text.contains("all_gather 3 of the group of 3 ranks"), "{text}");
}

/// Ranks 0 and 1 wait for each other, and rank 0 also for rank 2, which is in a collective that all have launched. That one is the cause: if
/// it finished, the others might go on.
#[test]
fn cycle_with_a_way_out_is_no_cause() {
    let own = hosts(1, 4);
    let groups = vec![
        records("a", 3, vec![launched("all_reduce", 5, &[0]), finished("all_reduce", 4, &[1, 2])]),
        records("b", 2, vec![launched("all_gather", 3, &[1]), finished("all_gather", 2, &[0])]),
        records("c", 2, vec![launched("barrier", 9, &[2, 3])]),
    ];
    let text = "barrier 9 of the group of 2 ranks has not finished; all ranks have launched it: the network or a GPU is \
                stuck (records of torch; unchanged after 10 s)";
    assert_eq!(explain(vec![digest(groups, Vec::new())], &own), (text.to_owned(), None));
}

/// A long cycle is not named whole.
#[test]
fn long_cycles_are_shortened() {
    let own = own(&[("n0", 6)]);
    let text_of = |ranks: u32| {
        let group = |rank: u32| {
            let next = (rank + 1) % ranks;
            let lists =
                vec![launched("all_reduce", 5, &[rank]), finished("all_reduce", 4, &[next])];
            records(&format!("g{rank}"), 2, lists)
        };
        explain(vec![digest((0..ranks).map(group).collect(), Vec::new())], &own).0
    };
    assert!(!text_of(4).contains("in a chain of"));
    let text = text_of(6);
    assert!(text.contains(", which waits in a chain of 2 more for rank 0"), "{text}");
}

/// If all ranks have launched the same collective, the network or a GPU is stuck. All nodes show their facts.
#[test]
fn equal_ranks_are_not_blamed() {
    let own = own(&[("n0", 1), ("n1", 1)]);
    let node = |rank: u32, fact: &str| {
        let lists = vec![launched("all_reduce", 1_234, &[rank])];
        let looks = vec![worker(rank, Activity::Collective, "all_reduce at t.py:7")];
        let facts = vec![fact.to_owned()];
        Digest { facts, ..digest(vec![records("g", 2, lists)], looks) }
    };
    let digests = vec![node(0, "GPU 0: XID 79"), node(1, "port mlx5_1: link_downed grew by 1")];
    let explanation = explain_stall(&twice(digests), &own);
    assert_eq!(
        explanation.text,
        "all_reduce 1,234 of the group of 2 ranks has not finished; all ranks have launched it: the network or a GPU is \
         stuck (records of torch; unchanged after 10 s)"
    );
    assert_eq!(explanation.facts, ["n0: GPU 0: XID 79", "n1: port mlx5_1: link_downed grew by 1"]);
    assert_eq!(explanation.rank, None);
}

/// Ranks that have launched a collective, and not finished it as the others have, are named and not blamed.
#[test]
fn unfinished_ranks_are_named() {
    let own = own(&[("n0", 4)]);
    let lists = vec![launched("broadcast", 7, &[2]), finished("broadcast", 7, &[0, 1, 3])];
    let text = "rank 2 has launched but not finished broadcast 7 of the group of 4 ranks; 3 ranks have (records of \
                torch; unchanged after 10 s)";
    let digests = vec![digest(vec![records("g", 4, lists)], Vec::new())];
    assert_eq!(explain(digests, &own), (text.to_owned(), None));
}

/// A stopped rank is called stopped, before or after its launch, and without collectives too.
#[test]
fn stopped_ranks_are_named() {
    let own = own(&[("n0", 3)]);
    let lists =
        |ranks: Launched| vec![records("g", 3, vec![launched("all_reduce", 8, &[0, 2]), ranks])];
    let digests = vec![digest(lists(finished("all_reduce", 7, &[1])), vec![stopped(1)])];
    let text = "rank 1 is stopped, and has not launched all_reduce 8 of the group of 3 ranks, which 2 ranks have \
                launched (records of torch; unchanged after 10 s)";
    assert_eq!(explain(digests, &own), (text.to_owned(), Some(1)));
    let digests = vec![digest(lists(launched("all_reduce", 8, &[1])), vec![stopped(1)])];
    let text = "rank 1 is stopped, and has launched but not finished all_reduce 8 of the group of 3 ranks (records of \
                torch; unchanged after 10 s)";
    assert_eq!(explain(digests, &own), (text.to_owned(), Some(1)));
    let waits = |rank| worker(rank, Activity::Collective, "all_reduce at t.py:7");
    let digests = twice(vec![digest(Vec::new(), vec![waits(0), stopped(1), waits(2)])]);
    let explanation = explain_stall(&digests, &own);
    assert_eq!(explanation.text, "ranks 0, 2 wait in all_reduce (t.py:7); rank 1 is stopped");
    assert_eq!((explanation.rank, explanation.stopped), (None, Some(GlobalRank(1))));
    assert_eq!(explain_stall(&digests[..1], &own).stopped, None, "one part only");
    let alone = twice(vec![digest(Vec::new(), vec![stopped(0), stopped(1), stopped(2)])]);
    let explanation = explain_stall(&alone, &own);
    assert_eq!(explanation.text, "ranks 0, 1, 2 are stopped");
    assert_eq!(explanation.stopped, None, "no other rank waits");
    let own_call = WorkerLook { state: Some('T'), ..waits(1) };
    let alone = twice(vec![digest(Vec::new(), vec![own_call])]);
    assert_eq!(explain_stall(&alone, &own).stopped, None, "no other rank waits");
}

/// Ranks without records are named and not blamed.
#[test]
fn unknown_ranks_are_named() {
    let own = hosts(2, 2);
    let known = |size| vec![records("g", size, vec![launched("all_reduce", 5, &[0, 1, 2])])];
    let text = "nothing is known of rank 3 on n1; 3 ranks have launched but not finished all_reduce 5 of the group of 4 \
                ranks (records of torch; unchanged after 10 s)";
    assert_eq!(explain(vec![digest(known(4), Vec::new())], &own), (text.to_owned(), None));
    let text = "rank 3 on n1 is stopped; 3 ranks have launched but not finished all_reduce 5 of the group of 4 ranks \
                (records of torch; unchanged after 10 s)";
    let digests = vec![digest(known(4), vec![stopped(3)])];
    assert_eq!(explain(digests, &own), (text.to_owned(), None));
    let text = "nothing is known of 2 ranks; 3 ranks have launched but not finished all_reduce 5 of the group of 5 ranks \
                (records of torch; unchanged after 10 s)";
    assert_eq!(explain(vec![digest(known(5), Vec::new())], &own), (text.to_owned(), None));
}

/// Data between two ranks has no numbers that others have too. Ranks in no operation are named and not blamed.
#[test]
fn pairs_are_not_compared() {
    let own = own(&[("n0", 3)]);
    let waits = vec![launched("recv", 9, &[1]), launched("recv", 2, &[2])];
    let lists = |first| [waits.clone(), vec![first]].concat();
    let text = "rank 0 is in no collective; rank 1 waits in recv 9 of the group of 3 ranks (records of torch; unchanged \
                after 10 s)";
    let idle = digest(vec![records("p", 3, lists(finished("send", 3, &[0])))], Vec::new());
    assert_eq!(explain(vec![idle], &own), (text.to_owned(), None));
    let text = "ranks 0, 1, 2 wait for each other, such as in recv 9 of the group of 3 ranks (records of torch; \
                unchanged after 10 s)";
    let all = digest(vec![records("p", 3, lists(launched("send", 3, &[0])))], Vec::new());
    assert_eq!(explain(vec![all], &own), (text.to_owned(), None));
}

/// Without collectives, the ranks that are not in the call of most ranks are named, with their own lines.
#[test]
fn stacks_are_compared() {
    let one_node = own(&[("n0", 4)]);
    let waits = |rank| worker(rank, Activity::Collective, "all_reduce at t.py:7");
    let looks =
        vec![waits(0), waits(1), worker(2, Activity::Other, "<module> at t.py:5"), waits(3)];
    let text = "ranks 0, 1, 3 wait in all_reduce (t.py:7); rank 2 is in <module> (t.py:5)";
    assert_eq!(
        explain(vec![digest(Vec::new(), looks.clone())], &one_node),
        (text.to_owned(), None)
    );
    // A collective that all ranks have finished does not count.
    let done = records("g", 4, vec![finished("all_reduce", 7, &[0, 1, 2, 3])]);
    assert_eq!(explain(vec![digest(vec![done], looks)], &one_node), (text.to_owned(), None));
    // Nodes without frames send only activities.
    let waits = |rank| worker(rank, Activity::Collective, "");
    let looks = vec![waits(0), worker(1, Activity::Other, ""), waits(2), waits(3)];
    let text = "ranks 0, 2, 3 wait in a collective; rank 1 on n14 is in no collective, its stack: \
                n14:/logs/run7_x/attempt_2/0/stack.txt";
    let own = own(&[("n0", 1), ("n14", 2), ("n15", 1)]);
    assert_eq!(explain(vec![digest(Vec::new(), looks)], &own), (text.to_owned(), None));
    let busy = |rank| worker(rank, Activity::Other, "load_batch at data.py:88");
    // In torch, and not in the collective of the others.
    let looks = vec![waits(0), waits(1), worker(2, Activity::Wait, ""), waits(3)];
    let text = "ranks 0, 1, 3 wait in a collective; rank 2 on n14 is not in the same one";
    assert_eq!(explain(vec![digest(Vec::new(), looks)], &own), (text.to_owned(), None));
    let looks = (0..4).map(|rank| worker(rank, Activity::Wait, "")).collect();
    let text = "ranks 0, 1, 2, 3 wait in torch";
    assert_eq!(explain(vec![digest(Vec::new(), looks)], &own), (text.to_owned(), None));
    // At most four groups of the others are named.
    let many = hosts(1, 10);
    let at = |rank| worker(rank, Activity::Other, &format!("f at t.py:{rank}"));
    let waits = |rank| worker(rank, Activity::Collective, "all_reduce at t.py:7");
    let looks = (0..10).map(|rank| if rank < 4 { waits(rank) } else { at(rank) }).collect();
    let (text, _) = explain(vec![digest(Vec::new(), looks)], &many);
    assert!(text.ends_with("; rank 7 is in f (t.py:7); and 2 others"), "{text}");
    let text = "ranks 0, 1, 2, 3 are in load_batch (data.py:88)";
    let all = digest(Vec::new(), (0..4).map(busy).collect());
    assert_eq!(explain(vec![all], &own), (text.to_owned(), None));
}

/// Without stacks, the kernel's state is compared.
#[test]
fn kernel_states_are_compared() {
    let own = own(&[("n0", 3)]);
    let look = |rank, state, place: &str| WorkerLook {
        rank: GlobalRank(rank),
        state: Some(state),
        waits_in: Some(place.to_owned()),
        ..WorkerLook::default()
    };
    let looks = vec![
        look(0, 'S', "futex_wait"),
        look(1, 'S', "futex_wait"),
        look(2, 'D', "rpc_wait_bit_killable (NFS)"),
    ];
    let text = "ranks 0, 1 wait in the kernel in futex_wait; rank 2 is in rpc_wait_bit_killable (NFS), state D";
    assert_eq!(explain(vec![digest(Vec::new(), looks)], &own), (text.to_owned(), None));
    let text = "nothing is known of the workers, except that they run";
    assert_eq!(explain(Vec::new(), &own), (text.to_owned(), None));
}

/// If some of the missing ranks are stopped, only these are named.
#[test]
fn stopped_ranks_come_first() {
    let own = own(&[("n0", 4)]);
    let lists = vec![launched("all_reduce", 8, &[0, 1]), finished("all_reduce", 7, &[2, 3])];
    let digests = vec![digest(vec![records("g", 4, lists)], vec![stopped(3)])];
    let text = "rank 3 is stopped, and has not launched all_reduce 8 of the group of 4 ranks, which 2 ranks have \
                launched (records of torch; unchanged after 10 s)";
    assert_eq!(explain(digests, &own), (text.to_owned(), Some(3)));
}

/// A rank may launch a collective and go on without it. If others wait for it, its stack shows that it does not wait.
#[test]
fn running_rank_in_a_cycle_is_named() {
    let own = own(&[("n0", 3)]);
    let groups = vec![
        records("a", 3, vec![launched("all_reduce", 5, &[0]), finished("all_reduce", 4, &[1, 2])]),
        records("b", 3, vec![launched("barrier", 3, &[1, 2]), finished("barrier", 2, &[0])]),
    ];
    let looks = vec![
        worker(0, Activity::Other, "load_batch at data.py:88"),
        worker(1, Activity::Collective, "barrier at t.py:7"),
        worker(2, Activity::Collective, "barrier at t.py:7"),
    ];
    let text = "rank 0 has not launched barrier 3 of the group of 3 ranks, which 2 ranks have launched (records of torch; \
                unchanged after 10 s)";
    let few = looks[..2].to_vec();
    assert_eq!(explain(vec![digest(groups.clone(), looks)], &own), (text.to_owned(), None));
    // As many run as wait in torch, so their stacks do not decide.
    let (text, _) = explain(vec![digest(groups, few)], &own);
    assert!(text.contains("in different orders"), "{text}");
}
