//! Checks the rules that must always hold, each in its own file.
//!
//! Their numbers are those of the table "Rules and their tests" in `docs/rendezvous.md`. Some rules are checked elsewhere:
//!
//! - Rule 6 needs real processes, and rule 9 needs real bytes.
//! - `tests/simulation/storm.rs` checks rule 10, that retries do not overload the coordinator.

mod charged_once;
mod job_heals;
mod journal_is_complete;
mod one_place_a_node;
mod one_round_has_processes;
mod other_run_changes_nothing;
mod ranks_are_dense;
mod round_size_is_in_range;
mod rounds_only_grow;
mod store_serves_one_round;

use crate::world::World;

/// A rule: its number and name, and its check.
pub type Rule = (&'static str, fn(&World) -> Result<(), String>);

/// All rules.
pub const RULES: [Rule; 10] = [
    ("1: ranks are dense and agreed on", ranks_are_dense::check),
    ("2: a node has one place", one_place_a_node::check),
    ("3: rounds only grow", rounds_only_grow::check),
    ("4: a round has between min and max nodes", round_size_is_in_range::check),
    ("5: one round has processes", one_round_has_processes::check),
    ("7: a round is charged once, within the budget", charged_once::check),
    ("8: a job heals", job_heals::check),
    ("11: a state file of another run changes nothing", other_run_changes_nothing::check),
    ("12: the journal is complete", journal_is_complete::check),
    ("13: a store serves one round", store_serves_one_round::check),
];
