//! The signals that end a server. The first one starts the drain; the second one ends at once.
//!
//! SIGHUP is one of them, unless it was ignored when the process started: that is what `nohup` asks for. SIGUSR1 and
//! SIGUSR2, which tools that rotate logs send, do nothing.
//!
//! A terminal sends an interrupt to all of its programs, and a wrapper (`timeout`, `npm`, `cargo`) forwards it: the
//! same signal often arrives twice within a moment. The second of them is an echo and is ignored.

use std::future::pending;
use std::time::{Duration, Instant};
use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal of a terminal.
pub(crate) const INTERRUPT: &str = "SIGINT";

/// SIGTERM, SIGINT, SIGQUIT and SIGHUP, from the moment this is made.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    /// `None` if it is ignored.
    hangup: Option<Signal>,
    /// Not waited for. They would end the process, one of them for a write beyond a limit of the system, which is an
    /// error of that write.
    _without_effect: [Signal; 3],
    echoes: EchoFilter,
}

impl Signals {
    /// Starts to listen for the signals; called before anything is started, so that none is missed.
    pub(crate) fn listen() -> io::Result<Self> {
        let file_size = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
        let hangup = SignalKind::hangup();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: if is_ignored(hangup) { None } else { Some(signal(hangup)?) },
            _without_effect: [
                signal(file_size)?,
                signal(SignalKind::user_defined1())?,
                signal(SignalKind::user_defined2())?,
            ],
            echoes: EchoFilter::default(),
        })
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
                _ = self.quit.recv() => "SIGQUIT",
                _ = received(self.hangup.as_mut()) => "SIGHUP",
            };
            if !self.echoes.is_one(Instant::now(), name) {
                return name;
            }
        }
    }
}

/// Waits for a signal; for ever if it is ignored.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => pending().await,
    }
}

/// Whether the process was started with this signal ignored. Only Linux tells without code that is not safe.
fn is_ignored(kind: SignalKind) -> bool {
    fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| ignored_signals(&status) >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// The ignored signals of a process, a bit for each.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
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
    fn the_mask_of_ignored_signals_has_a_bit_for_each() {
        let bits = |status| ignored_signals(status);
        assert_eq!(bits("Name:\tcallboard\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000001\n"), 0x1001);
        assert_eq!((bits(""), bits("SigIgn:\tnone\n")), (0, 0));
    }

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
