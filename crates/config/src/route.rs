//! The routes of a plan: the result of each `[[route]]` of the file.

use std::path::PathBuf;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::{Priority, RouteName, Task, check_route_name, route_name, split_route_name};
use callboard_http::{asgi_path, check_asgi};
use callboard_server::own_protocols;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::document::{Entry, Section, one_line};
use super::error::ConfigError;
use super::form::CALL_METHODS;
use super::graph::{self, Steps};
use super::plan::Settings;
use super::rollout::{self, RolloutPlan};
use super::setting::route::{
    ALIASES, ALIASES_FORM, HEADERS, HEADERS_FORM, MAX_BODY_BYTES, MAX_IN_FLIGHT, MAX_IN_FLIGHT_FORM, MAX_TIMEOUT,
    MAX_TIMEOUT_FORM, MCP, MCP_FORM, METHODS, METHODS_FORM, OPENAI, OPENAI_FORM, PRIORITY, PRIORITY_FORM, QUERY,
    QUERY_FORM, TIMEOUT, max_body_bytes_form, timeout_form,
};
use super::source::{Source, Sourced};
use super::stage::StagePlan;

/// One route.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// Its public name: its path, such as `/digits`, with a method before it if `POST` does not call it: `GET /items`.
    pub path: Sourced<String>,
    /// The steps of a request.
    pub steps: Sourced<Steps>,
    /// Calls in flight on this route; `None` if only the node's limit holds.
    pub max_in_flight: Sourced<Option<usize>>,
    /// The timeout of calls without their own.
    pub timeout: Sourced<Duration>,
    /// The longest timeout of its calls; `None` if only the node's limit holds.
    pub max_timeout: Sourced<Option<Duration>>,
    /// The priority class of calls without their own.
    pub priority: Sourced<Priority>,
    /// The largest request body.
    pub max_body_bytes: Sourced<u64>,
    /// The headers of requests that its code may read.
    pub headers: Sourced<Vec<String>>,
    /// The query parameters of requests that its code may read.
    pub query: Sourced<Vec<String>>,
    /// The methods of HTTP that call it; none means `POST`.
    pub methods: Sourced<Vec<String>>,
    /// How clients of OpenAI's API call it; `None` if they do not.
    pub task: Sourced<Option<Task>>,
    /// Other names by which they ask for it.
    pub aliases: Sourced<Vec<String>>,
    /// Whether agents may call it as a tool.
    pub mcp: Sourced<bool>,
    /// How it takes over when it is loaded again; `None` if at once.
    pub rollout: Sourced<Option<RolloutPlan>>,
    /// One line for people.
    pub summary: Option<String>,
    /// As many as callers need; by these models choose tools.
    pub description: Option<String>,
    /// Valid inputs: shown in the documentation, and run by `callboard check`.
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

const KEYS: [&str; 17] = [
    "path",
    "stages",
    "summary",
    "description",
    "examples",
    "rollout",
    MAX_IN_FLIGHT,
    TIMEOUT,
    MAX_TIMEOUT,
    PRIORITY,
    MAX_BODY_BYTES,
    HEADERS,
    QUERY,
    METHODS,
    OPENAI,
    ALIASES,
    MCP,
];

const STAGES: &str = "the names of one or more stages, such as [\"decode\", \"model\"]";
const EXAMPLE: &str = "tables such as { file = \"seven.png\" } or { json = { text = \"hello\" } }";

impl RoutePlan {
    /// A route with the settings of all routes.
    pub(crate) fn new(path: Sourced<String>, steps: Sourced<Steps>, settings: &Settings) -> Self {
        Self {
            path,
            steps,
            max_in_flight: Sourced::new(None, Source::Default),
            timeout: settings.default_timeout.clone(),
            max_timeout: Sourced::new(None, Source::Default),
            priority: Sourced::new(Priority::default(), Source::Default),
            max_body_bytes: settings.max_body_bytes.clone(),
            headers: Sourced::new(Vec::new(), Source::Default),
            query: Sourced::new(Vec::new(), Source::Default),
            methods: Sourced::new(Vec::new(), Source::Default),
            task: Sourced::new(None, Source::Default),
            aliases: Sourced::new(Vec::new(), Source::Default),
            mcp: Sourced::new(false, Source::Default),
            rollout: Sourced::new(None, Source::Default),
            summary: None,
            description: None,
            examples: Vec::new(),
        }
    }

