//! The start of a directory of models: as many models load at once as there are cores, a large one alone, and what is
//! wrong with them is said in the order of their names.
//!
//! * **Full:** other models wait for a place.
//! * **Cancelled:** loads that have not begun do not begin; the node ends.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;

use callboard_config::FoundModel;
use callboard_http::RepositoryError;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

use super::served::ModelDirectory;
use super::upload::remove_leftovers;

/// Each takes a place among the changes that wait for the router.
const MAX_LOADS_AT_ONCE: u32 = 32;

/// A model with a larger version loads alone at the start, because a load takes more memory than the loaded model.
const ALONE_BYTES: u64 = 256 << 20;

/// The places that the load of this model takes at the start, of `all`.
fn places_of(model: &FoundModel, all: u32) -> u32 {
    if model.versions.values().any(|version| version.bytes() > ALONE_BYTES) { all } else { 1 }
}

impl ModelDirectory {
    /// Serves what was found at the start. Broken models are named and left out.
    ///
    /// # Errors
    ///
    /// The reasons, if nothing can be served.
    pub async fn open(self: &Arc<Self>, models: Vec<FoundModel>) -> Result<(), String> {
        let root = self.root.clone();
        let _ = spawn_blocking(move || remove_leftovers(&root)).await;
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let at_once = u32::try_from(cores).map_or(MAX_LOADS_AT_ONCE, |cores| cores.min(MAX_LOADS_AT_ONCE));
        let places = Arc::new(Semaphore::new(at_once as usize));
        let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
        let (mut loads, mut name_of) = (JoinSet::new(), HashMap::new());
        for model in models {
            let (directory, places, name) = (Arc::clone(self), Arc::clone(&places), model.name.clone());
            let load = loads.spawn(async move {
                let _place = places.acquire_many(places_of(&model, at_once)).await;
                let name = model.name.clone();
                directory.update(&name, Some(model), false).await
            });
            name_of.insert(load.id(), name);
        }
        let mut loaded = BTreeMap::new();
        let mut untold = names.iter().peekable();
        while let Some(load) = loads.join_next_with_id().await {
            let (load, outcome) = match load {
                Ok(ended) => ended,
                Err(error) => (error.id(), Err(RepositoryError::Source(error.to_string()))),
            };
            let Some(name) = name_of.remove(&load) else { continue };
            if let Err(RepositoryError::Source(reason)) = &outcome {
                self.explain(&name, reason);
            }
            loaded.insert(name, outcome);
            while let Some(outcome) = untold.peek().and_then(|name| loaded.remove(*name)) {
                if let Some(name) = untold.next() {
                    self.tell_start(name, &outcome);
                }
            }
        }
        self.is_open.store(true, Ordering::Relaxed);
        let models = self.states();
        if models.values().any(|model| !model.running.is_empty()) {
            return Ok(());
        }
        let reasons =
            models.iter().flat_map(|(name, model)| model.reasons().into_iter().map(move |reason| (name, reason)));
        let reasons: Vec<String> = reasons.map(|(name, reason)| format!("{name} {reason}")).collect();
        Err(format!("no model could be loaded: {}", reasons.join("; ")))
    }

    /// Notes why a model was not served at the start, unless its state says so.
    fn explain(&self, name: &str, reason: &str) {
        let mut models = self.states();
        let state = models.entry(name.to_owned()).or_default();
        if state.reasons().is_empty() {
            state.problem = Some(reason.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callboard_config::{FileStamp, FoundVersion};

    #[test]
    fn a_large_model_loads_alone_at_the_start() {
        let model = |sizes: &[u64]| {
            let stamp = |bytes: &u64| ("model.onnx".to_owned(), FileStamp { bytes: *bytes, modified: None, inode: 0 });
            let files = sizes.iter().map(stamp).collect();
            let version = FoundVersion { file: "model.onnx".into(), files, problem: None };
            FoundModel { versions: BTreeMap::from([(1, version)]), ..FoundModel::new("m") }
        };
        assert_eq!(places_of(&model(&[ALONE_BYTES]), 8), 1);
        // The weights beside the model count.
        for sizes in [&[ALONE_BYTES + 1][..], &[1, ALONE_BYTES], &[u64::MAX, u64::MAX]] {
            assert_eq!(places_of(&model(sizes), 8), 8);
        }
    }
}
