//! The stages of a plan: the result of each `[[stage]]` of the file.

use std::time::Duration;

use callboard_core::{
    Contract, DEFAULT_AGEING, DEFAULT_CRASH_RETRIES, DEFAULT_IDLE, DEFAULT_MAX_ABANDONED_THREADS, DEFAULT_SCALE_DELAY,
};

use super::document::{Entry, Section, one_line};
use super::error::ConfigError;
use super::form::Replicas;
use super::kind::StageKind;
use super::setting::stage::{
    AFFINITY, AFFINITY_FORM, AGEING, AGEING_FORM, CACHE, CACHE_FORM, CACHE_SHARED, CACHE_SHARED_FORM, CONTRACT,
    CONTRACT_FORM, COST, COST_FORM, CRASH_RETRIES, CRASH_RETRIES_FORM, IDLE, IDLE_FORM, MAX_ABANDONED_THREADS,
    MAX_ABANDONED_THREADS_FORM, MAX_BATCH_SIZE, MAX_BATCH_SIZE_FORM, MAX_COST, MAX_COST_FORM, MAX_DELAY,
    MAX_DELAY_FORM, MEMORY, MEMORY_FORM, PINNED, PINNED_FORM, QUEUE, QUEUE_FORM, REPLICAS, REPLICAS_FORM, REVISION,
    REVISION_FORM, SCALE_DELAY, SCALE_DELAY_FORM, SPLIT, SPLIT_FORM, TIMEOUT, TIMEOUT_FORM,
};
use super::source::{Source, Sourced};

/// The keys that every kind of stage has.
const COMMON: [&str; 22] = [
    "name",
    "kind",
    MAX_BATCH_SIZE,
    MAX_DELAY,
    REPLICAS,
    SCALE_DELAY,
    IDLE,
    PINNED,
    MEMORY,
    QUEUE,
    CONTRACT,
    CRASH_RETRIES,
    TIMEOUT,
    MAX_ABANDONED_THREADS,
    COST,
    MAX_COST,
    AGEING,
    AFFINITY,
    REVISION,
    SPLIT,
    CACHE,
    CACHE_SHARED,
];

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

/// One stage.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// Its name, one per plan.
    pub name: Sourced<String>,
    /// Its kind, with the keys of that kind.
    pub kind: StageKind,
    /// The keys of its kind that were set, with their lines.
    pub own: Vec<OwnKey>,
    /// The largest batch. The default is the maximum of the kind: 1 for a model without a batch axis.
    pub max_batch_size: Sourced<usize>,
    /// The longest wait of a batch that is not full.
    pub max_delay: Sourced<Duration>,
    /// The number of workers.
    pub replicas: Sourced<Replicas>,
    /// How long the queue may take before a worker is added.
    pub scale_delay: Sourced<Duration>,
    /// How long the last worker stays without a call, if it may leave.
    pub idle: Sourced<Duration>,
    /// Whether the stage always has a worker, and counts as loaded.
    pub pinned: Sourced<bool>,
    /// The memory of the loaded stage; that of its model if `None`.
    pub memory: Sourced<Option<u64>>,
    /// The length of the queue.
    pub queue: Sourced<usize>,
    /// Whether an entry may run again after its worker died.
    pub contract: Sourced<Contract>,
    /// How often an entry runs again that was alone when its worker died.
    pub crash_retries: Sourced<usize>,
    /// The time limit of one batch in the stage's code.
    pub timeout: Sourced<Option<Duration>>,
    /// The most threads that may hang beyond that limit.
    pub max_abandoned_threads: Sourced<usize>,
    /// The cost of an entry.
    pub cost: Sourced<CostUnit>,
    /// The largest cost of one batch.
    pub max_cost: Sourced<Option<usize>>,
    /// The wait after which an entry rises by one priority class.
    pub ageing: Sourced<Duration>,
    /// The cores that the workers are pinned to; empty for any.
    pub affinity: Sourced<Vec<usize>>,
    /// The revision of the stage on this node.
    pub revision: Sourced<usize>,
    /// The weights by which this node divides its calls between revisions; empty: no split.
    pub split: Sourced<Vec<(u64, u32)>>,
    /// The bytes of answers that it keeps.
    pub cache: Sourced<Option<u64>>,
    /// Whether callers with different keys get each other's answers.
    pub cache_shared: Sourced<bool>,
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
        let text = match entry.value.as_table() {
            Some(variables) if key == "env" || key == "settings" => {
                let names: Vec<&str> = variables.keys().map(|name| &**name.get_ref()).collect();
                format!("{{ {} }}", names.join(", "))
            }
            _ => one_line(entry.written()),
        };
        Self { key: key.to_owned(), text, source: entry.source() }
    }
}

