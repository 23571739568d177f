//! The stage: a worker per replica around the shared model.
//!
//! * **Batches:** the stage's `max_batch_size` items at most; a model without a batch axis runs them one after the
//!   other.
//! * **Late or cancelled:** items whose caller left are not part of a run that begins later.
//! * **Warm-up:** one batch of zeros of size 1 and one of the largest size, so that the first caller does not wait for
//!   threads and buffers, and a model that cannot run is an error at start. Each may take as long as the stage's
//!   timeout says.

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::{DType, StrTensor, Tensor, Value};
use callboard_core::{Batch, Failure, Replica, Rows as _, Stage, Worker};

use crate::bounded::within;
use crate::cast::cast;
use crate::item::{Refusal, read_item, write_item};
use crate::model::{Items, Model};
use crate::run::{Values, run_items};
use crate::signature::{Axis, BatchAxis, Kind, Signature};

/// The most bytes of zeros per input of a warm-up. A larger batch is not warmed up.
const MAX_WARMUP_BYTES: usize = 256 * 1024 * 1024;

/// A stage that runs `model`. Its workers are threads; see [`Stage`] for batching, replicas and queue.
///
/// A model with a batch axis runs up to [`DEFAULT_MAX_BATCH_SIZE`](crate::Signature::DEFAULT_MAX_BATCH_SIZE) waiting
/// items together unless the stage has another limit; a lone caller never waits, so it pays nothing for them. A model
/// that [mixes items](Model::mixes_items), or [may do so](Model::may_mix_items), runs them one by one. If items may
/// differ in length, each costs its length, or its bucket if items are [padded](crate::PadConfig).
///
/// One item is one sample: see the [crate's page](crate) for the forms it may have. A wrong one fails alone, as
/// `InvalidInput` of status 422 that names every input that is wrong, with its path, also under `fields` of its
/// details.
#[must_use]
pub fn stage(name: &str, model: &Model) -> Stage<Value, Value> {
    let signature = model.signature();
    let (max_batch_size, varies) = (model.default_max_batch_size(), signature.items_vary());
    warn_of_uncropped(name, signature);
    let (declared, bytes, sized) = (model.clone(), model.bytes(), model.signature().clone());
    let stage = Stage::worker(name, move |replica: &Replica| {
        let model = declared.open().map_err(|error| Failure::new(with_causes(&error)))?;
        if let Some(note) = note_of(&model) {
            replica.leave_note(&note);
        }
        // A finding of the load came after the largest batch was set: the default is not obeyed then.
        let was_known = *declared.items() != Items::Apart || *model.items() == Items::Apart;
        let may_share = was_known || replica.max_batch_size() != declared.default_max_batch_size();
        if replica.index() == 0 && replica.generation() == 0 {
            warn_of_batches(&model, replica, may_share);
        }
        let (max_batch_size, timeout) = (replica.max_batch_size(), replica.timeout());
        Ok(OnnxWorker { model, max_batch_size, may_share, timeout })
    });
    let stage = stage.max_batch_size(max_batch_size).memory(bytes);
    let stage = match note_of(model) {
        Some(note) => stage.note(&note),
        None => stage,
    };
    match sized.padding() {
        Some(_) => stage.cost(move |item| sized.padding().map_or(1, |padding| padding.cost(&sized, item))),
        None if varies => stage.cost(rows),
        None => stage,
    }
}

const UNKNOWN: &str = "it is not known whether a batch would change answers";
const UNLESS_SET: &str = "items run one by one unless max_batch_size is set";

/// What operators should know of its batches.
fn note_of(model: &Model) -> Option<String> {
    match model.items() {
        Items::Apart => None,
        Items::Mixed(reason) => Some(reason.clone()),
        Items::Unknown(reason) => Some(format!("{UNKNOWN}: {reason}; {UNLESS_SET}")),
    }
}

/// Says once what becomes of batches of a model that mixes items, or may do so.
fn warn_of_batches(model: &Model, replica: &Replica, may_share: bool) {
    let (stage, max_batch_size) = (replica.stage(), replica.max_batch_size());
    let shares = may_share && max_batch_size > 1;
    match model.items() {
        Items::Apart => {}
        Items::Mixed(reason) if shares => {
            let hint = "callers get other answers under load";
            tracing::warn!(%stage, max_batch_size, "items share a run, as max_batch_size says, and {hint}: {reason}");
        }
        Items::Mixed(reason) => {
            let hint = "set max_batch_size to batch them all the same";
            tracing::warn!(%stage, "items run one by one, because a batch would change their answers: {reason}; {hint}");
        }
        // Its operator knows.
        Items::Unknown(reason) if shares => tracing::info!(%stage, max_batch_size, "{UNKNOWN}: {reason}"),
        Items::Unknown(reason) => tracing::warn!(%stage, "{UNKNOWN}: {reason}; {UNLESS_SET}"),
    }
}

