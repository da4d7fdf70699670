mod model;

use std::collections::BTreeSet;

use super::*;
use crate::limits::SHARED_VALUE_LEN_MIN;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);

impl Engine {
    pub(crate) fn lingering_len(&self) -> usize {
        self.memory.lingering_len()
    }

    fn assert_invariant(&self) {
        self.waiters.assert_invariant();
        assert!(self.queues.values().all(|values| !values.is_empty()));
        assert_eq!(self.keys_len, self.entries.keys().map(|key| key.len()).sum::<usize>());
        let entries: usize =
            self.entries.iter().map(|(key, value)| entry_cost(key) + value.room).sum();
        let queues: usize = self.queues.keys().map(|queue| entry_cost(queue)).sum();
        let queued: usize =
            self.queues.values().flatten().map(|value| value.len() + ENTRY_OVERHEAD).sum();
        self.memory.assert_used(entries + queues + queued);
    }

    fn woken(&mut self) -> Vec<ClientId> {
        self.assert_invariant();
        std::iter::from_fn(|| self.poll_woken()).collect()
    }

    fn park(&mut self, client: ClientId, names: &[&str]) {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        assert_eq!(self.wait(client, &names), Ok(Wait::Parked));
    }
}

/// A wait ends once each name has been stored, even if one was deleted meanwhile.
#[test]
fn wait_counts_down() {
    let mut engine = Engine::default();
    engine.park(A, &["x", "y", "x"]);
    engine.set(b"x", b"").unwrap();
    engine.delete_key(b"x");
    assert_eq!(engine.woken(), []);
    engine.set(b"y", b"").unwrap();
    assert_eq!(engine.woken(), [A]);
}

/// All clients that wait for a key are released by it, in the order of their arrival.
#[test]
fn released_in_order_of_arrival() {
    let mut engine = Engine::default();
    for client in [C, A, B] {
        engine.park(client, &["x"]);
    }
    engine.cancel_wait(A);
    engine.set(b"x", b"").unwrap();
    assert_eq!(engine.woken(), [C, B]);
}

/// A second wait replaces the first, also if it ends at once.
#[test]
fn newest_wait_counts() {
    let mut engine = Engine::default();
    engine.set(b"z", b"").unwrap();
    for (name, wait) in [("y", Wait::Parked), ("z", Wait::Ready)] {
        engine.park(A, &["x"]);
        assert_eq!(engine.wait(A, &[name.as_bytes()]), Ok(wait));
        engine.set(b"x", b"").unwrap();
        assert_eq!(engine.woken(), []);
        engine.delete_key(b"x");
    }
}

/// `COMPARE_SET` releases exactly when it stores.
#[test]
fn compare_set_releases_when_it_stores() {
    let mut engine = Engine::default();
    engine.park(A, &["x"]);
    assert_eq!(engine.compare_set(b"x", b"old", b"new"), Ok(CompareSet::Missing));
    assert_eq!(engine.woken(), []);
    let kept = Bytes::from_static(b"new");
    assert_eq!(engine.compare_set(b"x", b"", b"new"), Ok(CompareSet::Stored(&kept)));
    assert_eq!(engine.woken(), [A]);
    assert_eq!(engine.compare_set(b"x", b"", b"newer"), Ok(CompareSet::Differs(&kept)));
}

/// A value that is not a number is kept, and a sum wraps.
#[test]
fn add_wraps_and_refuses() {
    let mut engine = Engine::default();
    assert_eq!(engine.add(b"x", i64::MAX), Ok(i64::MAX));
    assert_eq!(engine.add(b"x", 1), Ok(i64::MIN));
    engine.set(b"y", b"hello").unwrap();
    assert_eq!(engine.add(b"y", 1), Err(AddError::NotANumber));
    assert_eq!(engine.get(b"y").unwrap(), "hello");
}

