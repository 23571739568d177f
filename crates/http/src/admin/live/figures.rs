//! The figures of routes, stages and devices in a node's metrics: counts, how long calls took, and what devices use.
//!
//! A node counts since its start. The difference of two reads is what happened between them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How the families of devices begin.
const DEVICE: &str = "callboard_device_";

/// The figures of one read, or between two of them.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// The calls of each route.
    pub routes: HashMap<String, Calls>,
    /// How long the calls of each stage waited in its queue.
    pub queues: HashMap<String, Histogram>,
    /// The devices of its machine, by their numbers.
    pub devices: BTreeMap<u32, DeviceFigures>,
}

/// A device. `None`: the device does not report it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceFigures {
    /// Its name.
    pub name: String,
    /// Bytes in use.
    pub memory_used: Option<f64>,
    /// Bytes that it has.
    pub memory_total: Option<f64>,
    /// From 0 to 1.
    pub utilisation: Option<f64>,
    /// In degrees Celsius.
    pub temperature: Option<f64>,
    /// Whether it is gone.
    pub is_lost: bool,
}

/// The calls of one route.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Calls {
    /// Calls with an outcome.
    pub ended: f64,
    /// Calls with any outcome but `ok`.
    pub failed: f64,
    /// How long the successful calls took.
    pub took: Histogram,
}

/// The counts of a histogram: each bucket has its upper bound in seconds, and all that is below.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram(Vec<(f64, f64)>);

impl Figures {
    /// Reads the text of `/metrics`. What is not known is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut figures = Self::default();
        for (name, labels, value) in text.lines().filter_map(sample) {
            let label = |name: &str| labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.clone());
            let bound = || label("le").and_then(|bound| bound.parse().ok());
            match name {
                "callboard_requests_total" => {
                    let Some(route) = label("route") else { continue };
                    let calls = figures.routes.entry(route).or_default();
                    calls.ended += value;
                    calls.failed += if label("outcome").as_deref() == Some("ok") { 0.0 } else { value };
                }
                "callboard_request_duration_seconds_bucket" => {
                    let (Some(route), Some(bound)) = (label("route"), bound()) else { continue };
                    figures.routes.entry(route).or_default().took.0.push((bound, value));
                }
                "callboard_stage_queue_seconds_bucket" => {
                    let (Some(stage), Some(bound)) = (label("stage"), bound()) else { continue };
                    figures.queues.entry(stage).or_default().0.push((bound, value));
                }
                name if name.starts_with(DEVICE) => {
                    let Some(index) = label("device").and_then(|index| index.parse().ok()) else { continue };
                    let device = figures.devices.entry(index).or_default();
                    device.name = label("name").unwrap_or_default();
                    match &name[DEVICE.len()..] {
                        "memory_used_bytes" => device.memory_used = Some(value),
                        "memory_total_bytes" => device.memory_total = Some(value),
                        "utilisation_ratio" => device.utilisation = Some(value),
                        "temperature_celsius" => device.temperature = Some(value),
                        "lost" => device.is_lost = value > 0.0,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        figures
    }

    /// What happened since an earlier read.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        for (name, calls) in &mut self.routes {
            let Some(before) = earlier.routes.get(name) else { continue };
            calls.ended = (calls.ended - before.ended).max(0.0);
            calls.failed = (calls.failed - before.failed).max(0.0);
            calls.took.subtract(&before.took);
        }
        for (name, waits) in &mut self.queues {
            earlier.queues.get(name).into_iter().for_each(|before| waits.subtract(before));
        }
        self
    }
}

impl Histogram {
    fn subtract(&mut self, earlier: &Self) {
        for (count, (_, before)) in self.0.iter_mut().zip(&earlier.0) {
            count.1 = (count.1 - before).max(0.0);
        }
    }

    /// The time that this share of the observations was within, as exact as the buckets are. None without observations.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = self.0.last().map(|(_, all)| all * share).filter(|rank| *rank > 0.0)?;
        let mut below = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank {
                // The last bucket has no bound.
                let width = if bound.is_finite() { bound - below.0 } else { 0.0 };
                let part = (rank - below.1) / (count - below.1).max(1.0);
                return Duration::try_from_secs_f64(below.0 + width * part.clamp(0.0, 1.0)).ok();
            }
            below = (bound, count);
        }
        None
    }
}

/// Name, labels and value.
type Sample<'a> = (&'a str, Vec<(&'a str, String)>, f64);

/// Reads a line such as `calls_total{route="/a",outcome="ok"} 3`.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, mut rest) = line.split_once('{')?;
    let mut labels = Vec::new();
    while let Some((label, quoted)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((label, value));
        rest = &quoted[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix('}')?.split_whitespace().next()?.parse().ok()?;
    Some((name, labels, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP callboard_requests Requests.
callboard_requests_total{route="/a",outcome="ok"} 90
callboard_requests_total{route="/a",outcome="invalid_input"} 10
callboard_request_duration_seconds_bucket{le="0.001",route="/a"} 0
callboard_request_duration_seconds_bucket{le="0.002",route="/a"} 50
callboard_request_duration_seconds_bucket{le="0.004",route="/a"} 98
callboard_request_duration_seconds_bucket{le="+Inf",route="/a"} 100
callboard_stage_queue_seconds_bucket{le="0.5",stage="a \"b\"}, c\\"} 1
# EOF
"#;

    #[test]
    fn counts_and_times_are_read() {
        let figures = Figures::parse(TEXT);
        let calls = &figures.routes["/a"];
        assert_eq!((calls.ended, calls.failed), (100.0, 10.0));
        let millis = |share| calls.took.quantile(share).unwrap().as_secs_f64() * 1000.0;
        assert!((millis(0.25) - 1.5).abs() < 1e-9 && (millis(0.5) - 2.0).abs() < 1e-9);
        assert!((millis(0.74) - 3.0).abs() < 1e-9 && (millis(0.99) - 4.0).abs() < 1e-9);
        assert_eq!(figures.queues["a \"b\"}, c\\"].quantile(1.0), Some(Duration::from_millis(500)));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn the_difference_of_two_reads_is_what_happened_between_them() {
        let before = Figures::parse(TEXT);
        let after = TEXT.replace("} 90", "} 94").replace("0.004\",route=\"/a\"} 98", "0.004\",route=\"/a\"} 102");
        let after = Figures::parse(&after.replace("} 100", "} 104"));
        let calls = &after.since(&before).routes["/a"];
        assert_eq!((calls.ended, calls.failed), (4.0, 0.0));
        let half = calls.took.quantile(0.5).unwrap();
        assert!(half > Duration::from_millis(2) && half <= Duration::from_millis(4), "{half:?}");
        // A node that has restarted counts from zero.
        assert_eq!(before.since(&Figures::parse(&TEXT.replace("} 90", "} 900"))).routes["/a"].ended, 0.0);
    }

    #[test]
    fn any_text_is_read() {
        for text in ["", "{", "a{", "a{b=\"", "a{b=\"\\", "a{b=\"c\"", "a{b=\"c\"}", "a{b=\"c\"} x", "a{b=\"c\",} 1"] {
            assert_eq!(Figures::parse(text), Figures::default(), "{text}");
        }
    }
}
