//! The times of renewals, and the handling of failed ones.
//!
//! A renewal is due at up to two thirds of the certificate's life, earlier by chance so that members that joined
//! together do not ask together. A failed renewal is counted, logged, and tried again with growing pauses, also after
//! the certificate has expired. New handshakes present the new certificate; open connections go on under the old one
//! until it expires.
//!
//! The time of a renewal is computed with this machine's clock from the authority's times. If this clock is ahead, each
//! new certificate is overdue when it arrives; so there is a pause after a success as well, and a warning.
//!
//! The tasks here may run on a transport's thread, so files are read and written on blocking threads. A stuck disk
//! delays only the renewal.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::membership::{SAVED_AT_LAST, certificate_request, issue_own_after};
use super::{Identity, Origin, PresentedCertificate};
use crate::address::QuicUrl;
use crate::certificate::Validity;
use crate::error::IdentityError;
use crate::text::with_sources;

/// Bounds of the pauses between tries, which are parts of the certificate's life.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// An error of any of the steps.
pub(super) type BoxError = Box<dyn Error + Send + Sync>;

/// Sends requests to the nodes that issue certificates: the part of a renewal that needs a connection.
pub trait IssuerClient: Send + Sync + 'static {
    /// Sends a certificate request, in PEM, and returns the certificate chain; an empty request returns the list of
    /// removed members.
    ///
    /// # Errors
    ///
    /// When no issuer answers, or it denies the request.
    fn request(
        &self,
        identity: &Identity,
        issuers: &QuicUrl,
        request: &str,
    ) -> impl Future<Output = Result<String, Box<dyn Error + Send + Sync>>> + Send;
}

/// The time of a renewal, for a number from 0 to 1 that is drawn once.
fn due(validity: &Validity, chance: f64) -> SystemTime {
    // From three fifths to two thirds.
    let part = 2.0 / 3.0 - chance.clamp(0.0, 1.0) / 15.0;
    validity.not_after - validity.life().mul_f64(1.0 - part)
}

/// Whether a renewal is due for every possible number.
pub(super) fn is_overdue(validity: &Validity, now: SystemTime) -> bool {
    now >= due(validity, 0.0)
}

/// The pause after a number of failures, for the life that the member's certificates have unless that of their issuer
/// ends: the last ones before that end are short.
fn pause_after_failure(life: Duration, failures: u32) -> Duration {
    let first = (life / 200).clamp(Duration::from_millis(50), FIRST_PAUSE);
    let longest = (life / 20).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    (first * 2_u32.saturating_pow(failures.min(16))).min(longest)
}

/// The pause after a success: short compared to the certificate's life, and long enough that a clock that is ahead does
/// not cause a flood of requests.
fn pause_after_success(validity: &Validity) -> Duration {
    (validity.life() / 20).min(LONGEST_PAUSE)
}

/// Keeps the certificate renewed while it is polled. Several tasks may do so for one identity: one of them renews.
pub async fn keep_renewed(identity: Identity, issuers: impl IssuerClient) {
    if identity.is_for_loopback_only() {
        return;
    }
    let mut failures = 0;
    loop {
        let (validity, chance) = (identity.validity(), fastrand::f64());
        tokio::select! {
            biased;
            () = identity.clock().sleep_until(due(&validity, chance)) => {}
            () = identity.keep_saving() => {}
        }
        let renewing = identity.0.renewing.lock().await;
        if identity.validity() != validity {
            continue;
        }
        let outcome = identity.renew_once(&issuers).await;
        drop(renewing);
        match outcome {
            Ok(()) => {
                failures = 0;
                let renewed = identity.validity();
                if is_overdue(&renewed, identity.clock().now()) {
                    tracing::warn!(
                        left = ?identity.time_left(),
                        "the new certificate is due for renewal already: this machine's clock is ahead of the authority's, set both right"
                    );
                }
                tokio::time::sleep(pause_after_success(&renewed)).await;
            }
            Err(error) => {
                let left = identity.time_left();
                tracing::warn!(?left, "the certificate was not renewed: {}", with_sources(&*error));
                let pause = pause_after_failure(identity.intended_life(), failures);
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                failures += 1;
            }
        }
    }
}

impl Identity {
    fn intended_life(&self) -> Duration {
        self.0.presented.load().member.life
    }

