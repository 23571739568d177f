//! Configuration: from what was typed, set and written to one resolved [`Plan`].
//!
//! Everything here is pure: text in, plan or error out. Nothing is opened, listened on or loaded, so that `--explain` and
//! the tests see exactly what `serve` will do.
//!
//! ```text
//!  flags ────────┐
//!  CALLBOARD_* ──┼─► layers ─► settings ─┐
//!  callboard.toml┤                       ├─► Plan ─► explain | build
//!                └─► stages, routes ─────┘
//! ```
//!
//! The strongest layer that speaks decides: flag, then environment, then file, then default. Every value keeps its
//! [`Source`]. Every error is one line that names place, key and expectation; an unknown key names the nearest one.

mod document;
mod elsewhere;
mod error;
mod explain;
mod form;
mod graph;
mod kind;
mod layers;
mod nearest;
mod own_keys;
mod plan;
mod route;
mod setting;
mod source;
mod stage;
mod units;

pub use elsewhere::ElsewhereConfig;
pub use error::{ConfigError, Place};
pub use explain::Explanation;
pub use form::{AdminAddress, LogFormat, SecretSource};
pub(crate) use graph::DEFAULT_LABEL;
pub use graph::StepPlan;
pub use kind::StageKind;
pub use layers::{ENV_PREFIX, Environment, Flags};
pub use nearest::Hint;
pub use plan::{Plan, Settings, Target};
pub use route::{ExamplePlan, RoutePlan};
pub use setting::{ALL as SETTINGS, Name as SettingName};
pub use source::{Source, Sourced};
pub use stage::{CostUnit, OwnKey, StagePlan};
pub(crate) use units::parse_duration;

#[cfg(test)]
mod tests;
