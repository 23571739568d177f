//! The routes of a plan: what each `[[route]]` of the file comes to.

use std::path::PathBuf;

use callboard_codec::Value;
use callboard_core::{RouteName, check_route_name};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::document::{Entry, Section, one_line};
use super::error::ConfigError;
use super::nearest::Hint;
use super::source::{Source, Sourced};
use super::stage::StagePlan;

/// One route.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// Its public name, such as `/digits`.
    pub path: Sourced<String>,
    /// The stages in the order in which a request meets them: each is the index of one in the plan.
    pub stages: Sourced<Vec<usize>>,
    /// One line for people.
    pub summary: Option<String>,
    /// Inputs that work: shown in the documentation, tried by `callboard check`.
    pub examples: Vec<ExamplePlan>,
}

/// One example input of a route.
#[derive(Clone, Debug)]
pub enum ExamplePlan {
    /// A file that is sent as the body, such as an image. Relative to the configuration file.
    File(PathBuf),
    /// A value that is sent as JSON.
    Json(Value),
}

const STAGES: &str = "the names of one or more stages, such as [\"decode\", \"model\"]";
const EXAMPLE: &str = "tables such as { file = \"seven.png\" } or { json = { text = \"hello\" } }";

/// Reads every `[[route]]`, which may name the stages in `stages`.
pub(crate) fn read_all(root: &Section<'_>, stages: &[StagePlan]) -> Result<Vec<RoutePlan>, ConfigError> {
    let mut routes: Vec<RoutePlan> = Vec::new();
    for section in root.sections("route")? {
        let route = read(section.clone(), stages)?;
        if let Some(first) = routes.iter().find(|first| first.path.value == route.path.value) {
            return Err(section.duplicate("route", "path", &first.path));
        }
        routes.push(route);
    }
    Ok(routes)
}

fn read(section: Section<'_>, stages: &[StagePlan]) -> Result<RoutePlan, ConfigError> {
    const PATH: &str = "a path such as \"/digits\"";
    section.deny_unknown(&["path", "stages", "summary", "examples"])?;
    let path = section.require_text("path", PATH)?;
    let section = section.called(format!("route `{}`", path.value));
    if let Err(message) = check_path(&path.value) {
        let place = section.get("path").map_or_else(|| section.place(), |path| path.place());
        return Err(ConfigError::Rejected { place, message });
    }
    let summary = section.get("summary").map(|entry| entry.text("one line of text")).transpose()?;
    let examples = match section.get("examples") {
        Some(entry) => entry.elements(EXAMPLE)?.iter().map(example).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    Ok(RoutePlan {
        stages: stage_indices(&section, stages)?,
        path,
        summary: summary.map(|summary| summary.value),
        examples,
    })
}

/// Whether a route may have this path, by the rules of those who will serve it: asked here, so that every command gives the
/// same answer and before any model is loaded.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    check_route_name(&RouteName::new(path)).map_err(|error| error.to_string())?;
    match callboard_http::is_reserved(path) {
        true => Err(format!("`{path}` cannot be a route: the http edge keeps that path for itself")),
        false => Ok(()),
    }
}

fn stage_indices(section: &Section<'_>, stages: &[StagePlan]) -> Result<Sourced<Vec<usize>>, ConfigError> {
    let entry = section.get("stages").ok_or_else(|| section.missing("stages", STAGES))?;
    let elements = entry.elements(STAGES)?;
    if elements.is_empty() {
        return Err(entry.bad(STAGES));
    }
    let indices = elements.iter().map(|element| stage_index(element, stages)).collect::<Result<_, _>>()?;
    Ok(Sourced::new(indices, Source::File { line: entry.line }))
}

fn stage_index(element: &Entry<'_>, stages: &[StagePlan]) -> Result<usize, ConfigError> {
    let name = element.text("the name of a stage")?.value;
    let index = stages.iter().position(|stage| stage.name.value == name);
    index.ok_or_else(|| ConfigError::UnknownName {
        place: element.place(),
        what: "stage",
        hint: Hint::new(&name, stages.iter().map(|stage| stage.name.value.as_str())),
        name,
    })
}

fn example(element: &Entry<'_>) -> Result<ExamplePlan, ConfigError> {
    let section = element.section()?;
    section.deny_unknown(&["file", "json"])?;
    match (section.get("file"), section.get("json")) {
        (Some(file), None) => Ok(ExamplePlan::File(file.text("a path")?.value.into())),
        (None, Some(json)) => to_value(json.value)
            .map(ExamplePlan::Json)
            .map_err(|message| ConfigError::Rejected { place: json.place(), message }),
        _ => Err(element.bad(EXAMPLE)),
    }
}

fn to_value(value: &DeValue<'_>) -> Result<Value, String> {
    let spanned = Spanned::new(0..0, value.clone());
    <Value as Deserialize>::deserialize(ValueDeserializer::from(spanned)).map_err(|error| one_line(error.message()))
}
