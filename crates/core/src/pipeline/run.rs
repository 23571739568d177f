//! The path of a request through its pipeline. The caller's own future drives it: each stage answers it directly.
//!
//! Stages in a row, the usual case, run without a box around their futures; nested parts get one each.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use callboard_codec::Payload;
use futures_util::future::{join_all, try_join_all};

use super::Graph;
use super::ensemble::{Join, first_failed};
use super::graph::{ChooseFn, MapFn};
use super::remote::run_stages;
use crate::call::{Flight, Reply};
use crate::clock::{self, Instant};
use crate::containment::{CaughtPanic, contain};
use crate::error::{CallError, ErrorKind, Failure};
use crate::id::StageName;
use crate::pool::Pool;
use crate::timeline::{Micros, Phase, Timing};

/// What a step does with the steps inside of it.
#[derive(Clone)]
pub(crate) enum Combinator {
    /// Runs all concurrently on the same input, and joins their outputs in order.
    Ensemble(Join),
    /// Runs one, chosen by the item's content.
    Switch { name: Arc<str>, choose: ChooseFn },
}

impl Combinator {
    /// Whether it reads the item itself.
    pub(super) fn reads(&self) -> bool {
        match self {
            Self::Ensemble(_) => false,
            Self::Switch { .. } => true,
        }
    }
}

impl fmt::Debug for Combinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ensemble(join) => f.debug_tuple("Ensemble").field(join).finish(),
            Self::Switch { name, choose: _ } => f.debug_tuple("Switch").field(name).finish(),
        }
    }
}

type StepFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply, CallError>> + Send + 'a>>;

impl Graph<Arc<Pool>> {
    /// Runs one payload through all steps. The first error ends it; later steps do not run.
    ///
    /// # Cancellation
    ///
    /// Dropping the future abandons the stages that the payload is in.
    pub(crate) fn run<'a>(
        &'a self,
        payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        Self::run_steps(self.steps(), payload, flight, now)
    }

    /// Runs one payload through these steps; see [`run`](Self::run).
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps what it is given twice, in every waiting call")]
    pub(crate) fn run_steps<'a>(
        steps: &'a [Self],
        mut payload: Payload,
        flight: &'a Arc<Flight>,
        now: Instant,
    ) -> impl Future<Output = Result<Reply, CallError>> + Send + 'a {
        // The payload is handed over before each wait, for the same reason.
        async move {
            let mut total = Micros::default();
            // A later step refuses after user code ran: for the caller this is no refusal before the start.
            let mut started = false;
            // Counted by hand: an iterator would take three times the space in every waiting call.
            let mut position = 0;
            while let Some(step) = steps.get(position) {
                let now = if position == 0 { now } else { clock::now() };
                let timing;
                (payload, timing) = match step {
                    Self::Stage(pool) if pool.cluster_for(flight).is_none() => {
                        let outcome = pool.submit(payload, flight, now).await;
                        let reply = outcome
                            .map_err(|error| error.after_runs(started, may_repeat(&steps[..position], flight)))?;
                        started = true;
                        reply.into_parts()
                    }
                    Self::Map { name, function } => {
                        check_time(flight, now, name)?;
                        (apply(name, function, payload, flight)?, Timing::default())
                    }
                    step => {
                        let outcome = match step.stage_step() {
                            Some(first) => Box::pin(run_stages(first, &steps[position..], payload, flight, now)).await,
                            None => step.run_nested(payload, flight, now).await.map(|reply| (reply, 1)),
                        };
                        let (reply, ran) = outcome
                            .map_err(|error| error.after_runs(started, may_repeat(&steps[..position], flight)))?;
                        started = true;
                        position += ran.saturating_sub(1);
                        reply.into_parts()
                    }
                };
                total.add(timing);
                position += 1;
            }
            Ok(Reply { payload, timing: total.into() })
        }
    }

    /// The composite steps, behind a pointer because they contain pipelines themselves.
    fn run_nested<'a>(&'a self, payload: Payload, flight: &'a Arc<Flight>, now: Instant) -> StepFuture<'a> {
        Box::pin(async move {
            match self {
                Self::Nested { combinator: Combinator::Ensemble(join), parts, .. } => {
                    run_ensemble(parts, join, payload, flight, now).await
                }
                Self::Nested { combinator: Combinator::Switch { name, choose }, parts, .. } => {
                    check_time(flight, now, name)?;
                    choose_branch((name, choose), parts, &payload, flight)?.run(payload, flight, now).await
                }
                Self::Ask { name, ask, .. } => {
                    check_time(flight, now, name)?;
                    flight.enter(Phase::Compute, now);
                    let answer = ask(payload, Arc::clone(flight)).await?;
                    // The actor's waiting and work cannot be told apart here: both count as work.
                    let then = clock::now();
                    flight.enter(Phase::Outside, then);
                    let compute = then.saturating_duration_since(now);
                    Ok(Reply { payload: answer, timing: Timing { compute, ..Timing::default() } })
                }
                Self::Stage(_) | Self::Remote(_) | Self::Sequence(_) | Self::Map { .. } => {
                    self.run(payload, flight, now).await
                }
            }
        })
    }
}