    /// Its path over HTTP.
    pub(crate) fn http_path(&self) -> &str {
        split_route_name(&self.path.value).1
    }

    /// Whether this method of HTTP calls it.
    pub(crate) fn has_method(&self, method: &str) -> bool {
        let methods = &self.methods.value;
        methods.iter().any(|own| own == method) || (methods.is_empty() && method == "POST")
    }

    /// A method that calls both at one path.
    fn shared_method(&self, other: &Self) -> Option<&'static str> {
        let is_shared = |method: &&str| self.has_method(method) && other.has_method(method);
        CALL_METHODS.into_iter().find(is_shared).filter(|_| self.http_path() == other.http_path())
    }
}

/// Reads every `[[route]]`, which may use the stages in `stages`. `settings` are the defaults of routes.
pub(crate) fn read_all(
    root: &Section<'_>,
    stages: &[StagePlan],
    settings: &Settings,
) -> Result<Vec<RoutePlan>, ConfigError> {
    let mut routes: Vec<RoutePlan> = Vec::new();
    for section in root.sections("route")? {
        let route = read(section.clone(), stages, settings)?;
        if let Some(first) = routes.iter().find(|first| first.path.value == route.path.value) {
            return Err(section.duplicate("route", "path", &first.path));
        }
        if let Some((first, method)) = routes.iter().find_map(|first| Some((first, first.shared_method(&route)?))) {
            let (first, own) = (&first.path.value, &route.path.value);
            let message = format!("{method} calls both `{first}` and `{own}`: give one of them other `methods`");
            return Err(ConfigError::Rejected { place: section.place(), message });
        }
        check_shared(&section, &route, &routes, stages)?;
        routes.push(route);
        check_asgi(routes.iter().map(RoutePlan::http_path))
            .map_err(|clash| ConfigError::Rejected { place: section.place(), message: clash.to_string() })?;
    }
    Ok(routes)
}

/// Routes that share a stage change together, so none of them has a rollout.
fn check_shared(
    section: &Section<'_>,
    route: &RoutePlan,
    others: &[RoutePlan],
    stages: &[StagePlan],
) -> Result<(), ConfigError> {
    let own = route.steps.value.stages();
    for other in others.iter().filter(|other| route.rollout.value.is_some() || other.rollout.value.is_some()) {
        if let Some(shared) = other.steps.value.stages().into_iter().find(|stage| own.contains(stage)) {
            let (stage, other) = (&stages[*shared].name.value, &other.path.value);
            let message = format!("it shares stage `{stage}` with route `{other}`, so neither can have a `rollout`");
            return Err(ConfigError::Rejected { place: section.place(), message });
        }
    }
    Ok(())
}