impl StagePlan {
    /// A stage of this kind with default settings.
    pub(crate) fn new(name: Sourced<String>, kind: StageKind, queue: Sourced<usize>) -> Self {
        Self {
            name,
            own: Vec::new(),
            max_batch_size: by_default(kind.max_batch_size()),
            max_delay: by_default(Duration::ZERO),
            replicas: by_default(Replicas::fixed(1)),
            scale_delay: by_default(DEFAULT_SCALE_DELAY),
            idle: by_default(DEFAULT_IDLE),
            pinned: by_default(false),
            memory: by_default(None),
            queue,
            contract: by_default(kind.contract()),
            crash_retries: by_default(DEFAULT_CRASH_RETRIES as usize),
            timeout: by_default(None),
            max_abandoned_threads: by_default(DEFAULT_MAX_ABANDONED_THREADS),
            cost: by_default(CostUnit::default()),
            max_cost: by_default(None),
            ageing: by_default(DEFAULT_AGEING),
            affinity: by_default(Vec::new()),
            revision: by_default(0),
            split: by_default(Vec::new()),
            cache: by_default(None),
            cache_shared: by_default(false),
            kind,
        }
    }
}

fn by_default<T>(value: T) -> Sourced<T> {
    Sourced::new(value, Source::Default)
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
    Ok(stages)
}

fn read(section: Section<'_>, queue: &Sourced<usize>) -> Result<StagePlan, ConfigError> {
    let name = section.require_text("name", "a name for the stage")?;
    let section = section.called(format!("stage `{}`", name.value));
    let kind = StageKind::read(&section, &COMMON)?;
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
    const SAID: [&str; 4] = ["name", "kind", REVISION, SPLIT];
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
    set(&mut stage.max_batch_size, section.read(MAX_BATCH_SIZE, &MAX_BATCH_SIZE_FORM)?);
    set(&mut stage.max_delay, section.read(MAX_DELAY, &MAX_DELAY_FORM)?);
    if let Some(entry) = section.get(REPLICAS)
        && let (Some(min), Some(max)) = (entry.bound("min"), entry.bound("max"))
        && min > max
    {
        let message = format!("min = {min} is more than max = {max}");
        return Err(ConfigError::Rejected { place: entry.place(), message });
    }
    set(&mut stage.replicas, section.read(REPLICAS, &REPLICAS_FORM)?);
    set(&mut stage.scale_delay, section.read(SCALE_DELAY, &SCALE_DELAY_FORM)?);
    set(&mut stage.idle, section.read(IDLE, &IDLE_FORM)?);
    set(&mut stage.pinned, section.read(PINNED, &PINNED_FORM)?);
    set(&mut stage.memory, section.read(MEMORY, &MEMORY_FORM)?);
    set(&mut stage.queue, section.read(QUEUE, &QUEUE_FORM)?);
    set(&mut stage.contract, section.read(CONTRACT, &CONTRACT_FORM)?);
    set(&mut stage.crash_retries, section.read(CRASH_RETRIES, &CRASH_RETRIES_FORM)?);
    set(&mut stage.timeout, section.read(TIMEOUT, &TIMEOUT_FORM)?);
    set(&mut stage.max_abandoned_threads, section.read(MAX_ABANDONED_THREADS, &MAX_ABANDONED_THREADS_FORM)?);
    set(&mut stage.cost, section.read(COST, &COST_FORM)?);
    set(&mut stage.max_cost, section.read(MAX_COST, &MAX_COST_FORM)?);
    set(&mut stage.ageing, section.read(AGEING, &AGEING_FORM)?);
    set(&mut stage.affinity, section.read(AFFINITY, &AFFINITY_FORM)?);
    set(&mut stage.revision, section.read(REVISION, &REVISION_FORM)?);
    set(&mut stage.split, section.read(SPLIT, &SPLIT_FORM)?);
    set(&mut stage.cache, section.read(CACHE, &CACHE_FORM)?);
    set(&mut stage.cache_shared, section.read(CACHE_SHARED, &CACHE_SHARED_FORM)?);
    check_effect(section, stage)
}

