//! Random numbers for the pauses between attempts.

/// A sequence of random numbers determined by its seed (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jitter(pub(crate) u64);

impl Jitter {
    /// Returns a number from 0 to 1, 1 excluded.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The upper 53 bits, the precision of a float.
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
