//! Whether items may share a run: whether the answer to one depends on the others.
//!
//! A model with a free first axis is batched by default, so it has to be shown that this changes no
//! answer. [`graph`] reads the operators, and [`trial`] runs one item alone and beside others as the model is loaded.
//! If either finds a dependence, the default is to run items one by one, with a warning.

mod graph;
mod nodes;
mod trial;

use crate::signature::{Axis, BatchAxis, Signature};

pub(crate) use self::trial::try_beside_others;

/// The part of the file that makes the answer to an item depend on the others, if there is one.
pub(crate) fn read(file: &[u8], signature: &Signature) -> Option<String> {
    if signature.batch_axis() != BatchAxis::Stacked {
        return None;
    }
    repeated_axis(signature).or_else(|| graph::find(file, signature))
}

/// An item with an axis of the batch's name is as long as there are others.
fn repeated_axis(signature: &Signature) -> Option<String> {
    let batch = signature.inputs().iter().find_map(|spec| spec.shape()?.first()?.name())?;
    let specs = signature.inputs().iter().chain(signature.outputs());
    let has_batch = |axes: &&[Axis]| axes.iter().any(|axis| axis.name() == Some(batch));
    let repeated = specs.into_iter().find(|spec| signature.item_axes(spec).as_ref().is_some_and(has_batch))?;
    Some(format!("each item of `{}` has an axis `{batch}`, whose length is the number of items", repeated.name()))
}

#[cfg(test)]
mod tests;
