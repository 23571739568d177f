//! The options of a call. Route and node supply the missing ones.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, Excess, PairKind, RequestFact};
use super::context::OuterCall;
use super::origin::Origin;
use super::session::SessionKey;
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::retry::RetryPolicy;
use crate::timeline::{Recorder, SpanId};

/// The class in which a call waits. Higher classes leave every queue first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// For interactive calls.
    High,
    /// The default.
    #[default]
    Normal,
    /// Work that may wait: batches, backfills.
    Low,
}

impl Priority {
    /// All classes, the highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

/// Whether a caller's id may enter logs: 1 to [`MAX_REQUEST_ID_CHARS`](CallOptions::MAX_REQUEST_ID_CHARS) characters
/// of visible ASCII.
#[must_use]
pub fn is_valid_request_id(id: &[u8]) -> bool {
    // Without an early exit, so that the compiler can vectorize it.
    let is_visible = || id.iter().fold(true, |visible, byte| visible & byte.is_ascii_graphic());
    (1..=CallOptions::MAX_REQUEST_ID_CHARS).contains(&id.len()) && is_visible()
}

/// Options of a call. All are optional.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    deadline: Option<Deadline>,
    timeout: Option<Duration>,
    priority: Option<Priority>,
    session: Option<SessionKey>,
    origin: Option<Arc<Origin>>,
    /// In a box, because options are moved with each call.
    rare: Option<Box<RareOptions>>,
}

/// Options that few calls have.
#[derive(Clone, Debug, Default)]
struct RareOptions {
    first_item_timeout: Option<Duration>,
    recorder: Option<Recorder>,
    retry: Option<RetryPolicy>,
}

impl From<Deadline> for CallOptions {
    /// Gives up at the deadline.
    fn from(deadline: Deadline) -> Self {
        Self::new().with_deadline(deadline)
    }
}

impl From<Duration> for CallOptions {
    /// Gives up this long after the beginning.
    fn from(timeout: Duration) -> Self {
        Self::new().with_timeout(timeout)
    }
}

impl CallOptions {
    /// The most headers, query parameters or tags of a call, each.
    pub const MAX_ATTRIBUTES: usize = 64;

    /// The most bytes of the headers, query parameters and tags of a call, with their names, and of its path, together.
    pub const MAX_ATTRIBUTE_BYTES: usize = 32 * 1024;

    /// The most bytes of the name of a call's caller.
    pub const MAX_CALLER_BYTES: usize = 256;

    /// The longest request id: long enough for the ids of tracing systems, short enough for a log line.
    pub const MAX_REQUEST_ID_CHARS: usize = 128;

