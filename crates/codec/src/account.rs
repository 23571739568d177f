//! Charges the allocations of a decoder or encoder to its call, before they are made.
//!
//! An edge opens a scope with [`charged_to`]. The scope's [`Account`] pays for everything that this crate allocates on
//! that thread inside the scope: trees, texts, unpacked parts, cells, copies, and the bytes of an answer. serde passes
//! no context from a format to a type, so the scope belongs to the thread and is not a parameter.
//!
//! * **Full:** the account refuses, and the decoder or encoder ends with an error that names the limit. A charge stays
//!   until the owner of the account gives it back at the end of the call.
//! * **Late, cancelled:** the account is asked at least once for each [`STEP_BYTES`] that are allocated. It returns
//!   [`ChargeError::Stopped`] when the result is not needed any more, and the work ends there.
//! * **No scope:** nothing is charged. In-process callers pay for their own memory.

use std::cell::Cell;
use std::sync::Arc;

/// Charges the memory of one call to a budget. Implemented by the owner of the memory budget.
pub trait Account: Send + Sync {
    /// Takes `bytes` out of the budget, before they are allocated.
    ///
    /// # Errors
    ///
    /// If the bytes do not fit, or if the work is to stop. A refused charge changes nothing.
    fn charge(&self, bytes: usize) -> Result<(), ChargeError>;

    /// Gives back `bytes` that were charged and freed, or never used: at most the charged sum.
    fn refund(&self, bytes: usize);

    /// Gives back everything that is charged.
    fn refund_all(&self) {
        self.refund(usize::MAX);
    }
}

/// The limit that an input reached: its name as in [`DecodeLimits`](crate::DecodeLimits), and its setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExceededLimit {
    /// The field's name, such as `max_depth`.
    pub name: &'static str,
    /// Its setting.
    pub max: usize,
}

/// The reason why an account refuses a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// The bytes would not fit even in an idle process. Remedy: send less, or raise the limit.
    #[error("more memory than {} = {}", .0.name, .0.max)]
    TooLarge(ExceededLimit),
    /// The bytes do not fit now, because other calls hold the budget. Remedy: try again later.
    #[error("no memory left of {} = {}", .0.name, .0.max)]
    Exhausted(ExceededLimit),
    /// The result is no longer needed: the call was cancelled, or its deadline passed.
    #[error("the call has ended")]
    Stopped,
}

impl ChargeError {
    /// A refusal because `name`, set to `max`, is too small for the call by itself.
    #[must_use]
    pub const fn too_large(name: &'static str, max: usize) -> Self {
        Self::TooLarge(ExceededLimit { name, max })
    }

    /// A refusal because other calls hold the budget that `name`, set to `max`, allows.
    #[must_use]
    pub const fn exhausted(name: &'static str, max: usize) -> Self {
        Self::Exhausted(ExceededLimit { name, max })
    }
}

/// The account is asked in steps of this size, so that most charges are a subtraction.
pub const STEP_BYTES: usize = 64 * 1024;

/// Each scope may use this much without asking, so that a small call never asks. A node counts it in its constant
/// overhead of a call.
const FREE_BYTES: usize = 2048;

/// Outside a scope nothing is limited.
const UNLIMITED: usize = usize::MAX / 2;

/// The bytes that a scope may still take from its account, and whether it requested more.
#[derive(Clone, Copy)]
struct Allowance {
    left: usize,
    is_exceeded: bool,
}

impl Allowance {
    const fn new(bytes: usize) -> Self {
        Self { left: bytes, is_exceeded: false }
    }
}

thread_local! {
    /// The bytes that may be allocated before the account is asked again.
    static GRANTED: Cell<usize> = const { Cell::new(UNLIMITED) };
    static ALLOWANCE: Cell<Allowance> = const { Cell::new(Allowance::new(UNLIMITED)) };
    static ACCOUNT: Cell<Option<Arc<dyn Account>>> = const { Cell::new(None) };
    static FAULT: Cell<Option<ChargeError>> = const { Cell::new(None) };
}

/// Runs `work` and charges `account` for what this crate allocates in it on this thread. Scopes may be nested: the
/// innermost pays.
pub fn charged_to<T>(account: &Arc<dyn Account>, work: impl FnOnce() -> T) -> T {
    let _scope = Scope::open(account, UNLIMITED);
    work()
}

/// The same with at most `allowance` bytes of the account. `None`: `work` needed more, its result is dropped, and its
/// charges are refunded.
pub fn charged_up_to<T>(allowance: usize, account: &Arc<dyn Account>, work: impl FnOnce() -> T) -> Option<T> {
    let scope = Scope::open(account, allowance);
    let done = work();
    let Allowance { left, is_exceeded } = ALLOWANCE.get();
    if !is_exceeded {
        return Some(done);
    }
    drop(done);
    // The unused part of the last step goes back as well.
    GRANTED.set(0);
    drop(scope);
    account.refund(allowance - left);
    None
}

