//! The workers whose code runs in a child: one child for each replica.

use std::sync::{Arc, OnceLock};

use callboard_codec::Encoded;
use callboard_core::{AsyncStreamWorker, AsyncWorker, Batch, CallError, ErrorKind, Failure, Replica, StageName, Turn};
use futures_util::future::join_all;
use futures_util::{Stream, StreamExt, stream};

use crate::batch::{BatchPart, divide, failure, outcome, read};
use crate::config::ProcessMethod;
use crate::lost::ChildEnd;
use crate::open::Answer;
use crate::running::{RunningChild, RunningPart};
use crate::spare::ChildStarter;

/// A worker for single outputs.
pub(crate) struct ProcessWorker(Starting);

/// A worker for streams of outputs.
pub(crate) struct StreamingProcessWorker(Starting);

/// A child that starts when its replica warms up: a start takes time, and the replica is built on the runtime.
struct Starting {
    children: Arc<ChildStarter>,
    replica: Arc<Replica>,
    child: OnceLock<RunningChild>,
}

impl Starting {
    fn new(children: &Arc<ChildStarter>, replica: &Replica) -> Self {
        Self { children: Arc::clone(children), replica: Arc::new(replica.clone()), child: OnceLock::new() }
    }

    async fn warmup(&self, is_streaming: bool) -> Result<(), Failure> {
        let child = RunningChild::start(&self.children, &self.replica, is_streaming).await?;
        let _ = self.child.set(child);
        Ok(())
    }

    fn child(&self) -> &RunningChild {
        self.child.get().expect("a worker is called after its warm-up")
    }

    /// The method of the stage that a batch is of; `None` for the child's own stage.
    fn method(&self, stage: &StageName) -> Option<&ProcessMethod> {
        self.children.config.methods.get(stage.as_str())
    }

    async fn cleanup(&self) {
        if let Some(child) = self.child.get() {
            child.stop().await;
        }
    }
}

impl ProcessWorker {
    pub(crate) fn new(children: &Arc<ChildStarter>, replica: &Replica) -> Self {
        Self(Starting::new(children, replica))
    }
}

impl AsyncWorker for ProcessWorker {
    type In = Encoded;
    type Out = Encoded;

    async fn call(&self, mut batch: Batch<Encoded>) -> Vec<Result<Encoded, Failure>> {
        let (child, method) = (self.0.child(), self.0.method(batch.stage()));
        let mut turn = Some(batch.take_turn());
        let (parts, mut outcomes) = divide(batch.into_shared(), child.max_items, child.limits.max_bytes);
        let parts = join_all(parts.into_iter().map(|part| run_part(child, part, method, turn.take()))).await;
        for (index, outcome) in parts.into_iter().flatten() {
            outcomes[index] = Some(outcome);
        }
        outcomes.into_iter().map(|outcome| outcome.expect("each item is in a part, or has failed")).collect()
    }

    async fn warmup(&self) -> Result<(), Failure> {
        self.0.warmup(false).await
    }

    async fn cleanup(&self) {
        self.0.cleanup().await;
    }
}

/// Runs a part of a batch. The first part has the turn of the batch: if that part does not begin, no item of the batch
/// ran.
async fn run_part(
    child: &RunningChild,
    part: BatchPart,
    method: Option<&ProcessMethod>,
    turn: Option<Turn>,
) -> Vec<Output> {
    let (is_first, indices) = (turn.is_some(), part.indices.clone());
    let mut running = match child.begin(part, method, turn.unwrap_or_default()).await {
        Ok(running) => running,
        Err(end) => return end.of_items(is_first, indices),
    };
    match running.next().await {
        Ok(Answer::Outcomes { errors, parts, responses }) => {
            running.choose_responses(responses);
            let mut parts = parts.into_iter();
            let items = indices.into_iter().zip(&*running.contexts).zip(errors);
            let output = |((index, context), error)| (index, outcome(error, &mut parts, context, &child.limits));
            items.map(output).collect()
        }
        // The reader ends a child that streams.
        Ok(Answer::Output { .. }) => unreachable!("outputs are refused where they are read"),
        Err(end) => end.of_items(is_first, indices),
    }
}

impl ChildEnd {
    /// The outputs of items without an answer. If the child announced its end, they did not begin: the first part goes
    /// back to the queue with its batch, and the items of a later part fail alone.
    fn of_items(self, is_first: bool, indices: Vec<usize>) -> Vec<Output> {
        if is_first || !self.is_announced {
            self.exit.unwind();
        }
        let reason = format!("the replica has ended before this item: {}", self.exit.reason());
        let failure = Failure::from(CallError::new(ErrorKind::Unavailable, reason));
        indices.into_iter().map(|index| (index, Err(failure.clone()))).collect()
    }
}

