//! Decides which nodes form the next worker group, with which ranks, and when the job is over.

pub mod effect;
pub mod ids;
pub mod message;
pub mod settings;
pub mod snapshot;
