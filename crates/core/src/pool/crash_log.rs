//! How many lines about its crashes a stage writes into the log: a pure decision.
//!
//! Inputs that end their workers come as quickly as callers send them, and each costs several lines. After
//! [`MOST_LINES`] the stage writes one for each [`LINE_EVERY`], and says how many it has left out.

use std::time::Duration;

use crate::clock::Instant;

/// Enough for each crash of a small accident.
const MOST_LINES: u32 = 60;

/// A flood is seen in the log, and in a day it costs less than 20 MB.
const LINE_EVERY: Duration = Duration::from_millis(500);

/// The lines that a stage may write now.
#[derive(Debug, Default)]
pub(crate) struct CrashLog {
    /// When all lines are free again.
    full_at: Option<Instant>,
    left_out: u64,
}

impl CrashLog {
    /// Whether a line may be written: then the number of lines that were left out before it.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + LINE_EVERY;
        if full_at.saturating_duration_since(now) > LINE_EVERY * MOST_LINES {
            self.left_out += 1;
            return None;
        }
        self.full_at = Some(full_at);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_flood_is_cut_and_the_next_line_says_by_how_much() {
        let (mut log, start) = (CrashLog::default(), Instant::now());
        let written = (0..1000).filter(|_| log.admit(start).is_some()).count();
        assert_eq!(written, MOST_LINES as usize);
        assert_eq!(log.admit(start + LINE_EVERY), Some(1000 - u64::from(MOST_LINES)));
        assert_eq!(log.admit(start + LINE_EVERY), None);
        assert_eq!(log.admit(start + 2 * LINE_EVERY), Some(1));
    }

    proptest! {
        /// Every line is written or counted, and a time has no more lines than its bound.
        #[test]
        fn lines_are_written_or_counted(gaps in prop::collection::vec(0u64..1000, 1..300)) {
            let (mut log, start) = (CrashLog::default(), Instant::now());
            let (mut now, mut written, mut counted) = (start, 0u64, 0u64);
            for gap in &gaps {
                now += Duration::from_millis(*gap);
                if let Some(left_out) = log.admit(now) {
                    written += 1;
                    counted += left_out;
                }
            }
            prop_assert_eq!(written + counted + log.left_out, gaps.len() as u64);
            let most = u64::from(MOST_LINES) + (now - start).as_millis() as u64 / LINE_EVERY.as_millis() as u64;
            prop_assert!(written <= most, "{} of {}", written, most);
        }
    }
}
