//! Decides the pause after a failed `accept`: none if it concerns one client, a growing pause if the node lacks a
//! resource.
//!
//! A pure value: the loop feeds it errors and successes. Without the pause, an exhausted table of file descriptors
//! would make the accept loop a busy loop, which takes the CPU from the requests whose end frees a descriptor.

use std::io;
use std::time::Duration;

/// A short request can end in this time and free its descriptor.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// After a shortage, service is back within a second.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The next pause. It doubles with each error.
#[derive(Debug, Default)]
pub(crate) struct AcceptBackoff {
    current: Option<Duration>,
}

impl AcceptBackoff {
    /// The pause after this error; `None` continues at once.
    pub(crate) fn on_error(&mut self, error: &io::Error) -> Option<Duration> {
        if concerns_one_client(error) {
            return None;
        }
        let pause = self.current.map_or(FIRST_PAUSE, |last| (last * 2).min(LONGEST_PAUSE));
        self.current = Some(pause);
        self.current
    }

    /// A connection was accepted: the shortage is over.
    pub(crate) fn on_success(&mut self) {
        self.current = None;
    }
}

/// The client left between its handshake and our `accept`; the next client may be fine.
fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `EMFILE`: the process has no file descriptor left.
    const TOO_MANY_OPEN_FILES: i32 = 24;

    #[test]
    fn pauses_grow_while_descriptors_are_exhausted_and_reset_on_success() {
        let mut backoff = AcceptBackoff::default();
        let exhausted = io::Error::from_raw_os_error(TOO_MANY_OPEN_FILES);
        let pauses: Vec<_> = (0..9).map(|_| backoff.on_error(&exhausted).unwrap()).collect();
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(pauses[8], LONGEST_PAUSE);

        backoff.on_success();
        assert_eq!(backoff.on_error(&exhausted), Some(FIRST_PAUSE));
    }

    #[test]
    fn an_error_of_one_client_causes_no_pause() {
        let mut backoff = AcceptBackoff::default();
        let aborted = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!(backoff.on_error(&aborted), None);
    }
}
