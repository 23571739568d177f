//! Preprocessing: a function before a stage that makes its inputs, on other threads than its workers.
//!
//! It is a normal stage, with its own queue, replicas and metrics, and with fitting defaults: one thread per core, the
//! contract [`Pure`](crate::Contract::Pure), and a panic that fails its item only.

use callboard_codec::Data;

use super::{Pipeline, StreamPipeline};
use crate::call::CallContext;
use crate::error::Failure;
use crate::id::StageName;
use crate::stage::{Stage, StreamStage};

impl<In: Data, Out: Data> Stage<In, Out> {
    /// Runs `function` before this stage. It converts each `Raw` input to this stage's input, so the pipeline takes
    /// `Raw`, and batches consist of its results. For CPU work on single items, such as decoding an image, that would
    /// otherwise occupy the worker's thread.
    ///
    /// It runs one item at a time per thread, on one thread per core, while the workers run other batches. A failure or
    /// panic is the outcome of its item only. Items may overtake each other in it, except in a
    /// [session](crate::CallOptions::with_session_key). It must have no effect but its result: a call that was refused
    /// after it counts as one that [may be sent again](crate::CallError::is_retryable).
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, Batch, ErrorKind, Failure, Stage};
    ///
    /// let mean = Stage::batch("mean", |batch: Batch<Vec<f64>>| {
    ///     batch.iter().map(|row| Ok(row.iter().sum::<f64>() / row.len() as f64)).collect()
    /// });
    /// let mean = mean.max_batch_size(32).preprocess("parse", |text: &String, _call| {
    ///     let row = text.split(',').map(|number| Ok(number.trim().parse()?)).collect::<Result<Vec<f64>, Failure>>();
    ///     row.map_err(|failure| Failure::invalid_input(failure.message()))
    /// });
    /// assert_eq!(mean.to_string(), "parse → mean");
    ///
    /// let node = App::new().route("/mean", mean).start().await?;
    /// assert_eq!(node.client().call::<_, f64>("/mean", "1, 2, 6".to_owned()).await?, 3.0);
    /// let error = node.client().call::<_, f64>("/mean", "1, x".to_owned()).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidInput);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Its other settings are the defaults. For others, write the stage out, where a panic ends a
    /// replica as usual: `Pipeline::from(Stage::each("parse", parse).on_threads().replicas(2)).then(mean)`.
    #[must_use]
    pub fn preprocess<Raw, F>(self, name: impl Into<StageName>, function: F) -> Pipeline<Raw, Out>
    where
        Raw: Data,
        F: Fn(&Raw, &CallContext) -> Result<In, Failure> + Send + Sync + 'static,
    {
        Pipeline::from(preprocessing(name.into(), function)).then(self)
    }
}

impl<In: Data, Out: Data> StreamStage<In, Out> {
    /// Runs `function` before this stage; see [`Stage::preprocess`].
    #[must_use]
    pub fn preprocess<Raw, F>(self, name: impl Into<StageName>, function: F) -> StreamPipeline<Raw, Out>
    where
        Raw: Data,
        F: Fn(&Raw, &CallContext) -> Result<In, Failure> + Send + Sync + 'static,
    {
        Pipeline::from(preprocessing(name.into(), function)).then_stream(self)
    }
}

fn preprocessing<Raw, In, F>(name: StageName, function: F) -> Stage<Raw, In>
where
    Raw: Data,
    In: Data,
    F: Fn(&Raw, &CallContext) -> Result<In, Failure> + Send + Sync + 'static,
{
    // Panics are contained, because crashes of replicas count against their stage: an external input must not close a
    // route by a panic of a decoder.
    Stage::each_contained(name, function).pure()
}
