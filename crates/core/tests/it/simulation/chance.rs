//! Chance with a seed.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64: unrelated numbers of related ones.
pub(super) fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// One sequence of choices.
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// A sequence of its own for this thing, the same whenever it is asked for.
    pub(super) fn of(seed: u64, things: &[u64]) -> Self {
        Self(things.iter().fold(mix(seed), |state, thing| mix(state ^ thing.wrapping_mul(0xd6e8_feb8_6659_fd93))))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0..from.len() as u64) as usize]
    }

    pub(super) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// The time until the next of what comes every `mean` on average, independently of each other.
    pub(super) fn gap(&mut self, mean: Duration) -> Duration {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        mean.mul_f64(-(1.0 - uniform).ln())
    }
}
