//! The settings of a model in a directory of models: the keys of a stage of kind `onnx`, and which versions are served.
//! What a model does not set is taken from `[models.defaults]` of the file beside the models.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::super::document::{Document, Entry, Section};
use super::super::error::ConfigError;
use super::super::kind::StageKind;
use super::super::plan::Settings;
use super::super::source::{Source, Sourced};
use super::super::stage::{self, StagePlan};
use super::choice::{Choice, VersionPolicy, choose};
use super::listing::FoundModel;
use super::stage_name;

const VERSIONS: &str = "versions";
const DEFAULT: &str = "default";

/// The keys that a stage of a file does not have.
const OWN: [&str; 2] = [VERSIONS, DEFAULT];

const EXPECTED_VERSIONS: &str =
    "\"latest\", the number of latest versions, \"all\", or a list of versions such as [1, 3]";
const EXPECTED_DEFAULT: &str = "the number of a version";

/// The file beside the models, with `[models.defaults]` for all of them.
#[derive(Clone, Debug)]
pub struct ModelDefaults {
    path: PathBuf,
    text: String,
}

impl ModelDefaults {
    /// The table of the defaults.
    pub const TABLE: [&str; 2] = ["models", "defaults"];

    /// The settings of this file, if it has any.
    ///
    /// # Errors
    ///
    /// The first key that no model can have, or that it cannot have so.
    pub fn read(path: &Path, text: &str, queue: &Sourced<usize>) -> Result<Option<Self>, ConfigError> {
        let (document, read) = (Self::parse(path, text)?, Self { path: path.to_owned(), text: text.to_owned() });
        let Some(section) = Self::section(&document)? else { return Ok(None) };
        let name = Sourced::new(String::new(), Source::Target);
        let mut stage = StagePlan::new(name, StageKind::model(Path::new(""))?, queue.clone());
        stage::read_model(&section, None, &[VERSIONS], &mut stage)?;
        section.get(VERSIONS).map(|entry| policy(&entry)).transpose()?;
        Ok(Some(read))
    }

    fn parse<'a>(path: &'a Path, text: &'a str) -> Result<Document<'a>, ConfigError> {
        Document::parse(path, text).map(Document::of_defaults)
    }

    fn section<'d>(document: &'d Document<'d>) -> Result<Option<Section<'d>>, ConfigError> {
        let [models, defaults] = Self::TABLE;
        let models = document.root().section(models)?;
        models.map_or(Ok(None), |models| models.section(defaults))
    }
}

/// The settings of one model.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    policy: VersionPolicy,
    default: Option<u64>,
    /// The stage of each version, without its name and file.
    stage: StagePlan,
    /// The keys of the stage as text: the same text is the same stage.
    pub stage_keys: String,
}

impl ModelSettings {
    /// Reads the settings of a model; without a file they are the defaults for all models.
    pub fn read(model: &FoundModel, settings: &Settings) -> Result<Self, ConfigError> {
        let unusable = |path: &Path, problem: &str| ConfigError::Target { path: path.into(), problem: problem.into() };
        if let Some(problem) = &model.problem {
            return Err(unusable(Path::new(&model.name), problem));
        }
        let name = Sourced::new(model.name.clone(), Source::Target);
        let mut read = Self {
            policy: VersionPolicy::Latest(1),
            default: None,
            stage: StagePlan::new(name, StageKind::model(Path::new(""))?, settings.queue.clone()),
            stage_keys: String::new(),
        };
        let (path, text) = match &model.settings {
            Some((path, text)) => (path.as_path(), text.as_ref().map_err(|problem| unusable(path, problem))?.as_str()),
            None => (Path::new(""), ""),
        };
        let document = Document::parse(path, text)?;
        let root = document.root();
        let defaults = settings.model_defaults.as_ref();
        let defaults = defaults.map(|file| ModelDefaults::parse(&file.path, &file.text)).transpose()?;
        let defaults = defaults.as_ref().map(ModelDefaults::section).transpose()?.flatten();
        stage::read_model(&root, defaults.as_ref(), &OWN, &mut read.stage)?;
        let versions = root.get(VERSIONS).or_else(|| defaults.as_ref()?.get(VERSIONS));
        read.policy = versions.map_or(Ok(read.policy), |entry| policy(&entry))?;
        read.default = root.get(DEFAULT).map(|entry| version(&entry, EXPECTED_DEFAULT)).transpose()?;
        if let (VersionPolicy::Listed(listed), Some(default)) = (&read.policy, read.default)
            && !listed.contains(&default)
        {
            let place = root.get(DEFAULT).map_or_else(|| root.place(), |entry| entry.place());
            let message = format!("version {default} is not among `versions`");
            return Err(ConfigError::Rejected { place, message });
        }
        read.stage_keys = stage_keys(&root);
        Ok(read)
    }

    /// Chooses the versions to serve among the usable ones.
    #[must_use]
    pub fn choose(&self, usable: &BTreeSet<u64>, before: Option<u64>) -> Choice {
        choose(&self.policy, self.default, usable, before)
    }

    /// The stage of a version.
    #[must_use]
    pub fn stage(&self, model: &str, version: u64, file: &Path) -> StagePlan {
        let mut stage = self.stage.clone();
        stage.name = Sourced::new(stage_name(model, version), Source::Target);
        stage.revision = Sourced::new(usize::try_from(version).unwrap_or(usize::MAX), Source::Target);
        stage.kind.set_model(file);
        stage
    }
}

fn policy(entry: &Entry<'_>) -> Result<VersionPolicy, ConfigError> {
    let wrong = || entry.bad(EXPECTED_VERSIONS);
    if entry.value.as_array().is_some() {
        let listed = entry.elements(EXPECTED_VERSIONS)?;
        let listed =
            listed.iter().map(|element| version(element, EXPECTED_DEFAULT)).collect::<Result<BTreeSet<_>, _>>()?;
        return if listed.is_empty() { Err(wrong()) } else { Ok(VersionPolicy::Listed(listed)) };
    }
    match entry.value.as_str() {
        Some("latest") => Ok(VersionPolicy::Latest(1)),
        Some("all") => Ok(VersionPolicy::All),
        Some(_) => Err(wrong()),
        None => {
            let count = version(entry, EXPECTED_VERSIONS)?;
            Ok(VersionPolicy::Latest(usize::try_from(count).unwrap_or(usize::MAX)))
        }
    }
}

/// A whole number from 1.
fn version(entry: &Entry<'_>, expected: &str) -> Result<u64, ConfigError> {
    entry.integer().filter(|number| *number > 0).ok_or_else(|| entry.bad(expected))
}

/// The keys of the stage, each with its value as written.
fn stage_keys(root: &Section<'_>) -> String {
    let keys = root.keys().into_iter().filter(|key| !OWN.contains(key));
    let mut lines: Vec<String> = keys.filter_map(|key| Some(format!("{key} = {}", root.get(key)?.written()))).collect();
    lines.sort();
    lines.join("\n")
}
