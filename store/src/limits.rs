//! Bounds on everything that a peer can make grow.
//!
//! The first three are those of the original server, so clients do not meet new ones in practice;
//! the others bound what that server leaves open. A client that exceeds one is disconnected.

use std::time::Duration;

/// Longest key or queue name, as sent: including the `/` that a client prepends. As upstream.
pub const KEY_LEN_MAX: usize = 8192;

/// Longest value in a request. As upstream.
pub const VALUE_LEN_MAX: usize = 8 << 20;

/// Most keys in one `CHECK`, `WAIT`, `MULTI_GET` or `MULTI_SET`. As upstream.
pub const KEYS_MAX: usize = 131_072;

/// Longest request as a whole.
///
/// Upstream would buffer a terabyte (this many keys, with values of this length). This is enough
/// for the most keys with names of 500 bytes, or seven of the longest values: more than torch ever
/// sends at once.
pub const REQUEST_LEN_MAX: usize = 64 << 20;

/// Longest value that `APPEND` may build, since no request limits the sum.
///
/// Less than [`ANSWER_LEN_MAX`], so that each stored value can be read back.
pub const APPENDED_LEN_MAX: usize = 64 << 20;

/// Longest answer as a whole, which `MULTI_GET` and `LIST_KEYS` could otherwise make arbitrarily
/// large. A thousand nodes with 256 KiB each fit.
pub const ANSWER_LEN_MAX: usize = 256 << 20;

/// Most memory that the keys, values, queues and waits of one store may occupy.
///
/// A rendezvous takes kilobytes; 4 GiB is 500 of the longest values and leaves a training node
/// enough memory.
pub const STORE_MEMORY_MAX: usize = 4 << 30;

/// Assumed cost of an entry or a queued value, in addition to its bytes.
///
/// Covers two handles, their heap blocks, and room in a hash table, so that many tiny keys do not
/// count as few bytes. Measured are 145 to 215 bytes, depending on how full the table is.
pub const ENTRY_OVERHEAD: usize = 216;

/// Assumed cost of an awaited name, in addition to its bytes.
///
/// The name is in the set of its waiter and in a line of its own, which is a tree. Measured are 365
/// to 470 bytes.
pub const AWAITED_OVERHEAD: usize = 480;

/// Unsent output from which on no further request of a connection is executed until its client
/// reads.
///
/// Large enough that a pipelining client never notices, small enough that thousands of slow readers
/// are harmless. At most this much plus one answer is pending.
pub const OUTPUT_PAUSE_LEN: usize = 1 << 20;

/// Most that all connections of a store together may hold in unfinished requests and unsent
/// answers.
///
/// Each connection alone is bounded above; this limit keeps a thousand clients that all stop in the
/// middle of their largest request from exhausting the machine's memory.
pub const BUFFERS_LEN_MAX: usize = 1 << 30;

/// A connection that holds no more than this is never closed for [`BUFFERS_LEN_MAX`]: the limit
/// applies to connections that hold much, not to the next that sends a request. An ordinary request
/// that arrives in two parts needs this much.
pub const BUFFER_LEN_FREE: usize = 2 * READ_LEN;

/// Assumed cost of a piece of an unsent answer, in addition to its bytes: its slot in a queue that
/// grows by doubling, and its handle. Measured are 80 bytes; a value shared with the store makes
/// two pieces.
pub const PIECE_OVERHEAD: usize = 96;

/// Values of at least this length are sent from the store's memory, not copied into the answer.
///
/// For shorter ones, a copy costs less than another piece in the write.
pub const SHARED_VALUE_LEN_MIN: usize = 16 << 10;

/// Most connections to one store. Far above the world sizes in use; the limit on open files is
/// usually reached first.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Most memory of the server that an idle connection occupies, without the kernel's.
///
/// Covers its slot, in a table that grows by doubling. It is not counted: [`CONNECTIONS_MAX`]
/// bounds the sum. Measured are 130 bytes with 10,000 connections.
pub const CONNECTION_OVERHEAD: usize = 512;

/// Connections that the kernel queues before they are accepted. All workers start at once, and a
/// lost SYN costs a worker a second.
pub const LISTEN_BACKLOG: i32 = 4096;

/// Most bytes taken by one read. Hundreds of ordinary requests.
pub const READ_LEN: usize = 64 << 10;

/// Time within which a connection must have sent `VALIDATE`. Afterwards it may be silent for days.
///
/// torch resolves the names of both ends of its connection before it sends that, and a resolver
/// that does not answer takes 6 s and more for each.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two reads of the kernel's table of all sockets, on kernels that cannot look up a
/// single one: with 16,000 sockets, a read takes 36 ms.
#[cfg(feature = "net")]
pub const SOCKET_TABLE_INTERVAL: Duration = Duration::from_millis(100);

/// Silence after which the kernel probes the peer: a machine that lost power does not close its
/// connections, and its waits would never end.
#[cfg(feature = "net")]
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Time between two probes.
#[cfg(feature = "net")]
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered probes after which the connection is closed: after two minutes in all.
#[cfg(feature = "net")]
pub const KEEPALIVE_PROBES: u32 = 6;

/// Most refused addresses that a store logs as warnings, or reports. All further refusals are
/// logged at level `debug`.
pub const REFUSED_LOGGED_MAX: usize = 16;

/// Stores that may wait to be opened by the store's thread. A launcher opens one per round; when
/// full, [`open`](crate::StoreThread::open) fails, as the thread must be stuck.
#[cfg(feature = "net")]
pub const OPENING_MAX: usize = 64;

/// Connections handed over and not yet taken by the store's thread. As many as the kernel would
/// queue; when full, the connection is refused, and its client connects again.
#[cfg(feature = "net")]
pub const HANDED_OVER_MAX: usize = LISTEN_BACKLOG as usize;
