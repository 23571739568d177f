//! What is written into the log of those who are refused: one line a second for each reason, with how many there were that have none.
//!
//! Strangers come as fast as they like: all of them are counted, and the log is not theirs to fill. What they have written themselves is
//! cut, and quoted.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::open::STALE;
use crate::cluster::MAX_PEERS;
use crate::identity::Denial;
use crate::refusal::{advice, quoted, with_sources};

/// Lines of one reason are so far apart.
const APART: Duration = Duration::from_secs(1);

/// Why somebody was not let in.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The one word, for metrics and programs.
    pub(super) word: &'static str,
    /// What there is to say of it, for people.
    why: Cow<'static, str>,
    /// It is this node that cannot do something.
    is_ours: bool,
}

impl From<&'static str> for Refusal {
    fn from(word: &'static str) -> Self {
        Self { word, why: advice(word).into(), is_ours: false }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        let (why, is_ours) = match &denial {
            Denial::Failed(error) => (with_sources(error), true),
            denial => (denial.to_string(), false),
        };
        Self { word: denial.word(), why: why.into(), is_ours }
    }
}

/// The last line of each reason. There are as many as there are words.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<HashMap<&'static str, Last>>);

#[derive(Debug)]
struct Last {
    at: Instant,
    /// Those that came since, of which nothing was said.
    more: u64,
}

impl Notices {
    /// Writes a line, if it is time for one.
    pub(super) fn tell(&self, peer: SocketAddr, refusal: &Refusal, now: Instant) {
        let Refusal { word, why, is_ours } = refusal;
        match self.turn(word, now) {
            None => {}
            Some(more) if *is_ours => tracing::error!(%peer, reason = word, more, "could not let somebody in: {why}"),
            // Two live nodes under one identity, of which one is of no use: somebody has to see to it.
            Some(more) if *word == STALE => tracing::warn!(%peer, reason = word, more, "refused a node: {why}"),
            Some(more) => tracing::info!(%peer, reason = word, more, "refused a connection: {why}"),
        }
    }

    /// Writes a line for a peer that is answered and not called, if it is time for one.
    pub(super) fn tell_of_full_view(&self, peer: SocketAddr, now: Instant) {
        if let Some(more) = self.turn("view_full", now) {
            tracing::warn!(%peer, more, "a node came by that is not called: {MAX_PEERS} others are known, and no more are taken");
        }
    }

    /// The same for a peer that says that it listens at another port than the one from which it has connected.
    pub(super) fn tell_of_other_port(&self, peer: SocketAddr, address: &str, now: Instant) {
        if let Some(more) = self.turn("other_port", now) {
            let says = quoted(address);
            tracing::warn!(%peer, says, more, "a node came by that is not called: name it to have it called (quic.join)");
        }
    }

    /// Whether there is a line for this one: then how many have had none since the last.
    fn turn(&self, word: &'static str, now: Instant) -> Option<u64> {
        let mut notices = self.0.lock();
        let Some(last) = notices.get_mut(word) else {
            notices.insert(word, Last { at: now, more: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(last.at) < APART {
            last.more += 1;
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_line_a_second_that_tells_of_those_without() {
        let (notices, start) = (Notices::default(), Instant::now());
        let after = |word, millis| notices.turn(word, start + Duration::from_millis(millis));
        assert_eq!(after("no_hello", 0), Some(0));
        assert_eq!(after("too_many", 0), Some(0), "another reason");
        for millis in 0..999 {
            assert_eq!(after("no_hello", millis), None);
        }
        assert_eq!(after("no_hello", 1000), Some(999));
        assert_eq!(after("too_many", 5000), Some(0));
        assert_eq!(after("no_hello", 2000), Some(0));
    }
}
