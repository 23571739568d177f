//! Calls to nodes over QUIC: the same calls as in process, with the same errors.
//!
//! A client has one connection to one of its nodes, and makes a new one when it is lost. A call that was not started is
//! retried a few times, with pauses, within its deadline. So is a call that was lost with its connection, or whose node
//! is silent while another one answers, if the node says that its route may run again. No other call that may have run
//! is retried. Dropping a call cancels it where it runs.

mod absence;
mod builder;
mod call;
mod coalesce;
mod connection;
mod connection_pool;
mod encoded;
mod error;
mod fault;
mod orders;
mod replies;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::{Call, FrameLimits};
use callboard_codec::{Data, DecodeLimits, Envelope, Payload, Value};
use callboard_core::edge::{ErrorParts, PayloadReplies};
use callboard_core::{
    CallError, CallOptions, CallStream, Caller, Deadline, ErrorKind, FunctionCall, Instant, NoPreprocess, Prepare,
    Replies, ResponseFields, RetryBudget, RetryPolicy, Timing,
};
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;

use self::absence::Absence;
pub use self::builder::ClientBuilder;
pub(crate) use self::call::{CallExchange, CallResponse, ReplyLimits, RoomPolicy, read_output};
use self::call::{Decoded, OutputForm};
#[cfg(test)]
pub(crate) use self::coalesce::ROOM_WAIT;
pub(crate) use self::connection::{ConnectFailure, NodeConnection, OwnHello};
use self::connection_pool::ConnectionPool;
pub use self::encoded::EncodedCall;
pub use self::error::{CallFailure, ConnectError};
pub(crate) use self::fault::{CallFault, not_started};
pub(crate) use self::orders::order;
pub use self::replies::ResponseStream;
use crate::wire;

/// The default number of outstanding calls of an ordered stream: enough to hide the network, few enough for the
/// smallest usual queue.
const LOOK_AHEAD: usize = 64;

/// A refusal for want of a node that asks for a longer wait is not retried.
const LONGEST_NODE_WAIT: Duration = Duration::from_millis(250);

/// A handle on nodes over a network. Cloning is cheap; the connection is closed when the last clone is dropped.
///
/// It is a [`Caller`], like the client within a process: [`call`](Caller::call), [`send`](Caller::send),
/// [`stream`](Caller::stream), [`replies`](Caller::replies) and [`prepare`](Caller::prepare) are methods of that trait.
///
/// * **Full:** a node without room is called again after a pause, a few times, within the retry budget; so is a stage
///   that refuses by itself. [`ClientBuilder::retry`] says how often.
/// * **Late:** every call has a deadline, its own or the route's, on both sides.
/// * **Cancelled:** dropping the returned future or stream cancels the call on the node.
/// * **Lost:** the next call makes a new connection. A call of a stream waits for a node that went away, up to the
///   [start-up wait](ClientBuilder::start_up_wait) for all of them together. [`CallFailure`] tells whether a call may
///   have run.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: ConnectionPool,
    retries: Mutex<RetryBudget>,
    absence: Mutex<Absence>,
    retry: RetryPolicy,
    credit: u32,
    frames: FrameLimits,
    decode: DecodeLimits,
}

/// An encoded call. A caller can prepare the next one while it waits. Clones share it.
#[derive(Clone, Debug)]
pub struct Prepared {
    call: Call,
    envelope: Envelope,
    /// The caller knows that the call may run again, whatever its route says.
    may_repeat: bool,
}

/// An output with the node's report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Response<Out> {
    /// The output.
    pub output: Out,
    /// The time spent on the node; zero for outputs of a stream.
    pub timing: Timing,
    /// The encoded length of the output, in bytes.
    pub received_bytes: u64,
    /// The status and headers that user code has chosen for an answer over HTTP; `None` if it chose nothing, and for
    /// outputs of a stream.
    pub fields: Option<ResponseFields>,
}

impl Inner {
    fn reply_limits(&self, is_encoded: bool) -> ReplyLimits<'_> {
        ReplyLimits { frames: &self.frames, decode: &self.decode, is_encoded }
    }
}

impl Prepared {
    /// Encodes a call of this route, for any client.
    ///
    /// # Errors
    ///
    /// When the type's own `Serialize` fails.
    pub fn new<In: Data>(route: &str, input: In) -> Result<Self, CallError> {
        Self::from_payload(route, &Payload::new(input))
    }

