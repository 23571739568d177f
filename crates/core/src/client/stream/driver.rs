//! The task that runs the calls of a stream, so that they continue while the consumer is busy.
//!
//! One task runs all calls of a stream: the calls of a batch end together, so the task and the consumer are woken once
//! for the batch.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::client::runtime_gone;
use crate::error::CallError;

/// A call of a stream. Dropping it cancels the call.
pub(super) type BoxedCall<Out> = Pin<Box<dyn Future<Output = Result<Out, CallError>> + Send>>;

/// Starts calls in the task and takes their outcomes in order. Dropping it cancels all calls.
pub(super) struct Driver<Out> {
    commands: UnboundedSender<DriverCommand<Out>>,
    outcomes: UnboundedReceiver<(usize, Result<Out, CallError>)>,
    task: AbortHandle,
    /// The number of the first call in order.
    first: usize,
    /// A place for the outcome of each call, in order.
    received: VecDeque<Option<Result<Out, CallError>>>,
}

enum DriverCommand<Out> {
    Start(NumberedCall<Out>),
    Cancel(usize),
}

struct NumberedCall<Out> {
    number: usize,
    call: BoxedCall<Out>,
}

impl<Out> Future for NumberedCall<Out> {
    type Output = (usize, Result<Out, CallError>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.as_mut().poll(cx).map(|outcome| (self.number, outcome))
    }
}

impl<Out: Send + 'static> Driver<Out> {
    #[expect(clippy::disallowed_methods, reason = "the look-ahead of the stream bounds both channels")]
    pub(super) fn spawn(runtime: &Handle) -> Self {
        let (commands, command_receiver) = unbounded_channel();
        let (outcome_sender, outcomes) = unbounded_channel();
        let task = runtime.spawn(drive(command_receiver, outcome_sender)).abort_handle();
        Self { commands, outcomes, task, first: 0, received: VecDeque::new() }
    }

    /// Starts a call, the last one in order.
    pub(super) fn start(&mut self, call: BoxedCall<Out>) {
        let number = self.first + self.received.len();
        self.received.push_back(None);
        self.send(DriverCommand::Start(NumberedCall { number, call }));
    }

    /// Takes the outcome of the first call in order.
    pub(super) fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Result<Out, CallError>> {
        loop {
            if let Some(outcome) = self.received.front_mut().and_then(Option::take) {
                self.remove_first();
                return Poll::Ready(outcome);
            }
            let Some((number, outcome)) = ready!(self.outcomes.poll_recv(cx)) else {
                self.remove_first();
                return Poll::Ready(Err(runtime_gone()));
            };
            // The outcome of a cancelled call has no place any more.
            let place = number.checked_sub(self.first).and_then(|index| self.received.get_mut(index));
            if let Some(place) = place {
                *place = Some(outcome);
            }
        }
    }

    /// Cancels the first call in order.
    pub(super) fn cancel_first(&mut self) {
        self.send(DriverCommand::Cancel(self.first));
        self.remove_first();
    }

    fn remove_first(&mut self) {
        self.received.pop_front();
        self.first += 1;
    }

    fn send(&self, command: DriverCommand<Out>) {
        // Fails only if the runtime has dropped the task. Then no outcomes arrive either, which `poll_first` reports.
        let _ = self.commands.send(command);
    }
}

impl<Out> Drop for Driver<Out> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs calls until the task is aborted.
async fn drive<Out>(
    mut commands: UnboundedReceiver<DriverCommand<Out>>,
    outcomes: UnboundedSender<(usize, Result<Out, CallError>)>,
) {
    let (mut calls, mut received) = (FuturesUnordered::new(), Vec::new());
    poll_fn(|cx| {
        // All commands take one unit of the task's budget; the rest of it is for the calls.
        while let Poll::Ready(1..) = commands.poll_recv_many(cx, &mut received, usize::MAX) {
            for command in received.drain(..) {
                match command {
                    DriverCommand::Start(call) => calls.push(call),
                    DriverCommand::Cancel(number) => {
                        // A set of futures has no other way to remove one. Late results are rare.
                        let others = mem::take(&mut calls).into_iter();
                        calls = others.filter(|call: &NumberedCall<Out>| call.number != number).collect();
                    }
                }
            }
        }
        while let Poll::Ready(Some(outcome)) = calls.poll_next_unpin(cx) {
            let _ = outcomes.send(outcome);
        }
        Poll::<()>::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    async fn first(driver: &mut Driver<u32>) -> Result<u32, CallError> {
        poll_fn(|cx| driver.poll_first(cx)).await
    }

    /// A call that ends with the number that is sent.
    fn start(driver: &mut Driver<u32>) -> oneshot::Sender<u32> {
        let (sender, outcome) = oneshot::channel();
        driver.start(Box::pin(async { Ok(outcome.await.expect("the call is not cancelled")) }));
        sender
    }

    #[tokio::test]
    async fn outcomes_are_taken_in_order_although_calls_end_in_any_order() {
        let mut driver = Driver::spawn(&Handle::current());
        let senders = [start(&mut driver), start(&mut driver), start(&mut driver)];
        assert!(first(&mut driver).now_or_never().is_none());
        for (sender, n) in senders.into_iter().zip([0, 1, 2]).rev() {
            sender.send(n).unwrap();
            tokio::task::yield_now().await;
        }
        for n in 0..3 {
            assert_eq!(first(&mut driver).await.unwrap(), n);
        }
    }

    #[tokio::test]
    async fn a_cancelled_call_is_dropped_and_the_others_continue() {
        let mut driver = Driver::spawn(&Handle::current());
        let (mut cancelled, other) = (start(&mut driver), start(&mut driver));
        driver.cancel_first();
        cancelled.closed().await;
        other.send(7).unwrap();
        assert_eq!(first(&mut driver).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_outcome_of_a_call_that_was_cancelled_too_late_is_dropped() {
        let mut driver = Driver::spawn(&Handle::current());
        let (cancelled, other) = (start(&mut driver), start(&mut driver));
        cancelled.send(1).unwrap();
        tokio::task::yield_now().await;
        driver.cancel_first();
        other.send(2).unwrap();
        assert_eq!(first(&mut driver).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn dropping_the_driver_drops_its_calls() {
        let mut driver = Driver::spawn(&Handle::current());
        let mut call = start(&mut driver);
        drop(driver);
        call.closed().await;
    }
}
