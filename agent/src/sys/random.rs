//! Random names.

/// Returns sixteen random hexadecimal digits.
pub(crate) fn random_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}
