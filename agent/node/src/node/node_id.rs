//! Chooses the name of an agent process in its job.

use ragent_base::sys::{host::ThisHost, random::random_id};
use ragent_rendezvous::ids::NodeId;

/// Returns a node id that no other agent process has. The ids of one machine are sorted by process id.
pub fn new_node_id() -> NodeId {
    let host_name: String = ThisHost.name().chars().take(128).collect();
    NodeId::new(format!("{host_name}_{:010}_{}", std::process::id(), random_id()))
}
