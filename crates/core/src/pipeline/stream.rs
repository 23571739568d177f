//! Pipelines with a streaming stage: the steps before it run once, the steps after it run for each output.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use callboard_codec::Data;

use super::{Graph, IntoPipeline, IntoStreamPipeline, Pipeline};
use crate::error::Failure;
use crate::stage::{StageSpec, StreamStage};

/// Connected stages, from one `In` to a stream of `Out`.
///
/// Made of a [`StreamStage`], or by [`Pipeline::then_stream`].
pub struct StreamPipeline<In, Out> {
    graph: Graph<Arc<StageSpec>>,
    /// The position of the streaming stage among the steps.
    streams_at: usize,
    types: PhantomData<fn(In) -> Out>,
}

impl<In: Data, Out: Data> Pipeline<In, Out> {
    /// Continues with a streaming stage that takes the output of this pipeline.
    #[must_use]
    pub fn then_stream<Next: Data>(self, next: impl IntoStreamPipeline<Out, Out = Next>) -> StreamPipeline<In, Next> {
        let next = next.into_stream_pipeline();
        let streams_at = self.graph.steps().len() + next.streams_at;
        StreamPipeline { graph: self.graph.then(next.graph), streams_at, types: PhantomData }
    }
}

impl<In: Data, Out: Data> StreamPipeline<In, Out> {
    /// Continues with a step for each output, in their order. An error in it ends the stream.
    #[must_use]
    pub fn then<Next: Data>(self, next: impl IntoPipeline<Out, Out = Next>) -> StreamPipeline<In, Next> {
        let graph = self.graph.then(next.into_pipeline().graph);
        StreamPipeline { graph, streams_at: self.streams_at, types: PhantomData }
    }

    /// Continues, for each output, with a function that is too small to be a stage; see [`Pipeline::map`].
    #[must_use]
    pub fn map<Next, F>(self, name: &str, function: F) -> StreamPipeline<In, Next>
    where
        Next: Data,
        F: Fn(&Out) -> Result<Next, Failure> + Send + Sync + 'static,
    {
        self.then(Pipeline::<Out, Out>::pass_through().map(name, function))
    }
}

impl<In, Out> StreamPipeline<In, Out> {
    /// One streaming step and nothing else.
    pub(super) fn from_step(step: Graph<Arc<StageSpec>>) -> Self {
        Self { graph: step, streams_at: 0, types: PhantomData }
    }

    pub(crate) fn graph(&self) -> &Graph<Arc<StageSpec>> {
        &self.graph
    }

    pub(crate) fn streams_at(&self) -> usize {
        self.streams_at
    }
}

impl<In: Data, Out: Data> From<StreamStage<In, Out>> for StreamPipeline<In, Out> {
    fn from(stage: StreamStage<In, Out>) -> Self {
        Self::from_step(Graph::Stage(Arc::clone(stage.spec())))
    }
}

impl<In, Out> Clone for StreamPipeline<In, Out> {
    fn clone(&self) -> Self {
        Self { graph: self.graph.clone(), streams_at: self.streams_at, types: PhantomData }
    }
}

impl<In, Out> fmt::Display for StreamPipeline<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.graph.plan(|spec| (spec.name(), spec.settings())).fmt(f)
    }
}

impl<In, Out> fmt::Debug for StreamPipeline<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamPipeline({self})")
    }
}
