//! Reports for people and programs: log lines, the report of a failed job, and notices to a service manager.

pub mod event_text;
mod failure;
pub mod fold;
mod limits;
pub mod measures;
pub mod news;
pub mod outcome_text;
pub mod service_manager;
pub mod stacks_text;
pub mod status_text;
pub mod stopping_line;
pub mod telemetry;
pub mod time_text;
