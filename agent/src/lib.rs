//! Starts, watches and re-forms distributed training jobs: the parts of the program `ragent`.
#![deny(unsafe_code)]

pub mod cli;
pub mod clock;
pub mod host;
pub mod job_spec;
pub mod limits;
pub mod keeper;
pub mod supervisor;
