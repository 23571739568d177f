//! The resolved plan: every setting with its value and source, every stage, every route.
//!
//! A plan is complete and consistent. Unreadable models and ports in use are found when the plan runs.

mod settings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use callboard_core::description::{PipelinePlan, StageOutline};
use callboard_http::AUTH_ROUTE;

use super::document::{Document, Section};
use super::error::{ConfigError, Place};
use super::graph::Steps;
#[cfg(feature = "process")]
use super::helper::{self, HelperPlan};
use super::kind::StageKind;
use super::layers::{Environment, Flags, Layers};
use super::models::{self, listing::FoundModel, settings::ModelDefaults};
use super::route::{self, RoutePlan};
use super::setting::{ALL, JOIN, MAX_LOADED, QUIC, RATE_LIMIT};
use super::source::{Source, Sourced};
use super::stage::{self, PINNED, SPLIT, StagePlan};

pub use self::settings::Settings;
use self::settings::described;

/// The target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A configuration file that was found and read.
    File {
        /// The path as messages show it.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// A bare ONNX model: one stage, one route, both named after the file.
    Model {
        /// The model.
        path: PathBuf,
    },
    /// A directory of models: for each version that is served a stage, and a route for it and for each model.
    Models {
        /// The directory.
        path: PathBuf,
        /// Its models when it was looked at.
        models: Vec<FoundModel>,
        /// Path and content of the `callboard.toml` in it, if there is one. It may hold settings only.
        file: Option<(PathBuf, String)>,
    },
    /// The routes of a program's own app. A file, if there is one, may hold settings only.
    Program {
        /// Path and content of the file.
        file: Option<(PathBuf, String)>,
    },
}

impl Target {
    /// The directory that relative paths of the file start from.
    #[must_use]
    pub fn base(&self) -> &Path {
        match self {
            Self::File { path, .. } | Self::Program { file: Some((path, _)) } => {
                path.parent().unwrap_or_else(|| Path::new(""))
            }
            Self::Models { path, .. } => path,
            Self::Model { .. } | Self::Program { file: None } => Path::new(""),
        }
    }

    /// Whether a configuration file has stages or routes of its own, or errors; else it holds settings only.
    #[must_use]
    pub fn has_pipelines(path: &Path, text: &str) -> bool {
        Document::parse(path, text)
            .map_or(true, |document| document.root().keys().iter().any(|key| matches!(*key, "stage" | "route")))
    }

    fn document(&self) -> Option<(&Path, &str)> {
        match self {
            Self::File { path, text } => Some((path, text)),
            Self::Program { file } | Self::Models { file, .. } => {
                file.as_ref().map(|(path, text)| (path.as_path(), text.as_str()))
            }
            Self::Model { .. } => None,
        }
    }
}

/// A complete configuration: stages, routes and settings.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The target of the plan.
    pub target: Target,
    /// The settings.
    pub settings: Settings,
    /// The stages, in the order of the file.
    pub stages: Vec<StagePlan>,
    /// The routes, in the order of the file.
    pub routes: Vec<RoutePlan>,
    /// Whether the target has a route that [names the callers](AUTH_ROUTE), also if `routes` is a part of its routes.
    pub names_callers: bool,
    /// The processes that start before the stages, in the order of the file.
    #[cfg(feature = "process")]
    pub helpers: Vec<HelperPlan>,
}

