//! The report of a run: the value behind the table, the JSON and the exit code.

mod table;

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::assertion::{Assertion, Verdict};
use crate::comparison::{Ratios, RoundPair};
use crate::load::Load;
use crate::plot;
use crate::stats::Stats;
use crate::summary::Summary;

/// The whole report. Its JSON is the form of this type.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The load on each target.
    pub load: LoadSummary,
    /// The target.
    pub target: Side,
    /// The second target and the comparison, with `--vs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versus: Option<Comparison>,
    /// The results of `--assert`.
    pub assertions: Vec<Verdict>,
    /// Whether a signal ended the run early.
    pub interrupted: bool,
}

/// One target and its figures.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The method, or `CALL` over QUIC.
    pub method: String,
    /// The URL.
    pub url: String,
    /// The protocol: `HTTP/1.1`, `HTTP/2` or `QUIC`.
    pub protocol: &'static str,
    /// The figures.
    #[serde(flatten)]
    pub summary: Summary,
    #[serde(skip)]
    stats: Stats,
}

/// The second target.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The target and its figures.
    #[serde(flatten)]
    pub target: Side,
    /// The number of rounds of each target.
    pub rounds: usize,
    /// The first target over the second.
    pub ratio: Ratios,
}

/// The load as the report shows it.
#[derive(Clone, Debug, Serialize)]
pub struct LoadSummary {
    connections: usize,
    streams: usize,
    threads: usize,
    /// Requests per second of an open loop; `None` for a closed loop.
    rate: Option<f64>,
    warm_up_seconds: f64,
    duration_seconds: f64,
    payload: String,
}

impl Report {
    /// The report of one target.
    #[must_use]
    pub fn new(load: LoadSummary, target: TargetLabel, stats: Stats, assertions: &[Assertion]) -> Self {
        let assertions = assertions.iter().map(|assertion| assertion.verdict(&stats, None)).collect();
        Self { load, target: target.with(stats), versus: None, assertions, interrupted: false }
    }

    /// The report of two targets that took turns.
    #[must_use]
    pub fn with_comparison(
        load: LoadSummary,
        targets: [TargetLabel; 2],
        rounds: Vec<RoundPair>,
        assertions: &[Assertion],
    ) -> Self {
        let ratio = Ratios::from_rounds(&rounds);
        let count = rounds.len();
        let together = |rounds: &mut dyn Iterator<Item = Stats>| {
            let mut all = rounds.next().unwrap_or_else(|| Stats::new(std::time::Duration::ZERO));
            rounds.for_each(|stats| all.append(stats));
            all
        };
        let ours = together(&mut rounds.iter().map(|round| round.ours.clone()));
        let theirs = together(&mut rounds.into_iter().map(|round| round.theirs));
        let throughput = ratio.requests_per_second.map(|ratio| ratio.median);
        let assertions = assertions.iter().map(|assertion| assertion.verdict(&ours, throughput)).collect();
        let [target, versus] = targets;
        let versus = Comparison { target: versus.with(theirs), rounds: count, ratio };
        Self { load, target: target.with(ours), versus: Some(versus), assertions, interrupted: false }
    }

    /// The report for people. `escape` makes text of the target safe to show on one line.
    #[must_use]
    pub fn table(&self, escape: fn(&str) -> Cow<'_, str>) -> String {
        table::write(self, escape)
    }

    /// The report for programs.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("figures and texts are JSON")
    }

    /// The plot, as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        plot::svg(&self.title(), &self.sides())
    }

    /// A page with the plot and the table; it loads nothing else.
    #[must_use]
    pub fn html(&self, escape: fn(&str) -> Cow<'_, str>) -> String {
        plot::html(&self.title(), &self.svg(), &self.table(escape))
    }

    /// Whether one of the targets has no measurement.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let nothing = |side: &Side| side.summary.requests + side.summary.unsent == 0;
        nothing(&self.target) || self.versus.as_ref().is_some_and(|versus| nothing(&versus.target))
    }

    /// The number of failed assertions.
    #[must_use]
    pub fn failed_assertions(&self) -> usize {
        self.assertions.iter().filter(|verdict| !verdict.holds).count()
    }

    fn title(&self) -> String {
        let versus = self.versus.as_ref().map(|versus| format!(" and {}", versus.target.url));
        format!("{} {}{}", self.target.method, self.target.url, versus.unwrap_or_default())
    }

    fn sides(&self) -> Vec<(&str, &Stats)> {
        let versus = self.versus.as_ref().map(|versus| &versus.target);
        std::iter::once(&self.target).chain(versus).map(|side| (side.url.as_str(), &side.stats)).collect()
    }
}

/// The name of a target in the report.
#[derive(Clone, Debug)]
pub struct TargetLabel {
    /// The method, or `CALL` over QUIC.
    pub method: String,
    /// The URL.
    pub url: String,
    /// The protocol: `HTTP/1.1`, `HTTP/2` or `QUIC`.
    pub protocol: &'static str,
}

impl TargetLabel {
    fn with(self, stats: Stats) -> Side {
        let Self { method, url, protocol } = self;
        Side { method, url, protocol, summary: Summary::from_stats(&stats), stats }
    }
}

impl LoadSummary {
    /// This load, and a description of what it sends.
    #[must_use]
    pub fn new(load: &Load, payload: String) -> Self {
        Self {
            connections: load.connections,
            streams: load.streams,
            threads: load.threads,
            rate: load.schedule.map(|schedule| schedule.requests_per_second()),
            warm_up_seconds: load.warm_up.as_secs_f64(),
            duration_seconds: load.duration.as_secs_f64(),
            payload,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.rate.is_some()
    }
}

impl fmt::Display for LoadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = if self.connections == 1 { "connection" } else { "connections" };
        write!(f, "{} {connections}", self.connections)?;
        if self.streams > 1 {
            write!(f, " with {} requests at a time", self.streams)?;
        }
        match self.rate {
            Some(rate) => write!(f, ", open loop at {rate} requests/s")?,
            None => write!(f, ", closed loop")?,
        }
        write!(f, ", {} s after {} s of warm-up; {}", self.duration_seconds, self.warm_up_seconds, self.payload)
    }
}
