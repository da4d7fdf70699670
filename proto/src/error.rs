//! What can be wrong with a message, and how gRPC is told.

/// Why a message is not understood.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// A field that is always there is not.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A number or a name has no meaning there.
    #[error("field `{0}` is out of range")]
    OutOfRange(&'static str),
    /// A text or a list is longer than any that a sound peer sends.
    #[error("field `{field}` has {len} elements, at most {limit} are taken")]
    TooLong {
        /// Which.
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