impl Plan {
    /// Resolves flags, environment and file into one plan.
    ///
    /// # Errors
    ///
    /// The first error, with its place and the expected value.
    pub fn resolve(target: Target, flags: &Flags, env: &Environment) -> Result<Self, ConfigError> {
        let document = target.document().map(|(path, text)| Document::parse(path, text)).transpose()?;
        let file = document.as_ref().map(Document::root);
        if let Some(root) = &file {
            check_tables(root, &target)?;
        }
        let mut settings = Settings::checked(&Layers { flags, env, file: file.clone() })?;
        if let Target::Models { file: Some((path, text)), .. } = &target {
            settings.model_defaults = ModelDefaults::read(path, text, &settings.queue)?;
        }
        if matches!(target, Target::Program { .. }) {
            settings.check_program()?;
        }
        if !matches!(target, Target::Models { .. }) {
            settings.check_without_models()?;
        }
        let (stages, routes) = match (&target, &file) {
            (Target::File { .. }, Some(root)) => read_pipelines(root, &settings)?,
            (Target::Model { path }, _) => model_pipeline(path, &settings)?,
            (Target::Models { .. }, _) => models::pipelines(&target, &settings)?,
            _ => (Vec::new(), Vec::new()),
        };
        #[cfg(feature = "process")]
        let helpers = file.as_ref().map(helper::read_all).transpose()?.unwrap_or_default();
        drop(document);
        #[cfg(feature = "process")]
        settings.show_output_of(&stages);
        let plan = Self {
            names_callers: routes.iter().any(|route| route.path.value == AUTH_ROUTE),
            target,
            settings,
            stages,
            routes,
            #[cfg(feature = "process")]
            helpers,
        };
        plan.check_rate_limit()?;
        plan.check_alone()?;
        plan.check_pinned()?;
        Ok(plan)
    }

    /// The plan of one stage, with the settings of this plan.
    #[must_use]
    pub fn of_stage(&self, stage: StagePlan) -> Self {
        Self {
            target: self.target.clone(),
            settings: self.settings.clone(),
            stages: vec![stage],
            routes: Vec::new(),
            names_callers: self.names_callers,
            #[cfg(feature = "process")]
            helpers: Vec::new(),
        }
    }

    /// The limit of each caller needs callers with names. Those of a program are known to the HTTP edge.
    fn check_rate_limit(&self) -> Result<(), ConfigError> {
        let Settings { rate_limit, api_keys, .. } = &self.settings;
        let is_program = matches!(self.target, Target::Program { .. });
        if rate_limit.value.is_none() || api_keys.value.is_some() || self.names_callers || is_program {
            return Ok(());
        }
        Err(ConfigError::NotHere {
            what: described(&RATE_LIMIT, rate_limit),
            why: "it is a limit of each key or caller: http.api_keys is not set, and no route is `@auth`",
        })
    }

    /// A remote stage or a split needs other nodes; it is refused on a node without peers, where it would have no
    /// effect.
    fn check_alone(&self) -> Result<(), ConfigError> {
        if self.settings.quic.value.is_some() || !self.settings.join.value.is_empty() {
            return Ok(());
        }
        let neither = format!(
            "neither {} (--{}) nor {} (--{}) is set",
            QUIC.name.key, QUIC.name.flag, JOIN.name.key, JOIN.name.flag
        );
        for stage in &self.stages {
            let name = &stage.name;
            if stage.kind.is_remote() {
                let place = self.place(&name.source, format!("stage `{}`", name.value));
                let message = format!("kind `remote` is for a node that has others: {neither}");
                return Err(ConfigError::Rejected { place, message });
            }
            if !stage.split.value.is_empty() {
                let place = self.place(&stage.split.source, format!("stage `{}`: {}", name.value, SPLIT.key));
                let message = format!("it has no effect on a node without others: {neither}");
                return Err(ConfigError::Rejected { place, message });
            }
        }
        Ok(())
    }

    /// Pinned stages without places for all of them would leave none to the others.
    fn check_pinned(&self) -> Result<(), ConfigError> {
        let Some(limit) = self.settings.max_loaded.value else { return Ok(()) };
        match self.stages.iter().filter(|stage| stage.pinned.value).nth(limit) {
            None => Ok(()),
            Some(stage) => {
                let place = self.place(&stage.pinned.source, format!("stage `{}`: {}", stage.name.value, PINNED.key));
                let message = format!("more stages are pinned than {} = {limit}", MAX_LOADED.name.key);
                Err(ConfigError::Rejected { place, message })
            }
        }
    }

