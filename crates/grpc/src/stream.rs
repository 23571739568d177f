//! A response of several messages, which are made while it is sent.
//!
//! Its driver is a part of the response body: there is no task and no queue. A client that leaves drops it, and with it
//! what it waits for. A slow reader suspends its driver. A panic ends this response only; a node that ends aborts it.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec::IntoIter;

use bytes::Bytes;
use callboard_http::axum::body::{Body, HttpBody};
use callboard_http::axum::http::HeaderMap;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    AbandonGuard, ApiError, ContentCoding, RequestContext, RequestId, StreamedItems, caught_within,
};
use callboard_telemetry::RequestSpan;
use hyper::body::Frame;
use tokio::sync::mpsc;

use crate::answer::with_coding;
use crate::status::{ok_trailers, trailers};

/// Where a driver sends its messages. A message waits until the one before it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    sender: mpsc::Sender<Vec<Bytes>>,
    items: StreamedItems,
}

impl Outlet {
    /// Sends a framed message.
    pub(crate) async fn send(&self, pieces: Vec<Bytes>) {
        self.items.count();
        // Without a receiver the response is gone, and its driver with it.
        let _ = self.sender.send(pieces).await;
    }
}

/// The driver of a response: it ends with the status of the call.
type Driver = Pin<Box<dyn Future<Output = Result<(), ApiError>> + Send>>;

/// A response with the messages that the future of `drive` sends.
pub(crate) fn respond<F: Future<Output = Result<(), ApiError>> + Send + 'static>(
    context: RequestContext<'_>,
    route: Option<&str>,
    coding: Option<ContentCoding>,
    drive: impl FnOnce(Outlet) -> F,
) -> Response {
    let RequestContext { life, metrics, id, span, .. } = context;
    let (sender, receiver) = mpsc::channel(1);
    let items = StreamedItems::default();
    let work = drive(Outlet { sender, items: items.clone() });
    let (life, panics) = (Arc::clone(life), metrics.requests.panics.clone());
    let driver = async move {
        let work = async { life.unless_aborted(pin!(work)).await? };
        caught_within(&panics, Box::pin(work)).await
    };
    let body = StreamBody {
        driver: Some(Box::pin(driver)),
        receiver,
        pieces: Vec::new().into_iter(),
        trailers: None,
        is_over: false,
        leaving: AbandonGuard::new(metrics.requests.abandoned.clone()),
        id: id.clone(),
        route: route.map(str::to_owned),
        _span: span.cloned(),
    };
    let mut response = with_coding(Body::new(body), coding);
    response.extensions_mut().insert(items);
    response
}

struct StreamBody {
    /// `None` when it has ended.
    driver: Option<Driver>,
    receiver: mpsc::Receiver<Vec<Bytes>>,
    /// The rest of a message.
    pieces: IntoIter<Bytes>,
    /// Sent after the last message.
    trailers: Option<HeaderMap>,
    is_over: bool,
    leaving: AbandonGuard,
    id: RequestId,
    route: Option<String>,
    /// Ends with the stream.
    _span: Option<Arc<RequestSpan>>,
}

impl StreamBody {
    fn ended(&mut self, outcome: Result<(), ApiError>) {
        self.driver = None;
        self.trailers = Some(match outcome {
            Ok(()) => ok_trailers(),
            Err(error) => {
                error.log(self.id.as_str(), self.route.as_deref());
                trailers(&error)
            }
        });
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if let Some(driver) = &mut self.driver
                && let Poll::Ready(outcome) = driver.as_mut().poll(cx)
            {
                self.ended(outcome);
            }
            match self.receiver.poll_recv(cx) {
                Poll::Ready(Some(pieces)) => self.pieces = pieces.into_iter(),
                // Every outlet is gone with the driver.
                Poll::Ready(None) => {
                    self.is_over = true;
                    self.leaving.ended();
                    return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_over && self.trailers.is_none()
    }
}
