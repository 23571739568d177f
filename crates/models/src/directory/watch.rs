//! `--watch`: takes new and changed models while the node serves.
//!
//! * **Full:** models are loaded beside each other. A loading model is looked at again after its load.
//! * **Half-written:** a model is loaded when two looks in a row find the same files.
//! * **Broken:** the served versions stay, the log has the reason once, and the next change is tried.
//! * **Unreadable:** a directory that cannot be read, such as a file system that is away, or is empty, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use callboard_config::FoundModel;
use tokio::task::{AbortHandle, JoinSet};

use super::served::ModelDirectory;

/// A file system that is not mounted is an empty directory.
const EMPTY: &str = "there is none in the directory";

type Found = BTreeMap<String, FoundModel>;

/// The models to load: they changed since they were last taken, and did not change since the last look.
fn changed(taken: &Found, before: &Found, now: &Found) -> BTreeSet<String> {
    let names: BTreeSet<&String> = taken.keys().chain(now.keys()).collect();
    let is_due = |name: &&&String| taken.get(**name) != now.get(**name) && before.get(**name) == now.get(**name);
    names.iter().filter(is_due).map(|name| (*name).clone()).collect()
}

/// Watches the directory until it is dropped.
pub async fn watch(directory: Arc<ModelDirectory>, interval: Duration) {
    let mut before = directory.known();
    let mut is_readable = true;
    let (mut updates, mut running) = (JoinSet::new(), BTreeMap::new());
    loop {
        tokio::time::sleep(interval).await;
        let looked = directory.look().await.map_err(|error| error.to_string());
        let now = match looked.and_then(|now| if now.is_empty() { Err(EMPTY.to_owned()) } else { Ok(now) }) {
            Ok(now) => now,
            Err(error) => {
                if is_readable {
                    tracing::error!("what is served stays, because the models cannot be read: {error}");
                }
                is_readable = false;
                continue;
            }
        };
        is_readable = true;
        while updates.try_join_next().is_some() {}
        running.retain(|_, update: &mut AbortHandle| !update.is_finished());
        for name in changed(&directory.known(), &before, &now) {
            if running.contains_key(&name) {
                continue;
            }
            let (directory, own, found) = (Arc::clone(&directory), name.clone(), now.get(&name).cloned());
            // The log has the reason of an error. Other models do not wait for this one.
            let update = updates.spawn(async move { drop(directory.update(&own, found, false).await) });
            running.insert(name, update);
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callboard_config::FoundVersion;

    fn found(versions: &[u64]) -> FoundModel {
        let version = |number: &u64| {
            let found = FoundVersion { file: "model.onnx".into(), files: Vec::new(), problem: None };
            (*number, found)
        };
        FoundModel {
            name: "m".to_owned(),
            settings: None,
            versions: versions.iter().map(version).collect(),
            refused: Vec::new(),
            problem: None,
            is_flat: false,
        }
    }

    #[test]
    fn a_change_is_taken_when_two_looks_agree() {
        let models = |versions: Option<&[u64]>| -> Found {
            versions.map(|versions| ("m".to_owned(), found(versions))).into_iter().collect()
        };
        let (one, two, none) = (models(Some(&[1])), models(Some(&[1, 2])), models(None));
        let is_due = |taken, before, now| !changed(taken, before, now).is_empty();
        assert!(!is_due(&one, &one, &one));
        assert!(!is_due(&one, &one, &two) && is_due(&one, &two, &two));
        assert!(!is_due(&one, &one, &none) && is_due(&one, &none, &none));
        assert!(!is_due(&none, &none, &one) && is_due(&none, &one, &one));
    }
}
