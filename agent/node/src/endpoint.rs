//! Finds the host of a job, and then becomes the host or joins it.
//!
//! 1. `host_or_join` finds the host. With an address, `locate` asks who answers there: `locator` decides, `identity` recognises ragent.
//!    Without one, [`search`] finds the host.
//! 2. `host` or `join` starts the `NodeServices`: what this node serves on its port.
//!
//! Two kinds of jobs have no fixed host. `voters` starts the services of a job whose agents elect the leader, `in_etcd` those with a leader
//! in etcd. In both, [`hosted`] is the part of a process that may lead, with or without an agent.
//!
//! `metrics_port` is a separate port for the metrics.

mod address;
mod error;
pub mod host;
mod host_or_join;
pub mod hosted;
pub mod identity;
#[cfg(feature = "etcd")]
mod in_etcd;
mod join;
mod limits;
mod locate;
mod locator;
pub mod metrics_port;
pub mod node_services;
pub mod plain_store;
pub mod search;
pub mod server;
pub mod voter_secrets;
pub mod voters;

pub use self::error::CHECK_NAME;
pub use self::host_or_join::host_or_join;
pub use self::{
    error::{HostOrJoinError, LocateError},
    metrics_port::MetricsPortError,
};
