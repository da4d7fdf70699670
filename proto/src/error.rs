//! Malformed messages, and their gRPC status.

/// The reason for which a message is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Malformed {
    /// A mandatory field is missing.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A number or a name has no meaning in its field.
    #[error("field `{0}` is out of range")]
    OutOfRange(&'static str),
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
