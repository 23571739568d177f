//! `--assert 'p99<20ms'`: a bound on a figure, parsed from text and compared with the measurement. Pure.

use std::fmt;
use std::str::FromStr;

use hdrhistogram::Histogram;

use crate::stats::Stats;
use crate::summary::readable_time;

/// One bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    text: String,
    figure: Figure,
    relation: Relation,
    /// In the figure's own unit.
    bound: f64,
}

/// A figure that can be bounded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// The quantile of latencies, in seconds.
    Quantile(f64),
    Mean,
    Min,
    Max,
    /// Successes per second.
    Throughput,
    /// The share of requests that failed.
    Errors,
    /// The number of successes.
    Ok,
    /// Throughput of the first target over that of the second.
    Ratio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

/// The result of an assertion.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Verdict {
    /// As typed.
    pub assertion: String,
    /// The measured figure, in the unit of the bound.
    pub measured: String,
    /// Whether the bound holds.
    pub holds: bool,
}

const FIGURES: &str = "`p50` … `p99.99`, `mean`, `min`, `max`, `rps`, `errors`, `ok` or, with --vs, `ratio`";

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected a figure, a relation and a bound, such as `p99<20ms`, `rps>1000` or `errors<1%`, found `{text}`"
            )
        };
        let at = text.find(['<', '>']).ok_or_else(expected)?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let (relation, bound) = match (rest.strip_prefix("<="), rest.strip_prefix(">="), rest.strip_prefix('<')) {
            (Some(bound), ..) => (Relation::LessOrEqual, bound),
            (_, Some(bound), _) => (Relation::MoreOrEqual, bound),
            (.., Some(bound)) => (Relation::Less, bound),
            _ => (Relation::More, &rest[1..]),
        };
        let figure = Figure::from_name(name).ok_or_else(|| format!("`{name}` is not a figure; expected {FIGURES}"))?;
        let bound = figure
            .bound(bound.trim())
            .ok_or_else(|| format!("`{}` is not a bound for `{name}`; expected {}", bound.trim(), figure.expected()))?;
        Ok(Self { text: text.trim().to_owned(), figure, relation, bound })
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Assertion {
    /// Whether the assertion compares two targets.
    #[must_use]
    pub fn needs_comparison(&self) -> bool {
        self.figure == Figure::Ratio
    }

    /// Compares the bound with the measurement. `ratio` is the ratio of throughputs, if there are two targets. A bound
    /// on an unmeasured figure does not hold.
    #[must_use]
    pub fn verdict(&self, stats: &Stats, ratio: Option<f64>) -> Verdict {
        let measured = self.figure.measured(stats, ratio);
        let holds = measured.is_some_and(|measured| match self.relation {
            Relation::Less => measured < self.bound,
            Relation::LessOrEqual => measured <= self.bound,
            Relation::More => measured > self.bound,
            Relation::MoreOrEqual => measured >= self.bound,
        });
        let measured = measured.map_or_else(|| "nothing".to_owned(), |measured| self.figure.show(measured));
        Verdict { assertion: self.text.clone(), measured, holds }
    }
}

impl Figure {
    fn from_name(name: &str) -> Option<Self> {
        let quantile = |percent: &str| {
            let is_number = percent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let percent: f64 = percent.parse().ok().filter(|_| is_number)?;
            (percent <= 100.0).then_some(Self::Quantile(percent / 100.0))
        };
        match name {
            "mean" => Some(Self::Mean),
            "min" => Some(Self::Min),
            "max" => Some(Self::Max),
            "rps" => Some(Self::Throughput),
            "errors" => Some(Self::Errors),
            "ok" => Some(Self::Ok),
            "ratio" => Some(Self::Ratio),
            other => quantile(other.strip_prefix('p')?),
        }
    }

