//! User code may panic wherever it runs, and its values may panic where they are dropped. Here that stays with the one call
//! it belongs to.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

/// The text of a panic, as far as it has one.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Runs user code; what it panicked with comes back as text.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(words_of)
}

/// Drives user code; what it panicked with comes back as text.
pub(crate) async fn contain_future<T>(code: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(code).catch_unwind().await.map_err(words_of)
}

fn words_of(panic: Box<dyn Any + Send>) -> String {
    let words = panic_message(panic.as_ref());
    // The panic's own payload is a user's value as well.
    drop_contained(panic);
    words
}

/// Drops a value that may hold a user's. A destructor that panics is told to the log and ends nothing else.
pub(crate) fn drop_contained<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::error!(panic = panic_message(panic.as_ref()), "a destructor panicked");
        // Whatever it panicked with is not given a second chance: it is leaked.
        Box::leak(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("boom");
        }
    }

    #[test]
    fn tells_what_was_said_and_survives_what_it_was_said_with() {
        assert_eq!(contain(|| 1), Ok(1));
        assert_eq!(contain(|| panic!("no")), Err::<(), _>("no".to_owned()));
        let with_a_bomb = contain(|| std::panic::panic_any(Bomb));
        assert_eq!(with_a_bomb, Err::<(), _>("a panic without a message".to_owned()));
        drop_contained(Bomb);
    }
}
