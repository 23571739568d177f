//! The settings of a response cache.

/// The answers that a [pure](crate::Contract::Pure) stage keeps: an equal input is answered without running the stage.
///
/// Two inputs are equal if their types and contents are. Equal inputs at the same time run once. The answer must depend
/// on the input alone: headers, tags and sessions are not looked at. Errors are not kept.
///
/// A stage that is replaced begins with an empty cache. Streaming stages keep nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, CacheSettings, Stage};
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// static RUNS: AtomicU32 = AtomicU32::new(0);
/// let square = Stage::each("square", |x: &u64| {
///     RUNS.fetch_add(1, Ordering::Relaxed);
///     Ok(x * x)
/// });
/// let node = App::new().route("/square", square.pure().cache(CacheSettings::new(1 << 20))).start().await?;
/// for _ in 0..3 {
///     assert_eq!(node.client().call::<u64, u64>("/square", 7).await?, 49);
/// }
/// assert_eq!(RUNS.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheSettings {
    /// The bytes that it keeps, as answers are encoded for another process. The least used leave first. An answer
    /// larger than an eighth is not kept.
    pub bytes: u64,
    /// Whether callers with different API keys get each other's answers. Default false: how long an answer takes tells
    /// whether an equal call came before.
    pub is_shared: bool,
}

impl CacheSettings {
    /// A cache of this size. Callers with different API keys share nothing.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes, is_shared: false }
    }

    /// See [`is_shared`](Self::is_shared).
    #[must_use]
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }
}
