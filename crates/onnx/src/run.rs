//! From items to outcomes: stack, run, split.
//!
//! Decides which items share a run: those of one shape or, if the model's items are padded, of one bucket, in the order
//! they came. When a run of several fails, each of
//! them runs again alone, so that an item that the model cannot compute (an index out of range, say) fails by itself; a
//! model may be asked twice because it leaves nothing behind.

use callboard_codec::{StrTensor, Tensor, TensorError, Value};
use callboard_core::Failure;

use crate::cast::{CastError, cast};
use crate::engine::EngineError;
use crate::model::Model;
use crate::signature::{BatchAxis, Padding, PaddingError, TensorSpec, shape_of};

/// The inputs of one item, as `read_item` gives them, or its outputs as the signature declares them.
pub(crate) type Values = Vec<Value>;

/// Why a run gave nothing that can be handed out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("the model failed: {0}")]
    Engine(#[from] EngineError),
    #[error("the model gave {actual} outputs, its signature has {declared}")]
    WrongCount { actual: usize, declared: usize },
    #[error("output `{name}` of shape {shape:?} has no batch axis of {items}: set `batched = false`")]
    NoBatchAxis { name: String, shape: Vec<usize>, items: usize },
    #[error("output `{name}`: {source}")]
    Cast { name: String, source: CastError },
    #[error("`{name}`: {source}")]
    Padding { name: String, source: PaddingError },
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl RunError {
    fn into_failure(self) -> Failure {
        Failure::new(self.to_string()).with_type("model_error")
    }
}

/// Runs the items that are there, one by one unless they may share a run; each gets its own outcome, in order. An item
/// that is no longer `wanted` when its turn comes is not run.
pub(crate) fn run_items(
    model: &Model,
    items: Vec<Result<Values, Failure>>,
    may_share: bool,
    wanted: impl Fn(usize) -> bool,
) -> Vec<Result<Values, Failure>> {
    let groups = group(model, &items, may_share);
    let mut outcomes = items;
    for members in groups {
        let (members, abandoned): (Vec<usize>, Vec<usize>) = members.into_iter().partition(|index| wanted(*index));
        run_group(model, &members, &mut outcomes);
        abandoned.iter().for_each(|index| outcomes[*index] = Err(Failure::new("the caller has gone")));
    }
    outcomes
}

/// The indices of valid items, grouped by what a run may hold if the model stacks.
fn group(model: &Model, items: &[Result<Values, Failure>], may_share: bool) -> Vec<Vec<usize>> {
    let stacks = may_share && model.signature().batch_axis() == BatchAxis::Stacked;
    let share_run = |a: &Values, b: &Values| match model.signature().padding() {
        Some(padding) => padding.share_run(a, b),
        None => same_shapes(a, b),
    };
    let mut groups: Vec<(&Values, Vec<usize>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Ok(item) = item else { continue };
        match groups.iter_mut().find(|(first, _)| stacks && share_run(first, item)) {
            Some((_, members)) => members.push(index),
            None => groups.push((item, vec![index])),
        }
    }
    groups.into_iter().map(|(_, members)| members).collect()
}

fn same_shapes(a: &[Value], b: &[Value]) -> bool {
    a.iter().map(shape_of).eq(b.iter().map(shape_of))
}

/// Replaces the members' inputs by their outcomes.
fn run_group(model: &Model, members: &[usize], outcomes: &mut [Result<Values, Failure>]) {
    if members.is_empty() {
        return;
    }
    let inputs: Vec<&Values> = members.iter().filter_map(|index| outcomes[*index].as_ref().ok()).collect();
    match run_once(model, &inputs) {
        Ok(outputs) => {
            for (index, outputs) in members.iter().zip(outputs) {
                outcomes[*index] = Ok(outputs);
            }
        }
        Err(error) => match members {
            [only] => outcomes[*only] = Err(error.into_failure()),
            several => several.iter().for_each(|index| run_group(model, &[*index], outcomes)),
        },
    }
}

/// One run: the outputs of each item.
pub(crate) fn run_once(model: &Model, items: &[&Values]) -> Result<Vec<Values>, RunError> {
    let input_count = model.signature().inputs().len();
    let padding = model.signature().padding().map(|padding| (padding, padding.run_length(items)));
    let joined = |input| match padding.and_then(|(padding, length)| join_padded(model, padding, items, input, length)) {
        Some(padded) => padded,
        None => Ok(join(model, items, input)?),
    };
    let stacked = (0..input_count).map(joined).collect::<Result<Vec<_>, _>>()?;
    let outputs = model.engine().run(&stacked)?;
    let declared = model.signature().outputs();
    if outputs.len() != declared.len() {
        return Err(RunError::WrongCount { actual: outputs.len(), declared: declared.len() });
    }
    let mut results = vec![Vec::with_capacity(declared.len()); items.len()];
    for (index, (spec, output)) in declared.iter().zip(outputs).enumerate() {
        let mut parts = part(model, spec, output, items.len())?;
        if let Some((padding, length)) = padding.filter(|(padding, _)| padding.crops(index)) {
            let crop = |(part, item): (Value, &&Values)| padding.crop(index, part, padding.length(item), length);
            let cropped = parts.into_iter().zip(items).map(crop).collect::<Result<_, _>>();
            parts = cropped.map_err(|source| RunError::Padding { name: spec.name().to_owned(), source })?;
        }
        results.iter_mut().zip(parts).for_each(|(result, part)| result.push(part));
    }
    Ok(results)
}

/// The input of all items, each padded to `length`; `None` if it is not padded.
fn join_padded(
    model: &Model,
    padding: &Padding,
    items: &[&Values],
    input: usize,
    length: usize,
) -> Option<Result<Value, RunError>> {
    let tensors: Vec<&Tensor> = items.iter().filter_map(|item| item[input].as_tensor()).collect();
    let name = || model.signature().inputs()[input].name().to_owned();
    let stacked = padding.stack(input, &tensors, length)?;
    Some(stacked.map(Value::Tensor).map_err(|source| RunError::Padding { name: name(), source }))
}

/// The input of all items: stacked into one buffer, which copies each once, or of a single item in place.
fn join(model: &Model, items: &[&Values], input: usize) -> Result<Value, TensorError> {
    let values = || items.iter().map(|item| &item[input]);
    match (model.signature().batch_axis(), &items[0][input]) {
        (BatchAxis::Absent, whole) => Ok(whole.clone()),
        (_, Value::Tensor(only)) if items.len() == 1 => {
            let shape: Vec<usize> = [1].iter().chain(only.shape()).copied().collect();
            only.reshape(&shape).map(Value::Tensor)
        }
        (_, Value::StrTensor(_)) => {
            let texts =
                values().filter_map(|value| if let Value::StrTensor(texts) = value { Some(texts) } else { None });
            StrTensor::stack(&texts.collect::<Vec<_>>()).map(Value::StrTensor)
        }
        _ => Tensor::stack(&values().filter_map(Value::as_tensor).collect::<Vec<_>>()).map(Value::Tensor),
    }
}

/// One part per item, of the declared dtype.
fn part(model: &Model, spec: &TensorSpec, output: Value, items: usize) -> Result<Values, RunError> {
    let name = || spec.name().to_owned();
    let output = match (output, spec.dtype()) {
        (Value::Tensor(tensor), Some(dtype)) => {
            let tensor = cast(&tensor, dtype).map_err(|source| RunError::Cast { name: name(), source })?;
            Value::Tensor(tensor)
        }
        (other, _) => other,
    };
    let rows = match &output {
        Value::List(parts) => Some(parts.len()),
        other => shape_of(other).and_then(|shape| shape.first().copied()),
    };
    match (model.signature().batch_axis(), output) {
        (BatchAxis::Absent, output) => Ok(vec![output]),
        (_, Value::Tensor(tensor)) if rows == Some(items) => {
            Ok(tensor.split()?.into_iter().map(Value::Tensor).collect())
        }
        (_, Value::StrTensor(texts)) if rows == Some(items) => {
            Ok(texts.split()?.into_iter().map(Value::StrTensor).collect())
        }
        (_, Value::List(parts)) if rows == Some(items) => Ok(parts),
        (_, other) => {
            let shape = shape_of(&other).map_or_else(|| rows.into_iter().collect(), <[usize]>::to_vec);
            Err(RunError::NoBatchAxis { name: name(), shape, items })
        }
    }
}
