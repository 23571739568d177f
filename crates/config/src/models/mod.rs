//! A directory of models: which models and versions it has, and which of them are served. Pure.
//!
//! ```text
//!  models/
//!    digits/model.toml          settings, if the defaults do not fit
//!    digits/1/model.onnx        version 1: stage `digits:1`, route `/digits/versions/1`
//!    digits/2/model.onnx        version 2, and `/digits` if it is the default
//!    sentiment.onnx             version 1 of `sentiment`
//!    sentiment.toml             its settings
//! ```
//!
//! [`listing`] reads names as models, [`settings`] the settings of a model, `choice` which versions are served. The
//! directory itself is read by `callboard-models`.

mod choice;
pub mod listing;
pub mod settings;

use super::error::ConfigError;
use super::plan::Settings;
use super::route::RoutePlan;
use super::source::{Source, Sourced};
use super::stage::StagePlan;
use super::{Steps, Target};

pub use self::choice::Choice;
use self::listing::FoundModel;
use self::settings::ModelSettings;

/// The name of a version's stage.
#[must_use]
pub fn stage_name(model: &str, version: u64) -> String {
    format!("{model}:{version}")
}

/// The route of a model: its default version.
#[must_use]
pub fn route_name(model: &str) -> String {
    format!("/{model}")
}

/// The route of one version.
#[must_use]
pub fn version_route_name(model: &str, version: u64) -> String {
    format!("/{model}/versions/{version}")
}

/// The stages and routes of a directory whose files are all valid. A model with invalid settings is left out: a node
/// serves the others, and names it.
pub fn pipelines(target: &Target, settings: &Settings) -> Result<(Vec<StagePlan>, Vec<RoutePlan>), ConfigError> {
    let Target::Models { path, models, .. } = target else { return Ok((Vec::new(), Vec::new())) };
    let (mut stages, mut routes) = (Vec::new(), Vec::new());
    for model in models {
        let Ok(own) = ModelSettings::read(model, settings) else { continue };
        let usable = model.versions.iter().filter(|(_, found)| found.problem.is_none()).map(|(number, _)| *number);
        let chosen = own.choose(&usable.collect(), None);
        let mut route = |name: String, index: usize| {
            let steps = Sourced::new(Steps::Stage(index), Source::Target);
            routes.push(RoutePlan::new(Sourced::new(name, Source::Target), steps, settings));
        };
        for version in &chosen.versions {
            if chosen.default == Some(*version) {
                route(route_name(&model.name), stages.len());
            }
            route(version_route_name(&model.name, *version), stages.len());
            stages.push(own.stage(&model.name, *version, &model.versions[version].file));
        }
    }
    if stages.is_empty() {
        let reasons = models.iter().filter_map(|model| reason(model, settings)).take(MAX_REASONS);
        let reasons: Vec<String> = reasons.collect();
        let problem = format!("it has no model that can be served: {}", reasons.join("; "));
        return Err(ConfigError::Target { path: path.clone(), problem });
    }
    Ok((stages, routes))
}

/// More would hide the first.
const MAX_REASONS: usize = 5;

/// Why nothing of a model is served.
fn reason(model: &FoundModel, settings: &Settings) -> Option<String> {
    if let Some(problem) = &model.problem {
        return Some(format!("{}: {problem}", model.name));
    }
    if let Err(error) = ModelSettings::read(model, settings) {
        return Some(error.to_string());
    }
    let refused = model.refused.first().map(|refused| (refused.version.clone(), refused.reason.clone()));
    let found = || model.versions.iter().find_map(|(number, found)| Some((number.to_string(), found.problem.clone()?)));
    let (version, reason) = refused.or_else(found)?;
    Some(format!("{} version {version}: {reason}", model.name))
}

#[cfg(test)]
mod tests;
