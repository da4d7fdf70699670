//! Defines the messages between the launching host and its relays.
//!
//! A relay is the process that ssh starts on a host. It receives orders on stdin, so that no list of processes shows the environment or
//! other data of the job. It sends reports to stdout. Hosts are numbered in the order of the list.

use std::{ffi::OsString, net::IpAddr, path::PathBuf};

use bytes::Bytes;
use ragent_base::{output::streams::Stream, secret::WrittenSecret};
use ragent_core::process_end::ProcessEnd;
use serde::{Deserialize, Serialize};

/// The index of a host in the list.
pub(super) type HostNumber = u32;

/// A message to a relay.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum RelayOrder {
    /// Gives the part of the agents' commands that is the same on all hosts.
    Job(SharedJob),
    /// Starts the agent, after [`RelayOrder::Job`].
    Start(HostJob),
    /// Signals the agent.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Shows that the sender of orders is alive.
    KeepAlive,
}

/// The part of the agents' commands that is the same on all hosts of a launch.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct SharedJob {
    /// Environment variables, in addition to those of a login on the host.
    pub(super) env: Vec<(String, OsString)>,
    /// The current folder of the agents.
    #[serde(with = "any_path")]
    pub(super) folder: PathBuf,
    /// The flags.
    pub(super) flags: Vec<OsString>,
    /// The script and its arguments.
    pub(super) script: Vec<OsString>,
    /// The secret that the agents share, if the launch sends one.
    pub(super) secret: Option<WrittenSecret>,
    /// The time that an agent may take to end after a signal, in milliseconds.
    pub(super) stop_ms: u64,
}

/// The part of an agent's command that is specific to its host.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct HostJob {
    /// The number of the host.
    pub(super) number: HostNumber,
    /// Further flags.
    pub(super) flags: Vec<OsString>,
    /// Further variables.
    pub(super) env: Vec<(String, OsString)>,
}

impl SharedJob {
    /// Returns the arguments of an agent.
    pub(super) fn words(&self, own: &HostJob) -> Vec<OsString> {
        let flags = self.flags.iter().chain(&own.flags).cloned();
        flags.chain(["--".into()]).chain(self.script.iter().cloned()).collect()
    }
}

/// A report about a host.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum RelayReport {
    /// A line of output of the host's agent or of its workers.
    #[serde(skip)]
    Line {
        /// The stream.
        stream: Stream,
        /// The line with its line feed, or a piece of a line that is too long.
        line: Bytes,
    },
    /// The host was reached, at this address.
    Reached(HostAddress),
    /// The host could not be reached, or its connection has ended, for this reason. Only the
    /// launching host makes this report.
    #[serde(skip)]
    Disconnected(String),
    /// The host's agent and all processes that it started have ended.
    Ended(AgentEnd),
}

/// The address and port at which other hosts can reach a host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct HostAddress {
    /// The host's own name; empty if it cannot be part of an endpoint.
    pub(super) host_name: String,
    /// The address at which ssh has reached it, if other hosts can use it.
    pub(super) address: Option<IpAddr>,
    /// A port for the job's endpoint.
    pub(super) port: u16,
}

/// The way in which an agent has ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum AgentEnd {
    /// The agent has exited with this code.
    Exited(i32),
    /// This signal has killed the agent.
    Signaled(i32),
    /// The agent could not be started, for this reason.
    NotStarted(String),
}

/// Encodes paths that need not be UTF-8, since `serde` refuses such a [`PathBuf`].
mod any_path {
    use std::{
        ffi::OsString,
        path::{Path, PathBuf},
    };

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }
}

impl From<ProcessEnd> for AgentEnd {
    fn from(end: ProcessEnd) -> Self {
        match end {
            ProcessEnd::Exited(code) => Self::Exited(code),
            ProcessEnd::Signaled(signal) => Self::Signaled(signal),
        }
    }
}
