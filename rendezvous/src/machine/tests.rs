//! The rules of the machine, each as a conversation with a fixture that owns the clock.

mod failure;
mod first_round;
mod fixed_ranks;
mod fixture;
mod leases;
mod leaving;
mod membership;
mod recovery;
mod restlessness;
mod units;
