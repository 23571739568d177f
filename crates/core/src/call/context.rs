//! The context of a call for user code.

use std::sync::Arc;

use callboard_codec::{DecodeError, charged_to};

use super::attributes::{PairKind, RequestFact};
use super::flight::Flight;
use super::options::Priority;
use super::response::ResponseFields;
use super::session::SessionKey;
use crate::clock::Instant;
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::id::{RouteName, StageName};

/// The call of one item: its deadline, its caller, and the data that the caller sent. Cloning it is cheap.
///
/// A worker gets it from [`Batch::context`](crate::Batch::context), a closure from
/// [`Stage::each_with_context`](crate::Stage::each_with_context) and similar functions.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, CallContext, CallOptions, Stage};
///
/// let greet = Stage::each_with_context("greet", |name: &String, context: &CallContext| {
///     let language = context.tag("language").unwrap_or("en");
///     Ok(if language == "fr" { format!("bonjour {name}") } else { format!("hello {name}") })
/// });
/// let node = App::new().route("/greet", greet).start().await?;
/// let options = CallOptions::new().with_tag("language", "fr");
/// let said: String = node.client().call_with("/greet", "Ada".to_owned(), options).await?;
/// assert_eq!(said, "bonjour Ada");
/// # Ok(())
/// # }
/// ```
///
/// | | in process | over HTTP | over QUIC |
/// |---|---|---|---|
/// | request id | if its caller gave one | always | if its caller gave one |
/// | traceparent | if its caller gave one | the request's, or the place in the node's own trace | likewise |
/// | caller | if its caller gave one | the name of its API key | if a node gave one |
/// | headers, query parameters | if its caller gave some | those that the [route reads](crate::RouteSpec::headers) | likewise, if its caller gave some |
/// | path | if its caller gave one | if the route reads headers, query parameters or extensions | likewise, if its caller gave one |
/// | method, address of the client | likewise | with the path | if a node gave them |
/// | tags | if its caller gave some | – | if its caller gave some |
/// | extensions | if its caller gave some | those that the [route reads](crate::RouteSpec::extension) | – |
/// | session, priority, deadline, route | yes | yes | yes |
///
/// A stage on another node, or in a child process, has the same context as one on the node that owns the call, but
/// for extensions. Only the route is not known on another node.
#[derive(Clone, Debug)]
pub struct CallContext {
    flight: Arc<Flight>,
    stage: StageName,
}

impl CallContext {
    pub(crate) fn new(flight: &Arc<Flight>, stage: &StageName) -> Self {
        Self::of(Arc::clone(flight), stage)
    }

    pub(crate) fn of(flight: Arc<Flight>, stage: &StageName) -> Self {
        Self { flight, stage: stage.clone() }
    }

    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// The current stage.
    #[must_use]
    pub fn stage(&self) -> &StageName {
        &self.stage
    }

    /// The called route. `None` if another node called a stage.
    #[must_use]
    pub fn route(&self) -> Option<RouteName> {
        self.flight.route()
    }

