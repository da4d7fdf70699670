//! Defines the messages between the launching host and its relays.
//!
//! A relay is the process that ssh starts on a host. It receives orders on stdin, so that no list of processes shows the environment or
//! other data of the job. It sends reports to stdout. Hosts are numbered in the order of the list.

use std::{ffi::OsString, net::IpAddr, path::PathBuf};

use bytes::Bytes;
use ragent_base::{secret::WrittenSecret, spec::Stream};
use ragent_core::process_end::ProcessEnd;
use serde::{Deserialize, Serialize};

use super::ssh_command::Way;

/// The index of a host in the list.
pub(super) type HostNumber = u32;

/// A host to be reached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct TargetHost {
    pub(super) number: HostNumber,
    /// The destination for ssh: `HOST` or `USER@HOST`.
    pub(super) target: String,
}

/// A message to a relay.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum RelayOrder {
    /// Assigns the relay its number. The relay ends an earlier relay of the launch on its host, and reaches the hosts below it.
    Reach {
        /// The launch.
        launch: LaunchId,
        /// The number of the relay's host.
        me: HostNumber,
        /// The hosts below it.
        below: Vec<TargetHost>,
        /// The way to reach them.
        way: Way,
    },
    /// Starts the agents of the named hosts: of this host and of hosts below it.
    Start {
        /// The part that is the same on all hosts.
        job: Job,
        /// The hosts, each with its own part.
        hosts: Vec<HostJob>,
    },
    /// Signals the agents of this host and of those below.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Shows that the sender of orders is alive.
    KeepAlive,
}

/// The identity of a launch. Two relays of the launch on one host find each other by it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct LaunchId {
    /// A name that no other launch has.
    pub(super) name: String,
    /// The time that an agent may take to end after a signal, in milliseconds.
    pub(super) stop_ms: u64,
}

/// The part of the agents' commands that is the same on all hosts of a launch.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Job {
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
    pub(super) number: HostNumber,
    /// Further flags.
    pub(super) flags: Vec<OsString>,
    /// Further variables.
    pub(super) env: Vec<(String, OsString)>,
}

impl Job {
    /// Returns the arguments of an agent.
    pub(super) fn words(&self, own: &HostJob) -> Vec<OsString> {
        let flags = self.flags.iter().chain(&own.flags).cloned();
        flags.chain(["--".into()]).chain(self.script.iter().cloned()).collect()
    }
}

/// A message from a relay.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum RelayReport {
    /// A line of output of a host's agent or of its workers.
    #[serde(skip)]
    Line {
        /// The host.
        host: HostNumber,
        /// The stream.
        stream: Stream,
        /// The line with its line feed, or a piece of a line that is too long.
        line: Bytes,
    },
    /// A host was reached.
    Reached {
        /// The host.
        host: HostNumber,
        /// The address and port at which other hosts can reach it.
        host_address: HostAddress,
    },
    /// A host could not be reached, or its connection has ended.
    Disconnected {
        /// The host.
        host: HostNumber,
        /// The reason.
        why: String,
        /// True if the receiver has tried to reach the host directly, not through another host.
        is_direct: bool,
    },
    /// A host's agent and all processes that it started have ended.
    Ended {
        /// The host.
        host: HostNumber,
        /// The way in which the agent has ended.
        end: AgentEnd,
    },
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
