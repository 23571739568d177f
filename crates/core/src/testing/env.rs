//! Numbers that the environment sets for a test, such as its size or its seed.

/// The number in this variable of the environment, or the default without it.
///
/// # Panics
///
/// If the variable is set to something else than a number.
#[must_use]
#[allow(clippy::panic, reason = "for tests: a mistake must not pass as the default")]
pub fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}
