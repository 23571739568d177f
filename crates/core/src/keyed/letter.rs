//! One message on its way to an instance: the asker or the instance takes its question, never both.

use std::pin::Pin;
use std::sync::Arc;

use callboard_codec::Payload;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::context::KeyContext;
use crate::call::CallOptions;
use crate::clock::Instant;
use crate::deadline::Deadline;
use crate::error::{AskError, Failure};

/// A question that waits. Taking it is the decision whether it is handled: an instance takes it to handle it, and an
/// asker takes it back when its deadline passes or the key has moved.
#[derive(Debug)]
pub(crate) struct Letter(Mutex<Option<Payload>>);

impl Letter {
    pub(crate) fn new(question: Payload) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(question))))
    }

    /// The question, the first time.
    pub(super) fn take(&self) -> Option<Payload> {
        self.0.lock().take()
    }
}

/// The future of an answer, which borrows the instance.
pub(super) type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<Payload, Failure>> + Send + 'a>>;

/// The code of an instance for one question, without its types.
pub(super) type Handler<K> = dyn for<'a> Fn(Payload, &'a mut K, &'a KeyContext) -> HandlerFuture<'a> + Send + Sync;

/// The port of an answer.
pub(super) type AnswerPort = oneshot::Sender<Result<Payload, AskError>>;

/// A letter in the mailbox of a key.
pub(super) struct Delivery<K> {
    letter: Arc<Letter>,
    pub(super) handler: Arc<Handler<K>>,
    /// `None` for a message that is told.
    pub(super) port: Option<AnswerPort>,
    pub(super) deadline: Deadline,
    pub(super) options: CallOptions,
    /// Its place among the waiting messages of the kind. The message of a timer needs none.
    _place: Option<OwnedSemaphorePermit>,
}

impl<K> Delivery<K> {
    pub(super) fn new(
        letter: Arc<Letter>,
        handler: Arc<Handler<K>>,
        port: Option<AnswerPort>,
        deadline: Deadline,
        options: CallOptions,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { letter, handler, port, deadline, options, _place: Some(place) }
    }

    /// The message of a timer.
    pub(super) fn of_timer(question: Payload, handler: Arc<Handler<K>>, deadline: Deadline) -> Self {
        let (letter, options) = (Letter::new(question), CallOptions::new());
        Self { letter, handler, port: None, deadline, options, _place: None }
    }

    /// Whether it is still to be handled. An asker that left, or whose deadline has passed, is not answered.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        self.port.as_ref().is_none_or(|port| !port.is_closed() && !self.deadline.is_expired(now))
    }

    /// The question, unless its asker has taken it back.
    pub(super) fn open(&self, now: Instant) -> Option<Payload> {
        self.is_wanted(now).then(|| self.letter.take()).flatten()
    }

    /// It is not handled.
    pub(super) fn refuse(self, error: AskError) {
        if let Some(port) = self.port {
            let _ = port.send(Err(error));
        }
    }
}
