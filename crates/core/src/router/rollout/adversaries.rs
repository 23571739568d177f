//! Callers with half of the traffic that try to decide a rollout. They know all but the secret of the draw, and see
//! which revision has answered them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{Draw, Observation, Rollout, Trial};
use crate::call::SessionKey;
use crate::clock;
use crate::metrics::{NodeMetrics, TrialRole, Verdict};

const SHARE: f64 = 0.2;

/// Rollouts of each attack, with seeds from 0.
const ROLLOUTS: u64 = 40;

/// Calls until a rollout counts as undecided.
const CALLS: u64 = 20_000;

/// The revision that an attacker wants to look bad.
#[derive(Clone, Copy, Debug)]
enum Target {
    Candidate,
    Current,
}

#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Half of the traffic is sound.
    None,
    /// Inputs that fail on both revisions, with all calls.
    Failing,
    /// Such an input when the next call seems to go to the target, by a sequence that is spread evenly.
    FailingByGuess(Target),
    /// A deadline that nothing can meet, when the next call seems to go to the target.
    LateByGuess(Target),
    /// A call of a new session tells its revision, and the next two of the session fail if that is the target.
    /// Whether the first call is cancelled.
    ChosenSessions(Target, bool),
    /// All calls leave before their end.
    Leaving,
}

const ATTACKS: [Attack; 11] = [
    Attack::None,
    Attack::Failing,
    Attack::FailingByGuess(Target::Candidate),
    Attack::FailingByGuess(Target::Current),
    Attack::LateByGuess(Target::Candidate),
    Attack::LateByGuess(Target::Current),
    Attack::ChosenSessions(Target::Candidate, false),
    Attack::ChosenSessions(Target::Candidate, true),
    Attack::ChosenSessions(Target::Current, false),
    Attack::ChosenSessions(Target::Current, true),
    Attack::Leaving,
];

struct Attacker {
    attack: Attack,
    /// Calls so far, of all callers.
    place: u64,
    /// The session that it has, its calls, and the revision that answered the first.
    session: u64,
    calls: u64,
    is_on_candidate: bool,
}

impl Attacker {
    /// Makes one call: with which session, and how it ends.
    fn call(&mut self, trial: &Trial) {
        let guess = self.place.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1 << 63);
        let is_target = |target, is_candidate: bool| matches!(target, Target::Candidate) == is_candidate;
        let guesses = |target| is_target(target, guess < (SHARE * 2_f64.powi(64)) as u64);
        let good = Observation::Succeeded(Duration::from_millis(10));
        let (session, end) = match self.attack {
            Attack::None => (None, good),
            Attack::Failing => (None, Observation::Failed),
            Attack::FailingByGuess(target) => (None, if guesses(target) { Observation::Failed } else { good }),
            Attack::LateByGuess(target) => {
                let late = Observation::Late(Duration::from_millis(1));
                (None, if guesses(target) { late } else { good })
            }
            Attack::Leaving => (None, Observation::Nothing),
            Attack::ChosenSessions(target, leaves) => {
                if self.calls.is_multiple_of(3) {
                    self.session += 1;
                }
                let end = match self.calls % 3 {
                    0 if leaves => Observation::Nothing,
                    1 | 2 if is_target(target, self.is_on_candidate) => Observation::Failed,
                    _ => good,
                };
                (SessionKey::from_number(self.session), end)
            }
        };
        self.calls += 1;
        self.is_on_candidate = trial.is_for_candidate(session);
        observe(trial, self.is_on_candidate, session, end);
    }
}

fn observe(trial: &Trial, is_candidate: bool, session: Option<SessionKey>, end: Observation) {
    let role = if is_candidate { TrialRole::Candidate } else { TrialRole::Current };
    trial.observe(role, session, end);
}

/// The verdicts of all rollouts of an attack: the candidate fails this part of the honest calls, the current revision
/// one in a hundred.
fn verdicts(attack: Attack, failing: f64) -> Vec<Option<Verdict>> {
    let mut verdicts = Vec::new();
    for seed in 0..ROLLOUTS {
        let mut random = fastrand::Rng::with_seed(seed);
        let metrics = NodeMetrics::new().rollout(&"/a".into());
        let trial = Trial::new(Rollout::canary(SHARE), Draw::from_seed(random.u64(..)), clock::now(), metrics);
        let mut attacker = Attacker { attack, place: 0, session: 0, calls: 0, is_on_candidate: false };
        let mut verdict = None;
        while verdict.is_none() && attacker.place < CALLS {
            attacker.call(&trial);
            let is_candidate = trial.is_for_candidate(None);
            let fails = random.f64() < if is_candidate { failing } else { 0.01 };
            let latency = Duration::from_millis(random.u64(8..12));
            let end = if fails { Observation::Failed } else { Observation::Succeeded(latency) };
            observe(&trial, is_candidate, None, end);
            attacker.place += 2;
            verdict = decided(&trial);
        }
        verdicts.push(verdict);
    }
    verdicts
}

/// In a runtime, because of the time limit.
fn decided(trial: &Arc<Trial>) -> Option<Verdict> {
    trial.concluded().now_or_never().map(|decision| decision.verdict)
}

fn count(verdicts: &[Option<Verdict>], verdict: Verdict) -> usize {
    verdicts.iter().filter(|decided| **decided == Some(verdict)).count()
}

#[tokio::test]
async fn no_caller_with_half_of_the_traffic_prevents_the_promotion_of_a_sound_candidate() {
    for attack in ATTACKS {
        let verdicts = verdicts(attack, 0.01);
        let (promoted, rolled_back) = (count(&verdicts, Verdict::Promote), count(&verdicts, Verdict::RollBack));
        // If half of all calls fail, a few rollouts take longer.
        assert!(rolled_back == 0 && promoted >= verdicts.len() * 9 / 10, "{attack:?}: {verdicts:?}");
    }
}

#[tokio::test]
async fn no_caller_with_half_of_the_traffic_has_a_failing_candidate_promoted() {
    for attack in ATTACKS {
        for failing in [0.2, 0.5, 1.0] {
            let verdicts = verdicts(attack, failing);
            assert_eq!(count(&verdicts, Verdict::Promote), 0, "{attack:?} of {failing}: {verdicts:?}");
        }
    }
}
