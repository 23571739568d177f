//! Deaths that a supervisor hears of before it has read who was born: news of a death overtakes ordinary messages.
//!
//! * **Full:** the oldest is forgotten. Those that belong to somebody are taken as soon as his start is read; what
//!   stays are deaths of actors that nobody will ask for.

use std::collections::VecDeque;

use ractor::ActorId;

/// One that nobody has asked for yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EarlyDeath {
    pub(crate) who: ActorId,
    pub(crate) crashed: bool,
    pub(crate) why: String,
}

/// The last of them.
#[derive(Debug, Default)]
pub(crate) struct EarlyDeaths(VecDeque<EarlyDeath>);

impl EarlyDeaths {
    /// Keeps one, and at most `most` of them.
    pub(crate) fn keep(&mut self, death: EarlyDeath, most: usize) {
        self.0.push_back(death);
        while self.0.len() > most {
            self.0.pop_front();
        }
    }

    /// Whether this one has died already, and how.
    pub(crate) fn take(&mut self, who: ActorId) -> Option<EarlyDeath> {
        let early = self.0.iter().position(|death| death.who == who)?;
        self.0.remove(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_once_and_the_oldest_is_forgotten() {
        let death = |pid| EarlyDeath { who: ActorId::Local(pid), crashed: true, why: format!("{pid}") };
        let mut deaths = EarlyDeaths::default();
        (0..4).for_each(|pid| deaths.keep(death(pid), 3));
        assert_eq!(deaths.take(ActorId::Local(0)), None, "forgotten");
        assert_eq!(deaths.take(ActorId::Local(2)), Some(death(2)));
        assert_eq!(deaths.take(ActorId::Local(2)), None, "told once");
        assert_eq!(deaths.take(ActorId::Local(3)), Some(death(3)));
    }
}
