//! Starts, watches and re-forms distributed training jobs: the parts of the program `ragent`.
//!
//! [`run`] contains the course of a launch. [`cli`] parses the arguments, [`job_spec`] interprets
//! them; [`agent`] is one node's part in a job, [`coordinator`] the service that one node hosts for
//! all, [`supervisor`] and [`keeper`] hold the workers.
#![deny(unsafe_code)]

pub mod agent;
pub mod cli;
pub mod clock;
pub mod completion;
pub mod coordinator;
pub mod doctor;
pub mod error;
pub mod event_log;
mod files;
pub mod host;
pub mod hostfile;
pub mod job_spec;
pub mod keeper;
pub mod launch;
pub mod limits;
pub mod manifest;
pub mod net;
pub mod news;
mod place;
pub mod placement;
pub mod rank;
pub mod report;
mod result_file;
pub mod run;
pub mod search;
pub mod serve;
pub mod service_manager;
pub mod state_file;
pub mod status;
mod stdout;
pub mod supervisor;
pub mod telemetry;