/// A value in a queue releases one waiter; a client that waits for something else too does not use
/// it up.
#[test]
fn push_releases_one() {
    let mut engine = Engine::default();
    engine.park(A, &["q", "k"]);
    engine.park(B, &["q"]);
    engine.park(C, &["q"]);
    engine.queue_push(b"q", b"1").unwrap();
    assert_eq!(engine.woken(), [B]);
    engine.queue_push(b"q", b"2").unwrap();
    assert_eq!(engine.woken(), [C]);
    engine.set(b"k", b"").unwrap();
    assert_eq!(engine.woken(), [A]);
    assert_eq!(engine.queue_pop(b"q"), Some((2, Bytes::from_static(b"1"))));
    assert_eq!(engine.queue_pop(b"q"), Some((1, Bytes::from_static(b"2"))));
    assert_eq!(engine.queue_pop(b"q"), None);
}

/// A client that was released by a queue and waits again is not released by the queue's next value.
#[test]
fn released_leaves_the_line() {
    let mut engine = Engine::default();
    engine.park(A, &["q"]);
    engine.queue_push(b"q", b"1").unwrap();
    assert_eq!(engine.woken(), [A]);
    engine.park(A, &["never"]);
    engine.queue_push(b"q", b"2").unwrap();
    assert_eq!(engine.woken(), []);
}

/// A completed barrier releases the clients that arrived and the clients that wait for its key;
/// neither a `SET` nor an `ADD` of the key releases the clients at the barrier.
#[test]
fn barrier_releases_on_completion_only() {
    let mut engine = Engine::default();
    engine.park(C, &["b"]);
    assert_eq!(engine.barrier(A, b"b", 3), Ok(Wait::Parked));
    assert_eq!(engine.woken(), []);
    assert_eq!(engine.add(b"b", 0), Ok(1));
    assert_eq!(engine.woken(), [C]);
    engine.set(b"b", b"1").unwrap();
    assert_eq!(engine.barrier(B, b"b", 3), Ok(Wait::Parked));
    assert_eq!(engine.woken(), []);
    assert_eq!(engine.barrier(C, b"b", 3), Ok(Wait::Ready));
    assert_eq!(engine.woken(), [A, B]);
    assert_eq!(engine.barrier(A, b"b", 3), Ok(Wait::Ready));
}

/// Appending in many small steps does not copy the value each time: it moves only when it needs
/// more room, which then doubles.
#[test]
fn append_grows_in_place() {
    let mut engine = Engine::default();
    let mut moves = BTreeSet::new();
    for _ in 0..10_000 {
        engine.append(b"x", b"0123456789").unwrap();
        moves.insert(engine.get(b"x").unwrap().as_ptr());
    }
    assert!(moves.len() < 40, "{} moves", moves.len());
    assert_eq!(engine.get(b"x").unwrap().len(), 100_000);
    engine.assert_invariant();
}

/// The spare capacity of an appended value counts.
#[test]
fn spare_room_counts() {
    let mut engine = Engine::default();
    for _ in 0..9 {
        engine.append(b"x", &[0; 1000]).unwrap();
    }
    let value = mem::take(&mut engine.entries.get_mut(b"x".as_slice()).unwrap().bytes);
    let occupied = value.try_into_mut().unwrap().capacity();
    assert!(occupied > 9000);
    engine.memory.assert_used(entry_cost(b"x") + occupied);
}

/// Awaited names count with their overhead in sets and lines.
#[test]
fn awaited_names_count() {
    let mut engine = Engine::with_memory_max(5 * 480);
    let names = [&b"a"[..], b"b", b"c", b"d", b"e"];
    assert!(engine.wait(A, &names).is_err());
    assert_eq!(engine.wait(A, &names[..4]), Ok(Wait::Parked));
}

/// An appended value has a limit of its own.
#[test]
fn append_is_limited() {
    let mut engine = Engine::default();
    let half = vec![0; APPENDED_LEN_MAX / 2];
    engine.append(b"x", &half).unwrap();
    engine.append(b"x", &half).unwrap();
    let error = AppendError::TooLong(APPENDED_LEN_MAX + 1);
    assert_eq!(engine.append(b"x", b"1"), Err(error));
    assert_eq!(engine.get(b"x").unwrap().len(), APPENDED_LEN_MAX);
}

