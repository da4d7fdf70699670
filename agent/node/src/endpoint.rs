//! The endpoint of a job: how an agent finds its host, and becomes the host or joins it.
//!
//! `host_or_join` finds the host: `locate` asks an address who hosts there (`locator` decides,
//! `identity` recognises the answer), and [`search`] finds the host without an address. Then `host` or
//! `join` starts the `NodeServices`. `hosted` is a process that may lead, with its port, with or
//! without an agent. `voters` starts the services of a job with a
//! list of endpoints, `in_etcd` those of a job whose leader is found through etcd. `metrics_port` is a port of its own for the metrics.

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
