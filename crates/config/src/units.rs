//! Durations and sizes as people write them: a whole number and a unit, `250ms`, `64MiB`.
//!
//! There is one way to write each value, and no unit is guessed: `30` is refused, because it could be seconds or
//! milliseconds, and so is `64MB`, which has two meanings.

use std::time::Duration;

const TIME_UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60 * 1_000_000), ("h", 3_600 * 1_000_000)];

const SIZE_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Reads `250ms`, `30s`, `5m`, `1h`; `0s` and the like are zero. `None` for other texts and overflow.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    parse(text, &TIME_UNITS).map(Duration::from_micros)
}

/// Reads `512B`, `64KiB`, `256MiB`, `2GiB`. `None` for other texts and overflow.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    parse(text, &SIZE_UNITS)
}

/// Writes a duration in the largest unit that gives a whole number. Anything below a microsecond is cut off.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if micros == 0 { "0s".to_owned() } else { show(micros, &TIME_UNITS) }
}

/// Writes a size in the largest unit that gives a whole number.
pub(crate) fn show_bytes(bytes: u64) -> String {
    if bytes == 0 { "0B".to_owned() } else { show(bytes, &SIZE_UNITS) }
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    // `u64::from_str` takes a leading `+`; the split above has already refused it.
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn show(amount: u64, units: &[(&str, u64)]) -> String {
    let whole = units.iter().rev().find(|(_, factor)| amount.is_multiple_of(*factor));
    let (name, factor) = whole.copied().unwrap_or(units[0]);
    format!("{}{name}", amount / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_a_number_and_a_unit() {
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(parse_duration("1h"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_bytes("64MiB"), Some(64 << 20));
        assert_eq!(parse_bytes("1B"), Some(1));
    }

    #[test]
    fn refuses_ambiguous_values() {
        let durations = ["", "30", "s", "1.5s", "-1s", "+1s", "1 s", "1m30s", "1S", "1d", "99999999999h"];
        for text in durations {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        for text in ["", "64", "64MB", "64mib", "-1B", "1.5MiB", " 1B", "17179869184GiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_shown_value_reads_back(micros in 0_u64..1 << 53, bytes: u64) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
            prop_assert_eq!(parse_bytes(&show_bytes(bytes)), Some(bytes));
        }

        #[test]
        fn no_text_panics(text in ".{0,12}") {
            let _ = parse_duration(&text);
            let _ = parse_bytes(&text);
        }
    }
}
