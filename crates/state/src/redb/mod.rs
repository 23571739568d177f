//! A store in one file of this machine: redb, a B-tree with transactions.
//!
//! One thread has the file. It takes all operations that wait, carries them out in one transaction, and answers them
//! when that is on the disk: keys that save at once share the wait for the disk. The queue before the thread has a
//! bound; operations wait for a place. After an error of the disk, such as a full one, the file is opened again: redb
//! refuses all that comes after an error.

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
    Remove { name: Name, fence: Fence, done: oneshot::Sender<Result<(), StoreError>> },
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
        let file = file.as_ref().to_owned();
        Self::with(move || Database::builder().set_cache_size(CACHE_BYTES).create(&file))
    }

    /// Opens the database now, and again after an error of the disk.
    fn with(
        mut open: impl FnMut() -> Result<Database, DatabaseError> + Send + 'static,
    ) -> Result<Self, OpenStoreError> {
        let database = open().map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => OpenStoreError::InUse,
            other => OpenStoreError::Database(other.to_string()),
        })?;
        records::make_tables(&database).map_err(OpenStoreError::Database)?;
        let (orders, waiting) = mpsc::channel(QUEUE);
        let thread = thread::Builder::new().name("callboard-state".to_owned());
        let thread = thread.spawn(move || run(database, open, waiting)).map_err(OpenStoreError::Thread)?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    async fn order<T>(&self, outcome: oneshot::Receiver<Result<T, StoreError>>, order: Order) -> Result<T, StoreError> {
        let ended = || StoreError::Failed("the store's thread has ended".to_owned());
        let orders = self.orders.as_ref().ok_or_else(ended)?;
        orders.send(order).await.map_err(|_| ended())?;
        outcome
            .await
            .map_err(|_| StoreError::Failed("the file cannot be read or written: the log says why".to_owned()))?
    }
}

/// Carries out what waits, until the store is dropped.
fn run(
    database: Database,
    mut open: impl FnMut() -> Result<Database, DatabaseError>,
    mut waiting: mpsc::Receiver<Order>,
) {
    let (mut database, mut orders) = (Some(database), Vec::with_capacity(AT_ONCE));
    while waiting.blocking_recv_many(&mut orders, AT_ONCE) > 0 {
        if database.is_none() {
            let again = open().inspect_err(|error| {
                tracing::error!(parent: None, %error, "the file of keyed actors cannot be opened again");
            });
            database = again.ok();
        }
        database = database.filter(|database| carry_out(database, &mut orders));
        // Those that an error left behind: their ports are closed.
        orders.clear();
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

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let (done, outcome) = oneshot::channel();
            self.order(outcome, Order::Remove { name: Name::of(key), fence, done }).await
        })
    }

    fn is_local(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use ::redb::StorageBackend;
    use ::redb::backends::FileBackend;

    use super::*;

    /// A disk that may be full.
    #[derive(Debug)]
    struct Disk {
        file: FileBackend,
        is_full: Arc<AtomicBool>,
    }

    impl Disk {
        fn room(&self) -> io::Result<()> {
            if self.is_full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.file.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.room().and_then(|()| self.file.set_len(len))
        }

        fn sync_data(&self) -> io::Result<()> {
            self.room().and_then(|()| self.file.sync_data())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.room().and_then(|()| self.file.write(offset, data))
        }
    }

    #[tokio::test]
    async fn a_disk_that_was_full_is_used_again() {
        let path = std::env::temp_dir().join(format!("callboard-full-disk-{}.redb", std::process::id()));
        let is_full = Arc::new(AtomicBool::new(false));
        let (file, full) = (path.clone(), Arc::clone(&is_full));
        let store = RedbStore::with(move || {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&file);
            let file = FileBackend::new(file.map_err(::redb::StorageError::from)?)?;
            Database::builder().create_with_backend(Disk { file, is_full: Arc::clone(&full) })
        })
        .unwrap();
        let ann = StateKey { kind: "cart", key: "ann" };
        let claimed = store.claim(ann, "here").await.unwrap();
        let fence = |version| Fence { epoch: claimed.epoch, version };
        let version = store.save(ann, fence(claimed.version), "tea".into()).await.unwrap();
        is_full.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            assert!(matches!(store.save(ann, fence(version), "jam".into()).await, Err(StoreError::Failed(_))));
        }
        is_full.store(false, Ordering::SeqCst);
        assert_eq!(store.load(ann).await.unwrap().unwrap().state.unwrap(), "tea", "what was saved is there");
        store.save(ann, fence(version), "jam".into()).await.unwrap();
        assert_eq!(store.load(ann).await.unwrap().unwrap().state.unwrap(), "jam");
        drop(store);
        std::fs::remove_file(&path).unwrap();
    }
}
