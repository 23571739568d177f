//! Configuration: flags, environment and file become one resolved [`Plan`], and a plan becomes an app.
//!
//! A plan is pure: text in, plan or error out. Nothing is opened, listened on or loaded, so that `--explain` and the
//! tests see exactly what `serve` will do. [`assemble`](mod@assemble) then opens the models and files that it names.
//!
//! ```text
//!  flags ────────┐
//!  CALLBOARD_* ──┼─► layers ─► settings ─┐
//!  callboard.toml┤                       ├─► Plan ─► explain | assemble
//!                └─► stages, routes ─────┘
//! ```
//!
//! `models/` does the same for a directory of models: its names and settings files become stages and routes.
//!
//! A flag overrides the environment, the environment the file, the file the default. Every value keeps its [`Source`].
//! Every error is one line with the place, the key and the expected value. An unknown key names the nearest one.

pub mod assemble;
mod document;
mod error;
mod explain;
mod form;
mod graph;
#[cfg(feature = "process")]
mod helper;
mod http;
mod kind;
mod layers;
pub mod models;
mod nearest;
mod own_keys;
#[cfg(feature = "process")]
mod placement;
mod plan;
#[cfg(feature = "process")]
mod process;
mod remote;
mod rollout;
mod route;
mod setting;
mod source;
mod stage;
mod units;

pub use error::{ConfigError, Place, chain};
pub use explain::Explanation;
pub use form::{AdminAddress, LogFormat, Replicas, SecretSource, StateStoreAt};
pub use graph::Steps;
#[cfg(feature = "process")]
pub use helper::{HelperKeys, HelperPlan, ReadyKey};
pub use http::HttpLimits;
pub use kind::StageKind;
pub use layers::{ENV_PREFIX, Environment, Flags};
pub use models::listing::{FileStamp, FoundModel, FoundVersion, RefusedVersion};
pub use models::settings::ModelDefaults;
pub use nearest::Hint;
#[cfg(feature = "process")]
pub use placement::{Devices, Variables};
pub use plan::{Plan, Settings, Target};
#[cfg(all(feature = "onnx", feature = "process"))]
pub(crate) use process::{MEMORY_LIMIT, read_memory_limit};
#[cfg(feature = "process")]
pub use process::{ProcessKeys, PythonKeys};
pub use remote::RemoteConfig;
pub use rollout::RolloutPlan;
pub use route::{ExamplePlan, RoutePlan};
pub use setting::{ALL as SETTINGS, Name as SettingName};
pub use source::{Source, Sourced};
pub use stage::{CostUnit, OwnKey, StagePlan};
pub use units::{parse_duration, show_duration};
