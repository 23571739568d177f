//! Deaths that a supervisor learns of before the start: supervision events overtake ordinary messages.
//!
//! * **Full:** the oldest is dropped. A death is taken as soon as the start of its actor is read; the others belong to
//!   actors whose start is never read.

use std::collections::VecDeque;

use ractor::ActorId;

/// The death of an actor whose start was not read yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EarlyDeath {
    pub(crate) who: ActorId,
    pub(crate) has_crashed: bool,
    pub(crate) why: String,
}

/// The latest early deaths.
#[derive(Debug, Default)]
pub(crate) struct EarlyDeaths(VecDeque<EarlyDeath>);

impl EarlyDeaths {
    /// Keeps a death, and at most `most` in all.
    pub(crate) fn keep(&mut self, death: EarlyDeath, most: usize) {
        self.0.push_back(death);
        while self.0.len() > most {
            self.0.pop_front();
        }
    }

    /// Takes the death of this actor, if it has died already.
    pub(crate) fn take(&mut self, who: ActorId) -> Option<EarlyDeath> {
        let early = self.0.iter().position(|death| death.who == who)?;
        self.0.remove(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_reported_once_and_the_oldest_is_dropped() {
        let death = |pid| EarlyDeath { who: ActorId::Local(pid), has_crashed: true, why: format!("{pid}") };
        let mut deaths = EarlyDeaths::default();
        (0..4).for_each(|pid| deaths.keep(death(pid), 3));
        assert_eq!(deaths.take(ActorId::Local(0)), None, "forgotten");
        assert_eq!(deaths.take(ActorId::Local(1)), Some(death(1)));
        assert_eq!(deaths.take(ActorId::Local(2)), Some(death(2)));
        assert_eq!(deaths.take(ActorId::Local(2)), None, "reported once");
        assert_eq!(deaths.take(ActorId::Local(3)), Some(death(3)));
    }
}
