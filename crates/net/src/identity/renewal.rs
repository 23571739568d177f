//! When a certificate is renewed, and what happens when that fails.
//!
//! At two thirds of its life, a little earlier by chance so that members that have joined together do not ask together. What fails is
//! tried again with growing pauses, as long as the certificate holds and beyond; it is counted and logged each time. The new one is shown in
//! handshakes from then on; connections that there are go on under the old one until it is over.
//!
//! When it is time is reckoned on this machine's clock, and the times are the authority's: behind a clock that is ahead, each new
//! certificate is overdue when it comes. So there is a pause behind a success as well, and a warning.
//!
//! It goes on where packets arrive, who wait for nobody: files are read and written elsewhere. A disk that is stuck holds up the renewal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use quinn::Endpoint;

use super::certificate::Validity;
use super::cluster::{issue_own, request};
use super::error::IdentityError;
use super::{Clock, Identity, Origin, Shown};
use crate::join::{JoinError, renew};

/// The clock of the system may be set: it is looked at again this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Pauses between tries, as parts of the certificate's life, within these bounds.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// When it is time, for a number from 0 to 1 that is drawn once.
pub(super) fn due(validity: &Validity, chance: f64) -> SystemTime {
    // From three fifths to two thirds.
    let part = 2.0 / 3.0 - chance.clamp(0.0, 1.0) / 15.0;
    validity.not_after - validity.life().mul_f64(1.0 - part)
}

/// Whether it should have been renewed by now, whatever chance had in mind.
pub(super) fn is_overdue(validity: &Validity, now: SystemTime) -> bool {
    now >= due(validity, 0.0)
}

/// How long to wait after so many failures.
pub(super) fn pause(validity: &Validity, failures: u32) -> Duration {
    let first = (validity.life() / 200).clamp(Duration::from_millis(50), FIRST_PAUSE);
    let longest = (validity.life() / 20).clamp(first, LONGEST_PAUSE);
    (first * 2_u32.saturating_pow(failures.min(16))).min(longest)
}

/// How long to wait after a success: nothing, next to what a certificate holds, and no flood of requests where the clock is ahead.
pub(super) fn rest(validity: &Validity) -> Duration {
    (validity.life() / 20).min(LONGEST_PAUSE)
}

/// Keeps the certificate renewed, for as long as it is polled. Several may do it for one identity: one of them does.
pub(crate) async fn keep_renewed(identity: Identity, endpoint: Endpoint) {
    if identity.is_for_loopback_only() {
        return;
    }
    let mut failures = 0;
    loop {
        let (validity, chance) = (identity.validity(), fastrand::f64());
        wait_until(due(&validity, chance), identity.clock()).await;
        let turn = identity.0.renewing.lock().await;
        if identity.validity() != validity {
            continue;
        }
        let outcome = identity.renew_once(&endpoint).await;
        drop(turn);
        match outcome {
            Ok(()) => {
                failures = 0;
                let renewed = identity.validity();
                if is_overdue(&renewed, identity.clock().now()) {
                    tracing::warn!(
                        left = ?identity.time_left(),
                        "the new certificate is due for renewal already: this clock is ahead of the authority's, set both right"
                    );
                }
                tokio::time::sleep(rest(&renewed)).await;
            }
            Err(error) => {
                let left = identity.time_left();
                tracing::warn!(?left, "the certificate was not renewed: {}", crate::refusal::with_sources(&error));
                tokio::time::sleep(pause(&validity, failures).mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                failures += 1;
            }
        }
    }
}

async fn wait_until(moment: SystemTime, clock: Clock) {
    while let Ok(left) = moment.duration_since(clock.now()) {
        tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        if left.is_zero() {
            return;
        }
    }
}

impl Identity {
    async fn renew_once(&self, endpoint: &Endpoint) -> Result<(), RenewalError> {
        let outcome = self.next_shown(endpoint).await;
        match outcome {
            Ok(shown) => {
                let held_until = shown.member.validity.not_after;
                self.0.shown.store(Arc::new(shown));
                self.0.renewed.fetch_add(1, Ordering::Relaxed);
                let hours = held_until.duration_since(self.clock().now()).unwrap_or_default().as_secs_f64() / 3600.0;
                tracing::info!(hours, "renewed the certificate");
                Ok(())
            }
            Err(error) => {
                self.0.renewals_failed.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    pub(super) async fn next_shown(&self, endpoint: &Endpoint) -> Result<Shown, RenewalError> {
        match &self.0.origin {
            Origin::Development(_) => Err(IdentityError::Unusable("it holds for good".into()).into()),
            Origin::Authority(authority) => {
                let authority = authority.clone();
                Ok(with_files(move || issue_own(&authority)).await?)
            }
            Origin::Member(membership) => {
                // Another process of this member may have done it.
                let member = self.0.shown.load().member.clone();
                let (reading, known) = (membership.clone(), member.clone());
                let kept = with_files(move || reading.read(&known)).await?;
                if kept.member.validity.not_after > member.validity.not_after {
                    return Ok(kept);
                }
                let (key, request) = request()?;
                let chain = renew(endpoint, self, &membership.issuers, &request).await?;
                let keeping = membership.clone();
                Ok(with_files(move || keeping.keep(&member, &key, &chain)).await?)
            }
        }
    }
}

/// Does what needs a disk where nothing else waits for it.
pub(super) async fn with_files<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, IdentityError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|lost| Err(IdentityError::Unusable(lost.to_string().into())))
}

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenewalError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Join(#[from] JoinError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_before_two_thirds_of_its_life_are_over() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let validity = Validity::from_now(now, Duration::from_secs(3600));
        let after = |chance: f64| due(&validity, chance).duration_since(now).unwrap().as_secs();
        assert_eq!(after(0.0), 2400);
        assert!((2158..=2161).contains(&after(1.0)), "{}", after(1.0));
        assert!((0..10).all(|k| after(f64::from(k) / 10.0) >= after(f64::from(k + 1) / 10.0)));
    }

    #[test]
    fn pauses_grow_up_to_a_part_of_the_life() {
        let validity =
            Validity::from_now(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30), Duration::from_secs(3600));
        assert_eq!(pause(&validity, 0), Duration::from_secs(1));
        assert_eq!(pause(&validity, 3), Duration::from_secs(8));
        assert_eq!(pause(&validity, 40), Duration::from_secs(180));
    }

    #[test]
    fn what_is_renewed_has_a_rest_that_is_short_next_to_its_life() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
        for life in [1, 60, 600, 24 * 3600, 90 * 24 * 3600].map(Duration::from_secs) {
            let validity = Validity::from_now(now, life);
            assert!(rest(&validity) > Duration::ZERO && rest(&validity) <= LONGEST_PAUSE);
            // It is over before the next one is due, on a clock that is right.
            assert!(now + rest(&validity) < due(&validity, 1.0), "{life:?}");
            // On one that is ahead it is due at once, and this is what keeps it from being asked for again and again.
            assert!(is_overdue(&validity, now + life.mul_f64(0.7)));
        }
    }
}