fn read(section: Section<'_>, stages: &[StagePlan], settings: &Settings) -> Result<RoutePlan, ConfigError> {
    const PATH: &str = "a path such as \"/digits\"";
    section.deny_unknown(&KEYS)?;
    let path = section.require_text("path", PATH)?;
    let section = section.called(format!("route `{}`", path.value));
    if let Err(message) = check_path(&path.value) {
        let place = section.get("path").map_or_else(|| section.place(), |path| path.place());
        return Err(ConfigError::Rejected { place, message });
    }
    let summary = section.get("summary").map(|entry| entry.text("one line of text")).transpose()?;
    let description = section.get("description").map(|entry| entry.text("a text")).transpose()?;
    let examples = match section.get("examples") {
        Some(entry) => entry.elements(EXAMPLE)?.iter().map(example).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let mut route = RoutePlan::new(path, read_steps(&section, stages)?, settings);
    route.max_in_flight = section.read(MAX_IN_FLIGHT, &MAX_IN_FLIGHT_FORM)?.unwrap_or(route.max_in_flight);
    route.timeout = section.read(TIMEOUT, timeout_form())?.unwrap_or(route.timeout);
    route.max_timeout = section.read(MAX_TIMEOUT, &MAX_TIMEOUT_FORM)?.unwrap_or(route.max_timeout);
    route.priority = section.read(PRIORITY, &PRIORITY_FORM)?.unwrap_or(route.priority);
    route.max_body_bytes = section.read(MAX_BODY_BYTES, max_body_bytes_form())?.unwrap_or(route.max_body_bytes);
    route.headers = section.read(HEADERS, &HEADERS_FORM)?.unwrap_or(route.headers);
    route.query = section.read(QUERY, &QUERY_FORM)?.unwrap_or(route.query);
    route.methods = section.read(METHODS, &METHODS_FORM)?.unwrap_or(route.methods);
    if let (Some(method), _) = split_route_name(&route.path.value) {
        let is_listed = route.methods.value.is_empty() || route.has_method(method);
        if !is_listed || !CALL_METHODS.contains(&method) {
            let place = section.get("path").map_or_else(|| section.place(), |entry| entry.place());
            let known = if is_listed { CALL_METHODS.join(", ") } else { route.methods.value.join(", ") };
            let message = format!("`path` begins with {method}, and the methods of the route are {known}");
            return Err(ConfigError::Rejected { place, message });
        }
        if route.methods.value.is_empty() {
            route.methods = Sourced::new(vec![method.to_owned()], route.path.source.clone());
        }
    }
    route.path.value = route_name(route.http_path(), &route.methods.value);
    route.task = section.read(OPENAI, &OPENAI_FORM)?.unwrap_or(route.task);
    if route.task.value.is_some() && (route.path.value.contains('{') || !route.has_method("POST")) {
        let place = section.get(OPENAI).map_or_else(|| section.place(), |entry| entry.place());
        let message = "a model is called by `POST` and its name: remove the parameters of the path, or `methods`";
        return Err(ConfigError::Rejected { place, message: message.to_owned() });
    }
    route.aliases = section.read(ALIASES, &ALIASES_FORM)?.unwrap_or(route.aliases);
    if route.task.value.is_none() && !route.aliases.value.is_empty() {
        let place = section.get(ALIASES).map_or_else(|| section.place(), |entry| entry.place());
        let message = "`aliases` are names of a model: `openai` makes one of the route";
        return Err(ConfigError::Rejected { place, message: message.to_owned() });
    }
    route.mcp = section.read(MCP, &MCP_FORM)?.unwrap_or(route.mcp);
    if route.mcp.value && (route.path.value.contains('{') || !route.has_method("POST")) {
        let place = section.get(MCP).map_or_else(|| section.place(), |entry| entry.place());
        let message = "a tool is called by `POST` and its name: remove the parameters of the path, or `methods`";
        return Err(ConfigError::Rejected { place, message: message.to_owned() });
    }
    route.rollout = rollout::read(&section)?;
    if route.max_body_bytes.value > settings.max_in_flight_bytes.value {
        let place = section.get(MAX_BODY_BYTES).map_or_else(|| section.place(), |entry| entry.place());
        let message = "it is above limits.max_in_flight_bytes, so such a body could never be admitted";
        return Err(ConfigError::Rejected { place, message: message.to_owned() });
    }
    let (summary, description) = (summary.map(|text| text.value), description.map(|text| text.value));
    Ok(RoutePlan { summary, description, examples, ..route })
}

/// Whether a route may have this path, by the rules of core and of the HTTP edge. Checked here, so that every command
/// gives the same answer before a model is loaded.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    check_route_name(&RouteName::new(path)).map_err(|error| error.to_string())?;
    match own_protocols().owner_of(asgi_path(path).unwrap_or_else(|| split_route_name(path).1)) {
        Some(owner) => Err(format!("`{path}` cannot be a route: {owner} keeps that path for itself")),
        None => Ok(()),
    }
}

fn read_steps(section: &Section<'_>, stages: &[StagePlan]) -> Result<Sourced<Steps>, ConfigError> {
    let entry = section.get("stages").ok_or_else(|| section.missing("stages", STAGES))?;
    let steps = graph::read(&entry, stages)?;
    if steps.stages().is_empty() {
        return Err(entry.bad(STAGES));
    }
    Ok(Sourced::new(steps, Source::File { line: entry.line }))
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
