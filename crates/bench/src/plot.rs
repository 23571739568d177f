//! The report as a plot: latency by percentile, and the figures over time. The SVG is written by hand: two panels of
//! lines need no library. A page has the plot and the table, and loads nothing. Pure.

use std::fmt::Write as _;

use crate::stats::{Slice, Stats};

const WIDTH: f64 = 880.0;
const PANEL_HEIGHT: f64 = 260.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 84.0;
const GAP: f64 = 80.0;
const HEIGHT: f64 = TOP + 2.0 * PANEL_HEIGHT + GAP + 50.0;
const COLORS: [&str; 2] = ["#1764ab", "#c2410c"];

/// Targets with their statistics; one line in each panel.
pub(crate) type Sides<'a> = [(&'a str, &'a Stats)];

/// The plot.
pub(crate) fn svg(title: &str, sides: &Sides<'_>) -> String {
    let mut picture = String::new();
    let _ = write!(
        picture,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\">\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    text(
        &mut picture,
        LEFT,
        22.0,
        "start",
        &format!("<tspan font-weight=\"600\" font-size=\"14\">{}</tspan>", escaped(title)),
    );
    for ((name, _), (index, color)) in sides.iter().zip(COLORS.iter().enumerate()) {
        let x = LEFT + 380.0 * index as f64;
        let _ = write!(picture, "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{color}\"/>");
        text(&mut picture, x + 16.0, 41.0, "start", &escaped(name));
    }
    percentiles(&mut picture, sides, TOP);
    over_time(&mut picture, sides, TOP + PANEL_HEIGHT + GAP);
    picture.push_str("</svg>\n");
    picture
}

/// The plot and the table on one page.
pub(crate) fn html(title: &str, svg: &str, table: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{margin:2em auto;max-width:900px;font-family:system-ui,sans-serif}}svg{{max-width:100%;height:auto}}\
         pre{{overflow:auto}}</style>\n{svg}<pre>{}</pre>\n</html>\n",
        escaped(table)
    )
}

/// Latency over percentile; each further nine takes the same width.
fn percentiles(picture: &mut String, sides: &Sides<'_>, top: f64) {
    let most = sides.iter().map(|(_, stats)| stats.latency.len()).max().unwrap_or(0).max(10) as f64;
    // There are no samples beyond this percentile.
    let nines = most.log10().clamp(1.0, 6.0);
    let x_of = |quantile: f64| LEFT + across((-(1.0 - quantile).log10() / nines).min(1.0));
    let highest = sides.iter().map(|(_, stats)| stats.latency.max() as f64 / 1e6).fold(0.0, f64::max);
    let y_axis = Axis::up_to(highest);
    frame(picture, top, "latency by percentile", &y_axis, &tick_time);
    for (label, quantile) in [
        ("0", 0.0),
        ("50", 0.5),
        ("90", 0.9),
        ("99", 0.99),
        ("99.9", 0.999),
        ("99.99", 0.9999),
        ("99.999", 0.99999_f64),
    ] {
        if -(1.0 - quantile).log10() <= nines {
            tick(picture, x_of(quantile), top, &format!("{label} %"));
        }
    }
    for ((_, stats), color) in sides.iter().zip(COLORS) {
        let steps = 200;
        let points = (0..=steps).map(|step| {
            let quantile = 1.0 - 10_f64.powf(-nines * f64::from(step) / f64::from(steps));
            (x_of(quantile), y_axis.place(stats.latency.value_at_quantile(quantile) as f64 / 1e6, top))
        });
        line(picture, points, color, "");
    }
}

