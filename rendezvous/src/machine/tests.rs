//! Tests of the machine's rules, with a fixture that has its own clock.

mod adoption;
mod birth;
mod departures;
mod failure;
mod failure_report;
mod first_round;
mod fixed_ranks;
mod fixture;
mod free_rounds;
mod grant;
mod handing_over;
mod journal;
mod keeping;
mod leases;
mod leaving;
mod looking;
mod membership;
mod memory_striking;
mod notices;
mod owner_checks;
mod persistence;
mod progressing;
mod recovery;
mod scripts;
mod stalling;
mod units;
