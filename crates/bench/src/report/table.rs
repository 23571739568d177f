//! The report for people: one column per target, figures with their units. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{Report, Side};
use crate::comparison::Ratio;
use crate::summary::{Distribution, readable_time as time};

/// Makes text that comes from a target safe to show on one line.
type Escape = fn(&str) -> Cow<'_, str>;

/// The whole report as text.
pub(crate) fn write(report: &Report, escape: Escape) -> String {
    let sides: Vec<&Side> =
        std::iter::once(&report.target).chain(report.versus.as_ref().map(|versus| &versus.target)).collect();
    let mut text = String::new();
    for side in &sides {
        let _ = writeln!(text, "{} {} by {}", side.method, side.url, side.protocol);
    }
    let turns = report.versus.as_ref().map(|versus| format!(", in each of {} rounds", versus.rounds));
    let _ = writeln!(text, "{}{}\n", report.load, turns.unwrap_or_default());
    let mut row = |label: &str, cell: &dyn Fn(&Side) -> String| {
        let cells: Vec<String> = sides.iter().map(|side| format!("{:>14}", cell(side))).collect();
        let _ = writeln!(text, "  {label:<18}{}", cells.join("  "));
    };
    row("requests/s", &|side| grouped(side.summary.requests_per_second));
    row("requests", &|side| grouped(side.summary.requests as f64));
    row("failed", &|side| count_and_share(side.summary.failed, side.summary.requests));
    if sides.iter().any(|side| side.summary.unsent > 0) {
        row("never sent", &|side| grouped(side.summary.unsent as f64));
    }
    row("received", &|side| {
        format!("{}/s", bytes(side.summary.received_bytes as f64 / side.summary.seconds.max(1e-9)))
    });
    let figures: [(&str, Figure); 10] = [
        ("min", |latency| latency.min),
        ("mean", |latency| latency.mean),
        ("p50", |latency| latency.p50),
        ("p75", |latency| latency.p75),
        ("p90", |latency| latency.p90),
        ("p95", |latency| latency.p95),
        ("p99", |latency| latency.p99),
        ("p99.9", |latency| latency.p999),
        ("p99.99", |latency| latency.p9999),
        ("max", |latency| latency.max),
    ];
    for (label, figure) in figures {
        row(&format!("latency {label}"), &|side| time(figure(&side.summary.latency_ms)));
    }
    if report.load.is_open() {
        // The time after a request was sent: the rest of the latency was waiting for a free connection.
        row("service p50", &|side| time(side.summary.service_ms.p50));
        row("service p99", &|side| time(side.summary.service_ms.p99));
    }
    for side in &sides {
        counts(&mut text, side, sides.len() > 1, escape);
    }
    ratios(&mut text, report);
    verdicts(&mut text, report);
    text
}

type Figure = fn(&Distribution) -> f64;

fn counts(text: &mut String, side: &Side, is_named: bool, escape: Escape) {
    let list = |counts: &std::collections::BTreeMap<String, u64>| {
        let words: Vec<String> =
            counts.iter().map(|(word, count)| format!("{} × {}", escape(word), grouped(*count as f64))).collect();
        words.join(", ")
    };
    let of = if is_named { format!(" of {}", side.url) } else { String::new() };
    if !side.summary.statuses.is_empty() {
        let _ = writeln!(text, "\n  statuses{of}: {}", list(&side.summary.statuses));
    }
    if !side.summary.errors.is_empty() {
        let _ = writeln!(text, "  errors{of}: {}", list(&side.summary.errors));
    }
    if side.summary.unsent > 0 {
        let _ = writeln!(text, "  the target fell behind: latencies are at least these{of}");
    }
}

fn ratios(text: &mut String, report: &Report) {
    let Some(versus) = &report.versus else { return };
    let _ = writeln!(text, "\n  first over second, median of {} rounds (lowest … highest)", versus.rounds);
    let show = |ratio: Option<Ratio>| match ratio {
        Some(Ratio { median, lowest, highest }) => format!("{median:.3} ({lowest:.3} … {highest:.3})"),
        None => "–".to_owned(),
    };
    for (label, ratio) in [
        ("requests/s", versus.ratio.requests_per_second),
        ("latency p50", versus.ratio.p50),
        ("latency p99", versus.ratio.p99),
    ] {
        let _ = writeln!(text, "  {label:<18}{}", show(ratio));
    }
}

fn verdicts(text: &mut String, report: &Report) {
    if !report.assertions.is_empty() {
        text.push('\n');
    }
    for verdict in &report.assertions {
        let word = if verdict.holds { "holds" } else { "FAILS" };
        let _ = writeln!(text, "  {word}: {} (measured {})", verdict.assertion, verdict.measured);
    }
    if report.interrupted {
        let _ = writeln!(text, "\n  interrupted: these are the figures so far");
    }
}

/// With commas between thousands; below a thousand with one digit after the point, unless it is zero.
fn grouped(number: f64) -> String {
    if number < 1000.0 && number.fract() != 0.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn count_and_share(count: u64, of: u64) -> String {
    if count == 0 {
        return "0".to_owned();
    }
    format!("{} ({:.2} %)", grouped(count as f64), count as f64 * 100.0 / of.max(1) as f64)
}

fn bytes(count: f64) -> String {
    match count {
        count if count < 1024.0 => format!("{count:.0} B"),
        count if count < 1024.0 * 1024.0 => format!("{:.1} KiB", count / 1024.0),
        count => format!("{:.1} MiB", count / (1024.0 * 1024.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_readable_units() {
        assert_eq!([0.0, 0.0412, 1.234, 56.78, 1500.0].map(time), ["0", "41.2 µs", "1.23 ms", "56.8 ms", "1.50 s"]);
        assert_eq!([0.0, 7.25, 999.0, 1234.4, 1_234_567.0].map(grouped), ["0", "7.2", "999", "1,234", "1,234,567"]);
        assert_eq!([12.0, 2048.0, 3_145_728.0].map(bytes), ["12 B", "2.0 KiB", "3.0 MiB"]);
        assert_eq!(count_and_share(5, 1000), "5 (0.50 %)");
    }
}
