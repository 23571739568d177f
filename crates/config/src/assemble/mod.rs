//! Turns a plan into an app: builds the stages of the file and connects them as its routes say.
//!
//! Models and example files are opened here, so a broken one is an error before anything starts. Nothing runs yet:
//! [`App::start`] does that.

mod inner_calls;
#[cfg(all(feature = "onnx", feature = "process"))]
pub mod isolated;
#[cfg(feature = "process")]
mod keyed;
mod part;
mod types;

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use callboard_codec::{DataType, DecodeError, DecodeLimits, Format, Map, Value};
use callboard_core::description::{PlanError, Planned};
use callboard_core::edge::DeclaredResponse;
use callboard_core::{App, RouteSpec};

use crate::{ConfigError, ExamplePlan, Place, Plan, RoutePlan, Source, Sourced, StagePlan, Steps};

#[cfg(feature = "process")]
pub use self::keyed::check_store;
use self::part::{Part, Processes};
use self::types::Types;

/// The reason why a plan could not become an app. `Display` names the place in the plan, `source()` the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The plan has an error that only its stage could detect. Correct the file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model of a stage cannot be used.
    #[cfg(feature = "onnx")]
    #[error("{place}")]
    Model {
        /// The stage.
        place: Place,
        /// The error of its model.
        source: Box<callboard_onnx::LoadError>,
    },
    /// The service of a stage cannot be used.
    #[cfg(feature = "process")]
    #[error("{place}")]
    Python {
        /// The stage.
        place: Place,
        /// The error of its interpreter or file.
        source: Box<callboard_process::PythonError>,
    },
    /// A file that the plan names cannot be read.
    #[error("{place}: cannot read {}", path.display())]
    Read {
        /// The part of the plan that names it.
        place: Place,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An example is not JSON. Only routes that take raw bodies have examples in other formats.
    #[error("{place}: the example {} is not a value", path.display())]
    BadExample {
        /// The route.
        place: Place,
        /// The file.
        path: PathBuf,
        /// The place and cause of the error.
        source: Box<DecodeError>,
    },
}

/// Makes the app that a plan describes.
///
/// # Errors
///
/// The first unusable item of the plan.
pub fn app(plan: &Plan) -> Result<App, BuildError> {
    Ok(app_and_engines(plan)?.0)
}

/// The app of a plan, and for each stage with a model a line that says what runs it.
pub fn app_and_engines(plan: &Plan) -> Result<(App, Vec<String>), BuildError> {
    let parts = parts(plan, plan)?;
    let line = |(stage, part): (&StagePlan, &Option<Part>)| {
        let engine = part.as_ref()?.engine.as_ref()?;
        Some(format!("stage {} runs on {engine}", stage.name.value))
    };
    let engines = plan.stages.iter().zip(&parts).filter_map(line).collect();
    let app = routes_of(plan, &parts)?.into_iter().fold(App::new(), App::mount);
    #[cfg(feature = "process")]
    let app = keyed::add_to(app, plan, &parts)?;
    Ok((app, engines))
}

/// Makes the routes that a plan describes, with the stages that they use.
///
/// # Errors
///
/// As [`app`].
pub fn routes(plan: &Plan) -> Result<Vec<RouteSpec>, BuildError> {
    routes_of(plan, &parts(plan, plan)?)
}

/// Makes those routes of a plan whose names are `wanted`. Models of other routes are not opened.
///
/// # Errors
///
/// As [`app`].
pub fn some_routes(plan: &Plan, wanted: impl Fn(&str) -> bool) -> Result<Vec<RouteSpec>, BuildError> {
    let mut some = plan.clone();
    some.routes.retain(|route| wanted(&route.path.value));
    routes_of(&some, &parts(&some, plan)?)
}

/// The stages that the routes use, in the order of the plan. They may call each route of the `whole` plan.
fn parts(plan: &Plan, whole: &Plan) -> Result<Vec<Option<Part>>, BuildError> {
    // A stage that several routes share is built once: one queue, one pool. A stage that no route uses is not built.
    let processes = Processes::default();
    let mut parts = plan.stages.iter().map(|_| None).collect::<Vec<Option<Part>>>();
    // A host is built before the stages that its replicas run.
    let mut order: Vec<usize> = (0..parts.len()).filter(|index| plan.uses(*index)).collect();
    order.sort_by_key(|index| plan.stages[*index].replicas_of().is_some());
    for index in order {
        let stage = &plan.stages[index];
        let host = parts[plan.with_replicas(index)].as_ref().and_then(|part| part.host.as_ref());
        parts[index] = Some(Part::build(plan, stage, &processes, host)?);
    }
    inner_calls::check(whole, &parts)?;
    check_callers(plan, &parts)?;
    Ok(parts)
}

