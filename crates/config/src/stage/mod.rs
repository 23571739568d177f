//! The stages of a plan: the result of each `[[stage]]` of the file.

#[cfg(feature = "process")]
mod hosts;
mod keys;

use callboard_core::Contract;
use toml::de::DeValue;

use crate::document::{Entry, Section, one_line};
use crate::error::ConfigError;
use crate::form::Replicas;
use crate::kind::StageKind;
use crate::source::{Source, Sourced};

pub use self::keys::StagePlan;
use self::keys::{
    AFFINITY, CACHE, CACHE_SHARED, CRASH_RETRIES, IDLE, MAX_ABANDONED_THREADS, MAX_COST, MEMORY, REPLICAS, REVISION,
    SCALE_DELAY, TIMEOUT,
};
pub(crate) use self::keys::{COMMON, COST, MAX_BATCH_SIZE, PINNED, SPLIT, without_effect_on_remote};

/// The keys of stages with threads of their own.
static OF_THREADS: [&str; 3] = [TIMEOUT.key, MAX_ABANDONED_THREADS.key, AFFINITY.key];

/// The keys of stages whose items have rows.
static OF_ROWS: [&str; 2] = [COST.key, MAX_COST.key];

/// The common keys of the replicas of a stage: without effect on a stage with `replicas_of`.
static OF_REPLICAS: [&str; 7] =
    [REPLICAS.key, SCALE_DELAY.key, IDLE.key, PINNED.key, MEMORY.key, AFFINITY.key, MAX_ABANDONED_THREADS.key];

/// The cost of one entry, for [`StagePlan::max_cost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostUnit {
    /// One per entry, whatever its size.
    #[default]
    Entries,
    /// The length of its first axis; 1 without axes.
    Rows,
    /// The length of the axis of `pad`, or of the bucket in which it is; the default with `pad`.
    Tokens,
}

/// A key of the stage's kind, as written in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnKey {
    /// The key.
    pub key: String,
    /// Its value on one line.
    pub text: String,
    /// The source of the value.
    pub source: Source,
}

impl OwnKey {
    /// As the key is written, but of `env` and `settings` the names alone: the values may be secrets.
    pub(crate) fn new(key: &str, entry: &Entry<'_>) -> Self {
        let text = if key == "env" || key == "settings" { names(entry.value) } else { None };
        let text = text.unwrap_or_else(|| one_line(entry.written()));
        Self { key: key.to_owned(), text, source: entry.source() }
    }
}

/// The keys of a table, or of each table of a list.
fn names(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::Table(table) => {
            let names: Vec<&str> = table.keys().map(|name| &**name.get_ref()).collect();
            Some(format!("{{ {} }}", names.join(", ")))
        }
        DeValue::Array(tables) => {
            let tables: Option<Vec<String>> = tables.iter().map(|table| names(table.get_ref())).collect();
            Some(format!("[{}]", tables?.join(", ")))
        }
        _ => None,
    }
}

impl StagePlan {
    /// The stage whose replicas run it, if they are not its own.
    #[must_use]
    pub fn replicas_of(&self) -> Option<&str> {
        self.kind.replicas_of()
    }

    /// Keeps the first replica, with its device and its variables.
    pub fn keep_one_replica(&mut self) {
        // By default there is one for each device.
        self.replicas = Sourced::new(Replicas::fixed(1), Source::Default);
        #[cfg(feature = "process")]
        match &mut self.kind {
            StageKind::Process(keys) => keys.keep_one_replica(),
            StageKind::Python(keys) => keys.keep_one_replica(),
            _ => {}
        }
    }

    /// Whether the key does anything on a stage of this kind. Without an effect it cannot be set, and is not shown.
    pub(crate) fn has_effect(&self, key: &str) -> bool {
        let kind = &self.kind;
        let is_useless = kind.is_remote() && without_effect_on_remote(key).is_some()
            || !kind.has_threads() && OF_THREADS.contains(&key)
            || !kind.has_rows() && OF_ROWS.contains(&key)
            || self.replicas_of().is_some() && OF_REPLICAS.contains(&key);
        !is_useless
    }
}

