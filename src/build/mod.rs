//! From a plan to an app: makes the stages that a file names and puts them in the order that its routes tell.
//!
//! This is where models and example files are first opened, so that a broken one is an error before anything starts. Nothing
//! runs yet: that is for [`App::start`].

mod part;

use std::fs;
use std::io;
use std::path::PathBuf;

use callboard_codec::{DataType, DecodeError, DecodeLimits, Format, Map, Value};
use callboard_core::{App, Pipeline, RouteSpec};

use crate::config::{ConfigError, ExamplePlan, Place, Plan, RoutePlan};

use self::part::Part;

/// Why a plan could not be made into an app. `Display` names the place in the plan, `source()` tells the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The plan itself is at fault, in a way that only its stage could see. Correct the file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model of a stage cannot be used.
    #[cfg(feature = "onnx")]
    #[error("{place}")]
    Model {
        /// The stage.
        place: Place,
        /// What is wrong with its model.
        source: Box<callboard_onnx::LoadError>,
    },
    /// A file that the plan names cannot be read.
    #[error("{place}: cannot read {}", path.display())]
    Read {
        /// Who names it.
        place: Place,
        /// Where it was looked for.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// An example is no JSON. Only routes that take raw bodies have examples in other formats.
    #[error("{place}: the example {} is no value", path.display())]
    BadExample {
        /// The route.
        place: Place,
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        source: Box<DecodeError>,
    },
}

/// Makes the app that a plan describes.
///
/// # Errors
///
/// The first thing that the plan names and that cannot be used.
pub fn app(plan: &Plan) -> Result<App, BuildError> {
    // Stages that several routes share are made once: one queue, one pool. Those that no route uses are not made at all.
    let used = |index: usize| plan.routes.iter().any(|route| route.stages.value.contains(&index));
    let parts = plan.stages.iter().enumerate().map(|(index, stage)| used(index).then(|| Part::build(plan, stage)));
    let parts = parts.map(Option::transpose).collect::<Result<Vec<_>, _>>()?;
    plan.routes.iter().try_fold(App::new(), |app, route| {
        let parts: Vec<&Part> = route.stages.value.iter().filter_map(|index| parts[*index].as_ref()).collect();
        Ok(app.mount(route_spec(plan, route, &parts)?))
    })
}

/// A route takes what its first stage takes and gives what its last one gives.
fn route_spec(plan: &Plan, route: &RoutePlan, parts: &[&Part]) -> Result<RouteSpec, BuildError> {
    let (first, rest) = parts.split_first().expect("a planned route has a stage");
    let last = rest.last().unwrap_or(first);
    let pipeline =
        rest.iter().fold(Pipeline::from(first.stage.clone()), |pipeline, part| pipeline.then(part.stage.clone()));
    let mut spec = RouteSpec::described(&route.path.value, pipeline, first.input.clone(), last.output.clone());
    if let Some(summary) = &route.summary {
        spec = spec.summary(summary.clone());
    }
    if route.examples.is_empty() {
        spec = first.example.iter().cloned().fold(spec, RouteSpec::example);
    }
    for example in &route.examples {
        spec = spec.example(example_value(plan, route, &first.input, example)?);
    }
    Ok(spec)
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
