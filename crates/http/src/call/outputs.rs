//! The outputs of one call, each as a response of its own: for protocols that stream in frames of their own.
//!
//! * **Late:** the deadline of the call covers all outputs.
//! * **Cancelled:** dropping them cancels the call.

use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use callboard_core::edge::{PayloadReplies, Route};
use callboard_core::{Deadline, LocalClient};

use super::functions::CallStyle;
use super::{ArrivedCall, RequestContext, arrive};
use crate::error::ApiError;
use crate::respond::stream::next_reply;
use crate::respond::{self, AcceptedForms, ResponseCompression};
use crate::upgrade::EdgeLife;

/// The outputs of a call that has begun. A route that answers once has one.
pub struct RouteOutputs {
    replies: PayloadReplies,
    accepted: AcceptedForms,
    compression: ResponseCompression,
    client: LocalClient,
    life: Arc<EdgeLife>,
    deadline: Deadline,
}

impl fmt::Debug for RouteOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteOutputs").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

impl RouteOutputs {
    /// Reads the input of the call, and begins it.
    pub(super) async fn begin(
        context: RequestContext<'_>,
        route: &Arc<Route>,
        mut request: Request<Body>,
    ) -> Result<Self, ApiError> {
        let (accepted, arrived) = arrive(context, route, CallStyle::Route, &mut request, |head, _| {
            AcceptedForms::from_accept(head.accept.as_ref(), route.output())
        })
        .await?;
        let ArrivedCall { admission, payload, options, deadline, .. } = arrived;
        let client = context.client.clone();
        let replies = client.edge().submit_streaming(admission, payload, options);
        let compression = ResponseCompression::new(None, context.config);
        Ok(Self { replies, accepted, compression, client, life: Arc::clone(context.life), deadline })
    }

    /// The deadline of the call.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The next output, in the form that its request accepts; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Response, ApiError>> {
        let payload = match next_reply(&mut self.replies, &self.life).await? {
            Ok(payload) => payload,
            Err(error) => return Some(Err(error)),
        };
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        Some(respond::whole(payload, self.accepted.clone(), &self.compression, &budget).await)
    }
}