/// Restores the outer scope when dropped, also by a panic.
struct Scope {
    granted: usize,
    allowance: Allowance,
    account: Option<Arc<dyn Account>>,
}

impl Scope {
    fn open(account: &Arc<dyn Account>, allowance: usize) -> Self {
        FAULT.set(None);
        Self {
            granted: GRANTED.replace(FREE_BYTES),
            allowance: ALLOWANCE.replace(Allowance::new(allowance)),
            account: ACCOUNT.replace(Some(Arc::clone(account))),
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // A refusal of this scope says nothing of what the thread does next.
        FAULT.set(None);
        ALLOWANCE.set(self.allowance);
        let unused = GRANTED.replace(self.granted).saturating_sub(FREE_BYTES);
        let account = ACCOUNT.replace(self.account.take());
        if let Some(account) = account.filter(|_| unused > 0) {
            account.refund(unused);
        }
    }
}

/// Charges `bytes` to the scope's account. Called before they are allocated. Inlined into the readers of types, which
/// are compiled in other crates.
#[inline]
pub(crate) fn charge(bytes: usize) -> Result<(), ChargeError> {
    match GRANTED.get().checked_sub(bytes) {
        Some(left) => {
            GRANTED.set(left);
            Ok(())
        }
        None => charge_more(bytes),
    }
}

#[cold]
fn charge_more(bytes: usize) -> Result<(), ChargeError> {
    let Some(account) = ACCOUNT.take() else { return Ok(()) };
    ACCOUNT.set(Some(Arc::clone(&account)));
    let granted = GRANTED.get();
    let missing = bytes - granted;
    // A whole step if it fits, else only the missing bytes.
    let step = missing.max(STEP_BYTES);
    let allowance = ALLOWANCE.get();
    if allowance.left < step {
        ALLOWANCE.set(Allowance { is_exceeded: true, ..allowance });
        FAULT.set(Some(ChargeError::Stopped));
        return Err(ChargeError::Stopped);
    }
    let taken = match account.charge(step) {
        Err(ChargeError::TooLarge(_) | ChargeError::Exhausted(_)) if missing < step => {
            account.charge(missing).map(|()| missing)
        }
        taken => taken.map(|()| step),
    };
    match taken {
        Ok(taken) => {
            GRANTED.set(granted + taken - bytes);
            ALLOWANCE.set(Allowance { left: allowance.left - taken, ..allowance });
            Ok(())
        }
        Err(error) => {
            FAULT.set(Some(error));
            Err(error)
        }
    }
}

/// Makes freed `bytes` that were charged in this scope available to it again.
pub(crate) fn release(bytes: usize) {
    GRANTED.set(GRANTED.get().saturating_add(bytes).min(UNLIMITED));
}

/// The last refusal in this scope: serde passes on only a message.
pub(crate) fn take_fault() -> Option<ChargeError> {
    FAULT.take()
}

/// Memory that is charged while this value lives, and freed before the call ends.
#[derive(Debug)]
pub(crate) struct TemporaryCharge(usize);

impl TemporaryCharge {
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ChargeError> {
        charge(bytes)?;
        self.0 += bytes;
        Ok(())
    }
}

impl Drop for TemporaryCharge {
    fn drop(&mut self) {
        release(self.0);
    }
}

/// Measures charges in tests of this crate.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Sum(AtomicUsize);

    impl Account for Sum {
        fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
            self.0.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        }

