//! The reasons why a stream is not answered completely, and the reset code that its caller receives.
//!
//! A refusal is one word, in the metrics and on the page for operators. The caller receives a reset; the connection
//! continues.

use callboard_codec::wire::{ResetCode, WireError};

/// The reason why a stream was not answered completely.
pub(super) enum StreamFault {
    /// Its caller reset it, or the connection was lost.
    Left,
    /// It violates the protocol, or is too slow.
    Refused(StreamRefusal),
}

/// The violation of a stream.
#[derive(Debug)]
pub(super) enum StreamRefusal {
    /// The bytes are not a valid frame, or a frame is too large.
    Frame(WireError),
    /// It ended within a call.
    Truncated,
    /// A kind of frame that is not allowed at this point.
    UnexpectedKind,
    /// More calls at once than a stream may have.
    TooManyEntries,
    /// A call with the number of a call that is not answered yet.
    EntryTwice,
    /// A call after the call that was marked as the last.
    CallAfterLast,
    /// A streaming call on a stream with other calls.
    StreamingOnSharedStream,
    /// No call arrived.
    Silent,
    /// A body arrived too slowly.
    SlowBody,
    /// An answer was read too slowly.
    SlowReader,
}

impl StreamRefusal {
    /// Its word, for metric labels.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Frame(error) => error.as_str(),
            Self::Truncated => "truncated",
            Self::UnexpectedKind => "unexpected_kind",
            Self::TooManyEntries => "too_many_entries",
            Self::EntryTwice => "entry_twice",
            Self::CallAfterLast => "call_behind_the_last",
            Self::StreamingOnSharedStream => "streaming_in_a_pack",
            Self::Silent => "silent",
            Self::SlowBody => "slow_body",
            Self::SlowReader => "slow_reader",
        }
    }

    /// The code that its caller receives.
    pub(super) fn reset_code(&self) -> ResetCode {
        match self {
            Self::Frame(WireError::HeaderTooLarge { .. } | WireError::BodyTooLarge { .. }) => ResetCode::TooLarge,
            Self::Silent | Self::SlowBody | Self::SlowReader => ResetCode::Deadline,
            Self::Frame(_)
            | Self::Truncated
            | Self::UnexpectedKind
            | Self::TooManyEntries
            | Self::EntryTwice
            | Self::CallAfterLast
            | Self::StreamingOnSharedStream => ResetCode::Protocol,
        }
    }
}

impl From<StreamRefusal> for StreamFault {
    fn from(refusal: StreamRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<WireError> for StreamFault {
    fn from(error: WireError) -> Self {
        Self::Refused(StreamRefusal::Frame(error))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use callboard_codec::wire::{Call, FrameKind, FrameLimits, FrameReader, frame_head};

    use super::*;

    /// Every refusal of a stream.
    fn all() -> Vec<StreamRefusal> {
        use StreamRefusal as Is;
        let mut all = vec![
            Is::Truncated,
            Is::UnexpectedKind,
            Is::TooManyEntries,
            Is::EntryTwice,
            Is::CallAfterLast,
            Is::StreamingOnSharedStream,
            Is::Silent,
            Is::SlowBody,
            Is::SlowReader,
        ];
        all.extend(unreadable().map(Is::Frame));
        all
    }

    /// One of each error of a received frame.
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
    fn the_operations_page_lists_exactly_the_known_words() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations/clusters.md");
        let page = std::fs::read_to_string(page).expect("a page");
        let section = page.lines().skip_while(|line| !line.contains("`callboard_net_streams_refused{reason}`"));
        let rows =
            section.skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
        let documented: BTreeSet<&str> =
            rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert_eq!(documented, all().iter().map(StreamRefusal::as_str).collect());
    }

    #[test]
    fn slow_streams_are_reset_with_deadline_and_long_frames_with_too_large() {
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