    /// The place for a message about a value from `source`.
    #[must_use]
    pub fn place(&self, source: &Source, part: String) -> Place {
        match (&self.target, source) {
            (Target::File { path, .. }, Source::File { line }) => {
                Place::File { path: path.as_path().into(), line: *line, part: part.into() }
            }
            _ => Place::Target { part: part.into() },
        }
    }

    /// The stages that no route uses. They are not started.
    pub fn unused_stages(&self) -> impl Iterator<Item = &StagePlan> {
        self.stages.iter().enumerate().filter(|(index, _)| !self.uses(*index)).map(|(_, stage)| stage)
    }

    /// The steps of a route, with the names of their stages. Their text is one line.
    #[must_use]
    pub fn steps_of(&self, route: &RoutePlan) -> PipelinePlan<StageOutline> {
        route.steps.value.map(&|index| self.stages[*index].outline())
    }

    /// Whether a route uses the stage of this index, or its replicas.
    pub fn uses(&self, index: usize) -> bool {
        let is_used = |used: &usize| *used == index || self.with_replicas(*used) == index;
        self.routes.iter().any(|route| route.steps.value.stages().into_iter().any(is_used))
    }

    /// The stage whose replicas run this one, by their indexes: itself without `replicas_of`.
    #[must_use]
    pub fn with_replicas(&self, index: usize) -> usize {
        let host = self.stages[index].replicas_of();
        host.and_then(|host| self.stages.iter().position(|stage| stage.name.value == host)).unwrap_or(index)
    }
}

/// Every table and every key of the settings' tables has to be known, also where a stronger layer decides the value.
fn check_tables(root: &Section<'_>, target: &Target) -> Result<(), ConfigError> {
    let mut tables: Vec<&str> = ALL.iter().map(|name| name.table_and_key().0).collect();
    if matches!(target, Target::File { .. }) {
        tables.extend(["stage", "route"]);
    }
    if cfg!(feature = "process") {
        tables.push("process");
    }
    tables.dedup();
    root.deny_unknown(&tables)?;
    for table in tables.into_iter().filter(|table| !matches!(*table, "stage" | "route" | "process")) {
        let Some(section) = root.section(table)? else { continue };
        let names = ALL.iter().map(|name| name.table_and_key());
        let mut keys: Vec<&str> = names.filter(|(of, _)| *of == table).map(|(_, key)| key).collect();
        // The keys of a table in it are read where they belong.
        let [models, defaults] = ModelDefaults::TABLE;
        if table == models && matches!(target, Target::Models { .. }) {
            keys.push(defaults);
        }
        section.deny_unknown(&keys)?;
    }
    Ok(())
}

fn read_pipelines(root: &Section<'_>, settings: &Settings) -> Result<(Vec<StagePlan>, Vec<RoutePlan>), ConfigError> {
    let stages = stage::read_all(root, &settings.queue)?;
    if stages.is_empty() {
        return Err(root.missing("stage", "at least one [[stage]]"));
    }
    let routes = route::read_all(root, &stages, settings)?;
    if routes.is_empty() {
        return Err(root.missing("route", "at least one [[route]]"));
    }
    Ok((stages, routes))
}

/// A bare model needs no file: everything about it but its name is a default.
fn model_pipeline(path: &Path, settings: &Settings) -> Result<(Vec<StagePlan>, Vec<RoutePlan>), ConfigError> {
    let name = name_of(path);
    let stage =
        StagePlan::new(Sourced::new(name.clone(), Source::Target), StageKind::model(path)?, settings.queue.clone());
    let name_of_route = format!("/{name}");
    route::check_path(&name_of_route)
        .map_err(|problem| ConfigError::Target { path: path.to_owned(), problem: format!("rename it: {problem}") })?;
    let route = RoutePlan::new(
        Sourced::new(name_of_route, Source::Target),
        Sourced::new(Steps::Stage(0), Source::Target),
        settings,
    );
    Ok((vec![stage], vec![route]))
}

/// The file's stem in the characters that a route may have.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.~".contains(c) { c } else { '-' };
    stem.chars().map(plain).collect()
}