    /// No options: those of the route apply, else those of the node.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn rare(&mut self) -> &mut RareOptions {
        self.rare.get_or_insert_default()
    }

    /// Gives up at `deadline`. The earliest of several deadlines counts.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Deadline) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |own| own.min(deadline)));
        self
    }

    /// Gives up `timeout` after the call begins, so the options can be used for any number of calls. The smallest of
    /// several timeouts counts; of a timeout and a [deadline](Self::with_deadline), the earlier.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use callboard_core::{App, CallOptions, Stage};
    ///
    /// let double = Stage::each("double", |number: &i64| Ok(number * 2));
    /// let node = App::new().route("/double", double).start().await?;
    /// let options = CallOptions::new().with_timeout(Duration::from_millis(200));
    /// for number in 0..3i64 {
    ///     let doubled: i64 = node.client().call_with("/double", number, options.clone()).await?;
    ///     assert_eq!(doubled, number * 2);
    ///     tokio::time::sleep(Duration::from_secs(1)).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(self.timeout.map_or(timeout, |own| own.min(timeout)));
        self
    }

    /// For streaming routes: gives up if there is no output `timeout` after the call was admitted, even before its
    /// deadline.
    #[must_use]
    pub fn with_first_item_timeout(mut self, timeout: Duration) -> Self {
        self.rare().first_item_timeout = Some(timeout.min(Deadline::MAX_TIMEOUT));
        self
    }

    /// How long the first output may take, if set.
    #[must_use]
    pub fn first_item_timeout(&self) -> Option<Duration> {
        self.rare.as_ref()?.first_item_timeout
    }

    /// Sets the priority class.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets the priority class, unless a lower one is set.
    #[must_use]
    pub fn with_priority_at_most(self, most: Priority) -> Self {
        // The highest class is the smallest.
        let lower = self.priority.map_or(most, |set| set.max(most));
        self.with_priority(lower)
    }

    /// Makes a refused call again by this policy, within its deadline: on this node, over a network in place of the
    /// client's own policy, and each call of a stream. Without it, a call on this node has one attempt, and a stream
    /// has the default policy. A call keeps its input for that until it has its outcome, so a worker that takes its
    /// inputs by value gets a clone. Calls for many outputs (`replies`) are made once, because some outputs may have
    /// been read, and so are detached calls.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use callboard_core::{App, CallOptions, Failure, RetryPolicy, Stage};
    ///
    /// let begun = AtomicU64::new(0);
    /// let busy_at_first = Stage::each("busy", move |number: &u64| match begun.fetch_add(1, Ordering::Relaxed) {
    ///     0 => Err(Failure::overloaded("the device is busy")),
    ///     _ => Ok(number * 2),
    /// });
    /// let node = App::new().route("/double", busy_at_first.pure()).start().await?;
    /// let options = CallOptions::new().with_retry(RetryPolicy::default());
    /// assert_eq!(node.client().call_with::<u64, u64>("/double", 4, options).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_retry(mut self, policy: RetryPolicy) -> Self {
        self.rare().retry = Some(policy);
        self
    }

    /// How a refused call is made again, if set.
    #[must_use]
    pub fn retry(&self) -> Option<RetryPolicy> {
        self.rare.as_ref()?.retry
    }

    /// The deadline of a call that began at `began`: the earlier of deadline and timeout; `None` without both.
    #[must_use]
    pub fn deadline_from(&self, began: Instant) -> Option<Deadline> {
        let timeout = self.timeout.map(|timeout| Deadline::after(began, timeout));
        self.deadline.into_iter().chain(timeout).min()
    }

    /// The deadline of a message to an actor: that of these options, else the default, and never after that of the call
    /// around it.
    pub(crate) fn message_deadline(&self, outer: Option<&Arc<OuterCall>>) -> Deadline {
        let now = clock::now();
        let deadline = self.deadline_from(now).unwrap_or_else(|| Deadline::after(now, Deadline::DEFAULT_TIMEOUT));
        outer.map_or(deadline, |outer| deadline.min(outer.flight.deadline))
    }

    /// These options for a message to an actor, with its deadline and what it inherits of the call around it.
    pub(crate) fn for_message(self, outer: Option<&Arc<OuterCall>>) -> (Self, Deadline) {
        let deadline = self.message_deadline(outer);
        let origin = Origin::from_options(&self, outer);
        let recorder = origin.as_ref().and_then(|origin| origin.recorder.clone());
        let options = recorder.into_iter().fold(self, Self::with_recorder);
        (options.with_origin(origin).with_deadline(deadline), deadline)
    }

    /// These options for a call that began at `start`: the timeout becomes a deadline.
    #[must_use]
    pub(crate) fn started_at(mut self, start: Instant) -> Self {
        self.deadline = self.deadline_from(start);
        self.timeout = None;
        self
    }

    /// Adds the call to this session: in every stage, calls with the same key reach the same replica while it lives.
    ///
    /// For stages whose replicas have memory, such as the state of a conversation. When a replica dies, its sessions
    /// move to others, and back when it is up again; added replicas take over some sessions. So a replica must be able
    /// to begin an unknown session. A session's calls wait for their replica even if others are free: use keys only if
    /// that is worth it.
    ///
    /// ```
    /// use callboard_core::CallOptions;
    ///
    /// let options = CallOptions::new().with_session_key("conversation 17");
    /// ```
    #[must_use]
    pub fn with_session_key(mut self, key: impl Into<SessionKey>) -> Self {
        self.session = Some(key.into());
        self
    }

    /// Records where the call's time goes; see [`Recorder`]. Costs an allocation for each stage. A call that continues
    /// on another node is recorded on this one only.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.rare().recorder = Some(recorder);
        self
    }

    /// Sets the id of the call for logs, traces and user code ([`CallContext::request_id`](crate::CallContext)). An id
    /// that is empty, has more than [`MAX_REQUEST_ID_CHARS`](Self::MAX_REQUEST_ID_CHARS) or is not visible ASCII may
    /// not enter logs, and is left out.
    #[must_use]
    pub fn with_request_id(self, id: impl Into<Box<str>>) -> Self {
        let id = id.into();
        if is_valid_request_id(id.as_bytes()) { self.telling(|origin| origin.request_id = Some(id)) } else { self }
    }

    /// Sets the caller's place in a W3C trace for user code: the value of a `traceparent` header. It is left out as an
    /// [id](Self::with_request_id) is.
    #[must_use]
    pub fn with_traceparent(self, traceparent: impl Into<Box<str>>) -> Self {
        let traceparent = traceparent.into();
        if is_valid_request_id(traceparent.as_bytes()) {
            self.telling(|origin| origin.traceparent = Some(traceparent))
        } else {
            self
        }
    }

    /// Sets the authenticated name of the caller for user code, of at most
    /// [`MAX_CALLER_BYTES`](Self::MAX_CALLER_BYTES). For edges, which check it; nothing else does. Over QUIC only a
    /// node may set it.
    #[must_use]
    pub fn with_caller(self, name: impl Into<Box<str>>) -> Self {
        let name = name.into();
        if name.len() > Self::MAX_CALLER_BYTES {
            return self.with(|attributes| attributes.exceed(Excess::Caller));
        }
        self.telling(|origin| origin.caller = Some(name))
    }

    /// Sets a header of the request for user code, which reads it by its name in lower case. For edges whose requests
    /// have headers: only headers that the [route reads](crate::edge::Route::request_fields). [`check`](Self::check)
    /// says how many.
    #[must_use]
    pub fn with_header(self, name: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        let mut name = name.into();
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            name = name.to_ascii_lowercase().into();
        }
        self.with(|attributes| attributes.push(PairKind::Header, name, value.into()))
    }

    /// Sets a query parameter of the request for user code, as [`with_header`](Self::with_header) sets a header. A call
    /// that has one twice is refused.
    #[must_use]
    pub fn with_query(self, name: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        self.with(|attributes| attributes.push(PairKind::QueryParameter, name.into(), value.into()))
    }

    /// Sets the path of the request for user code, as [`with_header`](Self::with_header) sets a header.
    #[must_use]
    pub fn with_path(self, path: impl Into<Box<str>>) -> Self {
        self.with(|attributes| attributes.set(RequestFact::Path, path.into()))
    }

    /// Sets the method of the request for user code, such as `GET`, as [`with_path`](Self::with_path) sets its path.
    #[must_use]
    pub fn with_method(self, method: impl Into<Box<str>>) -> Self {
        self.with(|attributes| attributes.set(RequestFact::Method, method.into()))
    }

    /// Sets the address of the request's client for user code, as [`with_path`](Self::with_path) sets its path. It is
    /// the one attribute by which a stage's cache does not tell calls apart.
    #[must_use]
    pub fn with_client_address(self, address: impl Into<Box<str>>) -> Self {
        self.with(|attributes| attributes.set(RequestFact::Client, address.into()))
    }

    /// Sets a tag for user code, wherever it runs, such as a feature flag. No rights may depend on it: callers over
    /// QUIC choose their tags. The first tag of each name counts. [`check`](Self::check) says how many there may be.
    #[must_use]
    pub fn with_tag(self, name: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        self.with(|attributes| attributes.push(PairKind::Tag, name.into(), value.into()))
    }

    /// Sets a value of its own type for user code, which reads it with
    /// [`CallContext::extension`](crate::CallContext::extension): what the caller's code knows of a request and no text
    /// can tell. A second value of a type replaces the first. It stays in this process, and so does the call wherever
    /// this node runs its stages; its answers are not [cached](crate::Stage::cache).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, CallContext, CallOptions, Stage};
    ///
    /// #[derive(Clone)]
    /// struct Tenant(String);
    ///
    /// let greet = Stage::each_with_context("greet", |name: &String, context: &CallContext| {
    ///     let tenant = context.extension::<Tenant>().map_or("nobody", |tenant| &tenant.0);
    ///     Ok(format!("{tenant} greets {name}"))
    /// });
    /// let node = App::new().route("/greet", greet).start().await?;
    /// let options = CallOptions::new().with_extension(Tenant("acme".to_owned()));
    /// let said: String = node.client().call_with("/greet", "Ada".to_owned(), options).await?;
    /// assert_eq!(said, "acme greets Ada");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_extension<T: Clone + Send + Sync + 'static>(self, value: T) -> Self {
        self.with(|attributes| attributes.extensions.insert(value))
    }

    /// Whether a call may have these options: at most [`MAX_ATTRIBUTES`](crate::CallOptions::MAX_ATTRIBUTES) headers,
    /// as many query parameters and tags, and [`MAX_ATTRIBUTE_BYTES`](crate::CallOptions::MAX_ATTRIBUTE_BYTES) in all.
    /// Each call is checked before its first stage; edges check earlier.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the field and the limit that it exceeds.
    pub fn check(&self) -> Result<(), CallError> {
        self.origin.as_ref().map_or(Ok(()), |origin| origin.check())
    }

    /// For an inner call made for several callers: it inherits no caller, headers, query parameters, path, extensions
    /// or tags from its outer call.
    #[must_use]
    pub fn for_several_callers(self) -> Self {
        self.telling(|origin| origin.is_for_several_callers = true)
    }

    fn with(self, attach: impl FnOnce(&mut Attributes)) -> Self {
        self.telling(|origin| attach(origin.attributes.get_or_insert_default()))
    }

    fn telling(mut self, tell: impl FnOnce(&mut Origin)) -> Self {
        tell(Arc::make_mut(self.origin.get_or_insert_default()));
        self
    }

    pub(crate) fn origin(&self) -> Option<&Arc<Origin>> {
        self.origin.as_ref()
    }

    pub(crate) fn with_origin(mut self, origin: Option<Arc<Origin>>) -> Self {
        self.origin = origin;
        self
    }

    /// The bytes of headers, query parameters, tags, path, method and client's address, which only these options hold.
    #[must_use]
    pub fn attribute_bytes(&self) -> usize {
        self.origin.as_ref().map_or(0, |origin| origin.attribute_bytes())
    }

    /// Whether they have anything for user code: an id, a caller, attributes.
    #[must_use]
    pub fn has_origin(&self) -> bool {
        self.origin.is_some()
    }

    fn pairs(&self, kind: PairKind) -> impl Iterator<Item = (&str, &str)> {
        self.origin.iter().flat_map(move |origin| origin.pairs(kind))
    }

    /// The name of the caller, if set.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        self.origin.as_ref()?.caller.as_deref()
    }

    /// The headers that were set.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs(PairKind::Header)
    }

    /// The query parameters that were set.
    pub fn query_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs(PairKind::QueryParameter)
    }

    /// The tags that were set.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs(PairKind::Tag)
    }

    /// The path of the request, if set.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.fact(RequestFact::Path)
    }

    /// The method of the request, if set.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.fact(RequestFact::Method)
    }

    /// The address of the request's client, if set.
    #[must_use]
    pub fn client_address(&self) -> Option<&str> {
        self.fact(RequestFact::Client)
    }

    fn fact(&self, fact: RequestFact) -> Option<&str> {
        self.origin.as_ref()?.fact(fact)
    }

    /// The id of the call, if set.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.origin.as_ref()?.request_id.as_deref()
    }

    /// The place of the call in a trace: that of its [recorder](Self::with_recorder), else that of its
    /// [caller](Self::with_traceparent).
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        traceparent(self.recorder(), self.origin.as_deref())
    }

    /// The recorder, if set.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.rare.as_ref()?.recorder.as_ref()
    }

    /// The priority, if set.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The session, if set.
    #[must_use]
    pub fn session(&self) -> Option<SessionKey> {
        self.session
    }
}

/// A call's own place in a trace, else that of its caller.
pub(super) fn traceparent(recorder: Option<&Recorder>, origin: Option<&Origin>) -> Option<String> {
    let from_origin = || origin?.traceparent.as_deref().map(str::to_owned);
    recorder.and_then(Recorder::span).map(SpanId::traceparent).or_else(from_origin)
}
