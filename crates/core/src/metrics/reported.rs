//! The families of user code in other processes: their samples come as changes, and are added up here.
//!
//! A counter or histogram is the sum of all reports, so it survives the process that reports. A gauge is that of one
//! replica, and goes with it. Beyond a limit, or where a sample does not fit its family, it is left out, and the log
//! says so once.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::id::StageName;

/// The most families of a node: more than people read.
const MAX_FAMILIES: usize = 200;

/// The most series of all families: a label with a value for each user is refused here, and not by the memory.
const MAX_SERIES: usize = 10_000;

/// The longest name of a family or label, and the longest value of a label.
const MAX_NAME_BYTES: usize = 200;

/// The longest help.
const MAX_HELP_BYTES: usize = 500;

/// The most labels of a series.
const MAX_LABELS: usize = 10;

/// The most finite bounds of a histogram.
const MAX_BOUNDS: usize = 50;

/// Samples that are left out for other reasons are not told: a name that changes must not fill the log.
const MAX_TOLD: usize = 100;

/// The names of the node's own families begin so.
const RESERVED_PREFIX: &str = "callboard_";

/// Labels that the node gives, and that of the buckets of a histogram.
const RESERVED_LABELS: [&str; 3] = ["stage", "replica", "le"];

/// A sample of user code in another process.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedSample {
    /// The name of its family.
    pub name: String,
    /// What the family counts; empty if it is not said.
    pub help: String,
    /// Names and values.
    pub labels: Vec<(String, String)>,
    /// What is reported.
    pub value: ReportedValue,
}

/// The kind of a family, with what is reported of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportedValue {
    /// What is added to a counter.
    Counter(f64),
    /// The value of a gauge.
    Gauge(f64),
    /// What is added to a histogram.
    Histogram {
        /// The upper bounds of the finite buckets, ascending.
        bounds: Vec<f64>,
        /// The new observations of each bucket alone; the last is that without a bound.
        counts: Vec<u64>,
        /// The sum of the new observations.
        sum: f64,
    },
}

/// Takes the samples of one process of a replica. Its gauges end when this is dropped.
#[derive(Debug)]
pub struct SampleReporter {
    families: Arc<ReportedFamilies>,
    /// The process, among all of the node.
    source: u64,
    stage: StageName,
    replica: usize,
}

impl SampleReporter {
    /// Adds a sample to the page of the node's metrics. One that cannot be added is left out, and the log says why,
    /// once.
    pub fn report(&self, sample: ReportedSample) {
        let mut state = self.families.0.lock();
        let name = quoted(&sample.name);
        let Err(reason) = state.add(self, sample) else { return };
        let reason = format!("{name}: {reason}");
        if state.told.len() < MAX_TOLD && state.told.insert(reason.clone()) {
            drop(state);
            let (stage, replica) = (self.stage.as_str(), self.replica);
            tracing::error!(parent: None, stage, replica, "a metric is left out of /metrics: {reason}");
        }
    }
}

impl Drop for SampleReporter {
    fn drop(&mut self) {
        let State { families, series: total, names, .. } = &mut *self.families.0.lock();
        families.retain(|name, family| {
            let before = family.series.len();
            family.series.retain(|_, series| !matches!(series, Series::Gauge { source, .. } if *source == self.source));
            *total -= before - family.series.len();
            if family.series.is_empty() {
                family.kind.names(name).for_each(|name| _ = names.remove(&name));
            }
            !family.series.is_empty()
        });
    }
}

/// All such families of a node.
#[derive(Default)]
pub(crate) struct ReportedFamilies(Mutex<State>);

#[derive(Default)]
struct State {
    families: BTreeMap<String, Family>,
    /// The number of all series.
    series: usize,
    /// The names of all samples, and of their families.
    names: HashSet<String>,
    /// The number of processes so far.
    sources: u64,
    /// What the log has.
    told: HashSet<String>,
}

#[derive(Debug)]
struct Family {
    help: String,
    kind: Kind,
    /// By their labels as the page has them.
    series: BTreeMap<String, Series>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    Histogram { bounds: Vec<f64> },
}

#[derive(Debug)]
enum Series {
    Counter(f64),
    Gauge { source: u64, value: f64 },
    Histogram { counts: Vec<u64>, sum: f64 },
}

impl ReportedFamilies {
    /// For the process of this replica.
    pub(crate) fn reporter(self: &Arc<Self>, stage: &StageName, replica: usize) -> SampleReporter {
        let mut state = self.0.lock();
        state.sources += 1;
        SampleReporter { families: Arc::clone(self), source: state.sources, stage: stage.clone(), replica }
    }