/// Answers per second and, dashed, the 99th percentile of each slice. The rounds of two targets did not run at the same
/// time; the plot draws them one after the other.
fn over_time(picture: &mut String, sides: &Sides<'_>, top: f64) {
    let rate = |slice: &Slice| slice.ok as f64 / slice.width.as_secs_f64().max(1e-9);
    let p99 = |slice: &Slice| slice.latency.value_at_quantile(0.99) as f64 / 1e6;
    let slices = || sides.iter().flat_map(|(_, stats)| &stats.slices);
    let rates = Axis::up_to(slices().map(rate).fold(0.0, f64::max));
    let latencies = Axis::up_to(slices().map(p99).fold(0.0, f64::max));
    frame(picture, top, "requests/s over time", &rates, &|rate| trimmed(rate, 3));
    for (latency, y) in latencies.ticks(top) {
        text(picture, WIDTH - RIGHT + 8.0, y + 4.0, "start", &tick_time(latency));
    }
    let longest = sides.iter().map(|(_, stats)| stats.measured.as_secs_f64()).fold(0.0, f64::max).max(1e-9);
    for quarter in 0..=4 {
        let part = f64::from(quarter) / 4.0;
        let digits = if longest < 1.0 { 4 } else { 2 };
        tick(picture, LEFT + across(part), top, &format!("{} s", trimmed(longest * part, digits)));
    }
    text(picture, WIDTH - RIGHT, top - 8.0, "end", "dashed: p99, on the right");
    for ((_, stats), color) in sides.iter().zip(COLORS) {
        let mut begin = 0.0;
        let mut middles = Vec::with_capacity(stats.slices.len());
        for slice in &stats.slices {
            let width = slice.width.as_secs_f64();
            middles.push(LEFT + across(((begin + width / 2.0) / longest).min(1.0)));
            begin += width;
        }
        let points = |axis: Axis, figure: &dyn Fn(&Slice) -> f64| -> Vec<(f64, f64)> {
            middles.iter().zip(&stats.slices).map(|(x, slice)| (*x, axis.place(figure(slice), top))).collect()
        };
        line(picture, points(rates, &rate).into_iter(), color, "");
        line(picture, points(latencies, &p99).into_iter(), color, " stroke-dasharray=\"4 3\" stroke-opacity=\"0.7\"");
    }
}

/// An axis from zero to a round number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    highest: f64,
}

impl Axis {
    /// The next number of one digit, or 1.5 or 2.5, times a power of ten.
    fn up_to(value: f64) -> Self {
        if value <= 0.0 || !value.is_finite() {
            return Self { highest: 1.0 };
        }
        let power = 10_f64.powf(value.log10().floor());
        let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
        let step = steps.into_iter().find(|step| step * power >= value).unwrap_or(10.0);
        Self { highest: step * power }
    }

    /// The values of the quarters, with their heights.
    fn ticks(self, top: f64) -> impl Iterator<Item = (f64, f64)> {
        (0..=4).map(move |quarter| {
            let value = self.highest * f64::from(quarter) / 4.0;
            (value, self.place(value, top))
        })
    }

    fn place(self, value: f64, top: f64) -> f64 {
        top + PANEL_HEIGHT * (1.0 - (value / self.highest).clamp(0.0, 1.0))
    }
}

/// A time in milliseconds as the label of a tick: exact, because a tick is not a measurement.
fn tick_time(millis: f64) -> String {
    let (number, unit) = match millis {
        0.0 => return "0".to_owned(),
        millis if millis < 1.0 => (millis * 1e3, "µs"),
        millis if millis < 1e3 => (millis, "ms"),
        millis => (millis / 1e3, "s"),
    };
    format!("{} {unit}", trimmed(number, 3))
}

