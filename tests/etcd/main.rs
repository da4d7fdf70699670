//! Tests jobs whose coordinator is chosen through a real etcd, all on this machine: losses of the leader and of its record, outages of
//! etcd, users and certificates. Skipped without `etcd`.
//!
//! The workers record when they run. No two rounds of a job run at the same time.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod access;
mod cluster;
mod doctor;
mod job;
mod losses;
mod outages;
#[path = "../partition/records.rs"]
mod records;
mod secrets;
mod takeovers;

#[path = "../support/mod.rs"]
mod support;
