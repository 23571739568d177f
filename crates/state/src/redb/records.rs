//! The tables, and the transaction of several operations.
//!
//! Epochs and states are in two tables, so that a claim does not write the state again.

use ::redb::{Database, ReadableTable, Table, TableDefinition, WriteTransaction};
use bytes::Bytes;
use callboard_core::keyed::{Fence, StateKey, StoreError, StoredState};
use tokio::sync::oneshot;

use super::Order;

/// Kind and key to epoch and owner.
const EPOCHS: TableDefinition<'static, (&str, &str), (u64, &str)> = TableDefinition::new("epochs");

/// Kind and key to version and state.
const STATES: TableDefinition<'static, (&str, &str), (u64, &[u8])> = TableDefinition::new("states");

/// Kind to the highest epoch of a record that was removed: a new one begins above it.
const REMOVED: TableDefinition<'static, &str, u64> = TableDefinition::new("removed");

pub(super) type Record = StoredState;

/// Kind and key.
#[derive(Debug)]
pub(super) struct Name {
    kind: String,
    key: String,
}

impl Name {
    pub(super) fn of(key: StateKey<'_>) -> Self {
        Self { kind: key.kind.to_owned(), key: key.key.to_owned() }
    }

    fn parts(&self) -> (&str, &str) {
        (&self.kind, &self.key)
    }
}

/// Makes the tables of a new file.
pub(super) fn make_tables(database: &Database) -> Result<(), String> {
    let make = || {
        let transaction = database.begin_write()?;
        transaction.open_table(EPOCHS)?;
        transaction.open_table(STATES)?;
        transaction.open_table(REMOVED)?;
        transaction.commit()?;
        Ok::<_, ::redb::Error>(())
    };
    make().map_err(|error| error.to_string())
}

/// An outcome that is told once the transaction is on the disk.
enum Outcome {
    Claimed(oneshot::Sender<Result<Record, StoreError>>, Record),
    Loaded(oneshot::Sender<Result<Option<Record>, StoreError>>, Option<Record>),
    Saved(oneshot::Sender<Result<u64, StoreError>>, Result<u64, StoreError>),
    Removed(oneshot::Sender<Result<(), StoreError>>, Result<(), StoreError>),
}

impl Outcome {
    fn tell(self, failure: Option<&StoreError>) {
        let failed = |error: &StoreError| error.clone();
        // A closed port is an asker that left.
        match self {
            Self::Claimed(done, record) => drop(done.send(failure.map_or(Ok(record), |error| Err(failed(error))))),
            Self::Loaded(done, record) => drop(done.send(failure.map_or(Ok(record), |error| Err(failed(error))))),
            Self::Saved(done, saved) => drop(done.send(failure.map_or(saved, |error| Err(failed(error))))),
            Self::Removed(done, removed) => drop(done.send(failure.map_or(removed, |error| Err(failed(error))))),
        }
    }
}

/// Carries out the operations in their order, in one transaction, and tells their outcomes. False: the database is of
/// no use any more.
pub(super) fn carry_out(database: &Database, orders: &mut Vec<Order>) -> bool {
    let mut outcomes = Vec::with_capacity(orders.len());
    let carried_out = transact(database, orders, &mut outcomes);
    let failure = carried_out.err().map(|error| StoreError::Failed(error.to_string()));
    if let Some(error) = &failure {
        tracing::error!(parent: None, %error, "the file of keyed actors cannot be written");
    }
    outcomes.into_iter().for_each(|outcome| outcome.tell(failure.as_ref()));
    failure.is_none()
}

fn transact(database: &Database, orders: &mut Vec<Order>, outcomes: &mut Vec<Outcome>) -> Result<(), ::redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut tables = Tables::open(&transaction)?;
        for order in orders.drain(..) {
            outcomes.push(tables.apply(order)?);
        }
    }
    transaction.commit()?;
    Ok(())
}

struct Tables<'t> {
    epochs: Table<'t, (&'static str, &'static str), (u64, &'static str)>,
    states: Table<'t, (&'static str, &'static str), (u64, &'static [u8])>,
    removed: Table<'t, &'static str, u64>,
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, ::redb::Error> {
        let (epochs, states) = (transaction.open_table(EPOCHS)?, transaction.open_table(STATES)?);
        Ok(Self { epochs, states, removed: transaction.open_table(REMOVED)? })
    }

    fn apply(&mut self, order: Order) -> Result<Outcome, ::redb::Error> {
        Ok(match order {
            Order::Claim { name, owner, done } => {
                let epoch = self.epoch(&name)?.map_or_else(|| self.removed(&name), Ok)? + 1;
                self.epochs.insert(name.parts(), (epoch, owner.as_str()))?;
                let (version, state) = self.state(&name)?;
                Outcome::Claimed(done, StoredState { epoch, version, state, owner })
            }
            Order::Load { name, done } => Outcome::Loaded(done, self.record(&name)?),
            Order::Save { name, fence, state, done } => Outcome::Saved(done, self.save(&name, fence, &state)?),
            Order::Remove { name, fence, done } => Outcome::Removed(done, self.remove(&name, fence)?),
        })
    }

    fn epoch(&self, name: &Name) -> Result<Option<u64>, ::redb::Error> {
        Ok(self.epochs.get(name.parts())?.map(|found| found.value().0))
    }

    fn removed(&self, name: &Name) -> Result<u64, ::redb::Error> {
        Ok(self.removed.get(name.kind.as_str())?.map_or(0, |found| found.value()))
    }

    fn state(&self, name: &Name) -> Result<(u64, Option<Bytes>), ::redb::Error> {
        let found = self.states.get(name.parts())?;
        Ok(found.map_or((0, None), |found| {
            let (version, state) = found.value();
            (version, Some(Bytes::copy_from_slice(state)))
        }))
    }

    fn record(&self, name: &Name) -> Result<Option<Record>, ::redb::Error> {
        let found = self.epochs.get(name.parts())?;
        let Some((epoch, owner)) = found.map(|found| (found.value().0, found.value().1.to_owned())) else {
            return Ok(None);
        };
        let (version, state) = self.state(name)?;
        Ok(Some(StoredState { epoch, version, state, owner }))
    }

    fn save(&mut self, name: &Name, fence: Fence, state: &[u8]) -> Result<Result<u64, StoreError>, ::redb::Error> {
        if !self.has(name, fence)? {
            return Ok(Err(StoreError::Conflict));
        }
        self.states.insert(name.parts(), (fence.version + 1, state))?;
        Ok(Ok(fence.version + 1))
    }

    fn remove(&mut self, name: &Name, fence: Fence) -> Result<Result<(), StoreError>, ::redb::Error> {
        if !self.has(name, fence)? {
            return Ok(Err(StoreError::Conflict));
        }
        let removed = self.removed(name)?.max(fence.epoch);
        self.removed.insert(name.kind.as_str(), removed)?;
        self.epochs.remove(name.parts())?;
        self.states.remove(name.parts())?;
        Ok(Ok(()))
    }

    /// Whether the record has this epoch and version.
    fn has(&self, name: &Name, fence: Fence) -> Result<bool, ::redb::Error> {
        let version = self.states.get(name.parts())?.map_or(0, |found| found.value().0);
        Ok(self.epoch(name)? == Some(fence.epoch) && version == fence.version)
    }
}
