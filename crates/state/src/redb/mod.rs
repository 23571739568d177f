//! A store in one file of this machine: redb, a B-tree with transactions.
//!
//! One thread has the file. It takes all operations that wait, carries them out in one transaction, and answers them
//! when that is on the disk: keys that save at once share the wait for the disk. The queue before the thread has a
//! bound; operations wait for a place.

mod records;

use std::fs::OpenOptions;
use std::path::Path;
use std::thread::{self, JoinHandle};

use ::redb::{Database, DatabaseError};
use bytes::Bytes;
use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};
use tokio::sync::{mpsc, oneshot};

use self::records::{Name, Record, carry_out};

/// The operations that may wait for the thread.
const QUEUE: usize = 1_024;

/// The most operations of one transaction.
const AT_ONCE: usize = 256;

/// The memory for pages of the file that are read again.
const CACHE_BYTES: usize = 64 << 20;

/// Keeps the state of keyed actors in a file. A save survives the end of the process and of the machine, and **not the
/// loss of the machine**: a cluster of several nodes needs a shared store, and a node warns about this one as soon
/// as another node has the kind. One process has the file at a time.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::keyed::{Fence, StateKey, StateStore};
/// use callboard_state::RedbStore;
///
/// let file = std::env::temp_dir().join(format!("carts-{}.redb", std::process::id()));
/// let store = RedbStore::open(&file)?;
/// let ann = StateKey { kind: "cart", key: "ann" };
/// let claimed = store.claim(ann, "this node").await?;
/// let fence = Fence { epoch: claimed.epoch, version: claimed.version };
/// store.save(ann, fence, "tea".into()).await?;
/// assert_eq!(store.load(ann).await?.unwrap().state.unwrap(), "tea");
/// # drop(store);
/// # std::fs::remove_file(&file)?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping it waits for the operations that have begun.
#[derive(Debug)]
pub struct RedbStore {
    /// `None` only while it is dropped.
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// One operation, and the port of its outcome.
enum Order {
    Claim { name: Name, owner: String, done: oneshot::Sender<Result<Record, StoreError>> },
    Load { name: Name, done: oneshot::Sender<Result<Option<Record>, StoreError>> },
    Save { name: Name, fence: Fence, state: Bytes, done: oneshot::Sender<Result<u64, StoreError>> },
}

/// Why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// Another store, of this process or another one, has the file.
    #[error("another process or store has the file")]
    InUse,
    /// The file cannot be made, read or written.
    #[error("the file cannot be used")]
    File(#[source] std::io::Error),
    /// The file is no store, or a broken one.
    #[error("the file cannot be read as a store: {0}")]
    Database(String),
    /// The operating system refused a thread.
    #[error("could not start a thread")]
    Thread(#[source] std::io::Error),
}

impl RedbStore {
    /// Opens the file, or makes it, readable by its owner only.
    ///
    /// # Errors
    ///
    /// See [`OpenStoreError`].
    pub fn open(file: impl AsRef<Path>) -> Result<Self, OpenStoreError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        drop(options.open(&file).map_err(OpenStoreError::File)?);
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(&file).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => OpenStoreError::InUse,
            other => OpenStoreError::Database(other.to_string()),
        })?;
        records::make_tables(&database).map_err(OpenStoreError::Database)?;
        let (orders, waiting) = mpsc::channel(QUEUE);
        let thread = thread::Builder::new().name("callboard-state".to_owned());
        let thread = thread.spawn(move || run(&database, waiting)).map_err(OpenStoreError::Thread)?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    async fn order<T>(&self, outcome: oneshot::Receiver<Result<T, StoreError>>, order: Order) -> Result<T, StoreError> {
        let ended = || StoreError::Failed("the store's thread has ended".to_owned());
        let orders = self.orders.as_ref().ok_or_else(ended)?;
        orders.send(order).await.map_err(|_| ended())?;
        outcome.await.map_err(|_| ended())?
    }
}

/// Carries out what waits, until the store is dropped.
fn run(database: &Database, mut waiting: mpsc::Receiver<Order>) {
    let mut orders = Vec::with_capacity(AT_ONCE);
    while waiting.blocking_recv_many(&mut orders, AT_ONCE) > 0 {
        carry_out(database, &mut orders);
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the thread, which was printed.
            let _ = thread.join();
        }
    }
}

impl StateStore for RedbStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        Box::pin(async move {
            let (done, outcome) = oneshot::channel();
            self.order(outcome, Order::Claim { name: Name::of(key), owner: owner.to_owned(), done }).await
        })
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        Box::pin(async move {
            let (done, outcome) = oneshot::channel();
            self.order(outcome, Order::Load { name: Name::of(key), done }).await
        })
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let (done, outcome) = oneshot::channel();
            self.order(outcome, Order::Save { name: Name::of(key), fence, state, done }).await
        })
    }

    fn is_local(&self) -> bool {
        true
    }
}
