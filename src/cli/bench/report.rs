//! What a run came to: the value behind the table, the JSON and the exit code.

use std::fmt;

use serde::Serialize;

use super::assertion::{Assertion, Verdict};
use super::load::Load;
use super::summary::Summary;
use super::tally::Tally;
use super::versus::{Ratios, Round};
use super::{plot, table};

/// The whole report. Its JSON is the form of this type.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The load that was put on each target.
    pub(crate) load: LoadShown,
    /// The target.
    pub(crate) target: Side,
    /// The second target and the comparison, with `--vs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) versus: Option<Versus>,
    /// What became of `--assert`.
    pub(crate) assertions: Vec<Verdict>,
    /// Whether somebody ended it early.
    pub(crate) interrupted: bool,
}

/// One target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Side {
    /// What was asked.
    pub(crate) method: String,
    /// Where.
    pub(crate) url: String,
    /// How: `HTTP/1.1`, `HTTP/2` or `QUIC`.
    pub(crate) protocol: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub(crate) summary: Summary,
    #[serde(skip)]
    tally: Tally,
}

/// The second target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Versus {
    #[serde(flatten)]
    pub(crate) target: Side,
    /// How often the two took turns.
    pub(crate) rounds: usize,
    /// First over second.
    pub(crate) ratio: Ratios,
}

/// The load as it is told.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoadShown {
    connections: usize,
    streams: usize,
    threads: usize,
    /// Requests per second of an open loop; none in a closed one.
    rate: Option<f64>,
    warm_up_seconds: f64,
    duration_seconds: f64,
    payload: String,
}

impl Report {
    /// Of one target.
    pub(crate) fn of_one(load: LoadShown, target: Named, tally: Tally, assertions: &[Assertion]) -> Self {
        let assertions = assertions.iter().map(|assertion| assertion.verdict(&tally, None)).collect();
        Self { load, target: target.with(tally), versus: None, assertions, interrupted: false }
    }

    /// Of two, in turns.
    pub(crate) fn of_two(load: LoadShown, targets: [Named; 2], rounds: Vec<Round>, assertions: &[Assertion]) -> Self {
        let ratio = Ratios::of(&rounds);
        let count = rounds.len();
        let together = |tallies: &mut dyn Iterator<Item = Tally>| {
            let mut all = tallies.next().unwrap_or_else(|| Tally::new(std::time::Duration::ZERO));
            tallies.for_each(|tally| all.follow(tally));
            all
        };
        let ours = together(&mut rounds.iter().map(|round| round.ours.clone()));
        let theirs = together(&mut rounds.into_iter().map(|round| round.theirs));
        let throughput = ratio.requests_per_second.map(|ratio| ratio.median);
        let assertions = assertions.iter().map(|assertion| assertion.verdict(&ours, throughput)).collect();
        let [target, versus] = targets;
        let versus = Versus { target: versus.with(theirs), rounds: count, ratio };
        Self { load, target: target.with(ours), versus: Some(versus), assertions, interrupted: false }
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        table::write(self)
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("figures and texts are JSON")
    }

    /// A picture, as SVG.
    pub(crate) fn svg(&self) -> String {
        plot::svg(&self.title(), &self.sides())
    }

    /// A page with the picture and the table, which needs nothing else.
    pub(crate) fn html(&self) -> String {
        plot::html(&self.title(), &self.svg(), &self.table())
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        let nothing = |side: &Side| side.summary.requests + side.summary.unsent == 0;
        nothing(&self.target) || self.versus.as_ref().is_some_and(|versus| nothing(&versus.target))
    }

    /// The bounds that do not hold.
    pub(crate) fn failed_assertions(&self) -> usize {
        self.assertions.iter().filter(|verdict| !verdict.holds).count()
    }

    fn title(&self) -> String {
        let versus = self.versus.as_ref().map(|versus| format!(" and {}", versus.target.url));
        format!("{} {}{}", self.target.method, self.target.url, versus.unwrap_or_default())
    }

    fn sides(&self) -> Vec<(&str, &Tally)> {
        let versus = self.versus.as_ref().map(|versus| &versus.target);
        std::iter::once(&self.target).chain(versus).map(|side| (side.url.as_str(), &side.tally)).collect()
    }
}

/// A target before it was measured.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) protocol: &'static str,
}

impl Named {
    fn with(self, tally: Tally) -> Side {
        let Self { method, url, protocol } = self;
        Side { method, url, protocol, summary: Summary::of(&tally), tally }
    }
}

impl LoadShown {
    /// This load, with what it sends in words.
    pub(crate) fn new(load: &Load, payload: String) -> Self {
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

    pub(super) fn is_open(&self) -> bool {
        self.rate.is_some()
    }
}

impl fmt::Display for LoadShown {
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
