//! The fuzz targets: functions of an input that panic if a rule is broken.
//!
//! | target | input | rule |
//! |---|---|---|
//! | [`decode`] | cuts, then a stream | the same requests however it is cut, and each encodes to the bytes that it came from |
//! | [`engine`] | a script of whole requests by several clients | answers, released waits and counted memory are those of the [`model`] |
//! | [`session`] | a script with requests in pieces, garbage, slow readers, clients that leave | the same |
//! | [`server`] | the same script, over loopback | the same answers, and the store survives all input |
//! | `sock_diag` | a message of the kernel about a socket, or rows of its table | only the answer to the last request counts; rows are read as they are printed |
//!
//! `store/tests/fuzz.rs` compiles these functions as well: it replays the corpus, and runs them on
//! random inputs, without the fuzzer. `sock_diag` checks a part that is not public, so it is compiled into the crate
//! `ragent-store`, whose unit tests do the same.

mod decode;
mod model;
mod script;
mod server;
mod world;

pub use decode::decode;
pub use server::server;
pub use world::{engine, session};
