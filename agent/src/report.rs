//! Reports for people and programs: log lines, the report of a failed job, torch's events, and
//! notices to a service manager.

pub mod event_log;
pub mod event_text;
mod failure;
pub(crate) mod fold;
mod limits;
pub mod measures;
pub mod news;
pub(crate) mod outcome_text;
pub mod service_manager;
pub(crate) mod start;
pub(crate) mod status_text;
pub(crate) mod stopping_line;
pub mod telemetry;
pub(crate) mod time_text;
