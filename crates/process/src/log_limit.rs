//! How much of what a child says reaches the log: a line has a length, and a child a rate.
//!
//! * **Full:** lines beyond the rate are left out and counted; the count is one line, once there is room again.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A service that logs each call at full speed says less; all lines of a thousand children would fill a disk in hours,
/// not in minutes.
const MAX_LINES: u32 = 1_000;
const MAX_BYTES: usize = 1024 * 1024;
const PER: Duration = Duration::from_secs(1);

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

/// The rate of one child.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Window>);

/// What was said since its begin.
#[derive(Debug, Default)]
struct Window {
    begin: Option<Instant>,
    lines: u32,
    bytes: usize,
    left_out: u64,
}

impl Window {
    /// Begins with the next window, if it is time. Returns the lines that were left out of the former.
    fn turn(&mut self, now: Instant) -> u64 {
        if self.begin.is_some_and(|begin| now.duration_since(begin) < PER) {
            return 0;
        }
        std::mem::replace(self, Self { begin: Some(now), ..Self::default() }).left_out
    }

    /// Whether a line may be written.
    fn admit(&mut self, bytes: usize) -> bool {
        let is_admitted = self.lines < MAX_LINES && self.bytes + bytes <= MAX_BYTES;
        if is_admitted {
            self.lines += 1;
            self.bytes += bytes;
        } else {
            self.left_out += 1;
        }
        is_admitted
    }
}

impl LogLimit {
    /// Whether a line of this length may be written. `tell` writes how many were left out before.
    pub(crate) fn admits(&self, bytes: usize, tell: impl FnOnce(&str)) -> bool {
        self.tell_left_out(tell);
        self.0.lock().admit(bytes)
    }

    /// Writes how many lines were left out, if some were and there is room again.
    pub(crate) fn tell_left_out(&self, tell: impl FnOnce(&str)) {
        let left_out = self.0.lock().turn(Instant::now());
        if left_out > 0 {
            tell(&words(left_out));
        }
    }

    /// The same at the end of the child.
    pub(crate) fn tell_at_end(&self, tell: impl FnOnce(&str)) {
        let left_out = std::mem::take(&mut self.0.lock().left_out);
        if left_out > 0 {
            tell(&words(left_out));
        }
    }
}

fn words(left_out: u64) -> String {
    format!("{left_out} lines left out: more than {MAX_LINES} lines or {} KiB within {PER:?}", MAX_BYTES / 1024)
}

/// Cuts a text to this number of characters.
pub(crate) fn cut(text: &mut String, max_chars: usize) {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_left_out_and_counted_once() {
        let (start, mut window) = (Instant::now(), Window::default());
        let mut say =
            |millis: u64, bytes: usize| (window.turn(start + Duration::from_millis(millis)), window.admit(bytes));
        for _ in 0..MAX_LINES {
            assert_eq!(say(0, 10), (0, true));
        }
        assert_eq!((say(500, 10), say(999, 10)), ((0, false), (0, false)));
        assert_eq!((say(1000, 10), say(1001, 10)), ((2, true), (0, true)));
        assert_eq!((say(2000, MAX_BYTES), say(2001, 1), say(2002, 1)), ((0, true), (0, false), (0, false)));
        assert_eq!((say(5000, MAX_BYTES + 1), say(5001, MAX_BYTES)), ((2, false), (0, true)));
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
