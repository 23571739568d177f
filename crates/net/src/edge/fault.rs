//! Why a stream is not answered to its end, and what its caller hears of it.
//!
//! A refusal is one word, the same in the metrics and on the page for operators. The caller hears a reset with the code of its kind; the
//! connection goes on.

use callboard_codec::wire::{ResetCode, WireError};

/// Why a stream was not answered to its end.
pub(super) enum Fault {
    /// Its caller gave it up, or is gone.
    Left,
    /// It is not of this protocol, or too slow for it.
    Refused(StreamRefusal),
}

/// What is wrong with a stream.
#[derive(Debug)]
pub(super) enum StreamRefusal {
    /// What came is not a frame, or larger than frames may be.
    Frame(WireError),
    /// It ended within a call.
    Truncated,
    /// A frame that callers do not send, or not there.
    UnexpectedKind,
    /// More calls at once than a pack may have.
    TooManyEntries,
    /// A call under the number of one that is not answered yet.
    EntryTwice,
    /// A call behind the one that was said to be the last.
    CallBehindTheLast,
    /// A call for one output after the other on a stream with other calls.
    StreamingInAPack,
    /// No call came.
    Silent,
    /// Too little of a body came.
    SlowBody,
    /// Too little of an answer was taken.
    SlowReader,
}

impl StreamRefusal {
    /// The one word for metric labels.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Frame(error) => error.as_str(),
            Self::Truncated => "truncated",
            Self::UnexpectedKind => "unexpected_kind",
            Self::TooManyEntries => "too_many_entries",
            Self::EntryTwice => "entry_twice",
            Self::CallBehindTheLast => "call_behind_the_last",
            Self::StreamingInAPack => "streaming_in_a_pack",
            Self::Silent => "silent",
            Self::SlowBody => "slow_body",
            Self::SlowReader => "slow_reader",
        }
    }

    /// What its caller hears.
    pub(super) fn reset_code(&self) -> ResetCode {
        match self {
            Self::Frame(WireError::HeaderTooLarge { .. } | WireError::BodyTooLarge { .. }) => ResetCode::TooLarge,
            Self::Silent | Self::SlowBody | Self::SlowReader => ResetCode::Deadline,
            Self::Frame(_)
            | Self::Truncated
            | Self::UnexpectedKind
            | Self::TooManyEntries
            | Self::EntryTwice
            | Self::CallBehindTheLast
            | Self::StreamingInAPack => ResetCode::Protocol,
        }
    }
}

impl From<StreamRefusal> for Fault {
    fn from(refusal: StreamRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Self {
        Self::Refused(StreamRefusal::Frame(error))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use callboard_codec::wire::{Call, FrameKind, FrameLimits, FrameReader, frame_head};

    use super::*;

    /// What a stream of callers can be refused with.
    fn all() -> Vec<StreamRefusal> {
        use StreamRefusal as Is;
        let mut all = vec![
            Is::Truncated,
            Is::UnexpectedKind,
            Is::TooManyEntries,
            Is::EntryTwice,
            Is::CallBehindTheLast,
            Is::StreamingInAPack,
            Is::Silent,
            Is::SlowBody,
            Is::SlowReader,
        ];
        all.extend(unreadable().map(Is::Frame));
        all
    }

    /// One of each error that frames from outside are refused with.
    fn unreadable() -> impl Iterator<Item = WireError> {
        let (found, known, bytes, max) = (9, 1, 1, 0);
        let header = frame_head(FrameKind::Call, 0, &[0u8; 4], 0).expect("a head");
        let mut reader = FrameReader::new(FrameLimits::default());
        reader.push(header);
        let head = match reader.next_part() {
            Ok(Some(callboard_codec::wire::FramePart::Head(head))) => head,
            part => panic!("a head comes first, not {part:?}"),
        };
        [
            WireError::NotAFrame { found: [0; 3] },
            WireError::Version { found, known },
            WireError::Kind { found },
            WireError::Flags { found },
            WireError::HeaderTooLarge { bytes, max },
            WireError::BodyTooLarge { bytes, max },
            WireError::Truncated { missing: bytes },
            head.header::<Call>().expect_err("a list is not a header"),
        ]
        .into_iter()
    }

    #[test]
    fn the_page_for_operators_has_every_word_and_no_other() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let page = std::fs::read_to_string(page).expect("a page");
        let section = page.lines().skip_while(|line| !line.contains("`callboard_net_streams_refused{reason}`"));
        let rows =
            section.skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
        let told: BTreeSet<&str> =
            rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert_eq!(told, all().iter().map(StreamRefusal::as_str).collect());
    }

    #[test]
    fn only_who_is_slow_hears_of_time_and_only_a_length_is_too_large() {
        for refusal in all() {
            let expected = match refusal.as_str() {
                "silent" | "slow_body" | "slow_reader" => ResetCode::Deadline,
                "header_too_large" | "body_too_large" => ResetCode::TooLarge,
                _ => ResetCode::Protocol,
            };
            assert_eq!(refusal.reset_code(), expected, "{refusal:?}");
        }
    }
}
