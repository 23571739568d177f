//! What a Python file serves, as the interpreter says it.

use std::fmt;

use callboard_core::description::PipelinePlan;
use callboard_core::edge::DeclaredResponse;
use callboard_core::split_route_name;
use serde::Deserialize;
use serde_json::Value as Json;

use super::keyed::PythonKeyed;

/// How many replicas a service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum PythonReplicas {
    /// Always this many.
    Fixed(usize),
    /// Between these bounds.
    Between {
        /// The fewest.
        min: usize,
        /// The most.
        max: usize,
    },
}

impl fmt::Display for PythonReplicas {
    /// As in a configuration file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(replicas) => replicas.fmt(f),
            Self::Between { min, max } => write!(f, "{{ min = {min}, max = {max} }}"),
        }
    }
}

/// Something that a Python file serves.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct PythonService {
    /// The file or module that a worker serves, and the name in it.
    pub target: String,
    /// The name of its route: its path, and a method of HTTP before it if `POST` does not call it.
    pub route: String,
    /// The stage whose replicas run it, if they are not its own: another method of its class.
    pub replicas_of: Option<String>,
    /// The JSON schema of its input.
    pub input: Json,
    /// The parameter that a body without fields is.
    pub raw_body: Option<PythonRawBody>,
    /// The names of its parameters, in their order.
    pub parameters: Option<Vec<String>>,
    /// Whether its input is the value of its only parameter.
    #[serde(default)]
    pub is_value: bool,
    /// The JSON schema of its output, or of one of its outputs.
    pub output: Json,
    /// Whether it answers with a stream of outputs.
    #[serde(default)]
    pub streams: bool,
    /// The largest batch that it says.
    pub max_batch_size: Option<usize>,
    /// The number of replicas that it says.
    pub replicas: Option<PythonReplicas>,
    /// The timeout of a batch that it says.
    pub timeout_ms: Option<u64>,
    /// The contract that it says.
    pub contract: Option<String>,
    /// Whether its replicas are forked from a process that has imported it.
    #[serde(default = "yes")]
    pub warm: bool,
    /// Whether they are forked from a process that has also set it up.
    #[serde(default)]
    pub share_setup: bool,
    /// The time until a replica must be ready that it says.
    pub start_timeout_ms: Option<u64>,
    /// How long a batch that is not full may wait, as it says.
    pub max_delay_ms: Option<u64>,
    /// The length of the queue that it says.
    pub queue: Option<usize>,
    /// The memory of a replica that it says, as a configuration file has it.
    pub memory_limit: Option<String>,
    /// The devices of its replicas that it says, as a configuration file has them.
    #[serde(default)]
    pub devices: Json,
    /// The variables of its replicas, or of each, that it says.
    #[serde(default)]
    pub env: Json,
    /// The cores of each replica that it says, as a configuration file has them.
    #[serde(default)]
    pub affinity: Json,
    /// How many calls a replica works on at once; 1 if it does not say.
    pub concurrency: Option<u32>,
    /// What it does, in one line.
    pub description: Option<String>,
    /// Valid inputs.
    #[serde(default)]
    pub examples: Vec<Json>,
    /// The headers of a request that its code reads.
    #[serde(default)]
    pub headers: Vec<String>,
    /// The query parameters of a request that its code reads.
    #[serde(default)]
    pub query: Vec<String>,
    /// The methods of HTTP that call it; none means `POST`.
    #[serde(default)]
    pub methods: Vec<String>,
    /// How clients of OpenAI's API call it.
    pub openai: Option<String>,
    /// Other names by which they ask for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Whether agents may call it as a tool.
    #[serde(default)]
    pub mcp: bool,
    /// The whole text of its documentation, if agents may call it.
    pub documentation: Option<String>,
    /// What is known of the parts of a request that its code takes as arguments.
    #[serde(default)]
    pub request: Vec<PythonRequestArgument>,
    /// What it says of its successful answers.
    pub response: Option<DeclaredResponse>,
    /// The routes that its code calls.
    #[serde(default)]
    pub depends: Vec<PythonDependency>,
    /// Whether it is a step of pipelines, and has no route of its own.
    #[serde(default)]
    pub is_step: bool,
    /// What it says of its objects, if it is a method of a class with one for each key.
    pub keyed: Option<PythonKeyed>,
    /// The target of the function that names the callers of its file, if that has one.
    #[serde(skip)]
    pub auth: Option<String>,
}

/// A parameter that is the whole body of some requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PythonRawBody {
    /// The name of the parameter.
    pub field: String,
    /// Media types or ranges of the bodies.
    pub media_types: Vec<String>,
}

