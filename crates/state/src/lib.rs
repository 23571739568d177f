//! Stores of keyed actors: where the state of a key is kept between its instances, and after its node.
//!
//! | store | feature | survives | fences |
//! |---|---|---|---|
//! | `RedbStore` | `redb` | the process and a restart of the machine | the instances of one process |
//! | `PostgresStore` | `postgres` | what the server survives | the instances of all nodes |
//! | `BucketStore` | `bucket` | what the bucket survives | the instances of all nodes |
//!
//! A store of one's own implements [`StateStore`](callboard_core::keyed::StateStore), and passes
//! [`check_state_store`](callboard_core::testing::check_state_store).

#[cfg(feature = "bucket")]
mod bucket;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redb")]
mod redb;

#[cfg(feature = "bucket")]
pub use self::bucket::BucketStore;
#[cfg(feature = "postgres")]
pub use self::postgres::{ConnectStoreError, PostgresStore};
#[cfg(feature = "redb")]
pub use self::redb::{OpenStoreError, RedbStore};
#[cfg(feature = "bucket")]
pub use ::object_store;
