//! Calls to nodes over QUIC: the same calls as in process, with the same errors.
//!
//! A client holds one connection to one of its nodes, and makes a new one when that is lost. A call that was not
//! started is retried a few times, with pauses, within its deadline. So is a call that was lost with its connection,
//! where the node has said that its route may run twice. No other call that may have run is retried. Dropping a call
//! cancels it where it runs.

mod address;
mod builder;
mod call;
mod error;
mod fault;
mod link;
mod links;
mod offers;
mod pack;
mod packer;
mod replies;
mod sending;
mod slot;
mod waking;
mod way;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::{Call, FrameLimits};
use callboard_codec::{Data, DecodeLimits, Envelope, Payload, Value};
use callboard_core::edge::{ErrorParts, PayloadReplies};
use callboard_core::{
    CallError, CallOptions, CallStream, Caller, DEFAULT_TIMEOUT, Deadline, ErrorKind, FunctionCall, Instant,
    NoPreprocess, Prepare, Replies, Timing,
};
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;

pub use self::address::{NodeAddress, NotANodeAddress, QuicUrl};
pub use self::builder::ClientBuilder;
pub(crate) use self::call::{Answer, Talk, read_output};
pub use self::error::{ConnectError, Trouble};
pub(crate) use self::error::{had_no_room, is_lost};
pub(crate) use self::fault::{may_repeat, no_room, not_started, too_large};
pub(crate) use self::link::{Greeting, Link, LinkFault, port_refuses};
use self::links::Links;
pub(crate) use self::offers::{MAX_OFFERED_STAGES, MAX_OFFERS_BYTES, Screening};
pub(crate) use self::packer::ROOM_WAIT;
pub use self::replies::ReturnedStream;
pub(crate) use self::way::Room;
use crate::cluster::Retries;
use crate::convert;

/// Calls of an ordered stream that are outstanding at once unless its caller says: enough to hide a network, few enough
/// for the smallest queue that anybody serves with.
const LOOK_AHEAD: usize = 64;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A call does not sleep for longer than this because a node says so.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Nor for longer than this because no node is there that runs it.
const LONGEST_LOOKED_FOR: Duration = Duration::from_millis(250);

/// A handle on nodes over a network. Cloning is cheap; the connection is closed when the last clone is dropped.
///
/// It is a [`Caller`], like the client within a process: [`call`](Caller::call), [`send`](Caller::send),
/// [`stream`](Caller::stream), [`replies`](Caller::replies) and [`prepare`](Caller::prepare) are methods of that trait.
///
/// * **Full:** a node without room is asked again after a pause, a few times, as long as the retry budget lasts.
/// * **Late:** every call has a deadline, its own or the route's, which holds on both sides.
/// * **Cancelled:** dropping the returned future or stream cancels the call on the node.
/// * **Lost:** the next call makes a new connection. [`Trouble`] tells whether a call may have run.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    links: Links,
    retries: Mutex<Retries>,
    attempts: u32,
    credit: u32,
    frames: FrameLimits,
    decode: DecodeLimits,
}

/// An encoded input, so that a caller can prepare the next one while it waits. Clones share it.
#[derive(Clone, Debug)]
pub struct Prepared {
    call: Call,
    envelope: Envelope,
}

/// An outcome with what the node reports about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Returned<Out> {
    /// The output.
    pub output: Out,
    /// Where the time went on the node; zero for outputs of a stream.
    pub timing: Timing,
    /// The length of the output as it came, in bytes.
    pub received_bytes: u64,
}

impl Prepared {
    /// The input of a call of this route, encoded: for any client.
    ///
    /// # Errors
    ///
    /// When the type's own `Serialize` fails.
    pub fn new<In: Data>(route: &str, input: In) -> Result<Self, CallError> {
        Self::of_payload(route, &Payload::new(input))
    }

    fn of_payload(route: &str, payload: &Payload) -> Result<Self, CallError> {
        let envelope = payload
            .to_envelope()
            .map_err(|error| CallError::new(ErrorKind::InvalidInput, format!("the input cannot be sent: {error}")))?;
        Ok(Self { call: Call { route: route.to_owned(), ..Call::default() }, envelope })
    }

    /// The arguments of a call of this function, encoded: for any client.
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
    /// Connects to a node at `quic://host:port`, or to the first that answers of `quic://a:1,b:2`, with the development identity.
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