/// A part of a request that its code takes as an argument.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PythonRequestArgument {
    /// Where it is.
    #[serde(rename = "in")]
    pub place: PythonRequestPlace,
    /// Its name there.
    pub name: String,
    /// Whether a call without it is refused.
    pub required: bool,
    /// The JSON schema of its value.
    pub schema: Json,
}

/// The place of an argument in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PythonRequestPlace {
    /// A header.
    Header,
    /// A query parameter.
    Query,
    /// A cookie.
    Cookie,
    /// A parameter in the path of its route.
    Path,
}

/// A route that a service calls.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PythonDependency {
    /// The attribute of the class.
    pub attribute: String,
    /// The path of the route.
    pub route: String,
}

/// All that a Python file serves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PythonApp {
    /// Its services and functions.
    pub services: Vec<PythonService>,
    /// The stages of its pipelines that are no Python.
    #[serde(default)]
    pub(super) stages: Vec<NodeStage>,
    #[serde(default)]
    pub(super) pipelines: Vec<PythonPipeline>,
    /// What it does once per node.
    pub(super) hooks: Option<PythonHooks>,
}

/// That an app has functions that run once per node, and how long they may take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct PythonHooks {
    /// The file or module.
    pub(super) target: String,
    pub(super) start_timeout_ms: u64,
    pub(super) stop_timeout_ms: u64,
}

/// A model or a built-in stage, with its keys in a configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct NodeStage {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) keys: serde_json::Map<String, Json>,
}

/// Steps under a route, as in a configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct PythonPipeline {
    name: String,
    pub(super) route: String,
    pub(super) steps: PipelinePlan<String>,
}

fn yes() -> bool {
    true
}

impl PythonService {
    /// Whether it is the function that names callers.
    pub(super) fn names_callers(&self) -> bool {
        self.route == "@auth"
    }

    /// Whether it is an ASGI app.
    pub(super) fn is_asgi(&self) -> bool {
        self.route.starts_with("@asgi/")
    }

    /// The name of its stage: its route without the slash, or the `@` of a private route, and with the method in lower
    /// case.
    #[must_use]
    pub fn stage_name(&self) -> String {
        let (method, path) = split_route_name(&self.route);
        let path = path.trim_start_matches(['/', '@']).replace('/', "-").replace('{', ":").replace('}', "");
        method.map_or_else(|| path.clone(), |method| format!("{}-{path}", method.to_ascii_lowercase()))
    }
}

