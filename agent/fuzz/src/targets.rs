//! The fuzz targets of the agent: functions of an input that panic if a rule is broken.
//!
//! | target | input | rule |
//! |---|---|---|
//! | [`port`] | the setting of a port, then the bytes of a connection | only members reach the pages of members; each connection ends |
//! | [`registration`] | messages of agents | they are encoded again to equal messages; the coordinator's numbers stay
//! within limits, and agents accept its answers |
//! | [`coordinator`] | a message of a coordinator, or the status of a job | the same encoding; leases within limits; no control characters |
//! | [`elect`] | a message of a voter, or the record of a leader | the same |
//! | [`death_notice`] | the body of a death notice | only the proof of its node is accepted |
//! | [`datagram`] | a datagram, or a message to seal and a change | only sealed datagrams are opened, and no changed one |
//! | [`identity`] | the answer of another program | it is described without control characters; only a common secret is a match |
//! | [`secret_file`] | mode and content of a file | only private files with well-formed secrets are used; errors do not contain the content |
//! | [`certificates`] | a certificate, or a file of one | names and errors are printable and bounded |
//! | [`state_file`] | a state file | the state survives writing, and a coordinator that continues from it can be asked for its status |
//! | [`agent_file`] | the agent_file of an agent | only a running agent is listed, and the log has no secret |
//! | [`launch_frames`] | cuts, then a stream | the same messages however it is cut, and each is decoded again from its own encoding |
//! | [`hostfile`] | a list of hosts | hosts are distinct and no options of ssh; the list survives writing |
//! | [`memory_frames`] | a greeting or frames of another agent, about checkpoints in memory | the same encoding; numbers within limits |
//! | [`memory_requests`] | a request of a worker about them | the same; answers fit into a packet |
//! | [`torch_records`] | torch's records of two workers | what is described fits into a digest, without control characters |
//! | [`node_list`] | a compressed list | its names and counts are bounded, and the expanded list has the same names |
//!
//! They are compiled into the crate, since they check parts that are not public: some of them in the module of that
//! part. `agent/fuzz/src/tests.rs` replays the corpus, and runs them on random inputs, without the fuzzer.

mod agent_file;
mod certificates;
mod coordinator;
mod death_notice;
mod elect;
mod identity;
mod node_list;
mod pki;
mod port;
mod registration;
mod secret_file;
#[cfg(test)]
mod seeds;
mod state_file;
#[cfg(test)]
mod tests;

pub use self::{
    agent_file::agent_file, certificates::certificates, coordinator::coordinator,
    death_notice::death_notice, elect::elect, identity::identity, node_list::node_list, port::port,
    registration::registration, secret_file::secret_file, state_file::state_file,
};
pub use crate::commands::ssh::fuzzing::{hostfile, launch_frames};
pub use ragent_node::{
    endpoint::search::fuzzing::datagram,
    memory::fuzzing::{memory_frames, memory_requests},
};
pub use ragent_workers::fuzzing::torch_records;
