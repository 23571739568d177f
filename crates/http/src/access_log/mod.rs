//! One line per request, for those who want to know who asked for what and what became of it.
//!
//! It has no header, no query and no body, so that no secret gets into it; of a key it has the name. Every request pays for its line,
//! so it goes by the shortest way: what is known is a value ([`AccessRecord`]) that is lent to whoever writes it down.
//!
//! * **Left:** a request whose client left before the answer has a line with status 499.
//! * **Streamed:** an answer that goes on has its line when it begins.
//! * **Full, slow:** an [`AccessSink`] leaves out what it cannot hold; no answer waits for it.

mod date;
mod record;
mod short;

use std::fmt;
use std::sync::Arc;

pub use self::record::AccessRecord;

/// What becomes of the lines.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum AccessLog {
    /// There are none.
    #[default]
    Off,
    /// Each is an event of `tracing` at level `INFO` under the target `callboard_http::access`, with everything as fields: for programs
    /// whose subscriber has all other lines, too. An event of so many fields costs several times what a sink does.
    Events,
    /// Each is lent to this sink.
    To(Arc<dyn AccessSink>),
}

impl AccessLog {
    pub(crate) fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }
}

/// Sinks are equal where they are the same one.
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

/// Whoever gets the lines of an access log.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use callboard_http::{AccessLog, AccessRecord, AccessSink, HttpConfig};
///
/// /// Gathers the lines.
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
/// let config = HttpConfig { access_log: AccessLog::To(Arc::new(Lines::default())), ..HttpConfig::default() };
/// ```
pub trait AccessSink: fmt::Debug + Send + Sync + 'static {
    /// Takes what is known of one request. Called on the way of its answer: it must not wait, and leaves out what it cannot hold.
    ///
    /// # Panics
    ///
    /// It must not: a panic for a request that itself ends by one ends the process.
    fn put(&self, record: &AccessRecord<'_>);
}
