//! The bytes of a report: what a member tells the others of itself.
//!
//! An envelope, whose unknown fields are ignored, so that fields can be added.

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Envelope, Format, Payload, Value};
use callboard_core::remote::{MAX_REPORTED, MAX_REPORTED_NAME_BYTES, NodeReport};

use super::error::GossipError;

/// The longest report. Longer lists of routes and stages are cut.
pub(super) const MAX_REPORT_BYTES: usize = 32 << 10;

/// The longest version, in bytes. Threat: texts that fill the views and answers of all nodes.
const MAX_VERSION_BYTES: usize = 64;

/// The part of a report that other nodes get, and its bytes. What has no room is left out, and counted in it.
pub(crate) fn cut(mut report: NodeReport) -> (NodeReport, Bytes) {
    let all = report.routes.len() + report.stages.len();
    report.routes.retain(|route| route.name.len() <= MAX_REPORTED_NAME_BYTES);
    report.stages.retain(|stage| stage.name.len() <= MAX_REPORTED_NAME_BYTES);
    leave_out(&mut report, all);
    if report.version.len() > MAX_VERSION_BYTES {
        report.version.clear();
    }
    loop {
        let envelope = Payload::new(report.clone()).to_envelope().map(Envelope::into_bytes);
        // Its fields are texts and numbers, which have an encoding.
        let bytes = envelope.unwrap_or_default();
        let is_listed = report.routes.len() <= MAX_REPORTED && report.stages.len() <= MAX_REPORTED;
        if bytes.len() <= MAX_REPORT_BYTES && is_listed {
            return (report, bytes);
        }
        let before = report.routes.len() + report.stages.len();
        // Names differ in length, so a little less than in proportion is kept, until it fits.
        let kept =
            |count: usize| (count * MAX_REPORT_BYTES / bytes.len().max(MAX_REPORT_BYTES) * 9 / 10).min(MAX_REPORTED);
        report.routes.truncate(kept(report.routes.len()));
        report.stages.truncate(kept(report.stages.len()));
        leave_out(&mut report, before);
    }
}

/// Counts what its lists have lost since they had this many entries.
fn leave_out(report: &mut NodeReport, before: usize) {
    let lost = before - report.routes.len() - report.stages.len();
    report.left_out = report.left_out.saturating_add(lost as u64);
}

/// Reads a report of another member.
pub(super) fn read(bytes: &Bytes) -> Result<NodeReport, GossipError> {
    let limits = DecodeLimits {
        max_bytes: MAX_REPORT_BYTES,
        max_elements: 16 * MAX_REPORTED,
        max_tree_bytes: 1 << 20,
        ..DecodeLimits::default()
    };
    let invalid = |error: callboard_codec::DecodeError| GossipError::Report(error.to_string());
    let value = Value::decode(Format::Envelope, bytes, &limits).map_err(invalid)?;
    let report: NodeReport = value.deserialize().map_err(invalid)?;
    for (field, listed) in [("routes", report.routes.len()), ("stages", report.stages.len())] {
        if listed > MAX_REPORTED {
            return Err(GossipError::Report(format!("{listed} {field}: a report may have {MAX_REPORTED}")));
        }
    }
    let texts = std::iter::once(("version", &*report.version, MAX_VERSION_BYTES));
    let texts =
        texts.chain(report.routes.iter().map(|route| ("a route's name", &*route.name, MAX_REPORTED_NAME_BYTES)));
    let mut texts =
        texts.chain(report.stages.iter().map(|stage| ("a stage's name", &*stage.name, MAX_REPORTED_NAME_BYTES)));
    if let Some((field, text, max)) = texts.find(|(_, text, max)| text.len() > *max) {
        return Err(GossipError::Report(format!("{field} has {} bytes, and may have {max}", text.len())));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use callboard_core::remote::{NodePhase, RouteReport, StageReport};

    use super::*;

    fn write(report: NodeReport) -> Bytes {
        let (cut, bytes) = cut(report);
        assert_eq!(read(&bytes), Ok(cut), "this node knows what the others do");
        bytes
    }

    /// A report with this many routes and stages, with names of this length.
    fn report(count: usize, length: usize) -> NodeReport {
        let mut report = NodeReport::default();
        (report.version, report.phase, report.since) = ("1.2.3".to_owned(), NodePhase::Ready, 7);
        for n in 0..count {
            let (mut route, mut stage) = (RouteReport::default(), StageReport::default());
            (route.name, route.revision) = (format!("/{n:0length$}"), n as u64);
            (stage.name, stage.ready, stage.wanted) = (format!("{n:0length$}"), 1, 2);
            report.routes.push(route);
            report.stages.push(stage);
        }
        report
    }

    #[test]
    fn a_report_survives_its_bytes() {
        let report = report(100, 10);
        assert_eq!(read(&write(report.clone())), Ok(report));
    }

    #[test]
    fn what_has_no_room_in_a_report_is_left_out_and_counted() {
        for (count, length) in [(2_000, 1), (400, 100), (50_000, 30), (2, 40_000)] {
            let bytes = write(report(count, length));
            assert!(bytes.len() <= MAX_REPORT_BYTES, "{} bytes", bytes.len());
            let read = read(&bytes).unwrap();
            assert_eq!(read.routes.len() + read.stages.len() + read.left_out as usize, 2 * count);
            assert!(count == 2 || read.stages.len() > 50, "{} stages", read.stages.len());
        }
        let mut long = NodeReport::default();
        long.version = "v".repeat(100_000);
        assert!(write(long).len() <= MAX_REPORT_BYTES);
    }

    #[test]
    fn a_report_with_a_long_text_is_refused_and_none_is_written() {
        let encoded = |report: NodeReport| Payload::new(report).to_envelope().unwrap().into_bytes();
        let mut version = NodeReport::default();
        version.version = "v".repeat(MAX_VERSION_BYTES + 1);
        let (mut route, mut stage) = (report(1, 1), report(1, 1));
        route.routes[0].name = "r".repeat(MAX_REPORTED_NAME_BYTES + 1);
        stage.stages[0].name = "s".repeat(MAX_REPORTED_NAME_BYTES + 1);
        for (long, field) in [
            (version, "version has 65 bytes, and may have 64"),
            (route, "a route's name has 257 bytes, and may have 256"),
            (stage, "a stage's name has 257 bytes, and may have 256"),
        ] {
            let error = read(&encoded(long.clone())).unwrap_err().to_string();
            assert!(error.ends_with(field), "{error}");
            assert_eq!(read(&write(long.clone())).unwrap().left_out, u64::from(long.version.len() < 65));
        }
        let mut full = report(1, MAX_REPORTED_NAME_BYTES + 1);
        full.left_out = u64::MAX;
        assert_eq!(read(&write(full)).unwrap().left_out, u64::MAX);
        assert!(read(&encoded(report(3, MAX_REPORTED_NAME_BYTES - 1))).is_ok());
    }

    #[test]
    fn a_report_with_endless_lists_is_refused() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Endless {
            routes: Vec<()>,
            phase: String,
        }
        let endless = |count, phase: &str| {
            let payload = Payload::new(Endless { routes: vec![(); count], phase: phase.to_owned() });
            read(&payload.to_envelope().unwrap().into_bytes())
        };
        let error = endless(20_000, "ready").unwrap_err().to_string();
        assert!(error.contains("max_elements"), "{error}");
        assert!(endless(1, "ready").is_err(), "a route is a map");
        assert_eq!(endless(0, "sleeping").unwrap().phase, NodePhase::Unknown);
        assert!(read(&Bytes::from(vec![0; MAX_REPORT_BYTES + 1])).is_err());
    }
}