    /// The families as text in the format of OpenMetrics.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.0.lock().families {
            if !family.help.is_empty() {
                let _ = writeln!(text, "# HELP {name} {}", escaped(&family.help));
            }
            let _ = writeln!(text, "# TYPE {name} {}", family.kind);
            for (labels, series) in &family.series {
                family.write(&mut text, name, labels, series);
            }
        }
        text
    }
}

impl fmt::Debug for ReportedFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportedFamilies").field("series", &self.0.lock().series).finish_non_exhaustive()
    }
}

impl State {
    fn add(&mut self, reporter: &SampleReporter, sample: ReportedSample) -> Result<(), String> {
        let ReportedSample { name, help, labels, value } = sample;
        let name = match &value {
            // As its samples are called.
            ReportedValue::Counter(_) => name.strip_suffix("_total").unwrap_or(&name),
            ReportedValue::Gauge(_) | ReportedValue::Histogram { .. } => &name,
        };
        let kind = value.kind()?;
        let labels = label_text(labels, reporter, kind == Kind::Gauge)?;
        if let Some(family) = self.families.get(name) {
            if family.kind != kind {
                return Err(format!("it is a {} already, or has other buckets", family.kind));
            }
        } else {
            self.add_family(name, help, kind)?;
        }
        // It is there now.
        let Some(family) = self.families.get_mut(name) else { return Ok(()) };
        if !family.series.contains_key(&labels) {
            if self.series == MAX_SERIES {
                return Err(format!("all metrics together have {MAX_SERIES} series, which is the limit"));
            }
            self.series += 1;
        }
        family.add(labels, value, reporter.source);
        Ok(())
    }

    fn add_family(&mut self, name: &str, help: String, kind: Kind) -> Result<(), String> {
        check_name(name, ":")?;
        if name.starts_with(RESERVED_PREFIX) {
            return Err(format!("names that begin with {RESERVED_PREFIX} are the node's"));
        }
        if help.len() > MAX_HELP_BYTES {
            return Err(format!("its help has more than {MAX_HELP_BYTES} bytes"));
        }
        if self.families.len() == MAX_FAMILIES {
            return Err(format!("there are {MAX_FAMILIES} metrics, which is the limit"));
        }
        let names: Vec<String> = kind.names(name).collect();
        if let Some(taken) = names.iter().find(|name| self.names.contains(*name)) {
            return Err(format!("another metric has the name {taken}"));
        }
        self.names.extend(names);
        self.families.insert(name.to_owned(), Family { help, kind, series: BTreeMap::new() });
        Ok(())
    }
}

impl ReportedValue {
    /// The kind of its family, or what is wrong with it.
    fn kind(&self) -> Result<Kind, String> {
        match self {
            Self::Counter(added) if *added >= 0.0 => Ok(Kind::Counter),
            Self::Counter(_) => Err("a counter only grows".to_owned()),
            Self::Gauge(_) => Ok(Kind::Gauge),
            Self::Histogram { bounds, counts, .. } => {
                let is_ascending = bounds.windows(2).all(|pair| pair[0] < pair[1]);
                if bounds.len() > MAX_BOUNDS || !is_ascending || !bounds.iter().all(|bound| bound.is_finite()) {
                    return Err(format!("a histogram has at most {MAX_BOUNDS} finite bounds in ascending order"));
                }
                if counts.len() != bounds.len() + 1 {
                    return Err("a histogram has a bucket more than bounds".to_owned());
                }
                Ok(Kind::Histogram { bounds: bounds.clone() })
            }
        }
    }
}

impl Kind {
    /// The names of a family of it, and of its samples.
    fn names(&self, family: &str) -> impl Iterator<Item = String> {
        let suffixes: &[&str] = match self {
            Self::Counter => &["", "_total", "_created"],
            Self::Gauge => &[""],
            Self::Histogram { .. } => &["", "_bucket", "_count", "_sum", "_created"],
        };
        suffixes.iter().map(move |suffix| format!("{family}{suffix}"))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram { .. } => "histogram",
        })
    }
}