    fn from_payload(route: &str, payload: &Payload) -> Result<Self, CallError> {
        let envelope = payload
            .to_envelope()
            .map_err(|error| CallError::new(ErrorKind::InvalidInput, format!("the input cannot be sent: {error}")))?;
        Ok(Self { call: Call { route: route.to_owned(), ..Call::default() }, envelope, may_repeat: false })
    }

    /// Encodes a call of this function, for any client.
    ///
    /// # Errors
    ///
    /// An argument that cannot be sent.
    pub fn function(name: &str, call: FunctionCall) -> Result<Self, CallError> {
        let mut prepared = Self::new(name, call)?;
        prepared.call.function = true;
        Ok(prepared)
    }
}

impl Client {
    /// Connects to the node at `quic://host:port`, or to the first of `quic://a:1,b:2` that answers, with the
    /// development identity.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder().connect(url).await
    }

    /// A client with its own identity, limits or timeouts.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// Makes a [prepared](Caller::prepare) call, and returns the output with the node's report.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]; [`CallFailure::classify`] gives its class.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call on the node.
    pub async fn exchange<Out: Data>(
        &self,
        prepared: Prepared,
        options: CallOptions,
    ) -> Result<Response<Out>, CallError> {
        self.exchange_with::<Decoded<Out>>(prepared, options, RefusalPolicy::Retry).await
    }

    async fn exchange_with<Form: OutputForm>(
        &self,
        mut prepared: Prepared,
        options: CallOptions,
        refusal: RefusalPolicy,
    ) -> Result<Response<Form::Output>, CallError> {
        let limits = self.inner.reply_limits(Form::IS_ENCODED);
        let CallResponse { done, body } = self.run(&mut prepared, &options, (refusal, limits)).await?;
        drop(prepared.envelope);
        let received_bytes = body.total_bytes().unwrap_or_default() as u64;
        let output = Form::read(body, &prepared.call.route).await?;
        let fields = done.response.map(|head| wire::response_fields(*head));
        Ok(Response { output, timing: wire::timing(done.times), received_bytes, fields })
    }

    /// Calls a streaming route, and yields its outputs with their lengths. An error is the last item.
    ///
    /// # Cancellation
    ///
    /// Dropping the stream cancels the call on the node.
    pub fn exchange_streaming<Out: Data>(&self, prepared: Prepared, options: CallOptions) -> ResponseStream<Out> {
        replies::read::<Decoded<Out>>(self.clone(), prepared, options)
    }

    /// Whether this route answers with a stream, according to the node of the next call.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub async fn is_streaming(&self, route: &str) -> Result<bool, CallError> {
        Ok(self.connection().await?.is_streaming(route))
    }

    /// The name and build of the connected node. Connects if there is no connection.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub async fn node(&self) -> Result<(String, String), CallError> {
        let connection = self.connection().await?;
        let welcome = connection.welcome();
        Ok((welcome.node.clone(), welcome.build.clone()))
    }

    /// Closes the connection for all clones of this client, and waits up to a quarter of a second until the node has
    /// heard of it. Dropping the last clone closes without waiting, which may be too late at the end of a process.
    pub async fn close(self) {
        self.inner.pool.close().await;
    }

    /// Makes a call, and retries it while that is useful and allowed.
    async fn run(
        &self,
        prepared: &mut Prepared,
        options: &CallOptions,
        (refusal, limits): (RefusalPolicy, ReplyLimits<'_>),
    ) -> Result<CallResponse, CallError> {
        options.check()?;
        let mut time = CallTime::new(options, Instant::now());
        self.inner.retries.lock().called(time.began);
        if refusal == RefusalPolicy::Wait {
            self.inner.absence.lock().called(time.began);
        }
        let policy = options.retry().unwrap_or(self.inner.retry);
        let (mut lost, mut attempt) = (None, 1);
        loop {
            let mut retry = Retry { policy, attempt, is_taken: false };
            let fault = match self.attempt(prepared, options, limits, (&mut time, &mut retry)).await {
                Ok(response) => {
                    if refusal == RefusalPolicy::Wait {
                        self.inner.absence.lock().answered();
                    }
                    return Ok(response);
                }
                Err(fault) => fault,
            };
            let (is_lost, error) = (fault.is_lost(), fault.into_error());
            let wait = policy.wait(&error, attempt, fastrand::f64());
            let Some(then) = Instant::now().checked_add(wait) else { return Err(final_error(lost, error)) };
            let waits = refusal == RefusalPolicy::Wait && !policy.is_never() && self.waits_after(&error, then);
            if !RetryPolicy::applies_to(&error) || time.deadline.is_expired(then) {
                return Err(final_error(lost, error));
            }
            if !waits && !retry.is_taken && !self.take_retry(policy, &error, attempt) {
                return Err(final_error(lost, error));
            }
            if is_lost {
                lost = Some(error);
            }
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    /// Whether a call of a stream waits after this error, to be made again `then`.
    fn waits_after(&self, error: &CallError, then: Instant) -> bool {
        let mut absence = self.inner.absence.lock();
        let kind = error.kind();
        // A node that names a stage is there.
        if kind == ErrorKind::Unavailable && error.stage().is_none() {
            return error.is_refusal() && absence.lasts(Instant::now(), then);
        }
        // Whether a node was there is not known: this side may have made the error.
        if kind == ErrorKind::DeadlineExceeded || kind == ErrorKind::PermissionDenied {
            return false;
        }
        absence.answered();
        kind == ErrorKind::Overloaded
    }

    /// Takes a retry. Retries of calls that reached a node have a budget, so that they do not overload a full node.
    fn take_retry(&self, policy: RetryPolicy, error: &CallError, attempt: u32) -> bool {
        // The pool looks for another node meanwhile, and the caller may have an alternative.
        if RetryBudget::is_free(error) && error.retry_after().unwrap_or_default() > LONGEST_NODE_WAIT {
            return false;
        }
        policy.allows(error, attempt) && self.inner.retries.lock().allows(error, Instant::now())
    }

    async fn attempt(
        &self,
        prepared: &mut Prepared,
        options: &CallOptions,
        limits: ReplyLimits<'_>,
        (time, retry): (&mut CallTime, &mut Retry),
    ) -> Result<CallResponse, CallFault> {
        let node = self.connection_for(&prepared.call.route, time).await?;
        wire::put_options(&mut prepared.call, &time.on(options), Instant::now());
        // Pinned here: the future is large to move.
        let calling = pin!(node.call(&prepared.call, &prepared.envelope, limits, RoomPolicy::Wait));
        let mut calling = pin!(within(time.deadline, true, calling));
        let may_move =
            self.inner.pool.has_alternatives() && (prepared.may_repeat || node.may_run_again(&prepared.call.route));
        let outcome = tokio::select! {
            biased;
            outcome = &mut calling => outcome,
            () = self.inner.pool.replaced_if_silent(&node), if may_move => {
                let silent = CallFault::lost(&"the node is silent").repeatable();
                retry.is_taken = self.take_retry(retry.policy, silent.error(), retry.attempt);
                // Without a retry it waits: the node may only have paused.
                if retry.is_taken { Err(silent) } else { calling.await }
            }
        };
        outcome.map_err(|fault| {
            if fault.error().is_refusal() {
                self.inner.pool.turn_away_from(&node);
            }
            let may_repeat = prepared.may_repeat || node.may_run_again(&prepared.call.route);
            if fault.is_lost() && may_repeat { fault.repeatable() } else { fault }
        })
    }

    #[cfg(feature = "testing")]
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        self.inner.pool.in_flight()
    }

    /// A connection for a call of this route. Sets the call's default deadline.
    async fn connection_for(&self, route: &str, time: &mut CallTime) -> Result<Arc<NodeConnection>, CallError> {
        let node = match self.inner.pool.current() {
            Some(node) => {
                if node.link().is_silent() {
                    self.inner.pool.turn_away_from(&node);
                }
                node
            }
            None => within(time.deadline, false, self.connection()).await?,
        };
        if !time.is_own {
            time.deadline = Deadline::after(time.began, node.default_timeout(route));
        }
        Ok(node)
    }

    async fn connection(&self) -> Result<Arc<NodeConnection>, CallError> {
        self.inner.pool.connection().await.map_err(|failure| match failure {
            ConnectFailure::Absent { .. } | ConnectFailure::Closed => {
                not_started(format_args!("no node answers: {failure}"))
            }
            ConnectFailure::Refused { .. } | ConnectFailure::Stale { .. } => {
                CallError::new(ErrorKind::PermissionDenied, failure.to_string())
            }
        })
    }
}

/// The error of a call after its last attempt. If an earlier attempt may have run, a later refusal does not hide that.
fn final_error(lost: Option<CallError>, last: CallError) -> CallError {
    lost.filter(|_| last.is_refusal()).unwrap_or(last)
}

/// The retry after an attempt.
struct Retry {
    policy: RetryPolicy,
    /// The number of the attempt.
    attempt: u32,
    /// Whether the attempt has taken it, to leave a silent node.
    is_taken: bool,
}

/// The retries of a call that was not started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RefusalPolicy {
    /// Plain calls: within the attempts and the retry budget.
    Retry,
    /// Calls of an ordered stream, which bounds their number, wait: for room until their deadline, and for a node that
    /// went away as [`Absence`] says.
    Wait,
}

