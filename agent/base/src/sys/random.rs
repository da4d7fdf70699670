//! Random names.

/// Returns sixteen random hexadecimal digits.
pub fn random_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}