/// With at most `digits` digits after the point, and no trailing zeros.
fn trimmed(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn across(part: f64) -> f64 {
    (WIDTH - LEFT - RIGHT) * part
}

fn frame(picture: &mut String, top: f64, title: &str, axis: &Axis, show: &dyn Fn(f64) -> String) {
    text(picture, LEFT, top - 8.0, "start", &format!("<tspan font-weight=\"600\">{title}</tspan>"));
    for (value, y) in axis.ticks(top) {
        let _ = write!(
            picture,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            WIDTH - RIGHT
        );
        text(picture, LEFT - 8.0, y + 4.0, "end", &show(value));
    }
}

fn tick(picture: &mut String, x: f64, top: f64, label: &str) {
    text(picture, x, top + PANEL_HEIGHT + 18.0, "middle", label);
}

/// `content` is markup; text from outside has been escaped.
fn text(picture: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = write!(picture, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

fn line(picture: &mut String, points: impl Iterator<Item = (f64, f64)>, color: &str, more: &str) {
    picture.push_str("<polyline fill=\"none\" stroke-width=\"1.8\" points=\"");
    for (x, y) in points {
        let _ = write!(picture, "{x:.1},{y:.1} ");
    }
    let _ = write!(picture, "\" stroke=\"{color}\"{more}/>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::{Outcome, Times};
    use proptest::prelude::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(
            [0.0, 0.7, 12.0, 99.0, 100.0].map(|value| Axis::up_to(value).highest),
            [1.0, 0.8, 15.0, 100.0, 100.0]
        );
    }

    #[test]
    fn the_label_of_a_tick_is_exact() {
        let shown = |highest: f64| Axis { highest }.ticks(TOP).map(|(value, _)| tick_time(value)).collect::<Vec<_>>();
        assert_eq!(shown(5e3), ["0", "1.25 s", "2.5 s", "3.75 s", "5 s"]);
        assert_eq!(shown(25.0), ["0", "6.25 ms", "12.5 ms", "18.75 ms", "25 ms"]);
        assert_eq!(shown(2.5), ["0", "625 µs", "1.25 ms", "1.875 ms", "2.5 ms"]);
        assert_eq!([trimmed(10.003 / 4.0, 2), trimmed(10.0, 2), trimmed(0.0, 3)], ["2.5", "10", "0"]);
    }

    /// The second panel has two axes: requests/s on the left, the 99th percentile on the right.
    #[test]
    fn both_lines_over_time_have_an_axis() {
        let mut stats = Stats::new(Duration::from_secs(1));
        let (sent, done) = (Duration::ZERO, Duration::from_millis(75));
        stats.record(Times { due: sent, sent, done }, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
        let picture = svg("x", &[("one", &stats)]);
        for label in ["20 ms", "40 ms", "60 ms", "80 ms", "10", "20", "30", "40"] {
            assert!(picture.contains(&format!(">{label}<")), "{label}: {picture}");
        }
    }

    #[test]
    fn text_from_outside_is_escaped_in_markup() {
        let stats = Stats::new(Duration::from_secs(1));
        let page = html("<script>", &svg("<script>", &[("a&b", &stats)]), "p99<1ms");
        assert!(!page.contains("<script>") && page.contains("a&amp;b") && page.contains("p99&lt;1ms"), "{page}");
        assert!(!page.contains("src=") && !page.contains("href="), "the page loads nothing");
    }

    proptest! {
        // `Stats` has megabytes of histograms, and each case makes one.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_point_lies_in_its_panel(samples in proptest::collection::vec((0_u64..2_000_000, 0_u64..5_000_000), 0..50)) {
            let mut stats = Stats::new(Duration::from_secs(1));
            for (sent, took) in samples {
                let sent = Duration::from_micros(sent);
                let times = Times { due: sent, sent, done: sent + Duration::from_micros(took) };
                stats.record(times, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
            }
            let picture = svg("x", &[("one", &stats), ("two", &stats)]);
            let lines = picture.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
            let mut count = 0;
            for points in lines {
                count += 1;
                for point in points.split_whitespace() {
                    let (x, y) = point.split_once(',').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    prop_assert!((LEFT - 0.1..=WIDTH - RIGHT + 0.1).contains(&x), "{point}");
                    prop_assert!((TOP - 0.1..=HEIGHT).contains(&y), "{point}");
                }
            }
            prop_assert_eq!(count, 6);
        }
    }
}
