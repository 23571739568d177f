//! Dates as RFC 3339 has them, in UTC. For the date of a line each thread caches the text of the second, because most
//! lines share it.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::record::digits;

/// Appends the current date.
pub(super) fn push_now(to: &mut Vec<u8>) {
    push_date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), to);
}

/// A time since 1970 as RFC 3339 has it, to the second that it is in, in UTC: `2026-01-31T12:00:00Z`.
#[must_use]
pub fn rfc_3339(since_1970: Duration) -> String {
    let text = second_text(since_1970.as_secs());
    let mut date = String::from_utf8_lossy(&text[..text.len() - 1]).into_owned();
    date.push('Z');
    date
}

/// `2026-01-31T12:00:00.`
type SecondText = [u8; 20];

thread_local! {
    /// The last second that this thread wrote.
    static SECOND: Cell<(u64, SecondText)> = const { Cell::new((u64::MAX, [0; 20])) };
}

/// Appends a date of RFC 3339 in UTC with microseconds.
fn push_date(since_1970: Duration, to: &mut Vec<u8>) {
    let second = since_1970.as_secs();
    let (mut cached, mut text) = SECOND.get();
    if cached != second {
        (cached, text) = (second, second_text(second));
        SECOND.set((cached, text));
    }
    to.extend_from_slice(&text);
    to.extend_from_slice(&digits::<6>(since_1970.subsec_micros().into()));
    to.push(b'Z');
}

fn second_text(since_1970: u64) -> SecondText {
    let (days, second) = (since_1970 / 86_400, since_1970 % 86_400);
    let (year, month, day) = civil(days);
    let mut text = *b"0000-00-00T00:00:00.";
    text[..4].copy_from_slice(&digits::<4>(year));
    for (at, number) in [(5, month), (8, day), (11, second / 3600), (14, second / 60 % 60), (17, second % 60)] {
        text[at..at + 2].copy_from_slice(&digits::<2>(number));
    }
    text
}

/// Year, month and day of a day since 1970: `civil_from_days` of
/// <https://howardhinnant.github.io/date_algorithms.html>.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(seconds: u64, micros: u32) -> String {
        let mut line = Vec::new();
        push_date(Duration::new(seconds, micros * 1000), &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(date(951_782_399, 1), "2000-02-28T23:59:59.000001Z");
        assert_eq!(date(951_782_400, 0), "2000-02-29T00:00:00.000000Z");
        assert_eq!(date(951_782_400, 999_999), "2000-02-29T00:00:00.999999Z");
        assert_eq!(date(1_709_251_199, 999_999), "2024-02-29T23:59:59.999999Z");
        assert_eq!(date(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
        assert_eq!(rfc_3339(Duration::from_secs(951_782_399)), "2000-02-28T23:59:59Z");
    }
}