    /// Tries to save a certificate that could not be saved, in growing pauses. Does not end: the next renewal drops it.
    async fn keep_saving(&self) {
        if let Origin::Member(membership) = &self.0.origin {
            let mut failures = 0;
            while membership.is_unsaved() {
                tokio::time::sleep(pause_after_failure(self.intended_life(), failures)).await;
                failures += 1;
                let saving = membership.clone();
                match run_blocking(move || saving.save_again()).await {
                    Ok(()) => tracing::info!("{SAVED_AT_LAST}"),
                    Err(error) => tracing::warn!("the certificate is not saved yet: {}", with_sources(&error)),
                }
            }
        }
        std::future::pending().await
    }

    async fn renew_once(&self, issuers: &impl IssuerClient) -> Result<(), BoxError> {
        let next = self.next_presented(issuers).await;
        let presented = next.inspect_err(|_| _ = self.0.renewals_failed.fetch_add(1, Ordering::Relaxed))?;
        let ends = presented.member.validity.not_after;
        self.0.presented.store(Arc::new(presented));
        self.0.renewed.fetch_add(1, Ordering::Relaxed);
        let hours = ends.duration_since(self.clock().now()).unwrap_or_default().as_secs_f64() / 3600.0;
        tracing::info!(hours, "renewed the certificate");
        Ok(())
    }

    pub(crate) async fn next_presented(&self, issuers: &impl IssuerClient) -> Result<PresentedCertificate, BoxError> {
        match &self.0.origin {
            Origin::Development(_) => Err(IdentityError::Unusable("it is not renewed".into()).into()),
            Origin::Authority(authority) => {
                let (authority, ends) = (authority.clone(), self.validity().not_after);
                Ok(run_blocking(move || issue_own_after(&authority, ends)).await?)
            }
            Origin::Member(membership) => {
                // Another process of this member may have renewed it.
                let member = self.0.presented.load().member.clone();
                let (reading, known) = (membership.clone(), member.clone());
                let stored = run_blocking(move || Ok((reading.read(&known)?, reading.issuers())));
                let (stored, issuing) = stored.await?;
                if stored.member.validity.not_after > member.validity.not_after {
                    return Ok(stored);
                }
                let (key, request) = certificate_request()?;
                let chain = issuers.request(self, &issuing, &request).await?;
                let saving = membership.clone();
                Ok(run_blocking(move || saving.save(&member, &key, &chain)).await?)
            }
        }
    }
}

/// Runs work that needs a disk on a blocking thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, IdentityError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|lost| Err(IdentityError::Unusable(lost.to_string().into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_due_before_two_thirds_of_the_life() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let validity = Validity::from_now(now, Duration::from_secs(3600));
        let after = |chance: f64| due(&validity, chance).duration_since(now).unwrap().as_secs();
        assert_eq!(after(0.0), 2400);
        assert!((2158..=2161).contains(&after(1.0)), "{}", after(1.0));
        assert!((0..10).all(|k| after(f64::from(k) / 10.0) >= after(f64::from(k + 1) / 10.0)));
    }

    #[test]
    fn pauses_between_attempts_grow_up_to_a_part_of_the_life() {
        let pause = |life: u64, failures| pause_after_failure(Duration::from_secs(life), failures).as_secs_f64();
        assert_eq!([0, 3, 40].map(|failures| pause(3600, failures)), [1.0, 8.0, 180.0]);
        assert_eq!(pause(24 * 3600, 40), 300.0);
        // Also of a short life no flood.
        assert_eq!([0, 40].map(|failures| pause(2, failures)), [0.05, 1.0]);
    }

    #[test]
    fn the_pause_after_a_renewal_is_short_compared_to_the_life() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
        for life in [1, 60, 600, 24 * 3600, 90 * 24 * 3600].map(Duration::from_secs) {
            let validity = Validity::from_now(now, life);
            let pause = pause_after_success(&validity);
            assert!(pause > Duration::ZERO && pause <= LONGEST_PAUSE);
            // With a correct clock, it ends before the next renewal is due.
            assert!(now + pause < due(&validity, 1.0), "{life:?}");
            // With a clock that is ahead, the renewal is due at once, and only the pause prevents repeated requests.
            assert!(is_overdue(&validity, now + life.mul_f64(0.7)));
        }
    }
}