    /// Makes a [prepared](Caller::prepare) call, and returns the output with what the node reports about it.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]; [`Trouble::of`] tells what it means for the caller.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call on the node, wherever it is by then.
    pub async fn exchange<Out: Data>(
        &self,
        prepared: Prepared,
        options: CallOptions,
    ) -> Result<Returned<Out>, CallError> {
        self.exchange_in_time(prepared, options, Patience::AFewTimes).await
    }

    async fn exchange_in_time<Out: Data>(
        &self,
        prepared: Prepared,
        options: CallOptions,
        patience: Patience,
    ) -> Result<Returned<Out>, CallError> {
        let Answer { done, body } = self.run(prepared, &options, patience).await?;
        let received_bytes = body.total_bytes().unwrap_or_default() as u64;
        let output = read_output(body, None, |body| body.finish_as::<Out>()).await?;
        Ok(Returned { output, timing: convert::timing(done.times), received_bytes })
    }

    /// Calls a streaming route, and yields its outputs with their lengths. An error is the last item.
    ///
    /// # Cancellation
    ///
    /// Dropping the stream cancels the call on the node.
    pub fn exchange_streaming<Out: Data>(&self, prepared: Prepared, options: CallOptions) -> ReturnedStream<Out> {
        replies::read(self.clone(), prepared, options)
    }

    /// Whether this route answers with a stream, according to the node that the next call would go to.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub async fn streams(&self, route: &str) -> Result<bool, CallError> {
        Ok(self.link().await?.streams_route(route))
    }

    /// The name and build of the node that the client is connected to; it connects if it is not.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub async fn node(&self) -> Result<(String, String), CallError> {
        let link = self.link().await?;
        Ok((link.welcome().node.clone(), link.welcome().build.clone()))
    }

    /// Closes the connection, for all clones of this client, and waits until the node has been told: a quarter of a
    /// second at most. Dropping the last clone does the same without waiting, which may be too late at the end of a
    /// process.
    pub async fn close(self) {
        self.inner.links.close().await;
    }

    /// Makes a call until it was started, or it is of no use.
    async fn run(
        &self,
        mut prepared: Prepared,
        options: &CallOptions,
        patience: Patience,
    ) -> Result<Answer, CallError> {
        let mut time = Time::new(options, Instant::now());
        self.inner.retries.lock().called(time.began);
        let (mut pause, mut lost) = (FIRST_PAUSE, None);
        for attempt in 1.. {
            let error = match self.attempt(&mut prepared, options, &mut time).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let waits_for_room = patience == Patience::UntilLate && error.kind() == ErrorKind::Overloaded;
            let may_be_made_again = error.is_refusal() || is_lost(&error) && error.is_retryable();
            if !may_be_made_again || (attempt >= self.inner.attempts && !waits_for_room) {
                return Err(told(lost, error));
            }
            // All at once would come again all at once.
            let jittered = pause.mul_f64(0.5 + fastrand::f64());
            let wait = error.retry_after().unwrap_or_default() + jittered;
            if time.deadline.is_expired(Instant::now() + wait) || !(waits_for_room || self.may_come_again(&error)) {
                return Err(told(lost, error));
            }
            if is_lost(&error) {
                lost = Some(error);
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("the last attempt returns")
    }

    /// A node that is full is not made much fuller: retries have a budget, which is for those that are made. One that says to come back
    /// much later is its caller's affair.
    fn may_come_again(&self, error: &CallError) -> bool {
        let longest = match error.kind() {
            // A node for it is looked for anyway, and its caller may know another way.
            ErrorKind::Unavailable => LONGEST_LOOKED_FOR,
            _ => LONGEST_RETRY_AFTER,
        };
        error.retry_after().unwrap_or_default() <= longest
            && (error.is_refusal() && error.kind() != ErrorKind::Overloaded
                || self.inner.retries.lock().take(Instant::now()))
    }

    async fn attempt(
        &self,
        prepared: &mut Prepared,
        options: &CallOptions,
        time: &mut Time,
    ) -> Result<Answer, CallError> {
        let link = self.link_for(&prepared.call.route, time).await?;
        let limits = (&self.inner.frames, &self.inner.decode);
        convert::put_options(&mut prepared.call, &time.on(options), Instant::now());
        // In its place from the beginning: it is large to be moved.
        let calling = pin!(link.call(&prepared.call, &prepared.envelope, limits, Room::Wait));
        let outcome = within(time.deadline, calling).await.map_err(|late| late.into_error(true));
        outcome.map_err(|error| {
            if error.is_refusal() {
                self.inner.links.turn_away_from(&link);
            }
            // What runs for the route may run twice: its outcome is not known, and no harm is done.
            if is_lost(&error) && link.may_run_again(&prepared.call.route) { may_repeat(error) } else { error }
        })
    }

    #[cfg(feature = "testing")]
    pub(crate) fn links(&self) -> &Links {
        &self.inner.links
    }

    /// A link for a call of this route, whose time is known with it.
    async fn link_for(&self, route: &str, time: &mut Time) -> Result<Arc<Link>, CallError> {
        let link = match self.inner.links.current() {
            Some(link) => link,
            None => within(time.deadline, self.link()).await.map_err(|late| late.into_error(false))?,
        };
        if !time.is_own {
            time.deadline = Deadline::after(time.began, link.default_timeout(route));
        }
        Ok(link)
    }

    async fn link(&self) -> Result<Arc<Link>, CallError> {
        self.inner.links.link().await.map_err(|fault| match fault {
            LinkFault::Absent { .. } | LinkFault::Closed => not_started(format!("no node answers: {fault}")),
            LinkFault::Refused { .. } | LinkFault::Stale { .. } => {
                CallError::new(ErrorKind::PermissionDenied, fault.to_string())
            }
        })
    }
}

/// What becomes of a call in the end: that it may have run stays said, whoever refuses it after that.
fn told(lost: Option<CallError>, last: CallError) -> CallError {
    lost.filter(|_| last.is_refusal()).unwrap_or(last)
}

/// How often a call that was refused for want of room is made again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// As a plain call: within the attempts and the retry budget.
    AFewTimes,
    /// As a call of an ordered stream, which bounds how many there are: until it is late.
    UntilLate,
}

