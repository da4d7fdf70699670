//! What the launching host and its relays say to each other.
//!
//! A relay is what ssh starts on a host: it gets its orders through stdin, so that neither the
//! environment nor anything else of the job is seen in a list of processes, and reports through stdout.
//! Hosts have numbers, those of the list.

use std::{ffi::OsString, net::IpAddr, path::PathBuf};

use bytes::Bytes;
use ragent_core::process_end::ProcessEnd;
use serde::{Deserialize, Serialize};

use super::ssh::Way;
use crate::job_spec::Stream;

/// A host's place in the list.
pub(super) type HostNumber = u32;

/// A host that is to be reached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Destination {
    pub(super) number: HostNumber,
    /// What ssh is given.
    pub(super) target: String,
}

/// What a relay is to do.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Order {
    /// Says who it is, and reaches the hosts below it.
    Reach {
        /// Who it is.
        me: HostNumber,
        /// Whom it reaches.
        below: Vec<Destination>,
        /// How.
        way: Way,
    },
    /// Starts an agent, here and on those below that are named.
    Start {
        /// What is the same on all hosts.
        job: Job,
        /// The hosts, each with what is its own.
        hosts: Vec<HostJob>,
    },
    /// Signals the agents, here and below.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Whoever gives the orders is still there.
    KeepAlive,
}

/// What all agents of a launch have in common.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Job {
    /// Variables that they get, beside those that the host gives to everybody who logs in.
    pub(super) env: Vec<(String, OsString)>,
    /// Where they run.
    pub(super) folder: PathBuf,
    /// Their flags.
    pub(super) flags: Vec<OsString>,
    /// The script and its arguments.
    pub(super) script: Vec<OsString>,
    /// How long one may take to end when it is told to, in milliseconds.
    pub(super) stop_ms: u64,
}

/// What is one agent's own.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct HostJob {
    pub(super) number: HostNumber,
    /// Further flags.
    pub(super) flags: Vec<OsString>,
    /// Further variables.
    pub(super) env: Vec<(String, OsString)>,
}

impl Job {
    /// The words of an agent behind its name.
    pub(super) fn words(&self, own: &HostJob) -> Vec<OsString> {
        let flags = self.flags.iter().chain(&own.flags).cloned();
        flags.chain(["--".into()]).chain(self.script.iter().cloned()).collect()
    }
}

/// What a relay says.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Report {
    /// A line of a host's agent or of its workers.
    #[serde(skip)]
    Line {
        /// Whose.
        host: HostNumber,
        /// On which stream.
        stream: Stream,
        /// The line with its end, or a piece of one that is too long.
        line: Bytes,
    },
    /// A host is reached.
    Reached {
        /// Which one.
        host: HostNumber,
        /// Where others find it.
        site: Site,
    },
    /// A host is out of reach.
    Gone {
        /// Which one.
        host: HostNumber,
        /// Why.
        why: String,
        /// Whether whoever hears this has tried to reach it itself, not through another host.
        is_direct: bool,
    },
    /// A host's agent has ended, with everything that it started.
    Ended {
        /// Which one.
        host: HostNumber,
        /// How.
        end: AgentEnd,
    },
}

/// Where other hosts find one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Site {
    /// What it calls itself.
    pub(super) host_name: String,
    /// At which of its addresses ssh has reached it.
    pub(super) address: Option<IpAddr>,
    /// A port at which a job can be coordinated.
    pub(super) port: u16,
}

/// How an agent ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum AgentEnd {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Signaled(i32),
    /// It could not be started.
    NotStarted(String),
}

impl From<ProcessEnd> for AgentEnd {
    fn from(end: ProcessEnd) -> Self {
        match end {
            ProcessEnd::Exited(code) => Self::Exited(code),
            ProcessEnd::Signaled(signal) => Self::Signaled(signal),
        }
    }
}
