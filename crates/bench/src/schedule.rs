//! The due times of the requests of an open loop: a pure value, without a clock.

use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Slots at a fixed rate. The first is due at the start. Rounding errors do not add up: each slot is computed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Thousandths of requests per second: whole numbers, so that the two functions below agree to the slot.
    millis_per_second: u64,
}

/// The lowest and highest rates that can be asked for, in requests per second.
pub const RATES: std::ops::RangeInclusive<f64> = 0.001..=10_000_000.0;

impl Schedule {
    /// At this many requests per second; `None` outside [`RATES`].
    #[must_use]
    pub fn with_rate(requests_per_second: f64) -> Option<Self> {
        // Within the range the product is far below 2⁵³.
        RATES
            .contains(&requests_per_second)
            .then(|| Self { millis_per_second: (requests_per_second * 1000.0).round() as u64 })
    }

    /// The rate.
    #[must_use]
    pub fn requests_per_second(self) -> f64 {
        self.millis_per_second as f64 / 1000.0
    }

    /// The due time of slot `index`, from the start.
    #[must_use]
    pub fn due_at(self, index: u64) -> Duration {
        let nanos = u128::from(index) * NANOS_PER_SECOND * 1000 / u128::from(self.millis_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The number of slots that are due within this time.
    #[must_use]
    pub fn due_by(self, elapsed: Duration) -> u64 {
        let slots = (elapsed.as_nanos() + 1) * u128::from(self.millis_per_second);
        u64::try_from(slots.div_ceil(NANOS_PER_SECOND * 1000)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_spread_evenly_from_the_start() {
        let schedule = Schedule::with_rate(4.0).unwrap();
        let due = [0, 1, 2, 4].map(|index| schedule.due_at(index));
        assert_eq!(due, [0, 250, 500, 1000].map(Duration::from_millis));
        assert_eq!(schedule.due_by(Duration::ZERO), 1);
        assert_eq!(schedule.due_by(Duration::from_millis(999)), 4);
        assert_eq!(schedule.due_by(Duration::from_secs(1)), 5);
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        for rate in [0.0, -1.0, 1e9, f64::NAN, f64::INFINITY] {
            assert_eq!(Schedule::with_rate(rate), None, "{rate}");
        }
    }

    proptest! {
        #[test]
        fn a_slot_is_due_exactly_at_its_time(rate in 0.001_f64..10_000_000.0, index in 0_u64..1 << 32) {
            let schedule = Schedule::with_rate(rate).unwrap();
            let due = schedule.due_at(index);
            // Above a slot per nanosecond of rounding several share one time.
            prop_assert!(schedule.due_by(due) > index);
            if let Some(before) = due.checked_sub(Duration::from_nanos(1)) {
                prop_assert!(schedule.due_by(before) <= index);
            }
        }

        #[test]
        fn no_slot_comes_before_an_earlier_one(rate in 0.001_f64..10_000_000.0, index in 0_u64..1 << 40) {
            let schedule = Schedule::with_rate(rate).unwrap();
            prop_assert!(schedule.due_at(index) <= schedule.due_at(index + 1));
        }
    }
}
