//! Lists of the places of workers.

use super::fixture::*;
use crate::{
    ids::GlobalRank,
    message::{Activity, WorkerLook},
    snapshot::{JobLook, LOOK_PLACES_MAX, LOOK_RANGES_MAX},
    stall::places,
};

fn list(look: &JobLook) -> Vec<(&str, Vec<(u32, u32)>)> {
    look.places.iter().map(|place| (place.text.as_str(), place.ranks.clone())).collect()
}

/// Workers in the same place are listed together. The place of the fewest comes first, with a file of its first worker.
#[test]
fn unusual_places_come_first() {
    let waits = |rank| worker(rank, Activity::Collective, "all_reduce at t.py:7");
    let mut looks: Vec<_> = (0..8).filter(|rank| *rank != 2).map(waits).collect();
    looks[5].state = Some('T');
    let mut slow = worker(2, Activity::Other, "load_batch at data.py:88");
    (slow.state, slow.waits_in) = (Some('D'), Some("rpc_wait_bit_killable (NFS)".to_owned()));
    looks.push(slow);
    let look = places(&[digest(Vec::new(), looks)], &own(&[("n0", 2), ("n14", 8)]));
    let slow = "load_batch (data.py:88), state D, in the kernel in rpc_wait_bit_killable (NFS)";
    assert_eq!(
        list(&look),
        [
            (slow, vec![(2, 2)]),
            ("all_reduce (t.py:7), stopped by a signal", vec![(6, 6)]),
            ("all_reduce (t.py:7)", vec![(0, 1), (3, 5), (7, 7)]),
        ]
    );
    let files: Vec<_> = look.places.iter().map(|place| place.stack.as_deref().unwrap()).collect();
    let file = |host, place| format!("{host}:/logs/run7_x/attempt_2/{place}/stack.txt");
    assert_eq!(files, [file("n14", 0), file("n14", 4), file("n0", 0)]);
    assert_eq!((look.number, look.unknown, look.has_stacks, look.has_lines), (4, 2, true, true));
}

/// Without lines of Python, the place is what is known.
#[test]
fn places_without_lines() {
    let activities = [Activity::Collective, Activity::Wait, Activity::Other];
    let mut looks: Vec<_> = (0..).zip(activities).map(|(rank, it)| worker(rank, it, "")).collect();
    let rank = GlobalRank(3);
    let place = Some("futex_do_wait".to_owned());
    looks.push(WorkerLook { rank, waits_in: place, ..WorkerLook::default() });
    looks.push(WorkerLook { rank: GlobalRank(4), state: Some('R'), ..WorkerLook::default() });
    let look = places(&[digest(Vec::new(), looks)], &own(&[("n0", 5)]));
    let texts: Vec<_> = list(&look).into_iter().map(|(text, _)| text).collect();
    let known = ["in a collective", "waits in torch", "in no collective"];
    assert_eq!(texts[..3], known);
    assert_eq!(texts[3..], ["in the kernel in futex_do_wait", "in state R"]);
    assert_eq!((look.has_stacks, look.has_lines), (true, false));

    let asleep = |rank, place: Option<&str>| WorkerLook {
        rank: GlobalRank(rank),
        state: Some('D'),
        waits_in: place.map(str::to_owned),
        ..WorkerLook::default()
    };
    let looks = vec![asleep(0, None), asleep(1, Some("rpc_wait")), asleep(2, Some("rpc_wait"))];
    let look = places(&[digest(Vec::new(), looks)], &own(&[("n0", 3)]));
    let texts: Vec<_> = list(&look).into_iter().map(|(text, _)| text).collect();
    assert_eq!(texts, ["in state D", "in the kernel in rpc_wait, state D"]);
}

/// The list is bounded for any job, and says how much is left out.
#[test]
fn list_of_places_is_bounded() {
    let at = |rank: u32| match rank % 2 {
        0 => worker(rank, Activity::Collective, "all_reduce at t.py:7"),
        _ => worker(rank, Activity::Other, &format!("f at t.py:{}", rank % 100)),
    };
    let looks = (0..20_000).map(at).collect();
    let look = places(&[digest(Vec::new(), looks)], &own(&[("n0", 20_000)]));
    assert_eq!(look.places.len(), LOOK_PLACES_MAX);
    assert_eq!(look.places[0].ranks.len(), LOOK_RANGES_MAX);
    let listed: u32 = look.places.iter().map(|place| place.count).sum();
    assert_eq!((listed + look.further, look.unknown), (20_000, 0));
}
