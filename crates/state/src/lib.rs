//! Stores of keyed actors: where the state of a key is kept between its instances, and after its node.
//!
//! | store | feature | survives | fences |
//! |---|---|---|---|
//! | [`RedbStore`] | `redb` | the process | the instances of one process |
//!
//! A store of one's own implements [`StateStore`](callboard_core::keyed::StateStore), and passes
//! [`check_state_store`](callboard_core::testing::check_state_store).

#[cfg(feature = "redb")]
mod redb;

#[cfg(feature = "redb")]
pub use self::redb::{OpenStoreError, RedbStore};