/// An output of any length that is not cropped may be as long as the padding of other items.
fn warn_of_uncropped(stage: &str, signature: &Signature) {
    let Some(padding) = signature.padding() else { return };
    let is_open = |axes: &[Axis]| axes.iter().any(|axis| !matches!(axis, Axis::Fixed(_)));
    let outputs = signature.outputs().iter().enumerate().filter(|(index, _)| !padding.crops(*index));
    for (_, output) in outputs.filter(|(_, spec)| signature.item_axes(spec).is_none_or(is_open)) {
        let (axis, output) = (padding.axis(), output.name());
        tracing::warn!(stage, output, "no axis of this output is declared as `{axis}`: it is not cropped");
    }
}

/// An error and its causes on one line.
fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

/// The cost of an item: the length of its first axis, the only part that varies.
fn rows(item: &Value) -> u64 {
    item.rows().unwrap_or(1) as u64
}

struct OnnxWorker {
    model: Model,
    max_batch_size: usize,
    may_share: bool,
    timeout: Option<Duration>,
}

impl Worker for OnnxWorker {
    type In = Value;
    type Out = Value;

    fn call(&mut self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        let read = |item| read_item(&self.model, item).map_err(Refusal::into_failure);
        let items = batch.iter().map(read).collect();
        let outcomes = run_items(&self.model, items, self.may_share, |index| !batch.context(index).is_cancelled());
        let write = |outcome: Result<Values, Failure>| Ok(write_item(self.model.signature(), outcome?));
        outcomes.into_iter().map(write).collect()
    }

    fn warmup(&mut self) -> Result<(), Failure> {
        let largest = match self.model.signature().batch_axis() {
            BatchAxis::Stacked if self.may_share => self.max_batch_size,
            _ => 1,
        };
        let run = |items| {
            let start = Instant::now();
            let ran = within(self.timeout, self.model.clone(), move |model| warm_up(&model, items));
            tracing::debug!(items, took = ?start.elapsed(), "a run of the warm-up");
            ran.unwrap_or_else(|error| Err(Failure::new(error.to_string())))
        };
        run(1)?;
        if largest > 1 { run(largest) } else { Ok(()) }
    }
}

/// Runs `items` items of zeros. Axes of any length are taken as 1, which a model may refuse (an image of one pixel),
/// and of several inputs one may be a parameter that zero is no value of (a step, a scale); such a refusal is only
/// logged, because real items may pass.
fn warm_up(model: &Model, items: usize) -> Result<(), Failure> {
    let Some((zeros, guessed)) = zeros(model, items) else {
        return Ok(());
    };
    let outcomes = run_items(model, vec![Ok(zeros); items], true, |_| true);
    match outcomes.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(failure) if guessed => {
            tracing::debug!(%failure, items, "warm-up with guessed lengths or values did not run");
            Ok(())
        }
        Some(failure) => Err(Failure::new(format!("warm-up with {items} items of zeros: {failure}"))),
    }
}

/// One item of zeros, and whether a length or value had to be guessed. `None` when no item can be made up.
fn zeros(model: &Model, items: usize) -> Option<(Values, bool)> {
    let mut guessed = model.inputs().len() > 1;
    let mut inputs = Vec::new();
    for (spec, dtype) in model.inputs() {
        let axes = model.signature().item_axes(spec)?;
        guessed |= axes.iter().any(|axis| !matches!(axis, Axis::Fixed(_)));
        let shape: Vec<usize> = axes.iter().map(length).collect();
        // A warm-up costs what its padded items cost.
        let items = model.signature().padding().map_or(items, |padding| items * padding.bucket(1).unwrap_or(1));
        inputs.push(match (spec.kind(), dtype) {
            (Kind::Numbers(declared), Some(dtype)) => {
                Value::Tensor(cast(&zero_tensor(*declared, &shape, items)?, dtype).ok()?)
            }
            (Kind::Texts, _) => {
                // Not every text is one of the model's.
                guessed = true;
                Value::StrTensor(empty_texts(&shape, items)?)
            }
            _ => return None,
        });
    }
    Some((inputs, guessed))
}

fn length(axis: &Axis) -> usize {
    match axis {
        Axis::Fixed(length) => *length,
        Axis::Named(_) | Axis::Any => 1,
    }
}

fn zero_tensor(dtype: DType, shape: &[usize], items: usize) -> Option<Tensor> {
    let bytes = shape.iter().try_fold(dtype.size_bytes(), |size, axis| size.checked_mul(*axis))?;
    bytes.checked_mul(items).filter(|all| *all <= MAX_WARMUP_BYTES)?;
    Tensor::try_new(dtype, shape, Bytes::from(vec![0; bytes])).ok()
}

fn empty_texts(shape: &[usize], items: usize) -> Option<StrTensor> {
    let texts = shape.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis))?;
    // A text is 32 bytes in the engine.
    texts.checked_mul(items)?.checked_mul(32).filter(|all| *all <= MAX_WARMUP_BYTES)?;
    StrTensor::from_texts(shape, std::iter::repeat_n("", texts)).ok()
}
