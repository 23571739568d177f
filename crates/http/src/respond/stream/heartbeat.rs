//! Decides when a silent event stream needs a heartbeat.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use tokio::time::Sleep;

/// A comment, which readers of events ignore.
pub(crate) const HEARTBEAT: Bytes = Bytes::from_static(b":\n\n");

/// Breaks long silences, so that neither client nor proxy takes the connection for dead.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    every: Duration,
    /// When something was last sent. The timer moves when it fires, not with each item.
    last: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Heartbeat {
    /// Sends a comment after each such silence.
    #[must_use]
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, last: Instant::now(), timer: None }
    }

    /// Something was sent.
    pub(crate) fn sent(&mut self) {
        self.last = Instant::now();
    }

    /// Completes after a silence.
    pub(crate) async fn silence(&mut self) {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.every)));
        loop {
            timer.as_mut().await;
            let now = Instant::now();
            let is_due = self.last + self.every <= now;
            if is_due {
                self.last = now;
            }
            timer.as_mut().reset(self.last + self.every);
            if is_due {
                return;
            }
        }
    }
}
