//! The parts that all crates of the agent use.
//!
//! The modules follow from the lowest layer to the highest: [`limits`], [`sys`] (the machine and its system), [`secret`] (secrets and
//! certificates), [`net`] (listeners and connections), [`output`] (of workers) and [`report`] (lines for the user).
#![deny(unsafe_code)]

pub mod limits;
pub mod net;
pub mod output;
pub mod report;
pub mod secret;
pub mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
