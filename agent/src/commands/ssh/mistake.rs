//! The mistakes in the arguments of `ragent launch` that are found on this machine, without network
//! access.

use super::hostfile::HostListError;
use crate::spec::JobSpecError;

/// A mistake in the arguments of `ragent launch`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Mistake {
    /// A completion script is requested, which is not a launch.
    #[error("`--print-completion` cannot be used with `ragent launch`")]
    Completion,
    /// A file cannot be read.
    #[error("`{flag} {path}` cannot be read: {error}")]
    File {
        /// The flag.
        flag: &'static str,
        /// The path, as given.
        path: String,
        /// The system's error.
        error: String,
    },
    /// A value cannot be that of an environment variable.
    #[error("`{source_}` gives `{name}` a value that contains a NUL or is longer than 127 KiB")]
    VariableValue {
        /// The flag, or the file and line.
        source_: String,
        /// The variable.
        name: String,
    },
    /// The list of hosts is invalid.
    #[error("`--hostfile {path}`: {error}")]
    Hosts {
        /// The file.
        path: String,
        /// The reason.
        error: HostListError,
    },
    /// A filter is invalid.
    #[error("`{flag}` contains `{text}`, which is not a list of hosts")]
    Filter {
        /// The flag.
        flag: &'static str,
        /// The invalid part.
        text: String,
    },
    /// A filter names an unknown host.
    #[error("`{flag}` contains `{name}`, which is not in the hostfile")]
    UnknownHost {
        /// The flag.
        flag: &'static str,
        /// The host.
        name: String,
    },
    /// A filter names an unknown slot.
    #[error("`{flag}` contains slot {slot} of `{name}`, which has {slots} slots")]
    UnknownSlot {
        /// The flag.
        flag: &'static str,
        /// The host.
        name: String,
        /// The slot.
        slot: u32,
        /// The number of slots of the host.
        slots: u32,
    },
    /// A filter excludes slots of a host whose number of slots is unknown.
    #[error(
        "`{flag}` selects slots of `{name}`, but the hostfile does not give its number of slots"
    )]
    SlotsNotKnown {
        /// The flag.
        flag: &'static str,
        /// The host.
        name: String,
    },
    /// The filters leave no host.
    #[error("`--include` and `--exclude` leave none of the {hosts} hosts")]
    NothingLeft {
        /// The number of hosts in the list.
        hosts: usize,
    },
    /// There are fewer hosts than the job needs.
    #[error("{hosts} hosts are fewer than the {min} that `--nnodes` needs")]
    TooFewHosts {
        /// The number of hosts that the filters leave.
        hosts: usize,
        /// The minimum number of nodes.
        min: u32,
    },
    /// The name of a variable is invalid.
    #[error("`{source_}`: `{name}` is not a valid name of a variable")]
    VariableName {
        /// The flag, or the file and line.
        source_: String,
        /// The name, as given.
        name: String,
    },
    /// A variable to be passed on is not set on this host.
    #[error("`{source_}`: {name} is not set on this host")]
    NotSet {
        /// The flag, or the file and line.
        source_: String,
        /// The variable.
        name: String,
    },
    /// A quote is not closed.
    #[error("`{source_}`: a quote is not closed in `{text}`")]
    OpenQuote {
        /// The flag, or the file and line.
        source_: String,
        /// The text.
        text: String,
    },
    /// `--ssh` is empty.
    #[error("`--ssh` is empty")]
    NoSsh,
    /// The ssh program is not found on this host.
    #[error("`{program}` is not found in PATH")]
    SshNotFound {
        /// The program, as given.
        program: String,
    },
    /// A value is not a number in the range of its flag.
    #[error("`{flag} {value}` is not a number from 1 to {max}")]
    Number {
        /// The flag.
        flag: &'static str,
        /// The value, as given.
        value: String,
        /// The maximum.
        max: u64,
    },
    /// The rank of one node is given for all hosts.
    #[error("`--node-rank` cannot be used with `ragent launch`: each host gets its own rank")]
    NodeRank,
    /// `--standalone` is given with more than one host.
    #[error("`--standalone` runs one node, but there are {hosts} hosts")]
    Standalone {
        /// The number of hosts.
        hosts: usize,
    },
    /// The job exceeds the length of a message to a host.
    #[error("the environment and the arguments have {len} bytes, more than can be sent to a host")]
    TooLong {
        /// The number of bytes.
        len: usize,
    },
    /// A flag of the job is invalid.
    #[error(transparent)]
    Job(JobSpecError),
}

impl Mistake {
    /// Returns a hint for the user, if there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        let text = match self {
            Self::File { .. } | Self::Number { .. } | Self::NoSsh => return None,
            Self::Job(error) => return error.hint(),
            Self::Hosts { error, .. } => error.hint(),
            Self::SshNotFound { .. } => {
                "install OpenSSH's client, or give another one with `--ssh`"
            }
            Self::Filter { .. } => {
                "examples: `node1,node2`, `node[1-4]`, or `node1:0,2@node2` for slots of a host"
            }
            Self::UnknownHost { .. } => "use the names of the hostfile, without a user",
            Self::UnknownSlot { .. } => "slots are counted from 0",
            Self::SlotsNotKnown { .. } => "write `slots=N` after the host in the hostfile",
            Self::NothingLeft { .. } => "keep at least one host",
            Self::TooFewHosts { .. } => "list more hosts, or lower MIN in `--nnodes`",
            Self::Completion => "use `ragent --print-completion SHELL`",
            Self::VariableValue { .. } => "let the program read it from a file on each host",
            Self::VariableName { .. } => "give NAME, or NAME=VALUE",
            Self::NotSet { .. } => "set it, or give a value as NAME=VALUE",
            Self::OpenQuote { .. } => "close it, or write a backslash before it",
            Self::NodeRank => "omit the flag: ranks follow the order of the hostfile",
            Self::Standalone { .. } => "omit the flag",
            Self::TooLong { .. } => {
                "pass fewer variables, or let the program read them from a file on each host"
            }
        };
        Some(text.to_owned())
    }
}
