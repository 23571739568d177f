//! The reports of a directory of models: in the log, in the start lines of a node, in `/metrics`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use callboard_config::FoundModel;
use callboard_http::RepositoryError;

use super::served::ModelDirectory;
use super::state::{ModelState, Running};

impl ModelDirectory {
    /// Logs the versions that are not served.
    pub(super) fn tell_start(&self, name: &str, outcome: &Result<(), RepositoryError>) {
        if let Err(error @ RepositoryError::Change(_)) = outcome {
            tracing::error!(model = name, "not served: {error}");
            return;
        }
        let Some(state) = self.states().get(name).cloned() else { return };
        if let Some(reason) = &state.problem {
            tracing::error!(model = name, "not served: {reason}");
            return;
        }
        if let Some(found) = &state.found {
            Self::log_unusable(name, found, None);
        }
        for (version, failed) in &state.failed {
            tracing::error!(model = name, version, "not served: {}", failed.reason);
        }
    }

    /// Says once what cannot be a version.
    pub(super) fn log_unusable(name: &str, found: &FoundModel, before: Option<&FoundModel>) {
        for refused in &found.refused {
            if before.is_none_or(|before| !before.refused.contains(refused)) {
                tracing::warn!(model = name, version = refused.version, "not served: {}", refused.reason);
            }
        }
        for (version, own) in &found.versions {
            let known = before.and_then(|before| before.versions.get(version)?.problem.as_ref());
            if let Some(problem) = own.problem.as_ref().filter(|problem| known != Some(*problem)) {
                tracing::error!(model = name, version, "not served: {problem}");
            }
        }
    }

    /// Tells what has changed; `defaults` are the version behind the model's own route before, and now.
    pub(super) fn note_served(
        &self,
        name: &str,
        state: &ModelState,
        next: &BTreeMap<u64, Running>,
        defaults: (Option<u64>, Option<u64>),
    ) {
        // The start-up lines name what is served at the start.
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        for (version, running) in next {
            match state.running.get(version) {
                Some(before) if before.life == running.life => {}
                Some(_) => self.note(format_args!("model {name}: version {version} is served from its new file")),
                None => self.note(format_args!("model {name}: version {version} is served")),
            }
        }
        for version in state.running.keys().filter(|version| !next.contains_key(version)) {
            self.note(format_args!("model {name}: version {version} is not served any more"));
        }
        if let (Some(before), Some(default)) = defaults
            && before != default
        {
            self.note(format_args!("model {name}: version {default} is the default"));
        }
    }

    /// Families for `/metrics`, of the models whose names can be routes.
    #[must_use]
    pub fn metrics(&self) -> String {
        const FAMILIES: [(&str, &str, &str); 2] = [
            ("callboard_model_versions", "gauge", "Versions of a model by whether they are served"),
            ("callboard_model_loads", "counter", "Versions of a model that were loaded, and that failed to load"),
        ];
        let models = self.states();
        let named =
            || models.iter().filter(|(_, model)| model.found.as_ref().is_none_or(|found| found.problem.is_none()));
        let mut text = String::new();
        for (family, kind, help) in FAMILIES {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {family} {help}.\n# TYPE {family} {kind}");
            for (name, model) in named() {
                let served = model.running.len();
                let others = model.describe(name, None).versions.len() - served;
                let rows = match kind {
                    "gauge" => [("", "state", "served", served as u64), ("", "state", "not_served", others as u64)],
                    _ => [("_total", "outcome", "ok", model.loads), ("_total", "outcome", "failed", model.failures)],
                };
                for (suffix, label, value, count) in rows {
                    let _ = writeln!(text, "{family}{suffix}{{model=\"{name}\",{label}=\"{value}\"}} {count}");
                }
            }
        }
        text
    }
}
