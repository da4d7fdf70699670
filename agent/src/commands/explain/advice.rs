//! The changes that the time account of a job suggests.

use ragent_rendezvous::snapshot::Snapshot;
use serde::Serialize;

use crate::report::time_text::short_time;

/// A change that would help.
#[derive(Debug, Eq, PartialEq, Serialize)]
pub(super) struct Advice {
    /// The flag, or what to add.
    what: &'static str,
    /// The sentence for people.
    pub(super) text: String,
}

/// The least time that must be lost in a state before advice about it is given, in milliseconds.
const LOST_MIN_MS: u64 = 10_000;

/// Returns the changes that the numbers of a job suggest; none that they do not carry.
pub(super) fn of(snapshot: &Snapshot) -> Vec<Advice> {
    let time = &snapshot.time;
    let lost = time.known_ms().saturating_sub(time.of("productive")).saturating_add(time.redone_ms);
    // A state that takes a quarter of the lost time is worth a change.
    let weighs = |state: &str| {
        let ms = time.of(state);
        (ms >= LOST_MIN_MS && ms.saturating_mul(4) >= lost)
            .then(|| format!("{} of the {} lost was {state}", short_time(ms), short_time(lost)))
    };
    let restarted = snapshot.round.0 > 1;
    let has_standbys = snapshot.nodes.iter().any(|node| node.standbys.is_some());
    let has_spares = snapshot.nodes.iter().any(|node| node.standing.name() == "spare");
    let mut advice = Vec::new();
    if let Some(why) = weighs("starting").filter(|_| restarted && !has_standbys) {
        let text = format!("`--standby MODULES` imports modules before a failure: {why}");
        advice.push(Advice { what: "--standby", text });
    }
    if let Some(why) = weighs("waiting").filter(|_| restarted && !has_spares) {
        let text = format!(
            "more agents than MAX of `--nnodes` wait as spares and replace a lost node at once: {why}"
        );
        advice.push(Advice { what: "spares", text });
    }
    if let Some(why) = weighs("stopping") {
        let text = format!("a shorter `--shutdown-timeout`, or workers that end on SIGTERM: {why}");
        advice.push(Advice { what: "--shutdown-timeout", text });
    }
    if let Some(why) = weighs("hung") {
        let text = format!("a shorter `--hang-timeout` finds a hang earlier: {why}");
        advice.push(Advice { what: "--hang-timeout", text });
    }
    advice
}

#[cfg(test)]
mod tests {
    use ragent_rendezvous::{
        ids::Round,
        snapshot::{JobTime, StateTime},
    };

    use super::*;
    use crate::coordinator::driver::tests::empty_snapshot;

    fn job(states: &[(&str, u64)]) -> Snapshot {
        let states = states.iter().map(|(state, seconds)| StateTime {
            state: (*state).to_owned(),
            ms: seconds * 1000,
            settled_ms: seconds * 1000,
        });
        let time = JobTime { states: states.collect(), ..JobTime::default() };
        Snapshot { round: Round(2), time, ..empty_snapshot() }
    }

    /// Each state that takes much of the lost time has its advice, with the numbers.
    #[test]
    fn advice_follows_the_numbers() {
        let what = |states: &[(&str, u64)]| -> Vec<&'static str> {
            of(&job(states)).iter().map(|advice| advice.what).collect()
        };
        assert_eq!(what(&[("productive", 500), ("starting", 60)]), ["--standby"]);
        assert_eq!(what(&[("productive", 500), ("waiting", 60), ("starting", 5)]), ["spares"]);
        assert_eq!(
            what(&[("stopping", 30), ("hung", 40)]),
            ["--shutdown-timeout", "--hang-timeout"]
        );
        let starting = &of(&job(&[("productive", 500), ("starting", 60)]))[0];
        assert!(
            starting.text.ends_with("1 min 0 s of the 1 min 0 s lost was starting"),
            "{starting:?}"
        );
    }

    /// Nothing is advised where little was lost, or where a restart would change nothing.
    #[test]
    fn no_advice_without_numbers() {
        assert_eq!(of(&job(&[("productive", 500), ("starting", 9)])), []);
        assert_eq!(of(&job(&[("starting", 60), ("waiting", 500)])).len(), 1);
        let first = Snapshot { round: Round(1), ..job(&[("starting", 60)]) };
        assert_eq!(of(&first), []);
        assert_eq!(of(&empty_snapshot()), []);
    }
}
