//! Remote stages, which only other nodes run: the keys of this kind, and the common keys without effect here.
//!
//! This node loads nothing for a remote stage. Its queue, batches and workers are on the node that runs it and are set
//! there.

use super::document::Section;
use super::error::ConfigError;

/// The keys of kind `remote`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteConfig {
    /// The field of the item that takes a body that is a file, such as a picture; the node that runs the stage names
    /// it. Without it such bodies are refused, because the input of the stage is unknown here.
    pub field: Option<String>,
}

const FIELD: &str = "field";

/// Reads the keys of the kind, and refuses the first other one. `common` are the keys of every kind, and
/// `without_effect` says why one of them does nothing here.
pub(crate) fn read(
    section: &Section<'_>,
    common: &[&'static str],
    without_effect: fn(&str) -> Option<&'static str>,
) -> Result<RemoteConfig, ConfigError> {
    let has_effect = |key: &&str| without_effect(key).is_none();
    let mut known: Vec<&str> = common.iter().copied().filter(has_effect).collect();
    // The keys of a kind follow `name` and `kind`.
    known.insert(2, FIELD);
    for key in section.keys() {
        if let Some((why, entry)) = without_effect(key).zip(section.get(key)) {
            let message = format!("it has no effect on stages of kind `remote`: {why}");
            return Err(ConfigError::Rejected { place: entry.place(), message });
        }
    }
    section.deny_unknown(&known)?;
    let field = section.get(FIELD).map(|entry| entry.text("the name of a field")).transpose()?;
    Ok(RemoteConfig { field: field.map(|field| field.value) })
}