/// Reads every `[[stage]]`. `queue` is the default queue length.
pub(crate) fn read_all(root: &Section<'_>, queue: &Sourced<usize>) -> Result<Vec<StagePlan>, ConfigError> {
    let mut stages: Vec<StagePlan> = Vec::new();
    for section in root.sections("stage")? {
        let stage = read(section.clone(), queue)?;
        if let Some(first) = stages.iter().find(|first| first.name.value == stage.name.value) {
            return Err(section.duplicate("stage", "name", &first.name));
        }
        stages.push(stage);
    }
    #[cfg(feature = "process")]
    hosts::check(root.sections("stage")?, &stages)?;
    Ok(stages)
}

fn read(section: Section<'_>, queue: &Sourced<usize>) -> Result<StagePlan, ConfigError> {
    let name = section.require_text("name", "a name for the stage")?;
    let section = section.called(format!("stage `{}`", name.value));
    let kind = StageKind::read(&section, &COMMON, without_effect_on_remote)?;
    let mut stage = StagePlan::new(name, kind, queue.clone());
    stage.own = own_keys(&section, &[]);
    fill(&section, &mut stage)?;
    Ok(stage)
}

/// Reads the settings of a model in a directory of models into its stage: the keys of a stage of kind `onnx`, without
/// the keys that the directory decides and without `other`, which have other readers. A missing key is taken from
/// `defaults`, which were read alone before.
pub(crate) fn read_model(
    section: &Section<'_>,
    defaults: Option<&Section<'_>>,
    other: &[&str],
    stage: &mut StagePlan,
) -> Result<(), ConfigError> {
    static SAID: [&str; 4] = ["name", "kind", REVISION.key, SPLIT.key];
    let common: Vec<&str> = COMMON.into_iter().filter(|key| !SAID.contains(key)).chain(other.iter().copied()).collect();
    let useless = useless_keys(section);
    let inherited = defaults.map(|defaults| defaults.without(&[&common, &*useless].concat()));
    stage.kind = StageKind::read_model(section, inherited, &common)?;
    stage.own = own_keys(section, other);
    if let Some(defaults) = defaults {
        let is_inherited = |own: &OwnKey| section.get(&own.key).is_none() && !useless.contains(&own.key.as_str());
        let inherited = own_keys(defaults, other).into_iter().filter(is_inherited);
        stage.own.extend(inherited);
        fill(defaults, stage)?;
    }
    fill(section, stage)
}

