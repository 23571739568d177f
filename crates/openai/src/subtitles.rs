//! Texts with times as files of subtitles. Pure.
//!
//! Sources: SubRip as players read it, and WebVTT (W3C, §4). A line break in a text would end its block, and `-->`
//! would be a time, so both are written differently.

use std::fmt::Write as _;

use serde::Deserialize;

/// A text, and when it is said, in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Segment {
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) text: String,
}

pub(crate) fn srt(segments: &[Segment]) -> String {
    let mut out = String::new();
    for (index, segment) in segments.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", index + 1);
        write_block(&mut out, segment, ',');
    }
    out
}

pub(crate) fn vtt(segments: &[Segment]) -> String {
    let mut out = "WEBVTT\n\n".to_owned();
    segments.iter().for_each(|segment| write_block(&mut out, segment, '.'));
    out
}

fn write_block(out: &mut String, segment: &Segment, decimal: char) {
    let (start, end) = (time(segment.start, decimal), time(segment.end, decimal));
    let text = segment.text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    let text = text.collect::<Vec<_>>().join(" ").replace("-->", "→");
    let _ = writeln!(out, "{start} --> {end}\n{text}\n");
}

/// `00:00:01.500`; not a number is 0.
fn time(seconds: f64, decimal: char) -> String {
    // A cast saturates.
    let all = (seconds * 1000.0).round().max(0.0) as u64;
    let (milliseconds, seconds, minutes, hours) = (all % 1000, all / 1000 % 60, all / 60_000 % 60, all / 3_600_000);
    format!("{hours:02}:{minutes:02}:{seconds:02}{decimal}{milliseconds:03}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_segment_is_a_block_with_its_times() {
        let segments = [
            Segment { start: 0.0, end: 1.5, text: " Hello\n\nthere".to_owned() },
            Segment { start: 3661.0005, end: 3662.25, text: "a --> b".to_owned() },
        ];
        let expected = "1\n00:00:00,000 --> 00:00:01,500\nHello there\n\n\
                        2\n01:01:01,001 --> 01:01:02,250\na → b\n\n";
        assert_eq!(srt(&segments), expected);
        assert!(vtt(&segments).starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there\n\n01:01:01.001"));
    }

    proptest! {
        #[test]
        fn any_texts_and_times_are_as_many_blocks(
            parts in prop::collection::vec((any::<f64>(), any::<f64>(), "(?s).{0,12}"), 0..5)
        ) {
            let segments: Vec<Segment> =
                parts.into_iter().map(|(start, end, text)| Segment { start, end, text }).collect();
            for file in [srt(&segments), vtt(&segments)] {
                prop_assert_eq!(file.matches(" --> ").count(), segments.len());
                prop_assert!(!file.contains('\r'));
            }
        }
    }
}
