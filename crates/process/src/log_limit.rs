//! How much of what a child says reaches the log: a line has a length, and a child a rate.
//!
//! * **Full:** lines beyond the rate are left out and counted; the count is one line, once there is room again.

use std::time::Duration;

use callboard_core::log_limit::{LogRate, SharedLogLimit};

/// A service that logs each call at full speed says less; all lines of a thousand children would fill a disk in hours,
/// not in minutes.
const RATE: LogRate = LogRate { lines: 1_000, bytes: 1024 * 1024, per: Duration::from_secs(1) };

/// The target of log lines that are the words of a child: what it prints, logs, and says of its errors.
pub const OUTPUT_TARGET: &str = "callboard_process::output";

/// The most characters of a record's message.
pub(crate) const MAX_MESSAGE_CHARS: usize = 8_000;

/// The most characters of a name in a record.
pub(crate) const MAX_NAME_CHARS: usize = 200;

/// A text of at most `most` characters: the first lines of a traceback say where it began, the last what happened.
pub(crate) fn both_ends(text: &str, most: usize) -> String {
    let characters = text.chars().count();
    if characters <= most {
        return text.to_owned();
    }
    let (begin, end): (String, String) =
        (text.chars().take(most / 2).collect(), text.chars().skip(characters - most / 2 + 2).collect());
    format!("{begin}\n…{end}")
}

/// The log limit of one child, with the words for lines that were left out.
#[derive(Debug)]
pub(crate) struct ChildLogLimit(SharedLogLimit);

impl Default for ChildLogLimit {
    fn default() -> Self {
        Self(SharedLogLimit::new(RATE))
    }
}

impl ChildLogLimit {
    /// Whether a line of this length may be written. `tell` writes how many were left out before.
    pub(crate) fn admits(&self, bytes: usize, tell: impl FnOnce(&str)) -> bool {
        self.0.admits(bytes, |left_out| tell(&words(left_out)))
    }

    /// Writes how many lines were left out, if some were and there is room again.
    pub(crate) fn tell_left_out(&self, tell: impl FnOnce(&str)) {
        self.0.tell_left_out(|left_out| tell(&words(left_out)));
    }

    /// The same at the end of the child.
    pub(crate) fn tell_at_end(&self, tell: impl FnOnce(&str)) {
        self.0.tell_at_end(|left_out| tell(&words(left_out)));
    }
}

fn words(left_out: u64) -> String {
    let LogRate { lines, bytes, per } = RATE;
    format!("{left_out} lines left out: more than {lines} lines or {} KiB within {per:?}", bytes / 1024)
}

/// Cuts a text to this number of characters.
pub(crate) fn cut(text: &mut String, max_chars: usize) {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_long_text_keeps_both_of_its_ends() {
        assert_eq!(both_ends("äbcdefgh", 8), "äbcdefgh");
        assert_eq!(both_ends("äbcdefghi", 8), "äbcd\n…hi");
        assert_eq!(both_ends(&"x".repeat(100), 8).chars().count(), 8);
    }

    #[test]
    fn what_is_left_out_is_counted_in_words() {
        let expected = "7 lines left out: more than 1000 lines or 1024 KiB within 1s";
        assert_eq!(words(7), expected);
    }

    fn limit(bytes: usize, per: Duration) -> ChildLogLimit {
        ChildLogLimit(SharedLogLimit::new(LogRate { lines: 1, bytes, per }))
    }

    #[test]
    fn lines_that_were_left_out_are_told_when_there_is_room_again() {
        let (limit, begin, mut told) = (limit(10, Duration::from_millis(20)), Instant::now(), Vec::new());
        while limit.admits(1, |_| panic!("nothing was left out")) {}
        while told.is_empty() && begin.elapsed() < Duration::from_secs(10) {
            limit.tell_left_out(|words| told.push(words.to_owned()));
        }
        assert_eq!(told, [words(1)]);
    }

    #[test]
    fn lines_that_were_left_out_are_told_before_the_next_line() {
        let (limit, begin, mut told) = (limit(10, Duration::from_millis(20)), Instant::now(), Vec::new());
        while limit.admits(1, |_| panic!("nothing was left out")) {}
        while told.is_empty() && begin.elapsed() < Duration::from_secs(10) {
            limit.admits(1, |words| told.push(words.to_owned()));
        }
        assert!(told[0].ends_with(&words(1)[1..]), "{told:?}");
    }

    #[test]
    fn lines_that_were_left_out_are_told_once_at_the_end() {
        let (limit, mut told) = (limit(10, Duration::MAX), Vec::new());
        assert!(limit.admits(10, |_| panic!("nothing was left out")));
        assert!(!limit.admits(0, |_| panic!("it is told later")));
        limit.tell_left_out(|_| panic!("there is no room yet"));
        limit.tell_at_end(|words| told.push(words.to_owned()));
        limit.tell_at_end(|_| panic!("it was told"));
        assert_eq!(told, [words(1)]);
    }

    #[test]
    fn a_line_has_at_most_the_bytes_of_the_rate() {
        assert!(limit(10, Duration::MAX).admits(10, |_| {}) && !limit(10, Duration::MAX).admits(11, |_| {}));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let cut = |text: &str, chars| {
            let mut text = text.to_owned();
            cut(&mut text, chars);
            text
        };
        assert_eq!((cut("äöü", 2), cut("äöü", 3), cut("", 0)), ("äö".to_owned(), "äöü".to_owned(), String::new()));
    }
}
