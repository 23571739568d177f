//! Decides what a failed `accept` costs: nothing when only that one client is concerned, a growing pause when the node is
//! out of something.
//!
//! A pure value: the loop feeds it errors and successes and sleeps as told. Without the pause, an exhausted file descriptor
//! table turns the accept loop into a busy loop that takes the CPU from the very requests whose end would free one.

use std::io;
use std::time::Duration;

/// Long enough for a short request to end and give its descriptor back.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Short enough that service is back within a second after the shortage ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause before the next `accept`, doubling while errors go on.
#[derive(Debug, Default)]
pub(crate) struct AcceptBackoff {
    current: Option<Duration>,
}

impl AcceptBackoff {
    /// How long to wait after this error; `None` goes on at once.
    pub(crate) fn on_error(&mut self, error: &io::Error) -> Option<Duration> {
        if concerns_one_client(error) {
            return None;
        }
        let pause = self.current.map_or(FIRST_PAUSE, |last| (last * 2).min(LONGEST_PAUSE));
        self.current = Some(pause);
        self.current
    }

    /// A connection came in: the shortage is over.
    pub(crate) fn on_success(&mut self) {
        self.current = None;
    }
}

/// The client gave up between its handshake and our `accept`; the next one in the queue may be fine.
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
    fn pauses_longer_while_descriptors_are_exhausted_and_forgets_on_success() {
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
    fn goes_on_at_once_when_only_the_client_is_concerned() {
        let mut backoff = AcceptBackoff::default();
        let aborted = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!(backoff.on_error(&aborted), None);
    }
}
