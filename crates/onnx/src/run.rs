//! From items to outcomes: stack, run, split.
//!
//! Decides which items share a run: those of one shape, in the order they came. When a run of several fails, each of
//! them runs again alone, so that an item that the model cannot compute (an index out of range, say) fails by itself; a
//! model may be asked twice because it leaves nothing behind.

use callboard_codec::{Tensor, TensorError};
use callboard_core::Failure;

use crate::cast::{CastError, cast};
use crate::engine::EngineError;
use crate::model::Model;
use crate::signature::{BatchAxis, TensorSpec};

/// The inputs of one item, as `read_item` gives them, or its outputs as the signature declares them.
pub(crate) type Tensors = Vec<Tensor>;

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
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl RunError {
    fn into_failure(self) -> Failure {
        Failure::new(self.to_string()).with_type("model_error")
    }
}

/// Runs the items that are there; each gets its own outcome, in order. An item that is no longer `wanted` when its turn
/// comes is not run.
pub(crate) fn run_items(
    model: &Model,
    items: Vec<Result<Tensors, Failure>>,
    wanted: impl Fn(usize) -> bool,
) -> Vec<Result<Tensors, Failure>> {
    let groups = group(model, &items);
    let mut outcomes = items;
    for members in groups {
        let (members, abandoned): (Vec<usize>, Vec<usize>) = members.into_iter().partition(|index| wanted(*index));
        run_group(model, &members, &mut outcomes);
        abandoned.iter().for_each(|index| outcomes[*index] = Err(Failure::new("the caller has gone")));
    }
    outcomes
}

/// The indices of valid items, grouped by equal shapes if the model stacks.
fn group(model: &Model, items: &[Result<Tensors, Failure>]) -> Vec<Vec<usize>> {
    let stacks = model.signature().batch_axis() == BatchAxis::Stacked;
    let mut groups: Vec<(&Tensors, Vec<usize>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Ok(item) = item else { continue };
        match groups.iter_mut().find(|(first, _)| stacks && same_shapes(first, item)) {
            Some((_, members)) => members.push(index),
            None => groups.push((item, vec![index])),
        }
    }
    groups.into_iter().map(|(_, members)| members).collect()
}

fn same_shapes(a: &[Tensor], b: &[Tensor]) -> bool {
    a.iter().map(Tensor::shape).eq(b.iter().map(Tensor::shape))
}

/// Replaces the members' inputs by their outcomes.
fn run_group(model: &Model, members: &[usize], outcomes: &mut [Result<Tensors, Failure>]) {
    if members.is_empty() {
        return;
    }
    let inputs: Vec<&Tensors> = members.iter().filter_map(|index| outcomes[*index].as_ref().ok()).collect();
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
fn run_once(model: &Model, items: &[&Tensors]) -> Result<Vec<Tensors>, RunError> {
    let input_count = model.signature().inputs().len();
    let stacked = (0..input_count).map(|input| join(model, items, input)).collect::<Result<Vec<_>, _>>()?;
    let outputs = model.engine().run(&stacked)?;
    let declared = model.signature().outputs();
    if outputs.len() != declared.len() {
        return Err(RunError::WrongCount { actual: outputs.len(), declared: declared.len() });
    }
    let mut results = vec![Vec::with_capacity(declared.len()); items.len()];
    for (spec, output) in declared.iter().zip(&outputs) {
        let parts = part(model, spec, output, items.len())?;
        results.iter_mut().zip(parts).for_each(|(result, part)| result.push(part));
    }
    Ok(results)
}

fn join(model: &Model, items: &[&Tensors], input: usize) -> Result<Tensor, TensorError> {
    match model.signature().batch_axis() {
        BatchAxis::Stacked | BatchAxis::One => {
            let tensors: Vec<&Tensor> = items.iter().map(|item| &item[input]).collect();
            Tensor::stack(&tensors)
        }
        BatchAxis::Absent => Ok(items[0][input].clone()),
    }
}

/// One part per item, of the declared dtype.
fn part(model: &Model, spec: &TensorSpec, output: &Tensor, items: usize) -> Result<Tensors, RunError> {
    let name = || spec.name().to_owned();
    let output = cast(output, spec.dtype()).map_err(|source| RunError::Cast { name: name(), source })?;
    match (model.signature().batch_axis(), output.shape().first()) {
        (BatchAxis::Absent, _) => Ok(vec![output]),
        (_, Some(rows)) if *rows == items => Ok(output.split()?),
        _ => Err(RunError::NoBatchAxis { name: name(), shape: output.shape().to_vec(), items }),
    }
}
