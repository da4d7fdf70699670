//! Converts.
