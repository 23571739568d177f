//! Random choices from a seed.

use std::ops::Range;
use std::time::Duration;

use crate::splitmix64::splitmix64;

/// One sequence of choices: the same for the same seed, on every machine (SplitMix64).
///
/// ```
/// use callboard_core::testing::Chance;
///
/// let mut chance = Chance::new(17);
/// let items = ["pen", "ink", "paper"];
/// let first: Vec<&str> = (0..5).map(|_| chance.pick(&items)).collect();
/// let mut again = Chance::new(17);
/// assert_eq!(first, (0..5).map(|_| again.pick(&items)).collect::<Vec<_>>());
/// ```
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(splitmix64(seed))
    }

    /// A separate sequence for this thing, the same at every request.
    #[must_use]
    pub fn for_thing(seed: u64, thing: &[u64]) -> Self {
        Self(
            thing
                .iter()
                .fold(splitmix64(seed), |state, part| splitmix64(state ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93))),
        )
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        splitmix64(self.0)
    }

    /// A number of the range.
    ///
    /// # Panics
    ///
    /// When the range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        assert!(!range.is_empty(), "{range:?} has no number");
        range.start + self.number() % (range.end - range.start)
    }

    /// True once in `n` times on average; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        // The number is drawn for 0 as well, so that later numbers do not depend on it.
        let number = self.number();
        n > 0 && number.is_multiple_of(n)
    }

    /// One element of the slice.
    ///
    /// # Panics
    ///
    /// If the slice is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.within(0..from.len() as u64) as usize]
    }

    /// A time in whole milliseconds.
    ///
    /// # Panics
    ///
    /// When the range is empty.
    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// Uniform in 0..1.
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The time until the next of independent events, `mean` on average.
    pub fn gap(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.share()).ln())
    }
}
