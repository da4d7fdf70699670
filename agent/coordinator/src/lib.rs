//! Runs the coordinator of a job in the process of one agent, and connects the other agents to it.
//!
//! A registration takes this way:
//!
//! 1. `service` receives it on the port of an agent. `role` knows whether the coordinator is in this process.
//! 2. `driver` passes it to the rendezvous machine. Each of its helpers makes one decision.
//! 3. `driver/persistence` holds back the effects until the job's state is stored.
//!
//! `host` runs the driver while this process leads. [`client`] is the side of agents and commands. [`pages`] has the HTTP pages of the port.
#![deny(unsafe_code)]

pub mod client;
pub mod driver;
pub mod host;
pub mod journal;
mod limits;
pub mod pages;
pub mod role;
pub mod service;
