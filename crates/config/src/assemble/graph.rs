//! The steps of a route as a pipeline.

use std::collections::HashMap;

use callboard_codec::Value;
use callboard_core::Pipeline;

use super::part::Code;
use super::steps;
use crate::{DEFAULT_LABEL, StepPlan};

/// The code of a route's steps. `stages` has the code of each stage of the plan; stages that no route uses may be
/// missing.
///
/// # Errors
///
/// The index of a stage that answers with a stream where only one output is possible.
pub(super) fn code(step: &StepPlan, stages: &[Option<Code>]) -> Result<Code, usize> {
    let streams = |step: &StepPlan| match step {
        StepPlan::Stage(index) => match &stages[*index] {
            Some(Code::Stream(stream)) => Some(stream.clone()),
            _ => None,
        },
        _ => None,
    };
    let steps = match step {
        StepPlan::Sequence(steps) => steps.as_slice(),
        step => std::slice::from_ref(step),
    };
    let Some((position, stream)) = steps.iter().enumerate().find_map(|(at, step)| Some((at, streams(step)?))) else {
        return Ok(Code::Single(pipeline(step, stages)?));
    };
    let (before, after) = (&steps[..position], &steps[position + 1..]);
    let stream = if before.is_empty() { stream } else { sequence(before, stages)?.then_stream(stream) };
    Ok(Code::Stream(if after.is_empty() { stream } else { stream.then(sequence(after, stages)?) }))
}

/// The pipeline of these steps, one after the other.
fn sequence(steps: &[StepPlan], stages: &[Option<Code>]) -> Result<Pipeline<Value, Value>, usize> {
    let mut all = Pipeline::pass_through();
    for step in steps {
        all = all.then(pipeline(step, stages)?);
    }
    Ok(all)
}

/// The pipeline of a step, if no stage of it streams.
fn pipeline(step: &StepPlan, stages: &[Option<Code>]) -> Result<Pipeline<Value, Value>, usize> {
    let named = |parts: &[(String, StepPlan)]| -> Result<Vec<_>, usize> {
        parts.iter().map(|(name, part)| Ok((name.clone(), pipeline(part, stages)?))).collect()
    };
    let nothing = Pipeline::pass_through();
    Ok(match step {
        StepPlan::Stage(index) => match stages[*index].clone().expect("a stage that a route uses is made") {
            Code::Single(pipeline) => pipeline,
            Code::Stream(_) => return Err(*index),
        },
        StepPlan::Sequence(steps) => sequence(steps, stages)?,
        StepPlan::Ensemble { members, partial: false } => Pipeline::ensemble_named(named(members)?),
        StepPlan::Ensemble { members, partial: true } => Pipeline::ensemble_named_partial(named(members)?),
        StepPlan::Switch { field, cases, default } => {
            let default = default.as_deref().map(|default| pipeline(default, stages)).transpose()?;
            let default = default.map(|default| (DEFAULT_LABEL.to_owned(), default));
            let has_default = default.is_some();
            let (labels, branches): (Vec<_>, Vec<_>) = named(cases)?.into_iter().chain(default).unzip();
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
    })
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
