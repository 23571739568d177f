//! Which calls the candidate gets: by chance, from a secret of this rollout.
//!
//! A caller that knows the next choice can send its worst inputs to one revision only. So no choice follows from
//! earlier ones: each is a keyed hash (SipHash) of the number of the call, or of its session.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::call::SessionKey;

/// The secret of one rollout.
#[derive(Clone)]
pub(crate) struct Draw {
    keys: [u64; 2],
}

impl Draw {
    /// A secret from the operating system. Numbers of `fastrand` would not do: callers see some, in traces.
    pub(crate) fn from_system() -> Self {
        Self { keys: [(); 2].map(|()| RandomState::new().build_hasher().finish()) }
    }

    #[cfg(test)]
    pub(super) fn from_seed(seed: u64) -> Self {
        Self { keys: [seed, !seed] }
    }

    /// A number for the call with this number, independent of those of all other calls.
    pub(super) fn of_call(&self, number: u64) -> u64 {
        self.hash(0, number)
    }

    /// The number for all calls of a session.
    pub(super) fn of_session(&self, session: SessionKey) -> u64 {
        self.hash(1, session.number())
    }

    fn hash(&self, domain: u8, number: u64) -> u64 {
        #[expect(deprecated, reason = "its successor takes no keys, so that no test could repeat its choices")]
        let mut hasher = std::hash::SipHasher::new_with_keys(self.keys[0], self.keys[1]);
        hasher.write_u8(domain);
        hasher.write_u64(number);
        hasher.finish()
    }
}

/// Without the secret.
impl fmt::Debug for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draw").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Draw::from_seed(1_234)), "Draw { .. }");
    }
}