impl StreamingProcessWorker {
    pub(crate) fn new(children: &Arc<ChildStarter>, replica: &Replica) -> Self {
        Self(Starting::new(children, replica))
    }
}

impl AsyncStreamWorker for StreamingProcessWorker {
    type In = Encoded;
    type Out = Encoded;

    fn call(&self, mut batch: Batch<Encoded>) -> impl Stream<Item = Output> + Send {
        let (child, method) = (self.0.child(), self.0.method(batch.stage()));
        let mut turn = Some(batch.take_turn());
        let (parts, outcomes) = divide(batch.into_shared(), child.max_items, child.limits.max_bytes);
        let refused = outcomes.into_iter().enumerate().filter_map(|(index, outcome)| Some((index, outcome?)));
        let parts = parts.into_iter().map(move |part| stream_part(child, part, method, turn.take()));
        stream::iter(refused).chain(stream::iter(parts).flatten())
    }

    async fn warmup(&self) -> Result<(), Failure> {
        self.0.warmup(true).await
    }

    async fn cleanup(&self) {
        self.0.cleanup().await;
    }
}

/// An output of the item at an index.
type Output = (usize, Result<Encoded, Failure>);

/// How far a part of a batch is.
enum Step<'c> {
    Begin(BatchPart, Option<&'c ProcessMethod>, Option<Turn>),
    /// And whether it is the first part.
    Running(Box<RunningPart<'c>>, bool),
    Over,
}

fn stream_part<'c>(
    child: &'c RunningChild,
    part: BatchPart,
    method: Option<&'c ProcessMethod>,
    turn: Option<Turn>,
) -> impl Stream<Item = Output> + Send {
    let steps = stream::unfold(Step::Begin(part, method, turn), async move |step| {
        let (mut running, is_first) = match step {
            Step::Begin(part, method, turn) => {
                let (is_first, indices) = (turn.is_some(), part.indices.clone());
                match child.begin(part, method, turn.unwrap_or_default()).await {
                    Ok(running) => (Box::new(running), is_first),
                    Err(end) => return Some((end.of_items(is_first, indices), Step::Over)),
                }
            }
            Step::Running(running, is_first) => (running, is_first),
            Step::Over => return None,
        };
        match running.next().await {
            Ok(Answer::Output { item, part, response, .. }) => {
                running.choose_response(item, response);
                running.give_credit();
                let output = read(&part, &running.contexts[item], &child.limits);
                Some((vec![(running.indices[item], output)], Step::Running(running, is_first)))
            }
            Ok(Answer::Outcomes { errors, responses, .. }) => {
                running.choose_responses(responses);
                let failed = running.indices.iter().zip(errors);
                let failed = failed.filter_map(|(index, error)| Some((*index, Err(failure(error?)))));
                Some((failed.collect(), Step::Over))
            }
            // It may not have begun: another batch of the child may be ahead of it.
            Err(end) => Some((end.of_items(is_first, running.indices.clone()), Step::Over)),
        }
    });
    steps.flat_map(stream::iter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProcessConfig;
    use crate::message::ToChild;
    use crate::running::tests::{Callers, taken};

    fn starting(config: &ProcessConfig, callers: Callers) -> Starting {
        let Callers { child, node, .. } = callers;
        let starting = Starting::new(&Arc::new(ChildStarter::new(config, Vec::new())), &node.replica);
        assert!(starting.child.set(child).is_ok());
        starting
    }

    #[tokio::test]
    async fn a_worker_that_is_cleaned_up_stops_its_child() {
        let config = ProcessConfig::new(["worker"]);
        for is_streaming in [true, false] {
            let mut callers = Callers::new(true).await;
            let mut queued = std::mem::replace(&mut callers.queued, tokio::sync::mpsc::channel(1).1);
            let starting = starting(&config, callers);
            if is_streaming {
                StreamingProcessWorker(starting).cleanup().await;
            } else {
                ProcessWorker(starting).cleanup().await;
            }
            let messages = taken(&mut queued);
            assert!(matches!(&messages[..], [ToChild::Stop { .. }]), "{messages:?}");
        }
    }

    #[tokio::test]
    async fn a_batch_of_a_hosted_stage_is_of_its_method() {
        let mut config = ProcessConfig::new(["worker"]);
        let method =
            ProcessMethod { name: "m".to_owned(), timeout: None, contract: callboard_core::Contract::default() };
        config.methods.insert("hosted".to_owned(), method.clone());
        let starting = starting(&config, Callers::new(true).await);
        assert_eq!(starting.method(&StageName::new("hosted")), Some(&method));
        assert_eq!(starting.method(&StageName::new("child")), None);
    }
}
