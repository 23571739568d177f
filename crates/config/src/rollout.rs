//! How a route takes over when it is loaded again: the `rollout` of a `[[route]]`.

use std::time::Duration;

use callboard_core::Rollout;

use super::document::Section;
use super::error::ConfigError;
use super::form::{Count, Factor, Flag, Percent, Span};
use super::source::{Source, Sourced};

/// A rollout as the file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutPlan {
    /// The rollout.
    pub rollout: Rollout,
    /// Its mode and share, such as `canary 5%`.
    pub text: String,
}

const ROLLOUT: &str = "rollout";
const KEYS: [&str; 10] = [
    "canary",
    "shadow",
    "min_calls",
    "max_error_rate",
    "max_latency",
    "min_agreement",
    "tolerance",
    "time_limit",
    "keep",
    "run_effects_twice",
];

/// Seven days, as in core.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Reads the table under `rollout`, if the route has one.
pub(crate) fn read(route: &Section<'_>) -> Result<Sourced<Option<RolloutPlan>>, ConfigError> {
    let Some(section) = route.section(ROLLOUT)? else { return Ok(Sourced::new(None, Source::Default)) };
    section.deny_unknown(&KEYS)?;
    let percent = |key: &'static str| section.read(key, &Percent).map(|value| value.map(|value| value.value));
    let (rollout, text) = match (percent("canary")?, percent("shadow")?) {
        (Some(share), None) if share > 0.0 && share < 1.0 => {
            (Rollout::canary(share), format!("canary {}%", share * 100.0))
        }
        (None, Some(share)) if share > 0.0 => (Rollout::shadow(share), format!("shadow {}%", share * 100.0)),
        _ => {
            let message = "expected either `canary`, above 0% and below 100%, or `shadow`, above 0%".to_owned();
            return Err(ConfigError::Rejected { place: section.place(), message });
        }
    };
    let calls = section.read("min_calls", &Count(1..=1_000_000_000))?;
    let rollout = calls.into_iter().fold(rollout, |rollout, calls| rollout.min_calls(calls.value as u64));
    let rollout = percent("max_error_rate")?.into_iter().fold(rollout, Rollout::max_error_rate);
    let rollout = percent("min_agreement")?.into_iter().fold(rollout, Rollout::min_agreement);
    let factor = section.read("max_latency", &Factor(1.0))?;
    let rollout = factor.into_iter().fold(rollout, |rollout, factor| rollout.max_latency(factor.value));
    let tolerance = section.read("tolerance", &Factor(0.0))?;
    let rollout = tolerance.into_iter().fold(rollout, |rollout, tolerance| rollout.tolerance(tolerance.value));
    let limit = section.read("time_limit", &Span(Duration::from_secs(1)..=LONGEST))?;
    let rollout = limit.into_iter().fold(rollout, |rollout, limit| rollout.time_limit(limit.value));
    let keep = section.read("keep", &Span(Duration::ZERO..=LONGEST))?;
    let rollout = keep.into_iter().fold(rollout, |rollout, keep| rollout.keep(keep.value));
    let twice = section.read("run_effects_twice", &Flag)?.is_some_and(|twice| twice.value);
    let rollout = if twice { rollout.run_effects_twice() } else { rollout };
    let line = route.get(ROLLOUT).map_or(0, |entry| entry.line);
    Ok(Sourced::new(Some(RolloutPlan { rollout, text }), Source::File { line }))
}