/// The keys which would be refused, or have no effect, if a model with these settings of its own inherited them.
fn useless_keys(section: &Section<'_>) -> Vec<&'static str> {
    const OF_ONNX_RUNTIME: [&str; 6] = ["library", "providers", "inter_threads", "spinning", "arena", "optimization"];
    let value = |key: &str| section.get(key).map(|entry| entry.value);
    let is_shared = value("isolate").is_some_and(|isolate| isolate.as_bool() == Some(false));
    let is_rten = value("engine").is_some_and(|engine| engine.as_str() == Some("rten"));
    let mut keys = Vec::new();
    keys.extend(is_shared.then_some("memory_limit"));
    keys.extend(is_rten.then_some(OF_ONNX_RUNTIME).into_iter().flatten());
    keys
}

/// Reads the keys that every kind of stage has.
fn fill(section: &Section<'_>, stage: &mut StagePlan) -> Result<(), ConfigError> {
    if let Some(entry) = section.get(REPLICAS.key)
        && let (Some(min), Some(max)) = (entry.bound("min"), entry.bound("max"))
        && min > max
    {
        let message = format!("min = {min} is more than max = {max}");
        return Err(ConfigError::Rejected { place: entry.place(), message });
    }
    stage.read(section)?;
    #[cfg(feature = "process")]
    if let Some(keys) = stage.kind.placement() {
        let is_set = stage.replicas.source != Source::Default;
        let counted = keys.check(stage.replicas.value, is_set).map_err(|(key, message)| {
            let place = section.get(key).map_or_else(|| section.place(), |entry| entry.place());
            ConfigError::Rejected { place, message }
        });
        stage.replicas.value = counted?;
    }
    check_effect(section, stage)
}

/// A key without effect is refused: it would suggest a bound that does not exist.
fn check_effect(section: &Section<'_>, stage: &StagePlan) -> Result<(), ConfigError> {
    let refused = |key: &str, why: &str| {
        let place = section.get(key).map_or_else(|| section.place(), |entry| entry.place());
        Err(ConfigError::Rejected { place, message: format!("it has no effect {why}") })
    };
    let is_set = |key: &str| section.get(key).is_some();
    for key in OF_THREADS.into_iter().filter(|key| is_set(key)) {
        if !stage.kind.has_threads() {
            let kind = stage.kind.name();
            return refused(key, &format!("on stages of kind `{kind}`, which have no threads of their own"));
        }
    }
    #[cfg(feature = "process")]
    let has_processes = stage.kind.placement().is_some();
    #[cfg(not(feature = "process"))]
    let has_processes = false;
    if stage.affinity.value.iter().any(|own| own.len() > 1) && !has_processes {
        let why = "with several cores for one replica, on a stage whose replicas are threads: write one core for each";
        return refused(AFFINITY.key, why);
    }
    for key in OF_ROWS.into_iter().filter(|key| is_set(key)) {
        if !stage.kind.has_rows() {
            return refused(key, &format!("on stages of kind `{}`, whose items have no rows", stage.kind.name()));
        }
    }
    if is_set(CRASH_RETRIES.key) && !stage.contract.value.may_run_again() {
        return refused(CRASH_RETRIES.key, "under the contract `at_most_once`, which repeats nothing");
    }
    if is_set(CACHE.key) && stage.contract.value != Contract::Pure {
        return refused(
            CACHE.key,
            "without `contract = \"pure\"`: only then an answer depends on nothing but its input",
        );
    }
    if is_set(CACHE_SHARED.key) && stage.cache.value.is_none() {
        return refused(CACHE_SHARED.key, "without `cache`");
    }
    if is_set(MAX_ABANDONED_THREADS.key) && stage.timeout.value.is_none() {
        return refused(MAX_ABANDONED_THREADS.key, "without `timeout`, which decides when a thread hangs");
    }
    if stage.cost.value == CostUnit::Tokens && !stage.kind.is_padded() {
        return refused(COST.key, "as `tokens` without `pad`, which names the axis that is counted");
    }
    let Replicas { min, max } = stage.replicas.value;
    if is_set(SCALE_DELAY.key) && max <= min.max(1) {
        return refused(SCALE_DELAY.key, "without room to grow, such as `replicas = { min = 1, max = 4 }`");
    }
    if is_set(IDLE.key) && min > 0 {
        return refused(IDLE.key, "without `replicas = { min = 0, … }`: the last replica stays");
    }
    if is_set(PINNED.key) && stage.pinned.value && min == 0 {
        let place = section.get(PINNED.key).map_or_else(|| section.place(), |entry| entry.place());
        let message = "a pinned stage always has a replica, and `replicas` has `min = 0`".to_owned();
        return Err(ConfigError::Rejected { place, message });
    }
    if min == 0 && stage.kind.has_spare() {
        let place = section.get("spare").map_or_else(|| section.place(), |entry| entry.place());
        let message = "a spare stays in memory when its stage leaves it, and `replicas` has `min = 0`".to_owned();
        return Err(ConfigError::Rejected { place, message });
    }
    if is_set(MEMORY.key) && min > 0 && !stage.pinned.value {
        return refused(MEMORY.key, "on a stage that is loaded at all times and not `pinned`: its bytes count nowhere");
    }
    if is_set(MAX_COST.key) && stage.cost.value == CostUnit::Entries {
        return refused(
            MAX_COST.key,
            "without `cost = \"rows\"` or `\"tokens\"`: the number of entries is bounded by `max_batch_size`",
        );
    }
    Ok(())
}

fn own_keys(section: &Section<'_>, other: &[&str]) -> Vec<OwnKey> {
    let own = section.keys().into_iter().filter(|key| !COMMON.contains(key) && !other.contains(key));
    own.filter_map(|key| section.get(key).map(|entry| (key, entry)))
        .map(|(key, entry)| OwnKey::new(key, &entry))
        .collect()
}
