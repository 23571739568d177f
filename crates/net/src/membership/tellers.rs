//! What a member may cost by what it tells of others: the count of its messages, and of the members it makes known.
//!
//! A member is *heard* when a message of it arrives, or a connection with it begins. Before that it is a *stranger*,
//! which may be made up: it is tried and probed, and not passed on to others. Each stranger takes a place of the member
//! that told of it. The place is free again, with one more, when the stranger is heard; else after [`HOLD`] and the
//! stranger's death. So a member that tells the truth makes a thousand others known in a few round trips, and a member
//! that lies makes [`PLACES`] in ten minutes.
//!
//! * **Full:** a further stranger is ignored until it is heard, or until another member tells of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use callboard_core::Instant;

use super::state::MAX_MEMBERS;

/// The strangers that a member may tell of at first.
pub(super) const PLACES: usize = 32;

/// The most strangers of all members together: the other half of the list is for members that were heard. Threat: many
/// members that lie.
pub(super) const MAX_STRANGERS: usize = MAX_MEMBERS / 2;

/// How long a stranger that is not heard holds its place, at least: longer than it takes to call it dead.
const HOLD: Duration = Duration::from_secs(600);

/// The time between two messages of one member, on average. Threat: a member whose messages take all the time of the
/// thread that drives QUIC. A busy honest member sends a tenth of that.
const MESSAGE_EVERY: Duration = Duration::from_millis(10);

/// The most messages at once: as many as wait of one connection.
const BURST: u32 = 256;

/// The members that tell of others, and the strangers of which they told.
#[derive(Debug, Default)]
pub(super) struct Tellers {
    tellers: HashMap<Arc<str>, Teller>,
    strangers: HashMap<Arc<str>, Introduction>,
}

#[derive(Debug)]
struct Teller {
    /// The strangers that it may have told of.
    places: usize,
    taken: usize,
    /// When its messages would have come, had they kept their distance.
    paid_until: Instant,
}

#[derive(Debug)]
struct Introduction {
    by: Arc<str>,
    held_until: Instant,
}

impl Tellers {
    fn teller(&mut self, name: &str, now: Instant) -> &mut Teller {
        self.tellers.entry(name.into()).or_insert(Teller { places: PLACES, taken: 0, paid_until: now })
    }

    /// Whether a message of this member is read.
    pub(super) fn may_tell(&mut self, name: &str, now: Instant) -> bool {
        let teller = self.teller(name, now);
        let paid_until = teller.paid_until.max(now);
        let may_tell = paid_until.saturating_duration_since(now) < MESSAGE_EVERY * BURST;
        if may_tell {
            teller.paid_until = paid_until + MESSAGE_EVERY;
        }
        may_tell
    }

    /// Whether this node takes the word of `by` that there is this stranger.
    pub(super) fn introduce(&mut self, stranger: &Arc<str>, by: &Arc<str>, now: Instant) -> bool {
        if self.strangers.contains_key(stranger) {
            return true;
        }
        let is_full = self.strangers.len() >= MAX_STRANGERS;
        let teller = self.teller(by, now);
        if is_full || teller.taken >= teller.places {
            return false;
        }
        teller.taken += 1;
        self.strangers.insert(Arc::clone(stranger), Introduction { by: Arc::clone(by), held_until: now + HOLD });
        true
    }

    /// This member is there.
    pub(super) fn heard(&mut self, member: &str) {
        let Some(introduction) = self.strangers.remove(member) else { return };
        if let Some(teller) = self.tellers.get_mut(&introduction.by) {
            teller.taken = teller.taken.saturating_sub(1);
            teller.places = (teller.places + 1).min(MAX_STRANGERS);
        }
    }

    /// Whether only others say that there is this member.
    pub(super) fn is_stranger(&self, member: &str) -> bool {
        self.strangers.contains_key(member)
    }

    /// Whether there is a stranger.
    pub(super) fn has_strangers(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// Frees the places of strangers that were never heard, and forgets members that tell nothing. `is_up`: whether a
    /// member is known, and not down.
    pub(super) fn sweep(&mut self, now: Instant, is_up: impl Fn(&str) -> bool) {
        let Self { tellers, strangers } = self;
        strangers.retain(|name, introduction| {
            let is_kept = introduction.held_until > now || is_up(name);
            if !is_kept && let Some(teller) = tellers.get_mut(&introduction.by) {
                teller.taken = teller.taken.saturating_sub(1);
            }
            is_kept
        });
        tellers.retain(|name, teller| teller.taken > 0 || teller.paid_until > now || is_up(name));
    }

    /// This process was stopped for this long.
    pub(super) fn give_back(&mut self, gap: Duration) {
        self.strangers.values_mut().for_each(|introduction| introduction.held_until += gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Arc<str> {
        number.to_string().into()
    }

    /// How many of these strangers are taken.
    fn introduced(tellers: &mut Tellers, by: &str, numbers: std::ops::Range<usize>, now: Instant) -> usize {
        numbers.filter(|number| tellers.introduce(&name(*number), &by.into(), now)).count()
    }

    #[test]
    fn each_stranger_that_is_heard_gives_its_teller_a_place_more() {
        let (mut tellers, now) = (Tellers::default(), Instant::now());
        assert_eq!(introduced(&mut tellers, "a", 0..100, now), PLACES);
        assert_eq!(introduced(&mut tellers, "a", 0..100, now), PLACES, "those are known");
        (0..PLACES).for_each(|number| tellers.heard(&name(number)));
        assert!(!tellers.has_strangers() && !tellers.is_stranger("0"));
        assert_eq!(introduced(&mut tellers, "a", 100..300, now), 2 * PLACES);
        assert_eq!(introduced(&mut tellers, "b", 300..400, now), PLACES, "each member has its own");
    }

    #[test]
    fn a_stranger_that_is_never_heard_holds_its_place_for_ten_minutes_and_until_it_is_dead() {
        let (mut tellers, now) = (Tellers::default(), Instant::now());
        introduced(&mut tellers, "a", 0..PLACES, now);
        tellers.sweep(now + HOLD / 2, |_| false);
        assert_eq!(introduced(&mut tellers, "a", 100..200, now), 0);
        let later = now + HOLD + Duration::from_secs(1);
        tellers.sweep(later, |name| name == "0");
        assert_eq!(introduced(&mut tellers, "a", 100..200, later), PLACES - 1, "one is still up");
    }

    #[test]
    fn many_members_that_lie_fill_half_of_the_list() {
        let (mut tellers, now) = (Tellers::default(), Instant::now());
        let taken: usize =
            (0..40).map(|by| introduced(&mut tellers, &format!("liar {by}"), by * 100..by * 100 + 100, now)).sum();
        assert_eq!(taken, MAX_STRANGERS);
    }

    #[test]
    fn a_flood_of_messages_is_read_at_a_hundred_a_second() {
        let (mut tellers, mut now, mut read) = (Tellers::default(), Instant::now(), 0);
        for _ in 0..10_000 {
            read += u32::from(tellers.may_tell("1", now));
            now += Duration::from_millis(1);
        }
        assert!((BURST + 999..=BURST + 1_001).contains(&read), "{read} in ten seconds");
        assert!(tellers.may_tell("2", now));
        tellers.sweep(now + Duration::from_secs(10), |_| false);
        assert!(tellers.tellers.is_empty());
    }
}
