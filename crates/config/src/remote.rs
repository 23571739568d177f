//! Remote stages, which only other nodes run: the keys of this kind, and the common keys without effect here.
//!
//! This node loads nothing for a remote stage. Its queue, batches and workers are on the node that runs it and are set
//! there.

use super::document::Section;
use super::error::ConfigError;
use super::setting::stage::{
    AFFINITY, AGEING, CACHE, CACHE_SHARED, CONTRACT, COST, CRASH_RETRIES, IDLE, MAX_ABANDONED_THREADS, MAX_BATCH_SIZE,
    MAX_COST, MAX_DELAY, MEMORY, PINNED, QUEUE, REPLICAS, REVISION, SCALE_DELAY, SPLIT, TIMEOUT,
};

/// The keys of kind `remote`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteConfig {
    /// The field of the item that takes a body that is a file, such as a picture; the node that runs the stage names
    /// it. Without it such bodies are refused, because the input of the stage is unknown here.
    pub field: Option<String>,
}

const BATCHES: &str = "the nodes that run it form its batches: set it there";
const WORKERS: &str = "its workers are on the nodes that run it: set it there";
const CACHES: &str = "the nodes that run it keep its answers: set it there";
const QUEUES: &str = "its calls wait on the nodes that run it: set it there";

/// Why each of the common keys does nothing, in the order of the documentation.
const WITHOUT_EFFECT: [(&str, &str); 19] = [
    (MAX_BATCH_SIZE, BATCHES),
    (MAX_DELAY, BATCHES),
    (REPLICAS, WORKERS),
    (SCALE_DELAY, WORKERS),
    (IDLE, WORKERS),
    (PINNED, WORKERS),
    (MEMORY, WORKERS),
    (QUEUE, QUEUES),
    (CONTRACT, "the nodes that run it say whether it may be run again: set it there"),
    (CRASH_RETRIES, WORKERS),
    (CACHE, CACHES),
    (CACHE_SHARED, CACHES),
    (AGEING, QUEUES),
    (REVISION, "the nodes that run it say which one they run; `split` divides its calls between them"),
    (
        TIMEOUT,
        "its code runs on other nodes: set it there, or the `timeout` of the route, which holds wherever its stages run",
    ),
    (MAX_ABANDONED_THREADS, WORKERS),
    (AFFINITY, WORKERS),
    (COST, BATCHES),
    (MAX_COST, BATCHES),
];

const FIELD: &str = "field";
const KNOWN: [&str; 4] = ["name", "kind", FIELD, SPLIT];

/// Reads the keys of the kind, and refuses the first other one.
pub(crate) fn read(section: &Section<'_>) -> Result<RemoteConfig, ConfigError> {
    if let Some(key) = section.keys().into_iter().find(|key| !KNOWN.contains(key)) {
        return Err(refused(section, key));
    }
    let field = section.get(FIELD).map(|entry| entry.text("the name of a field")).transpose()?;
    Ok(RemoteConfig { field: field.map(|field| field.value) })
}

fn refused(section: &Section<'_>, key: &str) -> ConfigError {
    let without_effect = WITHOUT_EFFECT.iter().find(|(common, _)| *common == key);
    match without_effect.and_then(|(_, why)| Some((section.get(key)?.place(), why))) {
        Some((place, why)) => {
            ConfigError::Rejected { place, message: format!("it has no effect on stages of kind `remote`: {why}") }
        }
        None => section.deny_unknown(&KNOWN).expect_err("a key that is not known"),
    }
}
