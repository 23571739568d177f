//! The caller of a request by a function of the app: the route [`AUTH_ROUTE`], which gets the head of each request that
//! needs a caller and shows no API key.
//!
//! * **Full:** a route without room for one more call is answered with 503, as is the request.
//! * **Late:** 503 after the timeout of the route, or of the request.
//! * **Over its rate:** 429, as for a key. The counts of callers are bounded: see [`MAX_CALLERS`].
//! * **Failed:** a status that the function chose is passed on with its message, 401 and 403 in the kinds that they
//!   have from the edge itself; any other failure is 500 or 503, and says nothing of it. The log does, at most at
//!   [`FAILURES`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use callboard_core::edge::ErrorParts;
use callboard_core::log_limit::{LogRate, SharedLogLimit};
use callboard_core::{CallError, CallOptions, ErrorKind, Instant, LocalClient, Priority};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KeyHolder;
use super::rate_limit::{Limiter, RateLimit};
use crate::error::ApiError;
use crate::request_id::RequestId;

/// The name of the route. No edge serves a route whose name begins with `@`.
pub const AUTH_ROUTE: &str = "@auth";

/// The head of a request, as the pipeline of [`AUTH_ROUTE`] gets it.
///
/// ```
/// use callboard_core::{App, Failure, Stage};
/// use callboard_http::{AUTH_ROUTE, AuthCaller, AuthRequest};
///
/// let who = Stage::each("who", |request: &AuthRequest| match request.headers.get("authorization") {
///     Some(token) if token == "Bearer ada's" => Ok(AuthCaller::new("ada")),
///     _ => Err(Failure::new("send a token").with_status(401)),
/// });
/// let double = Stage::each("double", |number: &i64| Ok(number * 2));
/// let app = App::new().route(AUTH_ROUTE, who).route("/double", double);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct AuthRequest {
    /// Its method, such as `POST`.
    pub method: String,
    /// Its path, as the client wrote it; that of a request to a mounted app is decoded, as such apps see it.
    pub path: String,
    /// Its query parameters, decoded: all values of each name, in their order.
    pub query: BTreeMap<String, Vec<String>>,
    /// Its headers by their names in lower case. Lines of one name are joined with `, `, those of `cookie` with `; `.
    pub headers: BTreeMap<String, String>,
    /// The address of the client, if the connection is the edge's own; see
    /// [`trusted_proxies`](crate::HttpConfig::trusted_proxies).
    pub client: Option<String>,
}

/// The caller of a request, as the pipeline of [`AUTH_ROUTE`] answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct AuthCaller {
    /// Its name in logs and for user code, at most [`CallOptions::MAX_CALLER_BYTES`].
    pub name: String,
    /// Tags for user code; see [`CallOptions::with_tag`].
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// The priority of its calls. A request may ask for a lower one.
    #[serde(default)]
    pub priority: Option<Priority>,
}

impl AuthCaller {
    /// A caller of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// These options of a call, with what is known of the caller.
    pub(super) fn add_to(&self, options: CallOptions) -> CallOptions {
        let options = self.tags.iter().fold(options.with_caller(&*self.name), |options, (name, value)| {
            options.with_tag(name.as_str(), value.as_str())
        });
        self.priority.into_iter().fold(options, CallOptions::with_priority_at_most)
    }
}

/// The most callers with a count of their own. Those beyond share one until the counts of others are as new.
const MAX_CALLERS: usize = 10_000;

/// How often a full table looks for such counts.
const SWEEP: Duration = Duration::from_secs(1);

/// The callers that the app names: how they are asked for, and their rates.
#[derive(Debug)]
pub(crate) struct Callers {
    limits: Option<CallerLimits>,
    failures: SharedLogLimit,
}

impl Callers {
    pub(super) fn new(limit: Option<RateLimit>) -> Self {
        Self { limits: limit.map(CallerLimits::new), failures: SharedLogLimit::new(LogRate::FAULTS) }
    }

