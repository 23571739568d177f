//! The stages of a plan: what each `[[stage]]` of the file comes to.

use std::time::Duration;

use super::document::{Section, one_line};
use super::error::ConfigError;
use super::kind::StageKind;
use super::setting::stage::{
    MAX_BATCH_SIZE, MAX_BATCH_SIZE_FORM, MAX_DELAY, MAX_DELAY_FORM, QUEUE, QUEUE_FORM, REPLICAS, REPLICAS_FORM,
};
use super::source::{Source, Sourced};

/// The keys that every stage has, whatever its kind.
const COMMON: [&str; 6] = ["name", "kind", MAX_BATCH_SIZE, MAX_DELAY, REPLICAS, QUEUE];

/// One stage.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// Its name, one per plan.
    pub name: Sourced<String>,
    /// What it does, with the keys of that kind.
    pub kind: StageKind,
    /// The keys of its kind that were set, with their lines.
    pub own: Vec<OwnKey>,
    /// The largest batch.
    pub max_batch_size: Sourced<usize>,
    /// How long a batch that is not full may wait.
    pub max_delay: Sourced<Duration>,
    /// How many workers.
    pub replicas: Sourced<usize>,
    /// How many entries may wait.
    pub queue: Sourced<usize>,
}

/// A key that belongs to the kind of a stage, as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnKey {
    /// The key.
    pub key: String,
    /// Its value as it is written, on one line.
    pub text: String,
    /// Its line.
    pub line: usize,
}

impl StagePlan {
    /// A stage of this kind that nobody has said more about.
    pub(crate) fn new(name: Sourced<String>, kind: StageKind, queue: Sourced<usize>) -> Self {
        Self {
            name,
            max_batch_size: Sourced::new(1, Source::Default),
            kind,
            own: Vec::new(),
            max_delay: Sourced::new(Duration::ZERO, Source::Default),
            replicas: Sourced::new(1, Source::Default),
            queue,
        }
    }
}

/// Reads every `[[stage]]`. `queue` is what a stage gets that does not say.
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
    stage.own = own_keys(&section);
    set(&mut stage.max_batch_size, section.read(MAX_BATCH_SIZE, &MAX_BATCH_SIZE_FORM)?);
    set(&mut stage.max_delay, section.read(MAX_DELAY, &MAX_DELAY_FORM)?);
    set(&mut stage.replicas, section.read(REPLICAS, &REPLICAS_FORM)?);
    set(&mut stage.queue, section.read(QUEUE, &QUEUE_FORM)?);
    Ok(stage)
}

fn own_keys(section: &Section<'_>) -> Vec<OwnKey> {
    let own = section.keys().into_iter().filter(|key| !COMMON.contains(key));
    own.filter_map(|key| section.get(key).map(|entry| (key, entry)))
        .map(|(key, entry)| OwnKey { key: key.to_owned(), text: one_line(entry.written()), line: entry.line })
        .collect()
}

fn set<T>(target: &mut Sourced<T>, value: Option<Sourced<T>>) {
    if let Some(value) = value {
        *target = value;
    }
}