impl Family {
    /// Adds to a series, which has the kind of the family.
    fn add(&mut self, labels: String, value: ReportedValue, source: u64) {
        match value {
            ReportedValue::Gauge(value) => _ = self.series.insert(labels, Series::Gauge { source, value }),
            ReportedValue::Counter(added) => {
                if let Series::Counter(total) = self.series.entry(labels).or_insert(Series::Counter(0.0)) {
                    *total += added;
                }
            }
            ReportedValue::Histogram { counts: added, sum: more, .. } => {
                let none = || Series::Histogram { counts: vec![0; added.len()], sum: 0.0 };
                if let Series::Histogram { counts, sum } = self.series.entry(labels).or_insert_with(none) {
                    counts.iter_mut().zip(added).for_each(|(count, added)| *count = count.saturating_add(added));
                    *sum += more;
                }
            }
        }
    }

    fn write(&self, text: &mut String, name: &str, labels: &str, series: &Series) {
        let _ = match (series, &self.kind) {
            (Series::Counter(total), _) => writeln!(text, "{name}_total{{{labels}}} {}", Number(*total)),
            (Series::Gauge { value, .. }, _) => writeln!(text, "{name}{{{labels}}} {}", Number(*value)),
            (Series::Histogram { counts, sum }, Kind::Histogram { bounds }) => {
                let (mut total, infinite) = (0_u64, f64::INFINITY);
                for (bound, count) in bounds.iter().chain([&infinite]).zip(counts) {
                    total = total.saturating_add(*count);
                    let _ = writeln!(text, "{name}_bucket{{le=\"{}\",{labels}}} {total}", Number(*bound));
                }
                let _ = writeln!(text, "{name}_sum{{{labels}}} {}", Number(*sum));
                writeln!(text, "{name}_count{{{labels}}} {total}")
            }
            (Series::Histogram { .. }, _) => Ok(()),
        };
    }
}

/// A number as the format has it.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_infinite() {
            f.write_str(if self.0 > 0.0 { "+Inf" } else { "-Inf" })
        } else {
            // With an exponent where it has many digits.
            write!(f, "{:?}", self.0)
        }
    }
}

/// The labels of a series, with those of its place: `a="b",stage="s"`.
fn label_text(
    mut labels: Vec<(String, String)>,
    reporter: &SampleReporter,
    is_of_replica: bool,
) -> Result<String, String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("a series has at most {MAX_LABELS} labels"));
    }
    labels.sort();
    for (name, value) in &labels {
        check_name(name, "")?;
        if RESERVED_LABELS.contains(&&**name) || name.starts_with("__") {
            return Err(format!("the label {name} is the node's: {}", RESERVED_LABELS.join(", ")));
        }
        if value.len() > MAX_NAME_BYTES {
            return Err(format!("a value of the label {name} has more than {MAX_NAME_BYTES} bytes"));
        }
    }
    if labels.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("it has a label twice".to_owned());
    }
    labels.push(("stage".to_owned(), reporter.stage.to_string()));
    if is_of_replica {
        labels.push(("replica".to_owned(), reporter.replica.to_string()));
    }
    let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    Ok(labels.collect::<Vec<_>>().join(","))
}

/// Whether a text is the name of a family or label. `more` are characters beside letters, digits and `_`.
fn check_name(name: &str, more: &str) -> Result<(), String> {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || more.contains(c);
    let is_name = name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit());
    if is_name && name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(format!("a name has at most {MAX_NAME_BYTES} ASCII letters, digits and `_`, and {} has not", quoted(name)))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The beginning of a text from outside.
fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(MAX_NAME_BYTES).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, labels: &[(&str, &str)], value: ReportedValue) -> ReportedSample {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ReportedSample { name: name.to_owned(), help: format!("Help of {name}"), labels, value }
    }

    fn reason(reporter: &SampleReporter, sample: ReportedSample) -> String {
        reporter.families.0.lock().add(reporter, sample).unwrap_err()
    }

    #[test]
    fn counters_and_histograms_outlive_their_process_and_gauges_do_not() {
        let families = Arc::<ReportedFamilies>::default();
        let stage = StageName::from("s");
        let first = families.reporter(&stage, 0);
        let observed =
            |counts: &[u64], sum| ReportedValue::Histogram { bounds: vec![0.5, 2.0], counts: counts.to_vec(), sum };
        let model = [("model", "a\"\\\n")];
        first.report(sample("tokens", &model, ReportedValue::Counter(3.0)));
        first.report(sample("size", &[], ReportedValue::Gauge(7.5)));
        first.report(sample("seconds", &[], observed(&[1, 0, 2], 9.0)));
        let second = families.reporter(&stage, 0);
        second.report(sample("size", &[], ReportedValue::Gauge(f64::NEG_INFINITY)));
        drop(first);
        second.report(sample("tokens_total", &model, ReportedValue::Counter(0.25)));
        second.report(sample("seconds", &[], observed(&[0, 1, 0], 1.0)));
        assert_eq!(
            families.encode(),
            "# HELP seconds Help of seconds\n# TYPE seconds histogram\n\
             seconds_bucket{le=\"0.5\",stage=\"s\"} 1\nseconds_bucket{le=\"2.0\",stage=\"s\"} 2\n\
             seconds_bucket{le=\"+Inf\",stage=\"s\"} 4\nseconds_sum{stage=\"s\"} 10.0\nseconds_count{stage=\"s\"} 4\n\
             # HELP size Help of size\n# TYPE size gauge\nsize{stage=\"s\",replica=\"0\"} -Inf\n\
             # HELP tokens Help of tokens\n# TYPE tokens counter\n\
             tokens_total{model=\"a\\\"\\\\\\n\",stage=\"s\"} 3.25\n",
            "the gauge of the new process stays when the old one ends"
        );
        drop(second);
        assert!(!families.encode().contains("size{"), "{}", families.encode());
        assert_eq!(families.0.lock().series, 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_limit() {
        let families = Arc::<ReportedFamilies>::default();
        let reporter = families.reporter(&"s".into(), 0);
        let counter = |name: &str, labels: &[(&str, &str)]| sample(name, labels, ReportedValue::Counter(1.0));
        reporter.report(counter("taken", &[]));
        let long = "x".repeat(201);
        let labels: Vec<_> = (0..11).map(|n| format!("l{n}")).collect();
        let labels: Vec<_> = labels.iter().map(|name| (&**name, "")).collect();
        let histogram =
            |bounds: Vec<f64>, counts| sample("h", &[], ReportedValue::Histogram { bounds, counts, sum: 0.0 });
        for (sample, expected) in [
            (counter("a-b", &[]), "at most 200 ASCII letters"),
            (counter("", &[]), "at most 200 ASCII letters"),
            (counter(&long, &[]), "at most 200 ASCII letters"),
            (counter("callboard_x", &[]), "names that begin with callboard_ are the node's"),
            (counter("x", &[("stage", "t")]), "the label stage is the node's"),
            (counter("x", &[("a:b", "t")]), "at most 200 ASCII letters"),
            (counter("x", &[("a", "1"), ("a", "2")]), "a label twice"),
            (counter("x", &[("a", &long)]), "a value of the label a has more than 200 bytes"),
            (counter("x", &labels), "at most 10 labels"),
            (sample("x", &[], ReportedValue::Counter(-1.0)), "a counter only grows"),
            (sample("x", &[], ReportedValue::Counter(f64::NAN)), "a counter only grows"),
            (sample("taken", &[], ReportedValue::Gauge(1.0)), "it is a counter already"),
            (sample("taken_total", &[], ReportedValue::Gauge(1.0)), "another metric has the name taken_total"),
            (histogram(vec![1.0; 2], vec![0; 3]), "at most 50 finite bounds in ascending order"),
            (histogram(vec![1.0], vec![0; 3]), "a bucket more than bounds"),
        ] {
            let found = reason(&reporter, sample);
            assert!(found.contains(expected), "{found}");
        }
        assert_eq!(
            families.encode(),
            "# HELP taken Help of taken\n# TYPE taken counter\ntaken_total{stage=\"s\"} 1.0\n"
        );
    }

    #[test]
    fn the_numbers_of_families_and_series_are_bounded() {
        let families = Arc::<ReportedFamilies>::default();
        let reporter = families.reporter(&"s".into(), 0);
        let user = |n: usize| sample("users", &[("user", &n.to_string())], ReportedValue::Gauge(1.0));
        (0..MAX_SERIES).for_each(|n| reporter.report(user(n)));
        assert_eq!(reason(&reporter, user(MAX_SERIES)), "all metrics together have 10000 series, which is the limit");
        reporter.families.0.lock().add(&reporter, user(0)).unwrap();
        for n in 1..MAX_FAMILIES {
            let _ = reporter.families.0.lock().add(&reporter, sample(&format!("m{n}"), &[], ReportedValue::Gauge(1.0)));
        }
        let more = sample("more", &[], ReportedValue::Gauge(1.0));
        assert_eq!(reason(&reporter, more), "there are 200 metrics, which is the limit");
        drop(reporter);
        assert_eq!(families.0.lock().series, 0, "the room of gauges is free again");
    }
}