    /// Asks the app who sends a request, which is counted.
    pub(crate) async fn ask(
        &self,
        client: LocalClient,
        request: AuthRequest,
        id: &RequestId,
        options: CallOptions,
    ) -> Result<KeyHolder, ApiError> {
        let asked = client.call_with::<AuthRequest, AuthCaller>(AUTH_ROUTE, request, options).await;
        let caller = asked.and_then(|caller| {
            // What is beyond a limit would fail each of its calls, as if the client were at fault.
            let checked = caller.add_to(CallOptions::new()).check();
            checked.map(|()| caller).map_err(|error| CallError::new(ErrorKind::Internal, error.message()))
        });
        let caller = caller.map_err(|error| self.refusal(error, id))?;
        let limiter = self.limits.as_ref().map(|limits| limits.of(&caller.name));
        let holder = KeyHolder::of_caller(caller, limiter);
        holder.take(1).map_err(|over| over.error)?;
        Ok(holder)
    }

    fn refusal(&self, error: CallError, id: &RequestId) -> ApiError {
        if error.kind() == ErrorKind::Failed && error.status().is_some() {
            return as_refused(error.without_trace()).into();
        }
        let tell = |left_out| {
            tracing::warn!(left_out, "lines about callers that could not be found out were left out");
        };
        if self.failures.admits(0, tell) {
            tracing::error!(request_id = id.as_str(), %error, "the caller of a request could not be found out");
        }
        let has_answered = matches!(error.kind(), ErrorKind::Failed | ErrorKind::Internal | ErrorKind::InvalidInput);
        if has_answered {
            ApiError::new(ErrorKind::Internal, "the check of the caller has failed")
        } else {
            ApiError::new(ErrorKind::Unavailable, "the caller cannot be checked now").retry_after(error.retry_after())
        }
    }
}

/// What the app says of a caller. Its 401 and 403 have the kinds of the edge's own.
fn as_refused(error: CallError) -> CallError {
    let kind = match error.status() {
        Some(401) => ErrorKind::Unauthenticated,
        Some(403) => ErrorKind::PermissionDenied,
        _ => return error,
    };
    let ErrorParts { message, details, headers, .. } = error.into_parts();
    ErrorParts { details, headers, ..ErrorParts::new(kind, message) }.into()
}

/// A count for each name.
#[derive(Debug)]
struct CallerLimits {
    limit: RateLimit,
    own: Mutex<OwnCounts>,
    shared: Arc<Limiter>,
}

#[derive(Debug, Default)]
struct OwnCounts {
    by_name: HashMap<String, Arc<Limiter>>,
    /// When those that are as new were last looked for: that takes as long as there are callers.
    swept_at: Option<Instant>,
}

impl CallerLimits {
    fn new(limit: RateLimit) -> Self {
        Self { limit, own: Mutex::default(), shared: Arc::new(Limiter::new(limit)) }
    }

    fn of(&self, name: &str) -> Arc<Limiter> {
        let OwnCounts { by_name, swept_at } = &mut *self.own.lock();
        if let Some(limiter) = by_name.get(name) {
            return Arc::clone(limiter);
        }
        let now = Instant::now();
        if by_name.len() >= MAX_CALLERS && swept_at.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP) {
            *swept_at = Some(now);
            // A request in progress may count more.
            by_name.retain(|_, limiter| Arc::strong_count(limiter) > 1 || !limiter.is_settled());
        }
        if by_name.len() >= MAX_CALLERS {
            return Arc::clone(&self.shared);
        }
        Arc::clone(by_name.entry(name.to_owned()).or_insert_with(|| Arc::new(Limiter::new(self.limit))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_beyond_the_bound_share_a_count_until_others_have_settled() {
        let limits = CallerLimits::new(RateLimit::parse("1/h").unwrap());
        let one = std::num::NonZeroU32::MIN;
        let take = |name: &str| limits.of(name).take(one).unwrap().is_ok();
        assert!((0..MAX_CALLERS).all(|caller| take(&caller.to_string())));
        assert!(!take("0") && take("one more") && !take("another"));
        let idle = CallerLimits::new(RateLimit::parse("1/h").unwrap());
        for caller in 0..=MAX_CALLERS {
            let _ = idle.of(&caller.to_string());
        }
        assert_eq!(idle.own.lock().by_name.len(), 1, "counts that are as new are forgotten");
    }
}
