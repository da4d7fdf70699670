//! Defines why a message is malformed, and its gRPC status.

/// The reason why a message is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// The bytes are not an encoded message.
    #[error("the message cannot be decoded")]
    Encoding,
    /// A mandatory field is missing.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A number or a name has no meaning in its field.
    #[error("field `{0}` is out of range")]
    OutOfRange(&'static str),
    /// The peer has another protocol version.
    #[error(
        "the peer uses protocol version {theirs}, but this agent {ours}: run the same ragent on all \
         nodes"
    )]
    ProtocolVersion {
        /// The version of this build.
        ours: u32,
        /// The version of the peer.
        theirs: u32,
    },
    /// A text or a list is longer than any that a correct peer sends.
    #[error("field `{field}` has {len} elements, but at most {limit} are allowed")]
    TooLong {
        /// The name of the field.
        field: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
}

impl From<Malformed> for tonic::Status {
    fn from(malformed: Malformed) -> Self {
        Self::invalid_argument(malformed.to_string())
    }
}
