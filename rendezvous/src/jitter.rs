//! Random numbers for pauses, determined by a seed.

/// A sequence of random numbers determined by its seed (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number from 0 to 1, 1 excluded.
    pub fn fraction(&mut self) -> f64 {
        // The upper 53 bits, the precision of a float.
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
