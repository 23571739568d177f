//! One record per request: its client, its path and its outcome.
//!
//! A record has no header, no query and no body, so that no secret gets into the log; of a key it has the name. Every
//! request pays for its record, so it is a borrowed value ([`AccessRecord`]) that a sink writes at once.
//!
//! * **Cancelled:** the record of a request whose client left before the response has status 499.
//! * **Streamed:** a streamed response has its record at its end, with the number of its items.
//! * **Full, slow:** an [`AccessSink`] drops records that it cannot hold; no response waits for it.

mod date;
mod record;
mod terminal;

use std::fmt;
use std::sync::Arc;

pub use self::date::rfc_3339;
pub use self::record::AccessRecord;

/// The destination of access records.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum AccessLog {
    /// Nowhere.
    #[default]
    Off,
    /// Each is an event of `tracing` at level `INFO` with the target `callboard_http::access`: for programs whose
    /// subscriber has all other lines, too. Such an event costs several times as much as a sink.
    Events,
    /// To this sink.
    To(Arc<dyn AccessSink>),
}

impl AccessLog {
    /// Whether records go anywhere.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Writes one record.
    pub fn write(&self, record: &AccessRecord<'_>) {
        match self {
            Self::Off => {}
            Self::Events => record.emit_event(),
            Self::To(sink) => sink.put(record),
        }
    }
}

/// Sinks are equal if they are the same one.
impl PartialEq for AccessLog {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Off, Self::Off) | (Self::Events, Self::Events) => true,
            (Self::To(one), Self::To(another)) => Arc::ptr_eq(one, another),
            _ => false,
        }
    }
}

impl Eq for AccessLog {}

/// A receiver of access records.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use callboard_telemetry::{AccessLog, AccessRecord, AccessSink};
///
/// /// Keeps the lines of errors.
/// #[derive(Debug, Default)]
/// struct Lines(Mutex<Vec<u8>>);
///
/// impl AccessSink for Lines {
///     fn put(&self, record: &AccessRecord<'_>) {
///         if record.status >= 400 {
///             record.write_line(&mut self.0.lock().unwrap());
///         }
///     }
/// }
///
/// let log = AccessLog::To(Arc::new(Lines::default()));
/// ```
pub trait AccessSink: fmt::Debug + Send + Sync + 'static {
    /// Takes the record of one request. The response waits for this: it must not block, and it drops records that it
    /// cannot hold.
    ///
    /// # Panics
    ///
    /// It must not panic: a second panic while a request unwinds would end the process.
    fn put(&self, record: &AccessRecord<'_>);
}

/// Clients choose methods and paths freely; a record holds no more than this of each.
const MAX_CHARS: usize = 200;

/// The beginning of a client's text, as long as logs and spans hold it.
#[must_use]
pub fn truncate_for_log(text: &str) -> &str {
    // The count of bytes is never below the count of characters.
    if text.len() <= MAX_CHARS {
        return text;
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
