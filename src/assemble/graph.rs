//! The steps of a route as a pipeline.

use std::collections::HashMap;

use callboard_codec::Value;
use callboard_core::Pipeline;

use super::steps;
use crate::config::{DEFAULT_LABEL, StepPlan};

/// The pipeline of a step. `stages` has a pipeline for each stage of the plan; stages that no route uses may be
/// missing.
pub(super) fn pipeline(step: &StepPlan, stages: &[Option<Pipeline<Value, Value>>]) -> Pipeline<Value, Value> {
    let named = |parts: &[(String, StepPlan)]| -> Vec<(String, Pipeline<Value, Value>)> {
        parts.iter().map(|(name, part)| (name.clone(), pipeline(part, stages))).collect()
    };
    let nothing = Pipeline::pass_through();
    match step {
        StepPlan::Stage(index) => stages[*index].clone().expect("a stage that a route uses is made"),
        StepPlan::Sequence(steps) => steps.iter().fold(nothing, |before, step| before.then(pipeline(step, stages))),
        StepPlan::Ensemble { members, partial: false } => Pipeline::ensemble_named(named(members)),
        StepPlan::Ensemble { members, partial: true } => Pipeline::ensemble_named_partial(named(members)),
        StepPlan::Switch { field, cases, default } => {
            let default = default.as_deref().map(|default| (DEFAULT_LABEL.to_owned(), pipeline(default, stages)));
            let has_default = default.is_some();
            let (labels, branches): (Vec<_>, Vec<_>) = named(cases).into_iter().chain(default).unzip();
            let choose = choice(field, cases, has_default);
            Pipeline::switch(&step.title(), choose, branches).labelled(labels)
        }
        StepPlan::Pick { field } => {
            let field = field.clone();
            nothing.map(&step.title(), move |item: &Value| steps::pick(&field, item))
        }
        StepPlan::Rename { fields } => {
            let fields = fields.clone();
            nothing.map(&step.title(), move |item: &Value| steps::rename(&fields, item))
        }
    }
}

/// The branch of an item: its case, else the default branch if there is one.
fn choice(
    field: &str,
    cases: &[(String, StepPlan)],
    has_default: bool,
) -> impl Fn(&Value) -> Result<usize, callboard_core::Failure> + Send + Sync + use<> {
    let field = field.to_owned();
    let values: Vec<String> = cases.iter().map(|(value, _)| value.clone()).collect();
    let branches: HashMap<String, usize> =
        values.iter().enumerate().map(|(number, value)| (value.clone(), number)).collect();
    move |item| match steps::case_of(&field, item, |value| branches.get(value).copied()) {
        Err(_) if has_default => Ok(values.len()),
        Err(missed) => Err(missed.into_failure(&field, &values)),
        Ok(number) => Ok(number),
    }
}