    /// The id of this call in logs, traces and for the caller: at most 128 visible ASCII characters over HTTP.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.flight.request_id()
    }

    /// The place in a W3C trace for other work that this call causes, as the value of a `traceparent` header: the
    /// call's own place if the node records its trace, else that of its caller.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.flight.traceparent()
    }

    /// The authenticated name of the caller: that of its API key.
    #[must_use]
    pub fn caller(&self) -> Option<&str> {
        self.flight.caller()
    }

    /// The header with this lower-case name, if the [route reads it](crate::RouteSpec::headers) and the request has it.
    /// Several lines of one name are joined with `, `.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.flight.origin.as_ref()?.find(PairKind::Header, name)
    }

    /// The query parameter with this name, decoded, if the [route reads it](crate::RouteSpec::query) and the request
    /// has it.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        self.flight.origin.as_ref()?.find(PairKind::QueryParameter, name)
    }

    /// The path of the request, as the client wrote it, if the route reads [headers](crate::RouteSpec::headers), [query
    /// parameters](crate::RouteSpec::query) or [extensions](crate::RouteSpec::extension).
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.flight.origin.as_ref()?.fact(RequestFact::Path)
    }

    /// The method of the request, such as `GET`, where there is a [path](Self::path) and the caller has said one.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.flight.origin.as_ref()?.fact(RequestFact::Method)
    }

    /// The address of the request's client, such as `10.0.0.7`, where there is a [path](Self::path) and the edge knows
    /// it. A stage's cache does not tell calls apart by it.
    #[must_use]
    pub fn client_address(&self) -> Option<&str> {
        self.flight.origin.as_ref()?.fact(RequestFact::Client)
    }

    /// The value that the caller [attached](crate::CallOptions::with_tag) under this name.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.flight.origin.as_ref()?.find(PairKind::Tag, name)
    }

    /// The value of this type that the caller [attached](crate::CallOptions::with_extension), or that a layer around
    /// the HTTP edge put into the extensions of the request, if the [route reads it](crate::RouteSpec::extension).
    /// `None` in a stage that runs in another process: in a child, or as a [remote](crate::Pipeline::remote) stage.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.flight.attributes()?.extensions.get()
    }

    /// All headers that the route reads and the request has, by their lower-case names.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.flight.origin.iter().flat_map(|origin| origin.pairs(PairKind::Header))
    }

    /// All query parameters that the route reads and the request has.
    pub fn query_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.flight.origin.iter().flat_map(|origin| origin.pairs(PairKind::QueryParameter))
    }

    /// All tags of the caller, each name once.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &str)> {
        self.flight.origin.iter().flat_map(|origin| origin.pairs(PairKind::Tag))
    }

    /// Whether both calls have the same caller, headers, query parameters, path, method, tags and extensions. Their
    /// clients may have different addresses.
    #[must_use]
    pub fn has_caller_of(&self, other: &Self) -> bool {
        let is_same_call = match (self.flight.attributes(), other.flight.attributes()) {
            (Some(own), Some(others)) => own.is_same_call(others),
            (own, others) => own.is_none() && others.is_none(),
        };
        self.caller() == other.caller() && is_same_call
    }

    /// The bytes of its headers, query parameters, tags, path, method and client's address.
    #[must_use]
    pub fn attribute_bytes(&self) -> usize {
        self.flight.origin.as_ref().map_or(0, |origin| origin.attribute_bytes())
    }

    /// The session of the call.
    #[must_use]
    pub fn session(&self) -> Option<SessionKey> {
        self.flight.session
    }

    /// The priority class of the call.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.flight.priority
    }

    /// When its caller stops waiting.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.flight.deadline
    }

    /// Whether its caller left: the work on this item is wasted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.flight.is_abandoned()
    }

    /// Whether its caller still waits and its deadline has not passed.
    #[must_use]
    pub fn is_wanted(&self, now: Instant) -> bool {
        self.flight.is_wanted(now)
    }

    /// Chooses status and headers of the answer over HTTP, if the call succeeds. Of several stages the last one that
    /// chooses wins: its status, and its headers in the place of those with the same names. Stages of an ensemble run
    /// at the same time, so they should not choose the same. For a stream this must be before its first output; later
    /// it may have no effect. Other edges, callers in this process and the outer call of an inner call do not see it.
    ///
    /// ```
    /// use callboard_core::{CallContext, ResponseFields, Stage};
    ///
    /// let store = Stage::each_with_context("store", |name: &String, context: &CallContext| {
    ///     let place = format!("/items/{name}");
    ///     context.set_response(ResponseFields::new().with_status(201).with_header("location", place));
    ///     Ok(name.len())
    /// });
    /// ```
    pub fn set_response(&self, fields: ResponseFields) {
        self.flight.set_response(fields);
    }

    /// Reads `bytes` that another process has sent for this call, at the expense of its account: the bytes, and what
    /// they are decoded to.
    ///
    /// # Errors
    ///
    /// If the call, or the node, has no room for them; see [`Limits::max_in_flight_bytes`](crate::Limits).
    pub fn charged<T>(&self, bytes: usize, read: impl FnOnce() -> T) -> Result<T, CallError> {
        let Some(account) = self.flight.account() else { return Ok(read()) };
        account.charge(bytes).map_err(|error| CallError::from(DecodeError::from(error)).at_stage(&self.stage))?;
        Ok(charged_to(&account, read))
    }

    /// Encodes or converts a value of a user's type at the expense of this call. If that turns out to be much work, it
    /// is done again off the runtime.
    ///
    /// # Errors
    ///
    /// `Internal` if the user's code panics.
    pub fn convert<T>(&self, work: impl Fn() -> T) -> Result<T, CallError> {
        self.flight.convert(work).map_err(|panic| CallError::in_conversion(&panic))
    }
}

/// A call that waits for an inner call.
#[derive(Debug)]
pub(crate) struct OuterCall {
    pub(crate) flight: Arc<Flight>,
    /// The stage whose user code waits.
    pub(crate) stage: StageName,
}

impl OuterCall {
    /// The call that waits and has no outer call itself.
    pub(crate) fn outermost(&self) -> &Arc<Flight> {
        let mut outermost = &self.flight;
        while let Some(outer) = outermost.outer() {
            outermost = &outer.flight;
        }
        outermost
    }
}