/// A key without effect is refused: it would suggest a bound that does not exist.
fn check_effect(section: &Section<'_>, stage: &StagePlan) -> Result<(), ConfigError> {
    let refused = |key: &str, why: &str| {
        let place = section.get(key).map_or_else(|| section.place(), |entry| entry.place());
        Err(ConfigError::Rejected { place, message: format!("it has no effect {why}") })
    };
    let is_set = |key: &str| section.get(key).is_some();
    for key in [TIMEOUT, MAX_ABANDONED_THREADS, AFFINITY].into_iter().filter(|key| is_set(key)) {
        if !stage.kind.has_threads() {
            let kind = stage.kind.name();
            return refused(key, &format!("on stages of kind `{kind}`, which have no threads of their own"));
        }
    }
    for key in [COST, MAX_COST].into_iter().filter(|key| is_set(key)) {
        if !stage.kind.has_rows() {
            return refused(key, &format!("on stages of kind `{}`, whose items have no rows", stage.kind.name()));
        }
    }
    if is_set(CRASH_RETRIES) && !stage.contract.value.may_run_again() {
        return refused(CRASH_RETRIES, "under the contract `at_most_once`, which repeats nothing");
    }
    if is_set(CACHE) && stage.contract.value != Contract::Pure {
        return refused(CACHE, "without `contract = \"pure\"`: only then an answer depends on nothing but its input");
    }
    if is_set(CACHE_SHARED) && stage.cache.value.is_none() {
        return refused(CACHE_SHARED, "without `cache`");
    }
    if is_set(MAX_ABANDONED_THREADS) && stage.timeout.value.is_none() {
        return refused(MAX_ABANDONED_THREADS, "without `timeout`, which decides when a thread hangs");
    }
    if stage.cost.value == CostUnit::Tokens && !stage.kind.is_padded() {
        return refused(COST, "as `tokens` without `pad`, which names the axis that is counted");
    }
    let Replicas { min, max } = stage.replicas.value;
    if is_set(SCALE_DELAY) && max <= min.max(1) {
        return refused(SCALE_DELAY, "without room to grow, such as `replicas = { min = 1, max = 4 }`");
    }
    if is_set(IDLE) && min > 0 {
        return refused(IDLE, "without `replicas = { min = 0, … }`: the last replica stays");
    }
    if is_set(PINNED) && stage.pinned.value && min == 0 {
        let place = section.get(PINNED).map_or_else(|| section.place(), |entry| entry.place());
        let message = "a pinned stage always has a replica, and `replicas` has `min = 0`".to_owned();
        return Err(ConfigError::Rejected { place, message });
    }
    if min == 0 && stage.kind.has_spare() {
        let place = section.get("spare").map_or_else(|| section.place(), |entry| entry.place());
        let message = "a spare stays in memory when its stage leaves it, and `replicas` has `min = 0`".to_owned();
        return Err(ConfigError::Rejected { place, message });
    }
    if is_set(MEMORY) && min > 0 && !stage.pinned.value {
        return refused(MEMORY, "on a stage that is loaded at all times and not `pinned`: its bytes count nowhere");
    }
    if is_set(MAX_COST) && stage.cost.value == CostUnit::Entries {
        return refused(
            MAX_COST,
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

fn set<T>(target: &mut Sourced<T>, value: Option<Sourced<T>>) {
    if let Some(value) = value {
        *target = value;
    }
}

#[cfg(all(test, feature = "onnx"))]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::super::{Environment, Flags, Plan, Target};
    use super::*;

    #[test]
    fn the_python_package_knows_the_keys_of_a_model() {
        let text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src/callboard/_compose.py"));
        let text = text.unwrap();
        let (_, keys) = text.split_once("_ONNX_KEYS = (").unwrap();
        let keys: Vec<&str> = keys.split_once(')').unwrap().0.split('"').skip(1).step_by(2).collect();
        let missing: Vec<_> = COMMON.into_iter().filter(|key| *key != "kind" && !keys.contains(key)).collect();
        assert_eq!(missing, [""; 0]);
        for key in keys.into_iter().filter(|key| !["name", "route"].contains(key)) {
            let stage = format!("[[stage]]\nname = \"a\"\nkind = \"onnx\"\nmodel = \"a.onnx\"\n{key} = {{}}\n");
            let target = Target::File { path: PathBuf::from("f"), text: stage };
            let error = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap_err().to_string();
            assert!(!error.contains("unknown key"), "{error}");
        }
    }
}