/// A call's deadline: its own, or the one that the node would set, because a stuck node does not report it. Without a
/// connection, it is the default of routes.
#[derive(Clone, Copy, Debug)]
struct CallTime {
    began: Instant,
    deadline: Deadline,
    /// Whether its caller has set the deadline.
    is_own: bool,
}

impl CallTime {
    fn new(options: &CallOptions, began: Instant) -> Self {
        let own = options.deadline_from(began);
        let deadline = own.unwrap_or_else(|| Deadline::after(began, Deadline::DEFAULT_TIMEOUT));
        Self { began, deadline, is_own: own.is_some() }
    }

    /// The options with this deadline.
    fn on(&self, options: &CallOptions) -> CallOptions {
        options.clone().with_deadline(self.deadline)
    }
}

/// Waits for an outcome until the deadline. A call that was sent may have run by then.
async fn within<T, E: From<CallError>>(
    deadline: Deadline,
    was_sent: bool,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = tokio::time::sleep_until(deadline.instant()) => {
            let message = "the deadline passed before the outcome was there";
            let mut parts = ErrorParts::new(ErrorKind::DeadlineExceeded, message);
            parts.started = was_sent;
            Err(CallError::from(parts).into())
        }
    }
}

impl Caller for Client {
    type Prepared = Prepared;

