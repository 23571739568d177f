//! The request of a protocol whose body names the route: it is read before the route is known.
//!
//! * **Full:** its bytes are held on an account of their own, within the largest limit of any route.
//! * **Late:** it has the longest time that the node allows, or that its client does.
//! * **Cancelled:** dropping the future frees the account.

use std::sync::Arc;

use bytes::Bytes;
use callboard_core::Deadline;
use callboard_core::edge::{CodecBudget, HeldBytes};

use super::ProtocolRequest;
use crate::call::RequestContext;
use crate::error::ApiError;
use crate::request::body::{BodyLimits, IncomingBody, UnroutedBody, announced_length};
use crate::request::head::RequestHead;
use crate::request::media;
use crate::request::multipart::{self, FormFields};
use crate::respond::ResponseCompression;

/// A request that was read before its route is known.
#[derive(Debug)]
pub struct UnroutedRequest<'a, 'r> {
    /// What its headers say.
    pub head: RequestHead<'r>,
    /// Its JSON, which is not decoded.
    pub bytes: Bytes,
    /// Pays for the bytes.
    pub account: Arc<HeldBytes>,
    /// Pays, by the same account, for what is made of them.
    pub budget: CodecBudget<'a>,
    /// What its client accepts.
    pub compression: ResponseCompression,
}

/// A form that was read before its route is known.
#[derive(Debug)]
pub struct UnroutedForm<'r> {
    /// What its headers say.
    pub head: RequestHead<'r>,
    /// Its parts.
    pub fields: FormFields,
    /// The bytes of its body.
    pub length: u64,
    /// Pays for the parts.
    pub account: Arc<HeldBytes>,
    /// What its client accepts.
    pub compression: ResponseCompression,
}

impl<'a> RequestContext<'a> {
    /// Reads a form, `multipart/form-data`, that names its route itself.
    ///
    /// # Errors
    ///
    /// As [`read_unrouted`](Self::read_unrouted), and a form that is malformed.
    pub async fn read_unrouted_form<'r>(self, request: ProtocolRequest<'r>) -> Result<UnroutedForm<'r>, ApiError> {
        let RequestContext { client, config, .. } = self;
        let ProtocolRequest { head: parts, body } = request;
        let head = RequestHead::read(&parts.headers)?;
        let boundary = media::boundary_of(head.content_type)?;
        let compression = ResponseCompression::new(head.accept_encoding.as_deref(), config);
        let deadline = self.unrouted_deadline(&head);
        let max_bytes = config.largest_body_bytes();
        let announced = announced_length(&*body, max_bytes)?;
        let mut arrival = UnroutedBody::new(client);
        let form = {
            let limits = BodyLimits { max_bytes, pace: config.body_pace(deadline) };
            let mut body = IncomingBody::new(body, announced, &mut arrival, limits)?.decoded(head.coding);
            // Boxed, because it is large.
            Box::pin(multipart::read(&mut body, boundary)).await?
        };
        let account = arrival.into_account();
        let length = account.bytes();
        let budget = client.edge().codec_budget(Arc::clone(&account) as _, deadline);
        // Texts are copied.
        budget.charge(form.value_bytes())?;
        let (bytes, limits) = (form.read_bytes(), config.decode.clone());
        let ((), fields) = budget.run((), bytes, move || form.decode(&limits, |_| None)).await?;
        Ok(UnroutedForm { head, fields: fields?, length, account, compression })
    }

    /// The longest time that the node allows, or that the client does.
    fn unrouted_deadline(&self, head: &RequestHead<'_>) -> Deadline {
        let limits = self.client.edge().limits();
        Deadline::after(self.start, head.timeout.unwrap_or(limits.default_timeout).min(limits.max_timeout))
    }

    /// Reads a body of JSON that names its route itself.
    ///
    /// # Errors
    ///
    /// Invalid headers, another media type, and a body that is too large, too slow or has no room.
    pub async fn read_unrouted<'r>(self, request: ProtocolRequest<'r>) -> Result<UnroutedRequest<'a, 'r>, ApiError> {
        let RequestContext { client, config, .. } = self;
        let ProtocolRequest { head: parts, body } = request;
        let head = RequestHead::read(&parts.headers)?;
        head.check_json()?;
        let compression = ResponseCompression::new(head.accept_encoding.as_deref(), config);
        let max_bytes = config.largest_body_bytes();
        let announced = announced_length(&*body, max_bytes)?;
        let deadline = self.unrouted_deadline(&head);
        let mut arrival = UnroutedBody::new(client);
        let bytes = {
            let limits = BodyLimits { max_bytes, pace: config.body_pace(deadline) };
            let mut body = IncomingBody::new(body, announced, &mut arrival, limits)?.decoded(head.coding);
            body.collect_aligned_at(0).await?
        };
        let account = arrival.into_account();
        let budget = client.edge().codec_budget(Arc::clone(&account) as _, deadline);
        Ok(UnroutedRequest { head, bytes, account, budget, compression })
    }
}
