//! The state of a model of the directory: its found, running and failed versions, with reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use callboard_config::assemble::SharedStage;
use callboard_config::models::listing::MODEL_FILE;
use callboard_config::models::settings::ModelSettings;
use callboard_config::{FileStamp, FoundModel};
use callboard_http::{RepositoryModel, RepositoryVersion};

use super::look::stamp;

/// The files of a version and the settings of its stage: the same ones make the same stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionStamp {
    files: Vec<(String, FileStamp)>,
    stage_keys: String,
}

impl VersionStamp {
    /// Equal to that of no file.
    pub(super) fn none() -> Self {
        Self { files: Vec::new(), stage_keys: String::new() }
    }

    pub(super) fn new(found: &FoundModel, version: u64, settings: &ModelSettings) -> Option<Self> {
        let files = found.versions.get(&version)?.files.clone();
        Some(Self { files, stage_keys: settings.stage_keys.clone() })
    }

    /// The stamp of a version with only this file. A rename keeps size, time and number.
    pub(super) fn of_upload(path: &Path, settings: &ModelSettings) -> Option<Self> {
        let files = vec![(MODEL_FILE.to_owned(), stamp(&fs::metadata(path).ok()?))];
        Some(Self { files, stage_keys: settings.stage_keys.clone() })
    }
}

/// A version that runs.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) stamp: VersionStamp,
    pub(super) stage: SharedStage,
    /// Tells it from another life of the same version.
    pub(super) life: u64,
}

/// A version that did not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) stamp: VersionStamp,
    pub(super) reason: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ModelState {
    /// At the last look.
    pub(super) found: Option<FoundModel>,
    /// Why its settings cannot be used; what runs goes on.
    pub(super) problem: Option<String>,
    /// Unloaded by a request, until another one loads it.
    pub(super) is_unloaded: bool,
    pub(super) running: BTreeMap<u64, Running>,
    pub(super) failed: BTreeMap<u64, Failed>,
    /// The version that its settings put behind its own route; a rollout may have put another one there.
    pub(super) default: Option<u64>,
    /// Versions that were loaded, and that failed, since it was found.
    pub(super) loads: u64,
    pub(super) failures: u64,
}

/// The next step for a chosen version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It runs from this file, or its new file is broken.
    Keep,
    /// It does not run, or its file has changed.
    Load,
}

impl ModelState {
    /// The versions that can be served: versions with a file that did not fail, and running versions.
    pub(super) fn usable(&self, found: &FoundModel, settings: &ModelSettings) -> BTreeSet<u64> {
        let is_usable = |version: u64| {
            let stamp = VersionStamp::new(found, version, settings);
            let has_file = found.versions.get(&version).is_some_and(|found| found.problem.is_none());
            self.running.contains_key(&version) || has_file && !self.has_failed(version, stamp.as_ref())
        };
        found.versions.keys().copied().filter(|version| is_usable(*version)).collect()
    }

    /// The next step for a version that can be served.
    pub(super) fn step(&self, found: &FoundModel, version: u64, settings: &ModelSettings) -> Step {
        let stamp = VersionStamp::new(found, version, settings);
        let is_broken = found.versions.get(&version).is_none_or(|found| found.problem.is_some());
        match self.running.get(&version) {
            Some(running) if is_broken || Some(&running.stamp) == stamp.as_ref() => Step::Keep,
            Some(_) if self.has_failed(version, stamp.as_ref()) => Step::Keep,
            _ => Step::Load,
        }
    }

    fn has_failed(&self, version: u64, stamp: Option<&VersionStamp>) -> bool {
        self.failed.get(&version).is_some_and(|failed| Some(&failed.stamp) == stamp)
    }

    /// The version that belongs behind its own route, where `served` is behind it now: what a rollout has put there
    /// stays until the settings and files ask for another default than before.
    pub(super) fn next_default(&self, chosen: Option<u64>, served: Option<u64>, usable: &BTreeSet<u64>) -> Option<u64> {
        let promoted = served.filter(|served| chosen == self.default && usable.contains(served));
        promoted.or(chosen)
    }

    /// For people and programs; `default` is the version behind its own route.
    pub(super) fn describe(&self, name: &str, default: Option<u64>) -> RepositoryModel {
        let found = self.found.as_ref();
        let in_directory = found.iter().flat_map(|found| found.versions.keys());
        let numbers: BTreeSet<u64> = in_directory.chain(self.running.keys()).copied().collect();
        let numbered = numbers.into_iter().map(|version| RepositoryVersion {
            version: version.to_string(),
            served: self.running.contains_key(&version),
            reason: self.reason(version),
        });
        let refused = found.iter().flat_map(|found| &found.refused).map(|refused| RepositoryVersion {
            version: refused.version.clone(),
            served: false,
            reason: Some(refused.reason.clone()),
        });
        RepositoryModel {
            name: name.to_owned(),
            default_version: default,
            versions: numbered.chain(refused).collect(),
            reason: self.problem.clone(),
            loading: None,
        }
    }

    fn reason(&self, version: u64) -> Option<String> {
        let problem = self.found.as_ref().and_then(|found| found.versions.get(&version)?.problem.clone());
        let broken = problem.or_else(|| self.failed.get(&version).map(|failed| failed.reason.clone()));
        if self.running.contains_key(&version) {
            return broken.map(|reason| format!("the earlier file is served; the new one: {reason}"));
        }
        if self.is_unloaded {
            return Some("unloaded".to_owned());
        }
        Some(broken.unwrap_or_else(|| "not among the `versions` of its settings".to_owned()))
    }

    /// The reasons of all versions that did not load or cannot.
    pub(super) fn reasons(&self) -> Vec<String> {
        let problem = self.problem.clone().into_iter();
        let found = self.found.iter().flat_map(|found| &found.versions);
        let broken = found.filter_map(|(version, found)| Some((*version, found.problem.clone()?)));
        let failed = self.failed.iter().map(|(version, failed)| (*version, failed.reason.clone()));
        let versions = broken.chain(failed).map(|(version, reason)| format!("version {version}: {reason}"));
        let refused = self.found.iter().flat_map(|found| &found.refused);
        let refused = refused.map(|refused| format!("version {}: {}", refused.version, refused.reason));
        problem.chain(versions).chain(refused).collect()
    }
}
