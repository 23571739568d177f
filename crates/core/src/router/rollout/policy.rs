//! The settings of a rollout.

use std::time::Duration;

use crate::id::RouteName;
use crate::router::ChangeError;

/// How a revision takes over a route: with a share of its calls first, and only if it is no worse than the old one.
///
/// **Canary:** the candidate answers a share of the calls. **Shadow:** the current revision answers all calls, and a
/// share of the inputs runs on the candidate as well, after the caller has its answer; the candidate's answers are
/// compared and dropped.
///
/// The candidate is *rolled back* as soon as it is proven worse: its calls fail more often, take longer, or (as a
/// shadow) its answers differ too often. It is *promoted* when it has [`min_calls`](Self::min_calls) and is within all
/// limits. If neither happens within the [time limit](Self::time_limit), it is rolled back.
///
/// Only failures that a revision is responsible for count: `WorkerFailed`, `Internal`, `Unavailable`, `Failed` without
/// a status of 4xx, and `DeadlineExceeded` of a call that had at least the default timeout of the route. Invalid
/// inputs, cancelled calls and full queues say nothing about a revision. Only the first call of a session is judged,
/// because its caller knows where the others go. Nothing is promoted while more than three of four calls fail.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, Failure, Rollout, RouteSpec, Stage};
///
/// let node = App::new().route("/add", Stage::each("add", |n: &i64| Ok(n + 1))).start().await?;
/// let broken = Stage::each("add", |n: &i64| if n % 2 == 0 { Err(Failure::new("even")) } else { Ok(n + 1) });
/// node.roll_out(RouteSpec::new("/add", broken), Rollout::canary(0.2)).await?;
///
/// let mut failed = 0;
/// for n in 0..1_000 {
///     failed += u32::from(node.client().call::<i64, i64>("/add", n).await.is_err());
/// }
/// assert!((1..50).contains(&failed)); // without the rollback, a hundred
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a rollout does nothing until a node is given it"]
pub struct Rollout {
    pub(crate) is_shadow: bool,
    pub(crate) share: f64,
    pub(crate) min_calls: u64,
    pub(crate) max_error_rate: f64,
    pub(crate) max_latency: f64,
    pub(crate) min_agreement: f64,
    pub(crate) tolerance: f64,
    pub(crate) time_limit: Duration,
    pub(crate) keep: Duration,
    pub(crate) runs_effects_twice: bool,
}

/// Enough that an error rate of 5 % shows ten times, and two minutes of a canary of 5 % at 33 calls/s.
const DEFAULT_MIN_CALLS: u64 = 200;

/// The longest time limit and the longest time to keep a revision: a forgotten rollout ends by itself.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3_600);

impl Rollout {
    /// The candidate answers this share of the calls, from 0 to 1: `0.05` is 5 %. Calls of one session all go to one
    /// revision; for other calls chance decides one by one.
    pub fn canary(share: f64) -> Self {
        Self {
            is_shadow: false,
            share,
            min_calls: DEFAULT_MIN_CALLS,
            max_error_rate: 0.01,
            max_latency: 1.5,
            min_agreement: 0.99,
            tolerance: 1e-3,
            time_limit: Duration::from_secs(3_600),
            keep: Duration::from_secs(600),
            runs_effects_twice: false,
        }
    }

    /// The candidate gets a copy of this share of the calls that succeeded, from 0 to 1. Its answers are compared and
    /// dropped. Refused for streaming routes, and for stages that are `at_most_once`; see
    /// [`run_effects_twice`](Self::run_effects_twice).
    ///
    /// Such a copy has the lowest priority, the timeout of the route and a permit of the node. At most 16 run at once;
    /// while they do, or the node is more than half full, calls are not copied.
    pub fn shadow(share: f64) -> Self {
        Self { is_shadow: true, ..Self::canary(share) }
    }

    /// The judged calls of the candidate that a promotion needs. Default 200. More calls find smaller differences, and
    /// take longer.
    pub fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    /// How much higher than the current revision's own error rate the candidate's may be. Default 0.01: one call in a
    /// hundred.
    pub fn max_error_rate(mut self, difference: f64) -> Self {
        self.max_error_rate = difference;
        self
    }

    /// How much longer the candidate's calls may take: a factor, at least 1. Default 1.5. A call is *slow* if it takes
    /// longer than this factor times the 95th percentile of the current revision, and 5 ms longer than that; no more
    /// than 10 % of the candidate's calls may be slow.
    pub fn max_latency(mut self, factor: f64) -> Self {
        self.max_latency = factor;
        self
    }

    /// The part of the answers of a shadow that must agree, from 0 to 1. Default 0.99.
    pub fn min_agreement(mut self, part: f64) -> Self {
        self.min_agreement = part;
        self
    }

