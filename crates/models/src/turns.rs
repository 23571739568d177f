//! The turns of the loads: a model has one change at a time, and models do not wait for each other.
//!
//! * **Full:** more than [`MAX_LOADS`] loads at a time wait for a place.
//! * **Cancelled:** an unload or a removal ends a load of its model that is not done. Its change may have taken effect
//!   just before, so all routes that the node has for the model are closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use callboard_http::RepositoryError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Loads at a time while the node serves. Each may take the memory of its model twice.
const MAX_LOADS: usize = 8;

/// The turns of all models.
pub(crate) struct Turns {
    models: Mutex<BTreeMap<String, Arc<Turn>>>,
    places: Arc<Semaphore>,
}

/// The turn of one model.
#[derive(Default)]
pub(crate) struct Turn {
    change: tokio::sync::Mutex<()>,
    /// Counts the orders that end a load.
    ended: watch::Sender<u64>,
    began: Mutex<Option<Instant>>,
}

/// Tells that a model is loading until it is dropped.
struct Loading<'a>(&'a Turn);

impl Default for Turns {
    fn default() -> Self {
        Self { models: Mutex::default(), places: Arc::new(Semaphore::new(MAX_LOADS)) }
    }
}

impl Turns {
    /// Loads a model in its turn.
    ///
    /// # Errors
    ///
    /// Errors of the load, and an order that ends it.
    pub(crate) async fn load(
        &self,
        name: &str,
        load: impl Future<Output = Result<(), RepositoryError>>,
    ) -> Result<(), RepositoryError> {
        let turn = self.of(name);
        let mut ended = turn.ended.subscribe();
        let in_turn = async {
            let _turn = turn.change.lock().await;
            let _loading = Loading::begin(&turn);
            load.await
        };
        tokio::select! {
            biased;
            // First: a load that is done has taken effect, and its state is remembered.
            done = in_turn => done,
            _ = ended.changed() => {
                Err(RepositoryError::Source("it was unloaded or removed while it was loaded".to_owned()))
            }
        }
    }

    /// Changes a model at once: a load of it ends without effect.
    pub(crate) async fn at_once<T>(&self, name: &str, change: impl Future<Output = T>) -> T {
        let turn = self.of(name);
        turn.ended.send_modify(|orders| *orders += 1);
        let _turn = turn.change.lock().await;
        change.await
    }

    /// Changes a model after a load of it.
    pub(crate) async fn after_loads<T>(&self, name: &str, change: impl Future<Output = T>) -> T {
        let turn = self.of(name);
        let _turn = turn.change.lock().await;
        change.await
    }

    /// A place for the work of a load, which keeps it even if its caller leaves.
    pub(crate) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// The models that are loaded now, each with the time since its load began.
    pub(crate) fn loading(&self) -> BTreeMap<String, Duration> {
        let turns = self.lock();
        turns.iter().filter_map(|(name, turn)| Some((name.clone(), (*lock(&turn.began))?.elapsed()))).collect()
    }

    fn of(&self, name: &str) -> Arc<Turn> {
        let mut models = self.lock();
        // Names that only a request has named leave with it.
        models.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(models.entry(name.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Turn>>> {
        lock(&self.models)
    }
}

impl<'a> Loading<'a> {
    fn begin(turn: &'a Turn) -> Self {
        *lock(&turn.began) = Some(Instant::now());
        Self(turn)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        *lock(&self.0.began) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn an_unload_ends_the_load_of_its_model_and_waits_for_no_other() {
        let turns = Turns::default();
        let unloads = async {
            // Both loads began: futures are polled in order.
            assert_eq!(turns.loading().keys().collect::<Vec<_>>(), ["loops", "other"]);
            turns.at_once("loops", async {}).await;
            assert_eq!(turns.loading().keys().collect::<Vec<_>>(), ["other"]);
            turns.load("good", async { Ok(()) }).await
        };
        tokio::select! {
            biased;
            (ended, ()) = async { tokio::join!(turns.load("loops", pending()), pending()) } => panic!("{ended:?}"),
            _ = turns.load("other", pending()) => panic!("no order has ended it"),
            unloaded = unloads => unloaded.unwrap(),
        }
        assert!(turns.loading().is_empty());
        let (ended, ()) = tokio::join!(turns.load("loops", pending()), turns.at_once("loops", async {}));
        assert!(ended.unwrap_err().to_string().contains("unloaded"));
    }

    #[tokio::test]
    async fn a_load_that_is_done_when_its_unload_comes_has_taken_effect() {
        let turns = Turns::default();
        let (effect, took_effect) = tokio::sync::oneshot::channel();
        let load = turns.load("model", async move {
            took_effect.await.unwrap();
            Ok(())
        });
        let unload = async {
            effect.send(()).unwrap();
            turns.at_once("model", async {}).await;
        };
        let (loaded, ()) = tokio::join!(load, unload);
        loaded.unwrap();
    }
}
