//! The `labels` stage: from a model's scores to names, the best ones first.
//!
//! An item is the scores of one sample: a tensor `[n]` or `[1, n]`, a list of numbers, or a map with such a thing under
//! [`LabelsConfig::field`]. The result is `{"label": "seven", "score": 0.98, "top": [...]}`, the best ones as maps of
//! `label` and `score`.
//!
//! * Of equal scores the one with the lower index comes first, so the same scores always give the same answer.
//! * NaN cannot be ranked, and a number of scores other than that of the names cannot be named: both are a `Failed`
//!   that says so, because the model and the configuration are at fault and not the caller.
//! * It runs as a task: ranking a thousand scores takes microseconds.

mod config;
mod rank;
mod stage;

pub use config::LabelsConfig;
pub use stage::{input_type, output_type, stage};
