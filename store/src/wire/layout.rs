//! The queries and the fields of each.

/// The code of a query, with the name that torch uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the variants are explained at `Query`")]
pub enum QueryType {
    Validate,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    GetNumKeys,
    DeleteKey,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
}

impl QueryType {
    /// All queries, in the order of their codes.
    pub const ALL: [Self; 19] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::GetNumKeys,
        Self::DeleteKey,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
        Self::Barrier,
    ];

    /// Returns the query with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Returns the code of this query on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the fields that follow the code.
    ///
    /// Fields after a [`Field::Count`] are repeated that many times.
    pub(super) fn fields(self) -> &'static [Field] {
        use Field::{Count, Fixed, Key, Value};
        match self {
            Self::GetNumKeys | Self::CancelWait | Self::ListKeys => &[],
            Self::Validate | Self::Ping => &[Fixed(4)],
            Self::Get | Self::DeleteKey | Self::QueuePop | Self::QueueLen => &[Key],
            Self::Set | Self::Append | Self::QueuePush => &[Key, Value],
            Self::CompareSet => &[Key, Value, Value],
            Self::Add | Self::Barrier => &[Key, Fixed(8)],
            Self::Check | Self::Wait | Self::MultiGet => &[Count, Key],
            Self::MultiSet => &[Count, Key, Value],
        }
    }
}

/// One field of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Field {
    /// The number of times that the fields after it are repeated.
    Count,
    /// An integer of this many bytes.
    Fixed(usize),
    /// The name of a key or queue.
    Key,
    /// Arbitrary bytes.
    Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A code is the position of its query in `ALL`, and larger codes have no query.
    #[test]
    fn codes_are_positions() {
        for (code, kind) in (0..).zip(QueryType::ALL) {
            assert_eq!(kind.code(), code);
            assert_eq!(QueryType::from_code(code), Some(kind));
        }
        assert_eq!(QueryType::from_code(19), None);
        assert_eq!(QueryType::from_code(255), None);
    }
}
