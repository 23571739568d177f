//! The two signals that end a server. The first one starts the drain; the second one ends at once.
//!
//! A terminal sends an interrupt to all of its programs, and a wrapper (`timeout`, `npm`, `cargo`) forwards it: the
//! same signal often arrives twice within a moment. The second of them is an echo and is ignored.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal of a terminal.
pub(crate) const INTERRUPT: &str = "SIGINT";

/// SIGTERM and SIGINT, from the moment this is made.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Not waited for: a write beyond a limit of the system is an error of that write, and does not end the process.
    _file_size: Signal,
    echoes: EchoFilter,
}

impl Signals {
    /// Starts to listen for both signals; called before anything is started, so that none is missed.
    pub(crate) fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let file_size = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
        Ok(Self { terminate, interrupt, _file_size: file_size, echoes: EchoFilter::default() })
    }

    /// Waits for the next signal and returns its name.
    ///
    /// # Cancellation
    ///
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> &'static str {
        loop {
            let name = tokio::select! {
                biased;
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => INTERRUPT,
            };
            if !self.echoes.is_one(Instant::now(), name) {
                return name;
            }
        }
    }
}

/// The same signal within this time is an echo.
const ECHO: Duration = Duration::from_millis(250);

/// Recognises echoes.
#[derive(Debug, Default)]
struct EchoFilter {
    last: Option<(Instant, &'static str)>,
}

impl EchoFilter {
    fn is_one(&mut self, now: Instant, name: &'static str) -> bool {
        let is_echo = self.last.is_some_and(|(time, last)| last == name && now.duration_since(time) < ECHO);
        if !is_echo {
            self.last = Some((now, name));
        }
        is_echo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_signal_within_a_short_time_is_an_echo() {
        let mut echoes = EchoFilter::default();
        let start = Instant::now();
        let mut is_echo = |millis: u64, name| echoes.is_one(start + Duration::from_millis(millis), name);
        assert!(!is_echo(0, "SIGTERM"), "the first signal counts");
        assert!(is_echo(0, "SIGTERM") && is_echo(249, "SIGTERM"));
        // A different signal is a second one, and so is the same one later: an echo does not extend the time.
        assert!(!is_echo(249, "SIGINT"));
        assert!(is_echo(300, "SIGINT"));
        assert!(!is_echo(500, "SIGINT"));
    }
}