async fn run_ensemble(
    members: &[Graph<Arc<Pool>>],
    join: &Join,
    payload: Payload,
    flight: &Arc<Flight>,
    now: Instant,
) -> Result<Reply, CallError> {
    match join {
        Join::FailFast(join) => {
            // A separate flight: abandoned members must not make the whole call look abandoned.
            let branch = Arc::new(Flight::branch_of(flight));
            let running = members.iter().map(|member| member.run_member(payload.clone(), &branch, now));
            let replies = try_join_all(running).await.map_err(|error| {
                // When one member refuses, another may be at work.
                first_failed(members.len(), error).after_runs(members.len() > 1, may_repeat(members, flight))
            })?;
            let timing = slowest(replies.iter().map(|reply| reply.timing));
            let payloads: Vec<_> = replies.into_iter().map(|reply| reply.payload).collect();
            let encoded = payloads.iter().map(Payload::encoded_bytes).sum();
            let payload = guarded_join(|| flight.reading(encoded, || join(payloads)))?;
            Ok(Reply { payload, timing })
        }
        Join::Partial(join) => {
            let running = members.iter().map(|member| member.run_member(payload.clone(), flight, now));
            let outcomes = join_all(running).await;
            let timing = slowest(outcomes.iter().flatten().map(|reply| reply.timing));
            let refused_by_all = outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(CallError::is_refusal));
            let payloads: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map(|reply| reply.payload)).collect();
            let encoded = payloads.iter().flatten().map(Payload::encoded_bytes).sum();
            let payload = guarded_join(|| flight.reading(encoded, || join(payloads)))
                .map_err(|error| error.after_runs(!refused_by_all, may_repeat(members, flight)))?;
            Ok(Reply { payload, timing })
        }
    }
}

impl Graph<Arc<Pool>> {
    fn run_member<'a>(&'a self, payload: Payload, flight: &'a Arc<Flight>, now: Instant) -> StepFuture<'a> {
        Box::pin(self.run(payload, flight, now))
    }
}

/// Whether these steps, which a call has passed, may run once more for it, by the contracts of the nodes that ran them.
pub(crate) fn may_repeat(steps: &[Graph<Arc<Pool>>], flight: &Flight) -> bool {
    all_may_run_again(steps, &|_| true) && !flight.ran_once()
}

/// Whether all these steps may run once more for the same call, given the remote stages that may.
pub(crate) fn all_may_run_again(steps: &[Graph<Arc<Pool>>], remote: &dyn Fn(&StageName) -> bool) -> bool {
    steps.iter().all(|step| match step {
        Graph::Stage(pool) => pool.spec.contract().may_run_again(),
        Graph::Map { .. } => true,
        Graph::Sequence(parts) | Graph::Nested { parts, .. } => all_may_run_again(parts, remote),
        Graph::Remote(stage) => remote(&stage.name),
        Graph::Ask { .. } => false,
    })
}

/// Members run concurrently, so the ensemble took as long as its slowest member.
fn slowest(timings: impl Iterator<Item = Timing>) -> Timing {
    timings.max_by_key(Timing::total).unwrap_or_default()
}

fn choose_branch<'a>(
    (name, choose): (&str, &ChooseFn),
    branches: &'a [Graph<Arc<Pool>>],
    payload: &Payload,
    flight: &Flight,
) -> Result<&'a Graph<Arc<Pool>>, CallError> {
    let chosen = guarded(name, || flight.reading(payload.encoded_bytes(), || choose(payload)))?;
    branches.get(chosen).ok_or_else(|| {
        let message = format!("switch `{name}` chose branch {chosen} of {}", branches.len());
        CallError::new(ErrorKind::Failed, message).at_stage(&name.into())
    })
}

fn apply(name: &str, function: &MapFn, payload: Payload, flight: &Flight) -> Result<Payload, CallError> {
    guarded(name, || flight.reading(payload.encoded_bytes(), || function(payload)))
}

/// A call that is late or abandoned starts no user code, not even a small function in its own future.
pub(super) fn check_time(flight: &Flight, now: Instant, name: &str) -> Result<(), CallError> {
    if flight.is_wanted(now) {
        return Ok(());
    }
    Err(CallError::deadline_exceeded("before the step was reached").at_stage(&name.into()))
}

/// Runs user code in the caller's future: its panic is this call's error and does not end the edge.
fn guarded<T>(name: &str, code: impl FnOnce() -> Result<T, Failure>) -> Result<T, CallError> {
    match contain(code) {
        Ok(outcome) => outcome.map_err(|failure| CallError::from_failure(failure, &name.into())),
        Err(words) => Err(panicked(name, words)),
    }
}

/// The join of the members' outputs clones and decodes users' values.
fn guarded_join(join: impl FnOnce() -> Result<Payload, CallError>) -> Result<Payload, CallError> {
    contain(join).unwrap_or_else(|words| Err(panicked("ensemble", words)))
}

fn panicked(name: &str, words: CaughtPanic) -> CallError {
    let error = CallError::new(ErrorKind::WorkerFailed, format!("`{name}` panicked: {words}"));
    error.at_stage(&name.into()).with_trace(words.trace())
}