    fn bound(self, text: &str) -> Option<f64> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: f64 = number.parse().ok()?;
        let factor = match (self, unit) {
            (Self::Quantile(_) | Self::Mean | Self::Min | Self::Max, unit) => match unit {
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                _ => return None,
            },
            (Self::Errors, "%") => 0.01,
            (Self::Throughput | Self::Ok | Self::Ratio, "") => 1.0,
            (Self::Errors | Self::Throughput | Self::Ok | Self::Ratio, _) => return None,
        };
        Some(number * factor)
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Quantile(_) | Self::Mean | Self::Min | Self::Max => "a time in `us`, `ms` or `s`, such as `20ms`",
            Self::Errors => "a percentage, such as `0.1%`",
            Self::Throughput | Self::Ok | Self::Ratio => "a number, such as `1000`",
        }
    }

    fn measured(self, stats: &Stats, ratio: Option<f64>) -> Option<f64> {
        let seconds =
            |figure: &dyn Fn(&Histogram<u64>) -> f64| (!stats.latency.is_empty()).then(|| figure(&stats.latency) / 1e9);
        match self {
            Self::Quantile(quantile) => seconds(&|latency| latency.value_at_quantile(quantile) as f64),
            Self::Mean => seconds(&Histogram::mean),
            Self::Min => seconds(&|latency| latency.min() as f64),
            Self::Max => seconds(&|latency| latency.max() as f64),
            Self::Throughput => Some(stats.requests_per_second()),
            Self::Errors => (stats.requests() + stats.unsent > 0).then(|| stats.error_rate()),
            Self::Ok => Some(stats.ok as f64),
            Self::Ratio => ratio,
        }
    }

    fn show(self, measured: f64) -> String {
        match self {
            Self::Quantile(_) | Self::Mean | Self::Min | Self::Max => readable_time(measured * 1e3),
            Self::Errors => format!("{:.3}%", measured * 100.0),
            Self::Throughput => format!("{measured:.1}"),
            Self::Ok => format!("{measured:.0}"),
            Self::Ratio => format!("{measured:.3}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::{Outcome, Times};
    use proptest::prelude::*;

    /// A hundred answers of 1 ms to 100 ms within a second, and a hundred failures.
    fn stats() -> Stats {
        let mut stats = Stats::new(Duration::from_secs(1));
        for millis in 1..=100 {
            let sent = Duration::ZERO;
            let times = Times { due: sent, sent, done: Duration::from_millis(millis) };
            stats.record(times, &Outcome::Answered { status: Some(200), kind: None, bytes: 0 });
            stats.record(times, &Outcome::Broken("closed"));
        }
        stats
    }

    fn holds(text: &str) -> bool {
        text.parse::<Assertion>().unwrap_or_else(|error| panic!("{error}")).verdict(&stats(), Some(0.9)).holds
    }

    #[test]
    fn bounds_are_compared_with_their_figures() {
        for text in [
            "p99<100ms",
            "p50 >= 49ms",
            "p99.9<=0.2s",
            "max<110ms",
            "min>900us",
            "mean<60ms",
            "rps>=100",
            "rps<101",
            "errors<=50%",
            "errors>49.9%",
            "ok>99",
            "ratio>0.85",
            "p100>99ms",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["p99<90ms", "rps>100", "errors<1%", "p50<1ms", "ratio>=0.91", "max<1ms", "min<500us"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn an_unmeasured_figure_meets_no_bound() {
        let nothing = Stats::new(Duration::from_secs(1));
        for text in ["p99<1s", "errors<1%", "ratio>0", "max<1s"] {
            let verdict = text.parse::<Assertion>().unwrap().verdict(&nothing, None);
            assert_eq!((verdict.holds, verdict.measured.as_str()), (false, "nothing"), "{text}");
        }
    }

    #[test]
    fn a_verdict_has_the_measured_figure() {
        let verdict = "p50<1ms".parse::<Assertion>().unwrap().verdict(&stats(), None);
        assert_eq!((verdict.assertion.as_str(), verdict.measured.as_str()), ("p50<1ms", "50.0 ms"));
    }

    #[test]
    fn errors_name_the_expected_value() {
        for (text, part) in [
            ("p99", "such as `p99<20ms`"),
            ("p99=20ms", "such as `p99<20ms`"),
            ("p101<1ms", "`p101` is not a figure"),
            ("p<1ms", "`p` is not a figure"),
            ("pinf<1ms", "`pinf` is not a figure"),
            ("latency<1ms", "`latency` is not a figure"),
            ("p99<20", "a time in `us`, `ms` or `s`"),
            ("p99<ms", "a time in"),
            ("errors<1", "a percentage"),
            ("rps>1k", "a number"),
            ("rps>-1", "a number"),
        ] {
            let error = text.parse::<Assertion>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        // `Stats` has megabytes of histograms, and each case makes one.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn no_text_panics(text in ".{0,16}") {
            let _ = text.parse::<Assertion>();
        }

        #[test]
        fn exactly_one_of_two_opposite_relations_holds(percent in 0.0_f64..100.0, micros in 0_u64..200_000) {
            let bound = format!("p{percent:.2}<{micros}us");
            prop_assert_ne!(holds(&bound), holds(&bound.replace('<', ">=")));
        }
    }
}
