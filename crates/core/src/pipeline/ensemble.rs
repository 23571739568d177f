//! Ensembles: several pipelines run on the same input, and their outcomes become one.

use std::fmt;
use std::sync::Arc;

use callboard_codec::{Data, Map, Payload, Value};
use serde::{Deserialize, Serialize};

use super::graph::Labels;
use super::{Graph, IntoPipeline, Pipeline};
use crate::error::{CallError, ErrorKind};
use crate::stage::StageSpec;

type JoinAll = Arc<dyn Fn(Vec<Payload>) -> Result<Payload, CallError> + Send + Sync>;
type JoinPartial = Arc<dyn Fn(Vec<Result<Payload, CallError>>) -> Result<Payload, CallError> + Send + Sync>;

/// How the members' outcomes become the outcome of the ensemble.
#[derive(Clone)]
pub(crate) enum Join {
    /// The first error is the outcome, and the members that still run are cancelled.
    FailFast(JoinAll),
    /// Errors are outputs in the members' places; only "all failed" is an error.
    Partial(JoinPartial),
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FailFast(_) => "FailFast",
            Self::Partial(_) => "Partial",
        })
    }
}

/// Why one member of a partial ensemble has no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct MemberError {
    /// The class of the error, as [`ErrorKind::as_str`].
    pub kind: String,
    /// The message of the error.
    pub message: String,
}

/// The members of an ensemble: a tuple of two to six pipelines or stages with the same input type.
///
/// Implemented for tuples only; use [`Pipeline::ensemble_of`] for a list.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the members of an ensemble",
    label = "not a tuple of two to six stages or pipelines",
    note = "members are a tuple of two to six stages or pipelines with the same input: one alone is used as it is, and \
            `Pipeline::ensemble_of` takes a list of any length"
)]
pub trait Members<In>: sealed::Sealed<In> {
    /// The tuple of their outputs.
    type Outputs: Data;
}

mod sealed {
    use super::{Graph, JoinAll, StageSpec};
    use std::sync::Arc;

    #[expect(unnameable_types, reason = "sealed: implemented here and nowhere else")]
    pub trait Sealed<In> {
        #[expect(private_interfaces, reason = "sealed: callers cannot name or call it")]
        fn into_parts(self) -> (Vec<Graph<Arc<StageSpec>>>, JoinAll);
    }
}

macro_rules! tuple_members {
    ($($member:ident . $index:tt),+) => {
        impl<In: Data, $($member: IntoPipeline<In, Out: Clone>),+> Members<In> for ($($member,)+) {
            type Outputs = ($($member::Out,)+);
        }

        impl<In: Data, $($member: IntoPipeline<In, Out: Clone>),+> sealed::Sealed<In> for ($($member,)+) {
            #[expect(private_interfaces, reason = "sealed: callers cannot name or call it")]
            fn into_parts(self) -> (Vec<Graph<Arc<StageSpec>>>, JoinAll) {
                let join: JoinAll = Arc::new(|payloads| {
                    let mut payloads = payloads.into_iter();
                    Ok(Payload::new(($(take::<$member::Out>(payloads.next())?,)+)))
                });
                (vec![$(self.$index.into_pipeline().graph,)+], join)
            }
        }
    };
}

tuple_members!(A.0, B.1);
tuple_members!(A.0, B.1, C.2);
tuple_members!(A.0, B.1, C.2, D.3);
tuple_members!(A.0, B.1, C.2, D.3, E.4);
tuple_members!(A.0, B.1, C.2, D.3, E.4, F.5);

fn take<T: Data + Clone>(payload: Option<Payload>) -> Result<T, CallError> {
    let payload = payload.ok_or_else(|| CallError::new(ErrorKind::Internal, "an ensemble lost a member's result"))?;
    Ok(payload.into_inner::<T>()?)
}

impl<In: Data> Pipeline<In, In> {
    /// Runs all members concurrently on the same input: it takes the time of the slowest, not the sum. The output is
    /// the tuple of their outputs. The first error is the outcome, and the members that still run are cancelled.
    ///
    /// ```
    /// use callboard_core::{Pipeline, Stage};
    ///
    /// let length = Stage::each("length", |text: &String| Ok(text.len()));
    /// let upper = Stage::each("upper", |text: &String| Ok(text.to_uppercase()));
    /// let both: Pipeline<String, (usize, String)> = Pipeline::ensemble((length, upper));
    /// assert_eq!(both.to_string(), "(length | upper)");
    /// ```
    #[must_use]
    pub fn ensemble<M: Members<In>>(members: M) -> Pipeline<In, M::Outputs> {
        let (members, join) = members.into_parts();
        Pipeline::from_graph(Graph::of_members(members, Join::FailFast(join), Labels::default()))
    }

    /// An ensemble of any number of members with the same output. Without members, its output is an empty list.
    #[must_use]
    pub fn ensemble_of<P: IntoPipeline<In, Out: Clone>>(
        members: impl IntoIterator<Item = P>,
    ) -> Pipeline<In, Vec<P::Out>> {
        let join: JoinAll = Arc::new(|payloads| {
            let outputs = payloads.into_iter().map(|payload| take::<P::Out>(Some(payload)));
            Ok(Payload::new(outputs.collect::<Result<Vec<_>, _>>()?))
        });
        let members = members.into_iter().map(|member| member.into_pipeline().graph).collect();
        Pipeline::from_graph(Graph::of_members(members, Join::FailFast(join), Labels::default()))
    }

