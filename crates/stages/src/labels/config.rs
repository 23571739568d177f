//! The settings of the `labels` stage.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use callboard_codec::edited_text;
use serde::Deserialize;

use crate::error::StageConfigError;

const DEFAULT_TOP_K: NonZeroUsize = NonZeroUsize::new(5).expect("not zero");

/// How scores become names. In `callboard.toml` these are the keys of a stage of kind `labels`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LabelsConfig {
    /// The names in the order of the scores. Default: the indices, `"0"`, `"1"` and so on.
    pub names: Vec<String>,
    /// A file with one name per line, instead of `names`.
    pub names_file: Option<PathBuf>,
    /// How many of the best to return. Default 5; all of them if there are fewer.
    pub top_k: NonZeroUsize,
    /// Whether scores are logits that a softmax turns into probabilities. Default false: scores are returned unchanged.
    pub softmax: bool,
    /// The output with the scores, for a model with several. Default: the only one.
    pub field: Option<String>,
}

impl Default for LabelsConfig {
    fn default() -> Self {
        Self { names: Vec::new(), names_file: None, top_k: DEFAULT_TOP_K, softmax: false, field: None }
    }
}

impl LabelsConfig {
    /// The names from the list or the file; empty if indices are used.
    pub(super) fn read_names(&self) -> Result<Vec<String>, StageConfigError> {
        let Some(path) = &self.names_file else {
            return Ok(self.names.clone());
        };
        if !self.names.is_empty() {
            return Err(StageConfigError::invalid("names_file", "cannot stand beside `names`"));
        }
        let text = std::fs::read_to_string(path).map_err(|source| StageConfigError::Read {
            key: "names_file",
            path: path.clone(),
            source,
        })?;
        let names: Vec<String> = edited_text(&text).lines().map(|line| line.trim().to_owned()).collect();
        if names.is_empty() || names.iter().any(String::is_empty) {
            let reason = format!("{} needs one name on each line", path.display());
            return Err(StageConfigError::invalid("names_file", reason));
        }
        Ok(names)
    }
}
