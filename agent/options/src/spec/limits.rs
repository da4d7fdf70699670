//! The limits of arguments, each with its reason.

/// The number of voters: five tolerate two failures, and more would only add messages.
pub(super) const MAX_VOTERS: usize = 5;
/// The number of members of etcd that are listed: etcd recommends seven at most.
pub(super) const MAX_ETCD_MEMBERS: usize = 9;
/// The number of ports of a range that are tried for a worker store.
pub(super) const MAX_STORE_PORTS: u16 = 1024;
/// The ranges in a choice of ranks: longer than anybody types, and short enough for the path of a request.
pub(super) const RANK_RANGES: usize = 64;
/// The number of hosts that are asked without multicast: each is sent every datagram.
pub(super) const MAX_DISCOVER_HOSTS: usize = 1024;
