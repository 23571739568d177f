//! Log records of a replica, which its node writes: for a program that has not set up a log of its own by then.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::message::{FromChild, LogMessage};

/// Sends records of `info` and above. The node reads them while it starts, runs a batch or stops.
pub(crate) struct ReplicaLog<F> {
    send: F,
    spans: AtomicU64,
}

/// Becomes the log of this process, unless it has one.
pub(crate) fn send_by(send: impl Fn(&FromChild) + Send + Sync + 'static) {
    let _ = tracing::subscriber::set_global_default(ReplicaLog { send, spans: AtomicU64::new(1) });
}

impl<F: Fn(&FromChild) + Send + Sync + 'static> Subscriber for ReplicaLog<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Records of `debug` stay here: sending one makes others.
        metadata.is_event() && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        (self.send)(&FromChild::Log(LogMessage {
            level: metadata.level().as_str().to_ascii_lowercase(),
            target: metadata.target().to_owned(),
            message: text.message + &text.fields,
            request_id: None,
        }));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed).max(1))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of a record, and its fields as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn records_of_info_and_above_are_sent_with_their_fields() {
        let sent = Arc::<Mutex<Vec<(String, String, String)>>>::default();
        let to = Arc::clone(&sent);
        let send = move |message: &FromChild| match message {
            FromChild::Log(LogMessage { level, target, message, request_id: None }) => {
                to.lock().push((level.clone(), target.clone(), message.clone()));
            }
            other => panic!("{other:?}"),
        };
        tracing::subscriber::with_default(ReplicaLog { send, spans: AtomicU64::new(1) }, || {
            tracing::warn!(target: "model", n = 7, text = "x", "loaded {}", "twice");
            tracing::debug!(target: "model", "not this");
            let spans = [tracing::info_span!("one"), tracing::info_span!("two")];
            assert!(spans.iter().all(tracing::Span::is_disabled));
            spans[0].in_scope(|| tracing::info!(target: "model", "within"));
            tracing::error!(target: "model", code = 3);
        });
        let record = |level: &str, message: &str| (level.to_owned(), "model".to_owned(), message.to_owned());
        let expected =
            [record("warn", "loaded twice n=7 text=\"x\""), record("info", "within"), record("error", " code=3")];
        assert_eq!(*sent.lock(), expected);
    }
}