    /// An ensemble in which a failed member's error takes the place of its output. Only if all members fail is the
    /// outcome an error, with their count and the first cause.
    #[must_use]
    pub fn ensemble_partial<P: IntoPipeline<In, Out: Clone>>(
        members: impl IntoIterator<Item = P>,
    ) -> Pipeline<In, Vec<Result<P::Out, MemberError>>> {
        let join: JoinPartial = Arc::new(join_partial::<P::Out>);
        let members = members.into_iter().map(|member| member.into_pipeline().graph).collect();
        Pipeline::from_graph(Graph::of_members(members, Join::Partial(join), Labels::default()))
    }
}

impl<In: Data> Pipeline<In, In> {
    /// An ensemble whose output is a map from each member's name to its output, in member order. The first error is the
    /// outcome, as in [`ensemble`](Self::ensemble).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_codec::Value;
    /// use callboard_core::{App, Pipeline, Stage};
    ///
    /// let length = Stage::each("length", |text: &String| Ok(Value::from(text.len() as u64)));
    /// let upper = Stage::each("upper", |text: &String| Ok(Value::from(text.to_uppercase())));
    /// let both: Pipeline<String, Value> = Pipeline::ensemble_named([("length", length), ("upper", upper)]);
    /// assert_eq!(both.to_string(), "(length: length | upper: upper)");
    ///
    /// let node = App::new().route("/both", both).start().await?;
    /// let answer: Value = node.client().call("/both", "ada".to_owned()).await?;
    /// assert_eq!(answer.get("upper").and_then(Value::as_str), Some("ADA"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ensemble_named<P: IntoPipeline<In, Out = Value>>(
        members: impl IntoIterator<Item = (impl Into<String>, P)>,
    ) -> Pipeline<In, Value> {
        let (labels, members) = named(members);
        let names = Arc::clone(&labels);
        let join: JoinAll = Arc::new(move |payloads| {
            let outputs = payloads.into_iter().map(|payload| take::<Value>(Some(payload)));
            let entries = names.iter().cloned().zip(outputs).map(|(name, output)| Ok((name, output?)));
            Ok(Payload::new(Value::Map(entries.collect::<Result<Map, CallError>>()?)))
        });
        Pipeline::from_graph(Graph::of_members(members, Join::FailFast(join), labels))
    }

    /// As [`ensemble_named`](Self::ensemble_named), but a failed member's error takes the place of its output: a map
    /// whose only entry `error` is its [`MemberError`]. Only if all members fail is the outcome an error, as in
    /// [`ensemble_partial`](Self::ensemble_partial).
    #[must_use]
    pub fn ensemble_named_partial<P: IntoPipeline<In, Out = Value>>(
        members: impl IntoIterator<Item = (impl Into<String>, P)>,
    ) -> Pipeline<In, Value> {
        let (labels, members) = named(members);
        let names = Arc::clone(&labels);
        let join: JoinPartial = Arc::new(move |outcomes| {
            let outputs = partial::<Value>(outcomes)?.into_iter();
            let outputs = outputs.map(|output| output.unwrap_or_else(|error| error.in_place()));
            Ok(Payload::new(Value::Map(names.iter().cloned().zip(outputs).collect())))
        });
        Pipeline::from_graph(Graph::of_members(members, Join::Partial(join), labels))
    }
}

impl MemberError {
    fn in_place(self) -> Value {
        let error = Map::from_iter([("kind", Value::from(self.kind)), ("message", Value::from(self.message))]);
        Value::Map(Map::from_iter([("error", Value::Map(error))]))
    }
}

type MemberGraphs = Vec<Graph<Arc<StageSpec>>>;

fn named<In, P: IntoPipeline<In>>(members: impl IntoIterator<Item = (impl Into<String>, P)>) -> (Labels, MemberGraphs) {
    let (names, graphs): (Vec<String>, MemberGraphs) =
        members.into_iter().map(|(name, member)| (name.into(), member.into_pipeline().graph)).unzip();
    (names.into(), graphs)
}

fn join_partial<Out: Data + Clone>(outcomes: Vec<Result<Payload, CallError>>) -> Result<Payload, CallError> {
    partial::<Out>(outcomes).map(Payload::new)
}

/// The output of a partial ensemble, or an error if all members failed.
fn partial<Out: Data + Clone>(
    outcomes: Vec<Result<Payload, CallError>>,
) -> Result<Vec<Result<Out, MemberError>>, CallError> {
    let members = outcomes.len();
    let mut first_error = None;
    let mut failed = 0;
    let outputs: Vec<Result<Out, MemberError>> = outcomes
        .into_iter()
        .map(|outcome| outcome.and_then(|payload| take::<Out>(Some(payload))))
        .map(|outcome| {
            outcome.map_err(|error| {
                failed += 1;
                let member_error =
                    MemberError { kind: error.kind().as_str().to_owned(), message: error.message().to_owned() };
                first_error.get_or_insert(error);
                member_error
            })
        })
        .collect();
    match first_error {
        Some(first) if failed == members => {
            let message = format!("all {members} members of the ensemble failed, the first: {}", first.message());
            Err(first.with_message(message))
        }
        _ => Ok(outputs),
    }
}

/// The error of a fail-fast ensemble: the count of failed members when it gave up, and the first cause.
pub(crate) fn first_failed(members: usize, error: CallError) -> CallError {
    let message = format!("1 of {members} members of the ensemble failed: {}", error.message());
    error.with_message(message)
}