/// A call's time: its caller's, or that which the node would give it, because a node that is stuck does not say that it has passed. Until
/// there is a node, it is that of a route which says nothing.
#[derive(Clone, Copy, Debug)]
struct Time {
    began: Instant,
    deadline: Deadline,
    /// Its caller has said it.
    is_own: bool,
}

impl Time {
    fn new(options: &CallOptions, began: Instant) -> Self {
        let own = options.deadline_from(began);
        let deadline = own.unwrap_or_else(|| Deadline::after(began, DEFAULT_TIMEOUT));
        Self { began, deadline, is_own: own.is_some() }
    }

    /// The options with the deadline as it is known.
    fn on(&self, options: &CallOptions) -> CallOptions {
        options.clone().with_deadline(self.deadline)
    }
}

/// An error of a call, or that its time was up.
enum Within {
    Error(CallError),
    Late,
}

impl Within {
    /// As the call's error. One that was sent may have run when its time was up.
    fn into_error(self, was_sent: bool) -> CallError {
        match self {
            Self::Error(error) => error,
            Self::Late => {
                let message = "the deadline passed before the outcome was there";
                let mut parts = ErrorParts::new(ErrorKind::DeadlineExceeded, message);
                parts.started = was_sent;
                parts.into()
            }
        }
    }
}

/// Waits for an outcome no longer than the call may take.
async fn within<T>(deadline: Deadline, call: impl Future<Output = Result<T, CallError>>) -> Result<T, Within> {
    tokio::select! {
        biased;
        outcome = call => outcome.map_err(Within::Error),
        () = tokio::time::sleep_until(deadline.instant()) => Err(Within::Late),
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
        let outputs = replies::read::<Out>(self.clone(), prepared, options);
        let payloads = outputs.map(|returned| returned.map(|returned| Payload::new(returned.output)));
        Ok(Replies::new(PayloadReplies::new(payloads)))
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
        let timeout = self.inner.links.current().map_or(DEFAULT_TIMEOUT, |link| link.default_timeout(route));
        let (client, route) = (self.clone(), route.to_owned());
        CallStream::from_calls(inputs, LOOK_AHEAD, timeout, move |payload, options| {
            let (client, prepared) = (client.clone(), Prepared::of_payload(&route, &payload));
            async move {
                let returned = client.exchange_in_time::<Out>(prepared?, options, Patience::UntilLate).await;
                returned.map(|returned| returned.output)
            }
        })
    }
}