impl PythonApp {
    /// The names of its services, functions and pipelines.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let class = |service: &PythonService| service.target.rsplit_once(':')?.1.split('.').next().map(str::to_owned);
        let pipelines = self.pipelines.iter().map(|pipeline| pipeline.name.clone());
        self.services.iter().filter_map(class).chain(pipelines).collect()
    }

    /// A service, function or pipeline of `file` alone, with what it uses; `None` if nothing has the name.
    #[must_use]
    pub fn only(mut self, file: &str, name: &str) -> Option<Self> {
        let own = format!("{file}:{name}");
        let methods = format!("{own}.");
        let mut kept = Self { hooks: self.hooks.take(), ..Self::default() };
        let (mut pipelines, mut services): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        pipelines.extend(self.pipelines.extract_if(.., |pipeline| pipeline.name == name));
        let is_own = |service: &mut PythonService| service.target == own || service.target.starts_with(&methods);
        services.extend(self.services.extract_if(.., |service| is_own(service)));
        // It is asked for by its name, as a route.
        services.iter_mut().for_each(|service| service.is_step &= !pipelines.is_empty());
        while !pipelines.is_empty() || !services.is_empty() {
            let stages: Vec<&str> =
                pipelines.iter().flat_map(|pipeline| pipeline.steps.stages()).map(String::as_str).collect();
            kept.stages.extend(self.stages.extract_if(.., |stage| stages.contains(&&*stage.name)));
            let routes: Vec<&str> = services.iter().flat_map(|each| &each.depends).map(|each| &*each.route).collect();
            let is_used = |service: &mut PythonService| {
                stages.contains(&&*service.stage_name()) || routes.contains(&&*service.route)
            };
            let used: Vec<_> = self.services.extract_if(.., |service| is_used(service)).collect();
            let called: Vec<_> = self.pipelines.extract_if(.., |each| routes.contains(&&*each.route)).collect();
            kept.pipelines.append(&mut pipelines);
            kept.services.append(&mut services);
            (pipelines, services) = (called, used);
        }
        // What names the callers of an app does so for each part of it.
        kept.services.extend(self.services.extract_if(.., |service| service.names_callers()));
        kept.give_replicas();
        (!kept.pipelines.is_empty() || !kept.services.is_empty()).then_some(kept)
    }

    /// Gives methods whose replicas are those of a service that is not there to the first of them.
    fn give_replicas(&mut self) {
        let names: Vec<String> = self.services.iter().map(PythonService::stage_name).collect();
        let mut given: Vec<(String, String)> = Vec::new();
        for (service, name) in self.services.iter_mut().zip(&names) {
            let Some(host) = service.replicas_of.take_if(|host| !names.contains(host)) else { continue };
            match given.iter().find(|(gone, _)| *gone == host) {
                Some((_, first)) => service.replicas_of = Some(first.clone()),
                None => given.push((host, name.clone())),
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::python) fn app() -> PythonApp {
        let service = |name: &str, is_step: bool, depends: &str| {
            format!(
                r#"{{"target": "app.py:{name}", "route": "/{name}", "input": {{}}, "output": {{}}, "is_step": {is_step},
                    "depends": [{depends}]}}"#
            )
        };
        let services = [
            service("decode", true, ""),
            service("best", true, r#"{"attribute": "a", "route": "/other"}"#),
            service("other", false, ""),
            service("alone", false, ""),
        ];
        let text = format!(
            r#"{{"services": [{}],
                "stages": [{{"name": "m", "kind": "onnx", "keys": {{"model": "m.onnx", "max_batch_size": 32}}}},
                           {{"name": "n", "kind": "onnx", "keys": {{"model": "n.onnx"}}}}],
                "pipelines": [
                    {{"name": "app", "route": "/app", "steps": ["decode", "m", {{"switch": "n", "cases": {{"a b": "best"}}}}]}},
                    {{"name": "more", "route": "/more", "steps": {{"ensemble": {{"x": ["n"]}}}}}}]}}"#,
            services.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_names_of_an_app_are_those_of_its_services_and_pipelines() {
        assert_eq!(app().names(), ["decode", "best", "other", "alone", "app", "more"]);
    }

    #[test]
    fn a_name_is_served_with_all_that_it_uses() {
        let names = |app: &PythonApp| {
            let mut names: Vec<String> = app.services.iter().map(PythonService::stage_name).collect();
            names.extend(app.stages.iter().map(|stage| stage.name.clone()));
            names.join(" ")
        };
        assert_eq!(names(&app().only("app.py", "app").unwrap()), "decode best other m");
        assert_eq!(names(&app().only("app.py", "more").unwrap()), "n");
        let best = app().only("app.py", "best").unwrap();
        assert_eq!(names(&best), "best other");
        assert!(best.configuration().contains("path = \"/best\""), "it is asked for by name");
        assert_eq!(app().only("app.py", "nothing"), None);
        let mut app = app();
        app.services[3].route = "@auth".to_owned();
        assert_eq!(names(&app.only("app.py", "more").unwrap()), "auth n", "what names the callers stays");
    }

    #[test]
    fn methods_that_are_served_without_the_first_one_have_the_replicas_of_the_next() {
        let service = |name: &str, route: &str, host: &str, depends: &str| {
            format!(
                r#"{{"target": "app.py:{name}", "route": "/{route}", "input": {{}}, "output": {{}},
                    "replicas_of": {host}, "replicas": 3, "depends": [{depends}]}}"#
            )
        };
        let services = [
            service("Model", "model", "null", ""),
            service("Model.embed", "embed", "\"model\"", ""),
            service("Model.rank", "rank", "\"model\"", ""),
            service(
                "Search",
                "search",
                "null",
                r#"{"attribute": "e", "route": "/embed"}, {"attribute": "r", "route": "/rank"}"#,
            ),
        ];
        let app: PythonApp = serde_json::from_str(&format!("{{\"services\": [{}]}}", services.join(","))).unwrap();
        let hosts = |app: &PythonApp| {
            let host = |service: &PythonService| (service.stage_name(), service.replicas_of.clone());
            app.services.iter().map(host).collect::<Vec<_>>()
        };
        let named = |name: &str, host: Option<&str>| (name.to_owned(), host.map(str::to_owned));
        let model = Some("model");
        assert_eq!(
            hosts(&app.clone().only("app.py", "Model").unwrap()),
            [named("model", None), named("embed", model), named("rank", model)]
        );
        let used = app.only("app.py", "Search").unwrap();
        assert_eq!(hosts(&used), [named("search", None), named("embed", None), named("rank", Some("embed"))]);
        let text = used.configuration();
        assert_eq!((text.matches("replicas = 3").count(), text.matches("replicas_of = \"embed\"").count()), (2, 1));
    }

    #[test]
    fn replicas_are_a_number_or_bounds() {
        for (described, written) in [(json!(3), "3"), (json!({ "min": 0, "max": 4 }), "{ min = 0, max = 4 }")] {
            let replicas: PythonReplicas = serde_json::from_value(described).unwrap();
            assert_eq!(replicas.to_string(), written);
        }
    }
}
