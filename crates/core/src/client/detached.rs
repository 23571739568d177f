//! Calls that run without their caller.
//!
//! * **Full:** refused at once, like a call: nothing is stored for later.
//! * **Late:** the deadline ends it, as it ends a call.
//! * **Cancelled:** the caller cannot cancel it. It ends with its node, or by its deadline.

use std::task::{Context, Poll, Waker};

use callboard_codec::{Data, Payload};

use super::LocalClient;
use crate::call::{CallOptions, Origin};
use crate::error::CallError;
use crate::id::{CallId, RouteName};
use crate::log_limit::admits_failed_call;
use crate::pool::without_running;
use crate::text::limit_error_text;

impl LocalClient {
    /// Starts a call without waiting for its outcome. Needs no `await` and no runtime.
    ///
    /// When this returns `Ok`, the call is admitted: it holds its permit, waits in its first stage's queue or runs
    /// elsewhere, and continues until its deadline, even without its caller. Its outcome is counted with the route's
    /// others; an error is logged as a warning. A node that drains waits for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use callboard_core::{App, Drained, Stage};
    ///
    /// let note = Stage::each("note", |event: &String| Ok(event.len()));
    /// let node = App::new().route("/note", note).start().await?;
    /// node.client().call_detached("/note", "the door was opened".to_owned())?;
    ///
    /// assert_eq!(node.drain(Duration::from_secs(5)).await, Drained::Completely);
    /// assert_eq!(node.describe().outcomes, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Overloaded` when the node or the first stage is full, `Unavailable` when it drains or has failed, `NotFound`, a
    /// deadline that has passed: the call was not started. An error of user code before the first stage is also
    /// returned.
    pub fn call_detached<In: Data>(&self, route: &str, input: In) -> Result<(), CallError> {
        self.call_detached_with(route, input, CallOptions::new())
    }

    /// Starts a detached call with a deadline or priority of its own.
    ///
    /// # Errors
    ///
    /// As [`call_detached`](Self::call_detached).
    pub fn call_detached_with<In: Data>(&self, route: &str, input: In, options: CallOptions) -> Result<(), CallError> {
        let payload = Payload::new(input);
        let held = self.hold(route, options.session())?;
        let options = held.with_called_path(route, options);
        // It has the origin of its outer call, and does not end with it.
        let options = match &self.outer {
            Some(outer) => options.clone().with_origin(Origin::from_options(&options, Some(outer)).map(Origin::alone)),
            None => options,
        };
        let route = held.id().clone();
        let admission = self.shared.gateway.admit(held, payload.size_hint() as u64)?;
        let (id, now) = (admission.id(), admission.admitted_at());

        // The call's timer belongs to the node's runtime, also for callers outside of it.
        let _runtime = self.shared.runtime.enter();
        let mut call = Box::pin(self.submit_at(now, admission, payload, options));
        // One poll here takes the permit of the first queue, so that the caller gets a refusal. The next poll brings
        // its own waker.
        match without_running(|| call.as_mut().poll(&mut Context::from_waker(Waker::noop()))) {
            Poll::Ready(Err(error)) if !error.was_started() => Err(error),
            Poll::Ready(outcome) => {
                log_failure(&route, id, outcome.err());
                Ok(())
            }
            Poll::Pending => {
                self.shared.runtime.spawn(async move { log_failure(&route, id, call.await.err()) });
                Ok(())
            }
        }
    }
}

fn log_failure(route: &RouteName, id: CallId, error: Option<CallError>) {
    if let Some(error) = error {
        if !admits_failed_call(route.as_str(), error.kind(), error.message().len()) {
            return;
        }
        let error = limit_error_text(error.to_string());
        tracing::warn!(parent: None, %route, flight = %id, error, "a detached call failed");
    }
}
