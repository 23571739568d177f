//! The `labels` stage: from a model's scores to names, the best ones first.
//!
//! An item is the scores of one sample: a tensor `[n]` or `[1, n]`, a list of numbers, or a map with one of these under
//! [`LabelsConfig::field`]. The result is `{"label": "seven", "score": 0.98, "top": [...]}`, the best ones as maps of
//! `label` and `score`.
//!
//! * Of equal scores the one with the lower index comes first, so the same scores always give the same answer.
//! * NaN cannot be ranked, and the number of scores must be that of the names. Both errors are `Failed`, because the
//!   model or the configuration is at fault and not the caller.
//! * It runs as a task: ranking a thousand scores takes microseconds.

mod config;
mod rank;
mod stage;

pub use config::LabelsConfig;
pub use stage::{input_type, output_type, stage};
