//! The caller of a request by a function of the app: the route [`AUTH_ROUTE`], which gets the head of each request that
//! needs a caller and shows no API key.
//!
//! * **Full:** a route without room for one more call is answered with 503, as is the request.
//! * **Late:** 503 after the timeout of the route.
//! * **Failed:** a status that the function chose is passed on with its message; any other failure is 500 or 503, and
//!   says nothing of it. The log does.

use std::collections::BTreeMap;

use callboard_core::{CallError, CallOptions, ErrorKind, LocalClient, Priority};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KeyHolder;
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
    /// Its path, as the client wrote it.
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
    /// The priority of its calls, where the request says none.
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
        let priority = self.priority.filter(|_| options.priority().is_none());
        priority.into_iter().fold(options, CallOptions::with_priority)
    }
}

/// Asks the app who sends a request.
pub(crate) async fn caller_of(client: LocalClient, request: AuthRequest, id: RequestId) -> Result<KeyHolder, ApiError> {
    let options = CallOptions::new().with_request_id(id.as_str());
    let asked = client.call_with::<AuthRequest, AuthCaller>(AUTH_ROUTE, request, options).await;
    let caller = asked.and_then(|caller| {
        // What is beyond a limit would fail each of its calls, as if the client were at fault.
        let checked = caller.add_to(CallOptions::new()).check();
        checked.map(|()| caller).map_err(|error| CallError::new(ErrorKind::Internal, error.message()))
    });
    caller.map(KeyHolder::of_caller).map_err(|error| refusal(error, &id))
}

fn refusal(error: CallError, id: &RequestId) -> ApiError {
    if error.kind() == ErrorKind::Failed && error.status().is_some() {
        return error.without_trace().into();
    }
    tracing::error!(request_id = id.as_str(), %error, "the caller of a request could not be found out");
    let has_answered = matches!(error.kind(), ErrorKind::Failed | ErrorKind::Internal | ErrorKind::InvalidInput);
    if has_answered {
        ApiError::new(ErrorKind::Internal, "the check of the caller has failed")
    } else {
        ApiError::new(ErrorKind::Unavailable, "the caller cannot be checked now").retry_after(error.retry_after())
    }
}