/// A function that names the callers of a file lets in everybody where no route asks it.
fn check_callers(plan: &Plan, parts: &[Option<Part>]) -> Result<(), ConfigError> {
    let unasked = plan.stages.iter().zip(parts).filter(|_| !plan.names_callers);
    for (stage, part) in unasked {
        let Some(auth) = part.as_ref().and_then(|part| part.auth.as_ref()) else { continue };
        let place = plan.place(&stage.name.source, format!("stage `{}`", stage.name.value));
        let message = format!(
            "`{auth}` names the callers of its file, and is not asked: add a stage with `app = \"{auth}\"` under a \
             route with `path = \"@auth\"`"
        );
        return Err(ConfigError::Rejected { place, message });
    }
    Ok(())
}

fn routes_of(plan: &Plan, parts: &[Option<Part>]) -> Result<Vec<RouteSpec>, BuildError> {
    plan.routes.iter().map(|planned| route(plan, planned, parts)).collect()
}

/// The stage of a model, which several routes share, also when they open at different times.
#[derive(Clone)]
pub struct SharedStage {
    plan: Arc<Plan>,
    part: Part,
}

impl SharedStage {
    /// Builds the only stage of this plan.
    pub fn build(plan: Plan) -> Result<Self, BuildError> {
        let part = Part::build(&plan, &plan.stages[0], &Processes::default(), None)?;
        Ok(Self { plan: Arc::new(plan), part })
    }

    /// A route over it.
    pub fn route(&self, path: &str) -> Result<RouteSpec, BuildError> {
        let steps = Sourced::new(Steps::Stage(0), Source::Target);
        let planned = RoutePlan::new(Sourced::new(path.to_owned(), Source::Target), steps, &self.plan.settings);
        route(&self.plan, &planned, &[Some(self.part.clone())])
    }
}

impl fmt::Debug for SharedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedStage").field(&self.plan.stages[0].name.value).finish()
    }
}

fn route(plan: &Plan, route: &RoutePlan, parts: &[Option<Part>]) -> Result<RouteSpec, BuildError> {
    #[cfg(feature = "process")]
    if let Some(computed) = keyed::route(plan, route, parts) {
        return Ok(computed);
    }
    let types = Types(parts);
    let needs = types.needs(&route.steps.value, None);
    let (input, example) =
        needs.map_or_else(|| (unknown_input(plan, route), None), |needs| (needs.input, needs.example));
    let output = types.gives(&route.steps.value, Some(input.clone())).unwrap_or_else(DataType::value);
    let code = route.steps.value.build(&|index| types.part(*index).code.clone()).map_err(|error| {
        let message = match error {
            PlanError::Streams(index) => PlanError::Streams(&plan.stages[index].name.value).to_string(),
            _ => error.to_string(),
        };
        let place = plan.place(&route.path.source, format!("route `{}`", route.path.value));
        ConfigError::Rejected { place, message }
    })?;
    let mut spec = route_spec(route, code, input.clone(), output);
    let stages = route.steps.value.stages().into_iter();
    let arguments = stages.flat_map(|index| types.part(*index).arguments.clone());
    spec = arguments.fold(spec, RouteSpec::request_argument);
    let responses = route.steps.value.stages().into_iter().filter_map(|index| types.part(*index).response.clone());
    if let Some(response) = responses.reduce(DeclaredResponse::followed_by) {
        spec = spec.response(response);
    }
    if let Some(summary) = &route.summary {
        spec = spec.summary(summary.clone());
    }
    if let Some(description) = &route.description {
        spec = spec.description(description.clone());
    }
    if route.examples.is_empty() {
        spec = example.into_iter().fold(spec, RouteSpec::example);
    }
    for example in &route.examples {
        spec = spec.example(example_value(plan, route, &input, example)?);
    }
    Ok(spec)
}

