//! Ends a text at the first stop sequence, also where the sequence arrives in pieces. Pure.
//!
//! The end of the text so far is held back while it may be the beginning of a sequence.

use std::sync::Arc;

/// The text of one choice on its way to the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopFilter {
    /// None is empty.
    stops: Arc<[String]>,
    /// Shorter than the longest sequence.
    held: String,
}

/// What of a piece can be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// This much, and more may come.
    Text(String),
    /// The last, which this stop sequence followed.
    Stopped { text: String, stop: String },
}

impl StopFilter {
    pub(crate) fn new(stops: Arc<[String]>) -> Self {
        Self { stops, held: String::new() }
    }

    pub(crate) fn push(&mut self, piece: String) -> Passed {
        if self.stops.is_empty() {
            return Passed::Text(piece);
        }
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&piece);
        if let Some((_, at, stop)) = first_stop(&text, &self.stops) {
            text.truncate(at);
            return Passed::Stopped { text, stop: stop.to_owned() };
        }
        let begun = self.stops.iter().map(|stop| begun(&text, stop)).max().unwrap_or_default();
        self.held = text.split_off(text.len() - begun);
        Passed::Text(text)
    }

    /// What was held back, when no more comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The sequence that is complete first, as it would be if the text came letter by letter, after its end and beginning.
fn first_stop<'s>(text: &str, stops: &'s [String]) -> Option<(usize, usize, &'s str)> {
    let found = stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at + stop.len(), at, stop.as_str())));
    found.min()
}

/// The length of the longest end of `text` that `stop` begins with.
fn begun(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(at, _)| at).skip(1).take_while(|at| *at <= text.len());
    ends.filter(|at| text.as_bytes().ends_with(&stop.as_bytes()[..*at])).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn through(stops: &[String], pieces: &[String]) -> (String, bool) {
        let mut filter = StopFilter::new(stops.into());
        let mut sent = String::new();
        for piece in pieces {
            match filter.push(piece.clone()) {
                Passed::Text(text) => sent.push_str(&text),
                Passed::Stopped { text, .. } => return (sent + &text, true),
            }
        }
        (sent + &filter.finish(), false)
    }

    #[test]
    fn what_cannot_be_a_stop_is_sent_at_once() {
        let mut filter = StopFilter::new([String::from("\n\n")].into());
        assert_eq!(filter.push("one\ntwo".to_owned()), Passed::Text("one\ntwo".to_owned()));
        assert_eq!(filter.push("three\n".to_owned()), Passed::Text("three".to_owned()));
        assert_eq!(filter.push("four".to_owned()), Passed::Text("\nfour".to_owned()));
        assert_eq!(filter.push("\n".to_owned()), Passed::Text(String::new()));
        assert_eq!(filter.push("\nfive".to_owned()), Passed::Stopped { text: String::new(), stop: "\n\n".to_owned() });
    }

    proptest! {
        /// However the text is cut, it ends where the whole text has the stop sequence that is complete first.
        #[test]
        fn pieces_are_as_the_whole(
            stops in prop::collection::vec("[abé]{1,3}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let whole: String = pieces.concat();
            let end = first_stop(&whole, &stops).map(|(_, at, _)| at);
            let expected = whole[..end.unwrap_or(whole.len())].to_owned();
            prop_assert_eq!(through(&stops, &pieces), (expected, end.is_some()));
        }
    }
}
