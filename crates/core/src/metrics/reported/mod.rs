//! The families of user code in other processes: their samples come as changes, and are added up here.
//!
//! A counter or histogram is the sum of all reports of a stage, so it survives the process that reports. A gauge is
//! that of one process, and goes with it. Beyond a limit of its stage or of all stages, or where a sample does not fit
//! its family, it is left out, and the log says so once. At the limit of all stages those without a process lose their
//! sums first, the oldest before the others.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;

use super::families::EndedNames;
use crate::id::StageName;

/// The most families of a stage: more than people read.
const MAX_FAMILIES: usize = 200;

/// The most series of a stage, each a line of the page: a label with a value for each user is refused here, and not by
/// the memory.
const MAX_SERIES: usize = 10_000;

/// The most bytes of the names and labels of a stage's series, in all their lines.
const MAX_BYTES: usize = 1 << 20;

/// All stages of a node together have this many times the limits of one: the page of a node with many models stays one
/// that a scraper reads.
const SHARES_OF_NODE: usize = 10;

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
        let name = sample.name.clone();
        let Err(reason) = state.add(self, sample) else { return };
        let reason = format!("{}: {reason}", quoted(&name));
        if state.told.len() < MAX_TOLD && state.told.insert(format!("{}: {reason}", self.stage)) {
            drop(state);
            let (stage, replica) = (self.stage.as_str(), self.replica);
            tracing::error!(parent: None, stage, replica, "a metric is left out of /metrics: {reason}");
        }
    }
}

impl Drop for SampleReporter {
    fn drop(&mut self) {
        let mut state = self.families.0.lock();
        state.retain(self.stage.as_str(), |series| match series {
            Series::Gauge(values) => {
                values.remove(&self.source);
                !values.is_empty()
            }
            Series::Counter(_) | Series::Histogram { .. } => true,
        });
        state.end_process(self.stage.as_str());
    }
}

/// All such families of a node.
#[derive(Default)]
pub(crate) struct ReportedFamilies(Mutex<State>);

#[derive(Default)]
struct State {
    families: BTreeMap<String, Family>,
    /// Those that have a process or series.
    stages: HashMap<StageName, StageUse>,
    /// The stages without a process that ended lately, and keep their sums.
    ended: EndedNames,
    /// The names of all samples, and of their families.
    names: HashSet<String>,
    /// The number of processes so far.
    sources: u64,
    /// What the log has.
    told: HashSet<String>,
}

/// A stage with a process or series.
#[derive(Default)]
struct StageUse {
    processes: usize,
    page: PageUse,
}

/// What is taken of a page.
#[derive(Clone, Copy, Default)]
struct PageUse {
    families: usize,
    series: usize,
    bytes: usize,
}

#[derive(Clone)]
struct Family {
    help: String,
    kind: Kind,
    /// Those of each stage, by their labels as the page has them.
    stages: BTreeMap<StageName, BTreeMap<Arc<str>, Series>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    Histogram { bounds: Vec<f64> },
}

#[derive(Clone)]
enum Series {
    Counter(f64),
    /// By the process. Two revisions of a stage may have the same replica.
    Gauge(BTreeMap<u64, f64>),
    Histogram {
        counts: Vec<u64>,
        sum: f64,
    },
}

impl ReportedFamilies {
    /// For the process of this replica.
    pub(crate) fn reporter(self: &Arc<Self>, stage: &StageName, replica: usize) -> SampleReporter {
        let mut state = self.0.lock();
        state.sources += 1;
        state.stages.entry(stage.clone()).or_default().processes += 1;
        state.ended.remove(stage.as_str());
        SampleReporter { families: Arc::clone(self), source: state.sources, stage: stage.clone(), replica }
    }

    /// The families as text in the format of OpenMetrics.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        // Written without the lock: tasks of the runtime wait for it.
        let families = self.0.lock().families.clone();
        for (name, family) in &families {
            if !family.help.is_empty() {
                let _ = writeln!(text, "# HELP {name} {}", escaped(&family.help));
            }
            let _ = writeln!(text, "# TYPE {name} {}", family.kind);
            for (labels, series) in family.stages.values().flatten() {
                family.write(&mut text, name, labels, series);
            }
        }
        text
    }
}

