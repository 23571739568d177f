//! Logs about a long start, and when the start is given up.
//!
//! * **Every [`TELL_INTERVAL`]:** a line with the phase of the child, if it reports one, and its age.
//! * **Late:** after `start_timeout`, where it is set. Without one, when there was no sign of life for [`MAX_SILENCE`]:
//!   the child reported nothing, and neither it nor a process that it started used a processor. An import may hold the
//!   interpreter for minutes, in which it cannot report anything.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// Long enough for most starts to need no line.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which the processor time of a child is read.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest silence of a live child, which reports every second.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// The most processes whose time is read: a child that starts more of them lives.
const MAX_PROCESSES: usize = 64;

/// The most characters of a reported phase.
const MAX_PHASE_CHARS: usize = 40;

/// A start as it is seen from outside.
#[derive(Debug)]
pub(crate) struct StartWatch {
    began: Instant,
    /// The setting.
    limit: Option<Duration>,
    /// The phase of the child, if it reported one.
    phase: String,
    told: Instant,
    looked: Instant,
    lived: Instant,
    processor_time: Option<u64>,
}

/// A line about a start that takes long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StartNotice<'a> {
    pub(crate) phase: &'a str,
    pub(crate) seconds: u64,
}

impl fmt::Display for StartNotice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not ready after {} s", self.seconds)?;
        if self.phase.is_empty() { Ok(()) } else { write!(f, ": {}", self.phase) }
    }
}

impl StartWatch {
    pub(crate) fn new(limit: Option<Duration>, now: Instant) -> Self {
        Self { began: now, limit, phase: String::new(), told: now, looked: now, lived: now, processor_time: None }
    }

    /// Records the phase that the child reported.
    pub(crate) fn says(&mut self, phase: &str, now: Instant) {
        self.lived = now;
        if self.phase != phase {
            self.phase = phase.chars().filter(|c| !c.is_control()).take(MAX_PHASE_CHARS).collect();
        }
    }

    /// The reason to give the child up, as an error; else a line, if it is time for one. `processor_time` is the time
    /// that the child used so far, if it is known.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        processor_time: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<StartNotice<'_>>, String> {
        let since_start = now.duration_since(self.began);
        if let Some(limit) = self.limit {
            if since_start >= limit {
                return Err(format!("it was not ready within {limit:?} (start_timeout){}", self.said()));
            }
        } else if now.duration_since(self.looked) >= LOOK_INTERVAL {
            self.looked = now;
            let used = processor_time();
            if used.is_some() && used != self.processor_time {
                (self.lived, self.processor_time) = (now, used);
            }
            if now.duration_since(self.lived) >= MAX_SILENCE {
                let reason =
                    format!("it was not ready, and has given no sign of life for {MAX_SILENCE:?}{}", self.said());
                return Err(format!("{reason}; start_timeout sets another limit"));
            }
        }
        if now.duration_since(self.told) < TELL_INTERVAL {
            return Ok(None);
        }
        self.told = now;
        Ok(Some(StartNotice { phase: &self.phase, seconds: since_start.as_secs() }))
    }

    fn said(&self) -> String {
        if self.phase.is_empty() { String::new() } else { format!("; it was {}", self.phase) }
    }
}

/// The processor time of a process and the processes that it started. `None`: this system does not tell.
pub(crate) fn processor_time(pid: Pid) -> Option<u64> {
    let (mut waiting, mut total) = (vec![pid.as_raw_pid()], None);
    for _ in 0..MAX_PROCESSES {
        let Some(pid) = waiting.pop() else { break };
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let used = read("schedstat").split_whitespace().next().and_then(|used| used.parse::<u64>().ok());
            total = used.map(|used| total.unwrap_or(0_u64).saturating_add(used)).or(total);
            waiting.extend(read("children").split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(limit: Option<u64>) -> (StartWatch, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let at = move |seconds| start + Duration::from_secs(seconds);
        (StartWatch::new(limit.map(Duration::from_secs), start), at)
    }

    #[test]
    fn a_long_start_says_every_few_seconds_what_it_does() {
        let (mut watch, at) = watch(None);
        let mut told = Vec::new();
        for second in 0..12 {
            if second == 7 {
                watch.says("setup", at(second));
            }
            told.extend(watch.look(at(second), || Some(second)).unwrap().map(|line| line.to_string()));
        }
        assert_eq!(told, ["not ready after 5 s", "not ready after 10 s: setup"]);
    }

    #[test]
    fn without_a_limit_a_child_that_uses_a_processor_or_speaks_may_take_its_time() {
        let (mut watch, at) = watch(None);
        // A day of an import that holds the interpreter, then an hour of a setup that waits for something.
        for second in 0..86_400 {
            watch.look(at(second), || Some(second / 50)).unwrap();
        }
        for second in 86_400..90_000 {
            watch.says("setup", at(second));
            watch.look(at(second), || Some(0)).unwrap();
        }
        let given_up = (90_000..).find(|second| watch.look(at(*second), || Some(0)).is_err());
        assert_eq!(given_up, Some(90_059));
    }

    #[test]
    fn a_limit_that_was_set_ends_a_child_that_lives_and_is_named() {
        let (mut watch, at) = watch(Some(30));
        watch.says("setup", at(1));
        watch.look(at(29), || Some(29)).unwrap();
        let reason = watch.look(at(30), || Some(30)).unwrap_err();
        assert_eq!(reason, "it was not ready within 30s (start_timeout); it was setup");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_works_uses_a_processor() {
        let own = rustix::process::getpid();
        let before = processor_time(own).unwrap();
        let started = Instant::now();
        while processor_time(own) == Some(before) {
            assert!(started.elapsed() < Duration::from_secs(60));
        }
    }
}