/// Any value; the schema's description says whether other nodes know the type.
fn unknown_input(plan: &Plan, route: &RoutePlan) -> DataType {
    let stages = route.steps.value.stages();
    if stages.iter().any(|index| plan.stages[**index].kind.is_remote()) {
        part::known_to_others("what this route takes is known to the nodes that run its stages")
    } else {
        DataType::value()
    }
}

/// The same app with empty stages, which need no model.
#[cfg(test)]
pub(crate) fn sketch(plan: &Plan) -> App {
    use callboard_core::{Pipeline, Stage};

    use self::part::with_knobs;

    let stages = plan.stages.iter().map(|stage| {
        if stage.kind.is_remote() {
            return Planned::Single(Pipeline::remote(&stage.name.value));
        }
        let hollow = Stage::each(stage.name.value.as_str(), |item: &Value| Ok(item.clone()));
        Planned::Single(with_knobs(hollow, stage).into())
    });
    let stages: Vec<_> = stages.collect();
    let route = |route: &RoutePlan| {
        let code = route.steps.value.build(&|index| stages[*index].clone()).expect("no stage streams");
        route_spec(route, code, DataType::value(), DataType::value())
    };
    plan.routes.iter().map(route).fold(App::new(), App::mount)
}

fn route_spec(route: &RoutePlan, code: Planned, input: DataType, output: DataType) -> RouteSpec {
    let spec = match code {
        Planned::Single(pipeline) => RouteSpec::described(&route.path.value, pipeline, input, output),
        Planned::Stream(pipeline) => RouteSpec::described_streaming(&route.path.value, pipeline, input, output),
    };
    let mut spec = spec.default_timeout(route.timeout.value).default_priority(route.priority.value);
    spec = spec.headers(&route.headers.value).query(&route.query.value).methods(&route.methods.value);
    if let Some(timeout) = route.max_timeout.value {
        spec = spec.max_timeout(timeout);
    }
    if let Some(task) = route.task.value {
        spec = spec.task(task).aliases(&route.aliases.value);
    }
    if route.mcp.value {
        spec = spec.tool();
    }
    if let Some(calls) = route.max_in_flight.value {
        spec = spec.max_in_flight(calls);
    }
    spec
}

fn example_value(plan: &Plan, route: &RoutePlan, input: &DataType, example: &ExamplePlan) -> Result<Value, BuildError> {
    let path = match example {
        ExamplePlan::Json(value) => return Ok(value.clone()),
        ExamplePlan::File(path) => plan.target.base().join(path),
    };
    let place = || plan.place(&route.path.source, format!("route `{}`", route.path.value));
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(source) => return Err(BuildError::Read { place: place(), path, source }),
    };
    match input.raw_body() {
        Some(raw) => Ok(Value::Map(Map::from_iter([(raw.field.clone(), Value::Bytes(content.into()))]))),
        None => Value::decode(Format::Json, &content.into(), &DecodeLimits::default())
            .map_err(|source| BuildError::BadExample { place: place(), path, source: Box::new(source) }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_core::Priority;

    use super::*;
    use crate::{Environment, Flags, Target};

    #[tokio::test]
    async fn the_limits_of_a_route_come_from_the_plan() {
        let text = "[limits]\ndefault_timeout = \"7s\"\n[[stage]]\nname = \"x\"\nkind = \"labels\"\n\
                    [[route]]\npath = \"/plain\"\nstages = \"x\"\n\
                    [[route]]\npath = \"/own\"\nstages = \"x\"\n\
                    max_in_flight = 3\ntimeout = \"2s\"\nmax_timeout = \"4s\"\npriority = \"low\"\n";
        let target = Target::File { path: PathBuf::from("f"), text: text.to_owned() };
        let plan = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap();
        let node = app(&plan).unwrap().start().await.unwrap();
        let mut limits: Vec<_> = node
            .client()
            .routes()
            .iter()
            .map(|route| {
                let calls = route.max_in_flight().map(usize::from);
                (route.name().to_owned(), calls, route.default_timeout(), route.max_timeout(), route.default_priority())
            })
            .collect();
        limits.sort_by(|first, second| first.0.cmp(&second.0));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let expected_own = ("/own".to_owned(), Some(3), seconds(2), seconds(4), Priority::Low);
        assert_eq!(limits, [expected_own, ("/plain".to_owned(), None, seconds(7), None, Priority::Normal)]);
    }
}
