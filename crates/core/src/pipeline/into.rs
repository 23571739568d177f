//! The types that can be parts of a pipeline or a route.

use callboard_codec::Data;

use super::{Pipeline, StreamPipeline};
use crate::stage::{Stage, StreamStage};

/// A part of a pipeline, or a route: a stage or a pipeline that takes `In`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stage or pipeline that takes `{In}`",
    label = "does not take `{In}`",
    note = "a step takes the type that the step before it gives, and all members of an ensemble take one type; convert \
            by `.map(\"name\", |given: &Given| Ok(wanted))` or by another stage",
    note = "a streaming stage or pipeline goes to `route_streaming` or `then_stream`"
)]
pub trait IntoPipeline<In> {
    /// The output for one item.
    type Out: Data;

    /// The pipeline.
    fn into_pipeline(self) -> Pipeline<In, Self::Out>;
}

impl<In: Data, Out: Data> IntoPipeline<In> for Pipeline<In, Out> {
    type Out = Out;

    fn into_pipeline(self) -> Self {
        self
    }
}

impl<In: Data, Out: Data> IntoPipeline<In> for Stage<In, Out> {
    type Out = Out;

    fn into_pipeline(self) -> Pipeline<In, Out> {
        self.into()
    }
}

/// The streaming part of a pipeline, or a streaming route: a streaming stage or pipeline that takes `In`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a streaming stage or pipeline that takes `{In}`",
    label = "does not take `{In}`, or does not stream",
    note = "a plain stage or pipeline goes to `route` or `then`; a plain route can be read as a stream of one output"
)]
pub trait IntoStreamPipeline<In> {
    /// The type of one output.
    type Out: Data;

    /// The pipeline.
    fn into_stream_pipeline(self) -> StreamPipeline<In, Self::Out>;
}

impl<In: Data, Out: Data> IntoStreamPipeline<In> for StreamPipeline<In, Out> {
    type Out = Out;

    fn into_stream_pipeline(self) -> Self {
        self
    }
}

impl<In: Data, Out: Data> IntoStreamPipeline<In> for StreamStage<In, Out> {
    type Out = Out;

    fn into_stream_pipeline(self) -> StreamPipeline<In, Out> {
        self.into()
    }
}