impl fmt::Debug for ReportedFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportedFamilies").field("count", &self.0.lock().families.len()).finish_non_exhaustive()
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
        let family = self.families.get(name);
        match family {
            Some(family) if family.kind != kind => {
                return Err(format!("it is a {} already, or has other buckets", family.kind));
            }
            Some(_) => {}
            None => self.check_family(name, &help, &kind)?,
        }
        let stage = reporter.stage.as_str();
        let others = family.and_then(|family| family.stages.get(stage));
        if others.is_none_or(|series| !series.contains_key(&*labels)) {
            let families = usize::from(others.is_none());
            self.take(stage, PageUse { families, series: kind.lines(), bytes: kind.bytes(name, &labels) })?;
        }
        let family = self.families.entry(name.to_owned()).or_insert_with(|| {
            self.names.extend(kind.names(name));
            Family { help, kind, stages: BTreeMap::new() }
        });
        family.add(&reporter.stage, labels, value, reporter.source);
        Ok(())
    }

    /// Takes room on the page for a stage, or says which limit that exceeds.
    fn take(&mut self, stage: &str, more: PageUse) -> Result<(), String> {
        let own = self.stages.get(stage).map(|usage| usage.page).unwrap_or_default().and(more);
        own.check("its stage has", 1)?;
        let all = |stages: &HashMap<_, StageUse>| stages.values().fold(more, |all, stage| all.and(stage.page));
        while let Err(reason) = all(&self.stages).check("all stages of the node have", SHARES_OF_NODE) {
            let Some(oldest) = self.ended.take_oldest() else { return Err(reason) };
            self.forget(&oldest);
        }
        // The reporter has entered it.
        self.stages.get_mut(stage).into_iter().for_each(|usage| usage.page = own);
        Ok(())
    }

    /// Whether a family is valid and has names of its own.
    fn check_family(&self, name: &str, help: &str, kind: &Kind) -> Result<(), String> {
        check_name(name, ":")?;
        if name.starts_with(RESERVED_PREFIX) {
            return Err(format!("names that begin with {RESERVED_PREFIX} are the node's"));
        }
        if help.len() > MAX_HELP_BYTES {
            return Err(format!("its help has more than {MAX_HELP_BYTES} bytes"));
        }
        match kind.names(name).find(|name| self.names.contains(name)) {
            Some(taken) => Err(format!("another metric has the name {taken}")),
            None => Ok(()),
        }
    }

    /// Counts the end of a process. The sums of its stage stay until as many others have ended as keep theirs.
    fn end_process(&mut self, stage: &str) {
        let Some(usage) = self.stages.get_mut(stage) else { return };
        usage.processes -= 1;
        if usage.processes > 0 {
            return;
        }
        if usage.page.families == 0 {
            self.stages.remove(stage);
        } else if let Some((oldest, _)) = self.ended.add(stage, 0) {
            self.forget(&oldest);
        }
    }

    /// Removes the sums of a stage without a process.
    fn forget(&mut self, stage: &str) {
        self.retain(stage, |_| false);
        self.stages.remove(stage);
    }

    /// Removes the series of a stage that `keeps` does not keep.
    fn retain(&mut self, stage: &str, mut keeps: impl FnMut(&mut Series) -> bool) {
        let Self { families, stages, names, .. } = self;
        let Some(usage) = stages.get_mut(stage) else { return };
        families.retain(|name, Family { kind, stages, .. }| {
            let Some(of_stage) = stages.get_mut(stage) else { return true };
            of_stage.retain(|labels, series| {
                let is_kept = keeps(series);
                if !is_kept {
                    usage.page.series -= kind.lines();
                    usage.page.bytes -= kind.bytes(name, labels);
                }
                is_kept
            });
            if of_stage.is_empty() {
                usage.page.families -= 1;
                stages.remove(stage);
            }
            if stages.is_empty() {
                kind.names(name).for_each(|name| _ = names.remove(&name));
            }
            !stages.is_empty()
        });
    }
}

impl PageUse {
    fn and(self, other: Self) -> Self {
        Self {
            families: self.families + other.families,
            series: self.series + other.series,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Whether it is within this many times the limits of a stage.
    fn check(self, owner: &str, shares: usize) -> Result<(), String> {
        for (what, count, limit) in [
            ("metrics", self.families, MAX_FAMILIES),
            ("series", self.series, MAX_SERIES),
            ("bytes of names and labels", self.bytes, MAX_BYTES),
        ] {
            if count > limit * shares {
                return Err(format!("{owner} at most {} {what}", limit * shares));
            }
        }
        Ok(())
    }
}

impl ReportedValue {
    /// The kind of its family, or what is wrong with it.
    fn kind(&self) -> Result<Kind, String> {
        match self {
            // An infinite sum would be one for ever.
            Self::Counter(added) if *added >= 0.0 && added.is_finite() => Ok(Kind::Counter),
            Self::Counter(_) => Err("a counter only grows, by finite numbers".to_owned()),
            Self::Gauge(_) => Ok(Kind::Gauge),
            Self::Histogram { sum, .. } if !sum.is_finite() => Err("the sum of a histogram is finite".to_owned()),
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

    /// A series without a report.
    fn zero(&self) -> Series {
        match self {
            Self::Counter => Series::Counter(0.0),
            Self::Gauge => Series::Gauge(BTreeMap::new()),
            Self::Histogram { bounds } => Series::Histogram { counts: vec![0; bounds.len() + 1], sum: 0.0 },
        }
    }

    /// The lines of a series on the page.
    fn lines(&self) -> usize {
        match self {
            Self::Counter | Self::Gauge => 1,
            // The bucket of all others, the sum and the count.
            Self::Histogram { bounds } => bounds.len() + 3,
        }
    }

    /// The bytes of names and labels in the lines of a series.
    fn bytes(&self, name: &str, labels: &str) -> usize {
        self.lines() * (name.len() + labels.len())
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
    fn add(&mut self, stage: &StageName, labels: String, value: ReportedValue, source: u64) {
        let series = self.stages.entry(stage.clone()).or_default().entry(labels.into());
        match (value, series.or_insert_with(|| self.kind.zero())) {
            (ReportedValue::Counter(added), Series::Counter(total)) => *total = (*total + added).min(f64::MAX),
            (ReportedValue::Gauge(value), Series::Gauge(values)) => _ = values.insert(source, value),
            (ReportedValue::Histogram { counts: added, sum: more, .. }, Series::Histogram { counts, sum }) => {
                counts.iter_mut().zip(added).for_each(|(count, added)| *count = count.saturating_add(added));
                *sum = (*sum + more).clamp(f64::MIN, f64::MAX);
            }
            _ => {}
        }
    }

    fn write(&self, text: &mut String, name: &str, labels: &str, series: &Series) {
        let _ = match (series, &self.kind) {
            (Series::Counter(total), _) => writeln!(text, "{name}_total{{{labels}}} {}", Number(*total)),
            (Series::Gauge(values), _) => values.last_key_value().map_or(Ok(()), |(_, newest)| {
                // That of the process that started last.
                writeln!(text, "{name}{{{labels}}} {}", Number(*newest))
            }),
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
