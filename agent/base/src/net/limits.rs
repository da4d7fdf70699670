//! The limits of `net`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use crate::limits::{
    FLUSH_TIMEOUT, IDENTIFY_TIMEOUT, MAX_ENDPOINT_ADDRESSES, MAX_IDENTITY_LEN, RETRY_INTERVAL,
    silent_store_clients,
};

/// The time for one attempt to open a connection. A reachable host answers in less than a round
/// trip; one lost SYN is sent again after 1 s.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_millis(1800);
/// The time between two attempts to reach a node whose ports may be blocked.
pub(crate) const DIAL_PAUSE: Duration = Duration::from_secs(1);
/// The time for one lookup of a name; libc's resolver gives up after 5 s for each server.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(6);
/// The time from the beginning of a connection to its first whole request, body included: enough
/// for a few lost packets.
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a client of a store: torch resolves the names of both ends before it sends a byte,
/// and a resolver that does not answer takes 6 s or more for each.
pub(crate) const STORE_SILENCE: Duration = Duration::from_secs(60);
/// The time for each later request, body included.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a connection may be open without a request.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings to an HTTP/2 peer.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The time for an HTTP/2 peer to answer a ping: as long as the longest lease, which must not end
/// because of this.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// The time after which an unknown connection counts towards the quotas: a new member sends its
/// request at once.
pub(crate) const UNKNOWN_GRACE: Duration = Duration::from_secs(1);
/// Unknown connections without a request, in total: more than occur by accident, and a small part
/// of [`MAX_CONNECTIONS`].
pub(crate) const MAX_UNKNOWN: usize = 512;
/// The same per address, or IPv6 network: one host must not use up the quota of all.
pub(crate) const MAX_UNKNOWN_PER_ADDRESS: usize = 64;
/// Unknown connections that are read at once, until their first request is complete: enough for thousands a second, since a member
/// takes milliseconds. Each uses at most 200 KiB.
pub(crate) const MAX_READ: usize = 128;
/// The same per address, or IPv6 network, once half of [`MAX_READ`] are read: more than the agents of one host need.
pub(crate) const MAX_READ_PER_ADDRESS: usize = 16;
/// The time after which an unknown connection that is read makes room for a waiting connection: enough for a handshake and a request over
/// a slow link.
pub(crate) const READ_PATIENCE: Duration = Duration::from_secs(1);
/// Unknown connections that stay after their first request, such as those of browsers and scrapers, in addition to the
/// nodes of a job without a secret: each uses at most 200 KiB.
pub(crate) const MAX_SERVED_UNKNOWN: usize = 128;
/// The requests at the same time on one HTTP/2 connection of a member.
pub(crate) const STREAMS: u32 = 16;
/// The same on an unknown connection: an agent needs one.
pub(crate) const UNKNOWN_STREAMS: u32 = 2;
/// The bytes of an HTTP/2 connection, and of each of its requests, that are received before they are read: the smallest window of a
/// connection.
pub(crate) const WINDOW: u32 = 65_535;
/// The bytes of the head of a request, and the size of the buffers of an HTTP/1.1 connection.
pub(crate) const MAX_HEAD: u32 = 16 << 10;
/// File descriptors reserved for uses other than connections, if the limit allows it.
pub(crate) const SPARE_FILES: usize = 1024;
/// Queued progress reports of connections to their port; connections wait while it is full.
pub(crate) const PROGRESS_QUEUE: usize = 256;
/// The time that a client of the store waits for it, on a port that serves a new one in each
/// round: workers of other nodes may be faster than the node that serves it.
pub(crate) const PORT_STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections to the agent's port in total: 10,000 agents with a spare connection each.
pub(crate) const MAX_CONNECTIONS: usize = 20_480;
/// The time for the handshake of TLS on a connection that this process has opened: as long as for the first answer without
/// TLS.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = IDENTIFY_TIMEOUT;
/// The time to wait while the files of the credentials are read again: a local file takes less than a millisecond.
pub(crate) const READ_AGAIN_PATIENCE: Duration = Duration::from_millis(200);
/// The characters of a reason for a refusal in the status, of at most four bytes each: a line.
pub(crate) const MAX_REASON_CHARS: usize = 64;
