//! Bounds everything that a peer can make grow.
//!
//! The first three are those of the original server, so a client meets no new ones in practice;
//! the others bound what that server leaves open. Who exceeds one is disconnected.

use std::time::Duration;

/// Longest key or queue name, as sent: with the `/` that a client puts in front. As upstream.
pub const KEY_LEN_MAX: usize = 8192;

/// Longest value in a request. As upstream.
pub const VALUE_LEN_MAX: usize = 8 << 20;

/// Most keys in one `CHECK`, `WAIT`, `MULTI_GET` or `MULTI_SET`. As upstream.
pub const KEYS_MAX: usize = 131_072;

/// Longest request as a whole.
///
/// Upstream would buffer a terabyte (so many keys, with so long values). This is the most keys
/// with names of 500 bytes, or seven of the longest values: more than torch ever sends at once.
pub const REQUEST_LEN_MAX: usize = 64 << 20;

/// Longest value that `APPEND` may build, since no request limits the sum.
///
/// Less than [`ANSWER_LEN_MAX`], so that whatever is stored can be read back.
pub const APPENDED_LEN_MAX: usize = 64 << 20;

/// Longest answer as a whole, which `MULTI_GET` and `LIST_KEYS` could otherwise make arbitrarily
/// large. A thousand nodes with 256 KiB each fit.
pub const ANSWER_LEN_MAX: usize = 256 << 20;

/// Most that the keys, values, queues and waits of one store may occupy.
///
/// A rendezvous takes kilobytes; 4 GiB is 500 of the longest values and still leaves a training
/// node its memory.
pub const STORE_MEMORY_MAX: usize = 4 << 30;

/// What an entry or a queued value is taken to cost beside its bytes.
///
/// Two handles, their heap blocks, and room in a hash table: so many tiny keys cannot pass as few
/// bytes. Measured are 145 to 215 bytes, depending on how full the table is.
pub const ENTRY_OVERHEAD: usize = 216;

/// What an awaited name is taken to cost beside its bytes.
///
/// It stands in the set of its waiter and in a line of its own, which is a tree. Measured are 365
/// to 470 bytes.
pub const AWAITED_OVERHEAD: usize = 480;

/// A connection with this much unsent output has no further request executed until it reads.
///
/// Large enough that a client which pipelines never notices, small enough that thousands of slow
/// readers are harmless. What is pending is at most this much plus one answer.
pub const OUTPUT_PAUSE_LEN: usize = 1 << 20;

/// Most that all connections of a store together may hold in unfinished requests and unsent
/// answers.
///
/// Each alone is bounded above; this keeps a thousand clients that all stop in the middle of their
/// largest request from filling the machine.
pub const BUFFERS_LEN_MAX: usize = 1 << 30;

/// A connection that holds no more than this is never the one that is closed for
/// [`BUFFERS_LEN_MAX`]: the limit is to meet who holds much, not who happens to ask next. It is what
/// an ordinary request takes that comes in two parts.
pub const BUFFER_LEN_FREE: usize = 2 * READ_LEN;

/// What a piece of an unsent answer is taken to cost beside its bytes: its place in a line that
/// doubles, and its handle. Measured are 80 bytes; a value that lies in the store makes two pieces.
pub const PIECE_OVERHEAD: usize = 96;

/// Values from this length on are sent as they lie in the store, not copied into the answer.
///
/// Below, a copy costs less than a further piece in the write.
pub const SHARED_VALUE_LEN_MIN: usize = 16 << 10;

/// Most connections to one store. Far above the world sizes in use; a limit on open files is
/// usually met first.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Most that an idle connection occupies of the server's memory, kernel aside.
///
/// Its place, and room in a table that doubles. Nothing counts it: [`CONNECTIONS_MAX`] bounds the sum.
/// Measured are 130 bytes with 10,000 connections.
pub const CONNECTION_OVERHEAD: usize = 512;

/// Connections that the kernel queues before they are accepted: all workers start at once, and a
/// lost SYN costs one of them a second.
pub const LISTEN_BACKLOG: i32 = 4096;

/// Bytes that one read takes at most. Hundreds of ordinary requests.
pub const READ_LEN: usize = 64 << 10;

/// Time within which a connection must have said `VALIDATE`. Afterwards it may be silent for days.
///
/// torch resolves the names of both ends of its connection before it sends that, and a resolver that
/// does not answer takes 6 s and more for each.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two readings of the kernel's table of all sockets, where it does not answer for one:
/// with 16,000 of them a reading takes 36 ms.
#[cfg(feature = "net")]
pub const SOCKET_TABLE_INTERVAL: Duration = Duration::from_millis(100);

/// Silence after which the kernel asks whether the peer is still there: a machine that lost its
/// power says no goodbye, and its waits would stay for ever.
#[cfg(feature = "net")]
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Time between two such questions.
#[cfg(feature = "net")]
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Questions without an answer after which the peer is gone: after two minutes in all.
#[cfg(feature = "net")]
pub const KEEPALIVE_PROBES: u32 = 6;

/// Addresses of which a store says in the log that it refused them; the others are told at level
/// `debug`, as is every further refusal of the same.
pub const REFUSED_LOGGED_MAX: usize = 16;

/// Stores that may wait to be opened by the store's thread. A launcher opens one a round; when
/// full, [`open`](crate::StoreThread::open) fails, as the thread must be stuck.
#[cfg(feature = "net")]
pub const OPENING_MAX: usize = 64;

/// Connections handed over and not yet taken by the store's thread. As many as the kernel would
/// queue; when full, the connection is refused, and its client connects again.
#[cfg(feature = "net")]
pub const HANDED_OVER_MAX: usize = LISTEN_BACKLOG as usize;