        fn refund(&self, bytes: usize) {
            self.0.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The bytes that `work` was charged for and did not release.
    pub(crate) fn charge_of<T>(work: impl FnOnce() -> T) -> usize {
        let sum = Arc::new(Sum(AtomicUsize::new(0)));
        let account: Arc<dyn Account> = sum.clone();
        charged_to(&account, || {
            charge(FREE_BYTES).expect("is free");
            drop(work());
            release(FREE_BYTES);
        });
        sum.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A budget of a number of bytes.
    struct Fixed {
        left: AtomicUsize,
        charges: AtomicUsize,
        given_back: AtomicUsize,
    }

    impl Fixed {
        fn shared(left: usize) -> Arc<Self> {
            Arc::new(Self {
                left: AtomicUsize::new(left),
                charges: AtomicUsize::new(0),
                given_back: AtomicUsize::new(0),
            })
        }

        fn left(&self) -> usize {
            self.left.load(Ordering::Relaxed)
        }
    }

    impl Account for Fixed {
        fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
            self.charges.fetch_add(1, Ordering::Relaxed);
            let left = self.left().checked_sub(bytes).ok_or(ChargeError::exhausted("bytes", 0))?;
            self.left.store(left, Ordering::Relaxed);
            Ok(())
        }

        fn refund(&self, bytes: usize) {
            self.left.fetch_add(bytes, Ordering::Relaxed);
            self.given_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn scope<T>(account: &Arc<Fixed>, work: impl FnOnce() -> T) -> T {
        let account: Arc<dyn Account> = account.clone();
        charged_to(&account, work)
    }

    #[test]
    fn a_small_scope_never_charges_the_account() {
        let account = Fixed::shared(1 << 20);
        scope(&account, || charge(FREE_BYTES)).unwrap();
        assert_eq!((account.left(), account.charges.load(Ordering::Relaxed)), (1 << 20, 0));
        assert_eq!(account.given_back.load(Ordering::Relaxed), 0, "nothing to return");
    }

    #[test]
    fn used_bytes_stay_charged_and_the_rest_of_a_step_is_returned() {
        let account = Fixed::shared(1 << 20);
        scope(&account, || (0..100).try_for_each(|_| charge(1000))).unwrap();
        assert_eq!((1 << 20) - account.left(), 100_000);
        assert_eq!(account.charges.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_last_bytes_of_a_budget_can_be_used() {
        let account = Fixed::shared(1000);
        scope(&account, || charge(FREE_BYTES + 1000)).unwrap();
        assert_eq!(account.left(), 0);
        assert_eq!(scope(&account, || charge(FREE_BYTES + 1)), Err(ChargeError::exhausted("bytes", 0)));
    }

    /// The next error on the thread, such as of user code that reads a value, has nothing to do with it.
    #[test]
    fn a_refusal_is_forgotten_with_its_scope() {
        let account = Fixed::shared(0);
        scope(&account, || charge(FREE_BYTES + 1)).unwrap_err();
        assert_eq!(take_fault(), None);
        let account: Arc<dyn Account> = Fixed::shared(1 << 20);
        assert!(charged_up_to(10, &account, || charge(FREE_BYTES + STEP_BYTES)).is_none());
        assert_eq!(take_fault(), None);
    }

    #[test]
    fn a_refused_step_is_retried_for_only_the_missing_bytes() {
        for (missing, charges) in [(STEP_BYTES - 1, 2), (STEP_BYTES, 1), (STEP_BYTES + 1, 1)] {
            let account = Fixed::shared(0);
            assert!(scope(&account, || charge(FREE_BYTES + missing)).is_err());
            assert_eq!(account.charges.load(Ordering::Relaxed), charges, "{missing}");
        }
    }

    #[test]
    fn bytes_that_are_freed_within_a_scope_are_used_again() {
        let account = Fixed::shared(STEP_BYTES);
        scope(&account, || {
            for _ in 0..100 {
                let mut temporary = TemporaryCharge::new();
                temporary.grow(STEP_BYTES / 2).unwrap();
            }
        });
        assert_eq!(account.left(), STEP_BYTES);
    }

    #[test]
    fn refund_all_returns_every_charge_at_once() {
        struct Refunded(AtomicUsize);
        impl Account for Refunded {
            fn charge(&self, _: usize) -> Result<(), ChargeError> {
                Ok(())
            }
            fn refund(&self, bytes: usize) {
                self.0.store(bytes, Ordering::Relaxed);
            }
        }
        let refunded = Refunded(AtomicUsize::new(0));
        refunded.refund_all();
        assert_eq!(refunded.0.into_inner(), usize::MAX);
    }

    #[test]
    fn work_that_exceeds_its_allowance_is_stopped_and_its_charges_are_returned() {
        let account = Fixed::shared(1 << 20);
        let shared: Arc<dyn Account> = account.clone();
        let steps =
            |count: usize| charged_up_to(3 * STEP_BYTES, &shared, || (0..count).try_for_each(|_| charge(STEP_BYTES)));
        assert_eq!(steps(3), Some(Ok(())));
        assert_eq!((1 << 20) - account.left(), 3 * STEP_BYTES, "it stays charged");
        assert_eq!(steps(4), None);
        assert_eq!((1 << 20) - account.left(), 3 * STEP_BYTES, "nothing was added");
        let odd = charged_up_to(STEP_BYTES + 1000, &shared, || (0..2).try_for_each(|_| charge(STEP_BYTES)));
        assert_eq!(odd, None);
        assert_eq!((1 << 20) - account.left(), 3 * STEP_BYTES, "unused bytes are not returned");
        scope(&account, || charge(5 * STEP_BYTES)).unwrap();
        assert_eq!(charge(usize::MAX / 4), Ok(()), "the scope around it has its own allowance");
        release(usize::MAX / 4);
    }

    #[test]
    fn the_innermost_scope_is_charged_and_the_outer_one_is_restored_after_a_panic() {
        let (outer, inner) = (Fixed::shared(1 << 20), Fixed::shared(1 << 20));
        scope(&outer, || {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                scope(&inner, || {
                    charge(5000).unwrap();
                    panic!("in the scope");
                })
            }));
            assert!(panicked.is_err());
            charge(7000).unwrap();
        });
        assert_eq!((1 << 20) - inner.left(), 5000);
        assert_eq!((1 << 20) - outer.left(), 7000);
        assert_eq!(charge(usize::MAX / 4), Ok(()), "no scope, no charge");
        release(usize::MAX / 4);
    }
}
