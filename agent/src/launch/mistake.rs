//! Every mistake that the arguments of `ragent launch` and this machine can show before any network is
//! touched.

use crate::{hostfile::HostListError, job_spec::JobSpecError};

/// One mistake.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Mistake {
    /// Completions are asked for, of agents.
    #[error("`--print-completion` is for `ragent` itself, and nothing would run")]
    Completion,
    /// A file that is to be read cannot be.
    #[error("`{flag} {path}` cannot be read: {error}")]
    File {
        /// Where it was given.
        flag: &'static str,
        /// As given.
        path: String,
        /// What the system says.
        error: String,
    },
    /// A value that no process can be given.
    #[error("`{source_}` gives `{name}` a value that has a NUL, or is longer than 127 KiB")]
    VariableValue {
        /// Where it was given.
        source_: String,
        /// The variable.
        name: String,
    },
    /// The list of hosts is none.
    #[error("`--hostfile {path}`: {error}")]
    Hosts {
        /// The file.
        path: String,
        /// Why not.
        error: HostListError,
    },
    /// A filter that cannot be read.
    #[error("`{flag}` has `{text}`, which is no list of hosts")]
    Filter {
        /// Which one.
        flag: &'static str,
        /// The part of it.
        text: String,
    },
    /// A filter names a host that is not there.
    #[error("`{flag}` names `{name}`, which the hostfile does not have")]
    UnknownHost {
        /// Which one.
        flag: &'static str,
        /// The host.
        name: String,
    },
    /// A filter names a slot that is not there.
    #[error("`{flag}` names slot {slot} of `{name}`, which has {slots}")]
    UnknownSlot {
        /// Which one.
        flag: &'static str,
        /// The host.
        name: String,
        /// The slot.
        slot: u32,
        /// How many it has.
        slots: u32,
    },
    /// Slots are taken away from a host that has no number of them.
    #[error("`{flag}` takes slots of `{name}`, and the hostfile does not say how many it has")]
    SlotsNotKnown {
        /// Which one.
        flag: &'static str,
        /// The host.
        name: String,
    },
    /// The filters leave no host.
    #[error("`--include` and `--exclude` leave none of the {hosts} hosts")]
    NothingLeft {
        /// How many there were.
        hosts: usize,
    },
    /// There are fewer hosts than the job needs.
    #[error("{hosts} hosts are fewer than the {min} that `--nnodes` needs")]
    TooFewHosts {
        /// How many are left by the filters.
        hosts: usize,
        /// How many are needed.
        min: u32,
    },
    /// What is no name of a variable.
    #[error("`{source_}`: `{name}` is no name of a variable")]
    VariableName {
        /// Where it was given.
        source_: String,
        /// As given.
        name: String,
    },
    /// A variable that is to be passed on is not set here.
    #[error("`{source_}`: {name} is not set here")]
    NotSet {
        /// Where it was given.
        source_: String,
        /// Which one.
        name: String,
    },
    /// A quote that is not closed.
    #[error("`{source_}`: a quote is not closed in `{text}`")]
    OpenQuote {
        /// Where it was given.
        source_: String,
        /// The text.
        text: String,
    },
    /// Words for ssh, of which there are none.
    #[error("`--ssh` names no program")]
    NoSsh,
    /// There is no ssh here.
    #[error("`{program}` is not found in PATH")]
    SshNotFound {
        /// As given.
        program: String,
    },
    /// A number that is out of its range.
    #[error("`{flag} {value}` is no number from 1 to {max}")]
    Number {
        /// Where it was given.
        flag: &'static str,
        /// As given.
        value: String,
        /// The highest.
        max: u64,
    },
    /// The rank of one node, given for all.
    #[error("`--node-rank` is the rank of one node, and each host gets its own")]
    NodeRank,
    /// What all agents would write over each other, or cannot have.
    #[error("`--standalone` is one node, and there are {hosts} hosts")]
    Standalone {
        /// How many.
        hosts: usize,
    },
    /// More than one message takes.
    #[error("the environment and the arguments have {len} bytes, more than hosts can be told")]
    TooLong {
        /// How many there are.
        len: usize,
    },
    /// A flag of the job means nothing.
    #[error(transparent)]
    Job(JobSpecError),
}

impl Mistake {
    /// What to try.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::File { .. } | Self::Number { .. } | Self::NoSsh => return None,
            Self::Job(error) => return error.hint(),
            Self::Hosts { error, .. } => error.hint(),
            Self::SshNotFound { .. } => "install OpenSSH's client, or name one with `--ssh`",
            Self::Filter { .. } => {
                "such as `node1,node2`, `node[1-4]`, or `node1:0,2@node2` for slots of a host"
            }
            Self::UnknownHost { .. } => "hosts are named as in the hostfile, without a user",
            Self::UnknownSlot { .. } => "slots are counted from 0",
            Self::SlotsNotKnown { .. } => "write `slots=N` behind the host in the hostfile",
            Self::NothingLeft { .. } => "name at least one host that is to take part",
            Self::TooFewHosts { .. } => "name more hosts, or lower MIN in `--nnodes`",
            Self::Completion => "leave it out, or leave `launch` out",
            Self::VariableValue { .. } => "let the hosts read it from a file",
            Self::VariableName { .. } => "give NAME, or NAME=VALUE",
            Self::NotSet { .. } => "set it, or give its value as NAME=VALUE",
            Self::OpenQuote { .. } => "close it, or write a backslash before it",
            Self::NodeRank => "hosts are ranked in the order of the hostfile",
            Self::Standalone { .. } => "leave it out",
            Self::TooLong { .. } => "pass fewer variables, or let the hosts read them from a file",
        };
        Some(text.to_owned())
    }
}