    /// How far two floating-point numbers of the answers may differ and still agree: absolutely, and relative to the
    /// larger one. Default 0.001. Everything else must be equal.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// When a candidate that is not promoted yet is rolled back. Default an hour, at most seven days.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// How long the old revision stays warm after a promotion, for
    /// [`roll_back_route`](crate::NodeHandle::roll_back_route). It keeps its memory. Default ten minutes, at most seven
    /// days; 0 ends it after its last call.
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }

    /// Lets a shadow run stages that are `at_most_once`: their effects, such as a payment or a line in a table, happen
    /// once for the caller and once for the comparison.
    pub fn run_effects_twice(mut self) -> Self {
        self.runs_effects_twice = true;
        self
    }

    /// `canary` or `shadow`.
    pub(crate) fn mode(&self) -> &'static str {
        if self.is_shadow { "shadow" } else { "canary" }
    }

    /// Whether all numbers are within their limits.
    pub(crate) fn check(&self, route: &RouteName) -> Result<(), ChangeError> {
        let part = |name: &str, value: f64| {
            let fits = (0.0..=1.0).contains(&value);
            (!fits).then(|| format!("{name} is a part from 0 to 1, not {value}"))
        };
        let fits = self.share > 0.0 && (self.share < 1.0 || (self.is_shadow && self.share <= 1.0));
        let below = if self.is_shadow { "up to" } else { "below" };
        let bad_share =
            (!fits).then(|| format!("{} is a share above 0 and {below} 1, not {}", self.mode(), self.share));
        let factor = (!(self.max_latency >= 1.0 && self.max_latency.is_finite()))
            .then(|| format!("max_latency is a factor of at least 1, not {}", self.max_latency));
        let tolerance = (!(self.tolerance >= 0.0 && self.tolerance.is_finite()))
            .then(|| format!("tolerance is at least 0, not {}", self.tolerance));
        let long = |name: &str, time: Duration| {
            (time > LONGEST).then(|| format!("{name} is at most seven days, not {time:?}"))
        };
        let calls = (self.min_calls == 0).then(|| "min_calls is at least 1, not 0".to_owned());
        let wrong = bad_share
            .or(calls)
            .or_else(|| part("max_error_rate", self.max_error_rate))
            .or(factor)
            .or_else(|| part("min_agreement", self.min_agreement))
            .or(tolerance)
            .or_else(|| long("time_limit", self.time_limit))
            .or_else(|| long("keep", self.keep));
        match wrong {
            Some(message) => Err(ChangeError::BadRollout { route: route.clone(), message }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_nanos(1);

    #[test]
    fn each_number_is_accepted_up_to_its_limits() {
        let half = || Rollout::canary(0.5);
        for accepted in [
            Rollout::canary(f64::MIN_POSITIVE),
            Rollout::canary(1.0 - f64::EPSILON),
            Rollout::shadow(f64::MIN_POSITIVE),
            Rollout::shadow(1.0),
            half().min_calls(1),
            half().max_error_rate(0.0),
            half().max_error_rate(1.0),
            half().max_latency(1.0),
            half().max_latency(f64::MAX),
            half().min_agreement(0.0),
            half().min_agreement(1.0),
            half().tolerance(0.0),
            half().tolerance(f64::MAX),
            half().time_limit(LONGEST),
            half().keep(LONGEST),
        ] {
            assert_eq!(accepted.check(&"/a".into()).map_err(|error| error.to_string()), Ok(()), "{accepted:?}");
        }
    }

    #[test]
    fn numbers_beyond_their_limits_are_refused_by_name() {
        let half = || Rollout::canary(0.5);
        let above_one = 1.0 + f64::EPSILON;
        for (refused, name) in [
            (Rollout::canary(0.0), "canary is a share above 0 and below 1, not 0"),
            (Rollout::canary(1.0), "canary is a share above 0 and below 1, not 1"),
            (Rollout::shadow(0.0), "shadow is a share above 0 and up to 1, not 0"),
            (Rollout::shadow(above_one), "shadow is a share above 0 and up to 1, not 1.0000000000000002"),
            (half().min_calls(0), "min_calls"),
            (half().max_error_rate(-f64::MIN_POSITIVE), "max_error_rate"),
            (half().max_error_rate(above_one), "max_error_rate"),
            (half().max_error_rate(f64::NAN), "max_error_rate"),
            (half().max_latency(1.0 - f64::EPSILON), "max_latency"),
            (half().max_latency(f64::INFINITY), "max_latency"),
            (half().max_latency(f64::NAN), "max_latency"),
            (half().min_agreement(-0.5), "min_agreement"),
            (half().min_agreement(above_one), "min_agreement"),
            (half().tolerance(-f64::MIN_POSITIVE), "tolerance"),
            (half().tolerance(f64::INFINITY), "tolerance"),
            (half().tolerance(f64::NAN), "tolerance"),
            (half().time_limit(LONGEST + MOMENT), "time_limit is at most seven days"),
            (half().keep(LONGEST + MOMENT), "keep is at most seven days"),
        ] {
            let error = refused.check(&"/a".into()).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn each_method_sets_its_own_number() {
        let set = Rollout::shadow(0.5)
            .min_calls(7)
            .max_error_rate(0.25)
            .max_latency(3.0)
            .min_agreement(0.75)
            .tolerance(0.125)
            .time_limit(Duration::from_secs(8))
            .keep(Duration::from_secs(9))
            .run_effects_twice();
        let expected = Rollout {
            is_shadow: true,
            share: 0.5,
            min_calls: 7,
            max_error_rate: 0.25,
            max_latency: 3.0,
            min_agreement: 0.75,
            tolerance: 0.125,
            time_limit: Duration::from_secs(8),
            keep: Duration::from_secs(9),
            runs_effects_twice: true,
        };
        assert_eq!(set, expected);
    }
}
