//! Random sequences of operations, compared with a model of the store.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Set(u8),
    Add(u8),
    Append(u8),
    CompareSet(u8, bool),
    Delete(u8),
    Push(u8),
    Pop(u8),
    Wait(u64, Vec<u8>),
    Barrier(u64, u8, i64),
    Cancel(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let (key, client) = (|| 0..5u8, || 0..4u64);
    prop_oneof![
        key().prop_map(Op::Set),
        key().prop_map(Op::Add),
        key().prop_map(Op::Append),
        (key(), any::<bool>()).prop_map(|(key, create)| Op::CompareSet(key, create)),
        key().prop_map(Op::Delete),
        key().prop_map(Op::Push),
        key().prop_map(Op::Pop),
        (client(), vec(key(), 0..4)).prop_map(|(client, keys)| Op::Wait(client, keys)),
        (client(), key(), -1..4i64).prop_map(|(client, key, n)| Op::Barrier(client, key, n)),
        client().prop_map(Op::Cancel),
    ]
}

/// The same store in its simplest form: each wait is in one list, which is searched each time.
#[derive(Debug, Default)]
struct Model {
    entries: BTreeMap<u8, Vec<u8>>,
    queues: BTreeMap<u8, Vec<u8>>,
    /// In order of arrival.
    waits: Vec<(u64, Awaited)>,
    woken: Vec<u64>,
}

#[derive(Debug, PartialEq)]
enum Awaited {
    Names(BTreeSet<u8>),
    Barrier(u8),
}

impl Model {
    fn stored(&mut self, key: u8) {
        for (_, awaited) in &mut self.waits {
            if let Awaited::Names(names) = awaited {
                names.remove(&key);
            }
        }
        self.release(|awaited| *awaited == Awaited::Names(BTreeSet::new()));
    }

    fn pushed(&mut self, key: u8) {
        for (_, awaited) in &mut self.waits {
            if let Awaited::Names(names) = awaited
                && names.remove(&key)
                && names.is_empty()
            {
                break;
            }
        }
        self.release(|awaited| *awaited == Awaited::Names(BTreeSet::new()));
    }

    fn release(&mut self, over: impl Fn(&Awaited) -> bool) {
        let released = self.waits.extract_if(.., |(_, awaited)| over(awaited));
        self.woken.extend(released.map(|(client, _)| client));
    }

    fn count(&mut self, key: u8) -> Option<i64> {
        let current = self.entries.get(&key).map_or(Some(0), |value| leading_integer(value))?;
        let sum = current.wrapping_add(1);
        self.entries.insert(key, sum.to_string().into());
        Some(sum)
    }

    fn forget(&mut self, client: u64) {
        self.waits.retain(|(other, _)| *other != client);
    }

    fn wait(&mut self, client: u64, keys: &[u8]) -> Wait {
        self.forget(client);
        let present = |key: &u8| self.entries.contains_key(key) || self.queues.contains_key(key);
        let missing: BTreeSet<u8> = keys.iter().copied().filter(|key| !present(key)).collect();
        if missing.is_empty() {
            return Wait::Ready;
        }
        self.waits.push((client, Awaited::Names(missing)));
        Wait::Parked
    }

    fn barrier(&mut self, client: u64, key: u8, world_size: i64) -> Option<Wait> {
        self.forget(client);
        if self.count(key)? < world_size {
            self.waits.push((client, Awaited::Barrier(key)));
            return Some(Wait::Parked);
        }
        self.stored(key);
        self.release(|awaited| *awaited == Awaited::Barrier(key));
        Some(Wait::Ready)
    }

    fn pop(&mut self, key: u8) -> Option<u8> {
        let values = self.queues.get_mut(&key)?;
        let value = values.remove(0);
        if values.is_empty() {
            self.queues.remove(&key);
        }
        Some(value)
    }

    fn set(&mut self, key: u8, value: &[u8]) {
        self.entries.insert(key, value.to_vec());
        self.stored(key);
    }
}

/// Applies `op` to both and compares their answers.
fn apply(engine: &mut Engine, model: &mut Model, n: u8, op: &Op) -> Result<(), TestCaseError> {
    match *op {
        Op::Set(key) => {
            engine.set(&[key], &[b'0' + n % 10]).unwrap();
            model.set(key, &[b'0' + n % 10]);
        }
        Op::Add(key) => {
            let sum = model.count(key);
            prop_assert_eq!(engine.add(&[key], 1).ok(), sum);
            if sum.is_some() {
                model.stored(key);
            }
        }
        Op::Append(key) => {
            engine.append(&[key], b"x").unwrap();
            model.entries.entry(key).or_default().push(b'x');
            model.stored(key);
        }
        Op::CompareSet(key, create) => {
            let expected = if create { &b""[..] } else { b"1" };
            let matches = model.entries.get(&key).map_or(create, |value| value == expected);
            let found = engine.compare_set(&[key], expected, b"9").unwrap();
            prop_assert_eq!(matches!(found, CompareSet::Stored(_)), matches);
            if matches {
                model.set(key, b"9");
            }
        }
        Op::Delete(key) => {
            prop_assert_eq!(engine.delete_key(&[key]), model.entries.remove(&key).is_some());
        }
        Op::Push(key) => {
            engine.queue_push(&[key], &[n]).unwrap();
            model.queues.entry(key).or_default().push(n);
            model.pushed(key);
        }
        Op::Pop(key) => {
            let popped = engine.queue_pop(&[key]).map(|(_, value)| value[0]);
            prop_assert_eq!(popped, model.pop(key));
        }
        Op::Wait(client, ref keys) => {
            let names: Vec<&[u8]> = keys.iter().map(std::slice::from_ref).collect();
            let wait = engine.wait(ClientId(client), &names).unwrap();
            prop_assert_eq!(wait, model.wait(client, keys));
        }
        Op::Barrier(client, key, world_size) => {
            let wait = engine.barrier(ClientId(client), &[key], world_size);
            prop_assert_eq!(wait.ok(), model.barrier(client, key, world_size));
        }
        Op::Cancel(client) => {
            engine.cancel_wait(ClientId(client));
            model.forget(client);
        }
    }
    Ok(())
}

proptest! {
    /// The engine answers and releases as the model does, for any sequence of operations.
    #[test]
    fn agrees_with_the_model(ops in vec(op(), 0..60)) {
        let (mut engine, mut model) = (Engine::default(), Model::default());
        for (n, op) in (0..).zip(&ops) {
            apply(&mut engine, &mut model, n, op)?;
            let mut woken: Vec<u64> = engine.woken().iter().map(|client| client.0).collect();
            let mut expected = mem::take(&mut model.woken);
            // The order between clients at a barrier and clients that wait for its key is not
            // defined.
            woken.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(woken, expected, "after {:?}", op);
            prop_assert_eq!(engine.num_keys(), model.entries.len());
            for (key, value) in &model.entries {
                prop_assert_eq!(&engine.get(&[*key]).unwrap()[..], &value[..]);
            }
            for key in 0..5 {
                let len = model.queues.get(&key).map_or(0, Vec::len);
                prop_assert_eq!(engine.queue_len(&[key]), len);
            }
        }
    }
}
