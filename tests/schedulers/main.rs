//! Tests agents and ranks that a scheduler or MPI starts: with the environment of Slurm, and with the real Slurm, Open MPI and MPICH.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod mpi;
mod rank;
mod signals;
mod slurm;
mod slurm_cluster;

#[path = "../support/mod.rs"]
mod support;
