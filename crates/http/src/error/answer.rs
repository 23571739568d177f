//! A failed call as the response of a user's own handler.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::http::header::HeaderValue;
use axum::response::{IntoResponse, Response};
use callboard_core::CallError;

use super::ApiError;
use super::mapping::status_of_call;
use crate::request_id::{RequestId, RequestIds, X_REQUEST_ID};

/// The HTTP status of a failed call, by the table in `docs/errors.md`: the status of its kind, of its reason, or the
/// status that user code chose.
#[must_use]
pub fn http_status(error: &CallError) -> StatusCode {
    status_of_call(error)
}

/// A failed call as the answer of your own axum handler: the problem document (RFC 9457) of the edge, with its status,
/// `retry-after` and `x-request-id`, without the trace, which the [`CallError`] has.
///
/// ```
/// use axum::extract::State;
/// use axum::routing::post;
/// use axum::{Json, Router};
/// use callboard_core::{App, Failure, LocalClient, Stage};
/// use callboard_http::Problem;
///
/// async fn order(State(client): State<LocalClient>, Json(cups): Json<i64>) -> Result<Json<i64>, Problem> {
///     let price: i64 = client.call("/price", cups).await?;
///     Ok(Json(price))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let price = Stage::each("price", |cups: &i64| match cups {
///     0 => Err(Failure::new("no coffee at all").with_status(418)),
///     cups => Ok(3 * cups),
/// });
/// let node = App::new().route("/price", price).start().await?;
/// let mut router = Router::new().route("/order", post(order)).with_state(node.client());
/// # use axum::body::Body;
/// # use axum::http::Request;
/// # use tower::Service;
/// # let mut ask = async |cups| {
/// #     let request = Request::post("/order").header("content-type",
/// "application/json").body(Body::from(cups)).unwrap();
/// #     router.call(request).await.unwrap()
/// # };
/// # assert_eq!(ask("2").await.status(), 200);
/// # let refused = ask("0").await;
/// # assert_eq!(refused.status(), 418);
/// # assert_eq!(refused.headers()["content-type"], "application/problem+json");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Problem {
    error: ApiError,
    id: Option<RequestId>,
}

impl Problem {
    /// Names the request by its client's `x-request-id` instead of a new id. An id that is not 1 to 128 characters of
    /// visible ASCII is replaced by a new one.
    #[must_use]
    pub fn with_request_id(self, id: &HeaderValue) -> Self {
        Self { id: RequestId::from_client(id), ..self }
    }

    /// The status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.error.status()
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        Self { error: error.into(), id: None }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        static IDS: LazyLock<RequestIds> = LazyLock::new(RequestIds::new);
        let id = self.id.unwrap_or_else(|| IDS.generate());
        // The listener is not known here.
        let mut response = self.error.into_answer(id.as_str(), false);
        response.headers_mut().insert(X_REQUEST_ID, id.to_header());
        response
    }
}
