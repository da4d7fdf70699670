//! One node's part in a job.
//!
//! The modules follow from the lowest layer to the highest: [`keeper`] (the process that ends the workers of a lost agent), [`workers`] (the
//! local workers), [`node`] (registration, rounds and their stores) and [`endpoint`] (which process hosts the job, and what it
//! hosts).
#![deny(unsafe_code)]

pub mod endpoint;
pub mod keeper;
pub mod node;
pub mod workers;