    async fn call_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Out, CallError> {
        self.call_prepared(self.prepare(route, input)?, options).await
    }

    async fn send_with(&self, name: &str, call: FunctionCall, options: CallOptions) -> Result<Value, CallError> {
        self.call_prepared(Prepared::function(name, call)?, options).await
    }

    fn replies_with<In: Data, Out: Data + Clone>(
        &self,
        route: &str,
        input: In,
        options: CallOptions,
    ) -> Result<Replies<Out>, CallError> {
        let prepared = self.prepare(route, input)?;
        let outputs = replies::read::<Decoded<Out>>(self.clone(), prepared, options);
        let payloads = outputs.map(|returned| returned.map(|returned| Payload::new(returned.output)));
        Ok(Replies::new(route, PayloadReplies::new(payloads)))
    }

    fn prepare<In: Data>(&self, route: &str, input: In) -> Result<Prepared, CallError> {
        Prepared::new(route, input)
    }

    async fn call_prepared<Out: Data + Clone>(
        &self,
        prepared: Prepared,
        options: CallOptions,
    ) -> Result<Out, CallError> {
        self.exchange(prepared, options).await.map(|returned| returned.output)
    }

    fn call_each<S, Out>(&self, route: &str, inputs: S) -> Result<CallStream<S, Out>, CallError>
    where
        S: Stream,
        Out: Data + Clone,
        NoPreprocess: Prepare<S::Item>,
    {
        let timeout = self.inner.pool.current().map_or(Deadline::DEFAULT_TIMEOUT, |node| node.default_timeout(route));
        let (client, route) = (self.clone(), route.to_owned());
        CallStream::from_calls(inputs, LOOK_AHEAD, timeout, move |payload, options| {
            let (client, prepared) = (client.clone(), Prepared::from_payload(&route, &payload));
            async move {
                let returned = client.exchange_with::<Decoded<Out>>(prepared?, options, RefusalPolicy::Wait).await;
                returned.map(|returned| returned.output)
            }
        })
    }
}
