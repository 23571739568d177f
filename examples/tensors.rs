//! Tensors in batches: a model that computes many inputs as one array, called with one input at a time.
//!
//! Run with `cargo run --example tensors`. Stacking copies each input once; taking the result apart copies nothing.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard::Drained;
use callboard::prelude::*;
use futures_util::future::join_all;

/// The size of a batch.
const BATCH: usize = 4;

/// A model with two outputs for three features.
struct Linear {
    /// One row for each output.
    weights: [[f32; 3]; 2],
    /// The rows of the largest array that it has computed.
    most_rows: Arc<AtomicUsize>,
}

impl Linear {
    /// Turns `f32[n, 3]` into `f32[n, 2]`, like a model.
    fn compute(&self, inputs: &Tensor) -> Result<Tensor, Failure> {
        let [rows, 3] = *inputs.shape() else {
            return Err(Failure::invalid_input(format!("expected f32[3], found {:?}", &inputs.shape()[1..])));
        };
        self.most_rows.fetch_max(rows, Ordering::SeqCst);
        let dot = |row: &[f32], weights: &[f32; 3]| row.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
        let rows_of = inputs.as_slice::<f32>()?.chunks(3);
        let outputs = rows_of.flat_map(|row| self.weights.each_ref().map(|weights| dot(row, weights))).collect();
        Ok(Tensor::from_vec(&[rows, 2], outputs)?)
    }

    /// The outcomes of a batch, or one error for all of it.
    fn outcomes(&self, batch: &Batch<Tensor>) -> Result<Vec<Result<Tensor, Failure>>, Failure> {
        let inputs: Vec<&Tensor> = batch.iter().collect();
        // An input with another shape or dtype is refused alone, and the others are stacked.
        let joined = Tensor::stack_matching(&inputs)?;
        let outputs = self.compute(&joined.whole)?.split()?;
        let outcome = |item: Result<usize, _>| match item {
            Ok(index) => Ok(outputs[index].clone()),
            Err(mismatch) => Err(Failure::invalid_input(format!("{mismatch}"))),
        };
        Ok(joined.items.into_iter().map(outcome).collect())
    }
}

impl Worker for Linear {
    type In = Tensor;
    type Out = Tensor;

    fn call(&mut self, batch: Batch<Tensor>) -> Vec<Result<Tensor, Failure>> {
        self.outcomes(&batch).unwrap_or_else(|failure| vec![Err(failure); batch.len()])
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let most_rows = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&most_rows);
    let linear = Stage::worker("linear", move |_: &Replica| {
        Ok(Linear { weights: [[1.0, 1.0, 1.0], [0.0, 0.0, 2.0]], most_rows: Arc::clone(&counter) })
    });
    // The delay makes the example exact: a batch is released when it is full.
    let linear = linear.max_batch_size(BATCH).max_delay(Duration::from_secs(10));
    let node = App::new().route("/linear", linear).start().await?;
    let client = node.client();

    let inputs = [vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0], vec![7.0, 8.0], vec![0.0, 0.0, 1.0]];
    let inputs = inputs.map(|numbers: Vec<f32>| Tensor::from_vec(&[numbers.len()], numbers));
    let calls =
        inputs.into_iter().map(async |input| Ok::<_, Box<dyn std::error::Error>>(client.call("/linear", input?).await));
    let mut outcomes: Vec<Result<Tensor, CallError>> = join_all(calls).await.into_iter().collect::<Result<_, _>>()?;

    let error = outcomes.remove(2).expect_err("two numbers are not three");
    println!("the third: {error}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    for (outcome, expected) in outcomes.into_iter().zip([[6.0, 6.0], [15.0, 12.0], [1.0, 2.0]]) {
        let output = outcome?;
        println!("{:?} of shape {:?}", output.as_slice::<f32>()?, output.shape());
        assert_eq!(output.as_slice::<f32>()?, expected);
    }
    assert_eq!(most_rows.load(Ordering::SeqCst), BATCH - 1, "the others were computed as one array");
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    Ok(())
}