/// A full store refuses what would grow it, keeps its content, and accepts more once there is room.
#[test]
fn memory_is_limited() {
    let mut engine = Engine::with_memory_max(1000);
    engine.set(b"x", &[0; 700]).unwrap();
    assert!(engine.set(b"y", &[0; 200]).is_err());
    assert!(engine.queue_push(b"q", &[0; 200]).is_err());
    assert!(engine.append(b"x", &[0; 400]).is_err());
    assert!(engine.wait(A, &[&[b'n'; 400]]).is_err());
    assert_eq!((engine.num_keys(), engine.get(b"x").unwrap().len()), (1, 700));
    engine.assert_invariant();
    assert!(engine.delete_key(b"x"));
    engine.set(b"y", &[0; 200]).unwrap();
    engine.assert_invariant();
}

/// A replaced value counts as long as a reader holds it.
#[test]
fn lingering_values_count() {
    const LEN: usize = SHARED_VALUE_LEN_MIN;
    let mut engine = Engine::with_memory_max(2 * LEN + 1000);
    engine.set(b"x", &[1; LEN]).unwrap();
    let reader = engine.get(b"x").unwrap().clone();
    engine.set(b"x", &[2; LEN]).unwrap();
    engine.assert_invariant();
    assert!(engine.set(b"y", &[3; LEN]).is_err());
    drop(reader);
    engine.set(b"y", &[3; LEN]).unwrap();
    engine.assert_invariant();
}

/// A value that replaces a value which is still being read needs room in addition to it.
#[test]
fn replacing_what_is_read_needs_room() {
    const LEN: usize = SHARED_VALUE_LEN_MIN;
    let mut engine = Engine::with_memory_max(2 * LEN);
    engine.set(b"x", &[1; LEN]).unwrap();
    let reader = engine.get(b"x").unwrap().clone();
    assert!(engine.set(b"x", &[2; LEN]).is_err());
    drop(reader);
    engine.set(b"x", &[2; LEN]).unwrap();
    assert_eq!(engine.memory_used(), entry_cost(b"x") + LEN);
}

/// A client that arrives at a barrier needs room for the count and for the wait; a client that
/// completes it does not wait.
#[test]
fn arriving_needs_room() {
    let needed = entry_cost(b"b") + 1 + waiters::cost(b"b");
    let mut engine = Engine::with_memory_max(needed - 1);
    assert!(engine.barrier(A, b"b", 2).is_err());
    assert_eq!(engine.memory_used(), 0);
    assert_eq!(engine.barrier(A, b"b", 1), Ok(Wait::Ready));
    let mut engine = Engine::with_memory_max(needed);
    assert_eq!(engine.barrier(A, b"b", 2), Ok(Wait::Parked));
    assert_eq!(engine.memory_used(), needed);
}

/// Room for an append is checked even if the append is short.
#[test]
fn short_appends_need_room() {
    let mut engine = Engine::with_memory_max(entry_cost(b"x") + 8);
    engine.set(b"x", b"1").unwrap();
    assert!(engine.append(b"x", b"2").is_err());
    let mut engine = Engine::with_memory_max(entry_cost(b"x") + 1 + 8);
    engine.set(b"x", b"1").unwrap();
    engine.append(b"x", b"2").unwrap();
    assert!(engine.memory_used() <= entry_cost(b"x") + 9);
}

/// A replaced value is freed as soon as its reader releases it; a popped one belongs to its reader
/// alone.
#[test]
fn released_values_go() {
    const LEN: usize = SHARED_VALUE_LEN_MIN;
    let mut engine = Engine::default();
    let mut readers = Vec::new();
    for n in 0..3 {
        engine.set(b"x", &[n; LEN]).unwrap();
        readers.push(engine.get(b"x").unwrap().clone());
    }
    engine.queue_push(b"q", &[0; LEN]).unwrap();
    assert_eq!(engine.lingering_len(), 2);
    let popped = engine.queue_pop(b"q").unwrap().1;
    assert!(popped.is_unique());
    for lingering in [1, 0] {
        readers.remove(0);
        engine.released();
        assert_eq!(engine.lingering_len(), lingering);
        engine.assert_invariant();
    }
    engine.set(b"x", b"").unwrap();
    drop(readers);
    engine.released_all();
    assert_eq!(engine.lingering_len(), 0);
    engine.assert_invariant();
}
