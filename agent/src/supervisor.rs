//! Watches the local workers.

pub(crate) mod unix;
