//! The places of those that watch the health: bounded for the node and for each client, because they need no key.
//!
//! The driver of a response is not polled while its client takes no bytes. So a place that nobody has used for a while
//! goes to the next watcher if there is no other one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_core::{ErrorKind, Instant};
use callboard_http::protocol::ApiError;
use parking_lot::Mutex;

/// The most watchers of a node.
const MAX_WATCHERS: usize = 256;

/// The most watchers of one address.
const MAX_OF_CLIENT: usize = 64;

/// A place that was not used for this time may be taken away. Watchers that read use theirs several times a second.
const STALE: Duration = Duration::from_secs(10);

/// The places of a node.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    places: Vec<Place>,
    last_id: u64,
}

#[derive(Debug)]
struct Place {
    id: u64,
    client: Option<IpAddr>,
    used_at: Instant,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    places: Arc<Mutex<Places>>,
    id: u64,
}

impl Watchers {
    /// Gives a place to this client.
    ///
    /// # Errors
    ///
    /// Enough others watch.
    pub(crate) fn admit(&self, client: Option<IpAddr>, now: Instant) -> Result<Watcher, ApiError> {
        let mut list = self.0.lock();
        if list.is_full(client) {
            list.places.retain(|place| now < place.used_at + STALE);
        }
        if list.is_full(client) {
            let message = format!(
                "at most {MAX_WATCHERS} clients watch the health of this node, {MAX_OF_CLIENT} of them from one address"
            );
            return Err(ApiError::new(ErrorKind::Overloaded, message));
        }
        list.last_id += 1;
        let id = list.last_id;
        list.places.push(Place { id, client, used_at: now });
        Ok(Watcher { places: Arc::clone(&self.0), id })
    }
}

impl Places {
    fn is_full(&self, client: Option<IpAddr>) -> bool {
        let of_client = self.places.iter().filter(|place| client.is_some() && place.client == client).count();
        self.places.len() >= MAX_WATCHERS || of_client >= MAX_OF_CLIENT
    }
}

impl Watcher {
    /// Uses the place.
    ///
    /// # Errors
    ///
    /// It was taken away.
    pub(crate) fn used(&self, now: Instant) -> Result<(), ApiError> {
        let mut list = self.places.lock();
        let place = list.places.iter_mut().find(|place| place.id == self.id);
        let taken = || ApiError::new(ErrorKind::Overloaded, "the watcher did not read, and another one has its place");
        place.map(|place| place.used_at = now).ok_or_else(taken)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.places.lock().places.retain(|place| place.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_takes_all_places_and_one_that_does_not_read_loses_its_own() {
        let (watchers, now) = (Watchers::default(), Instant::now());
        let client = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let mut admitted: Vec<Watcher> = (0..MAX_OF_CLIENT).map(|_| watchers.admit(client(0), now).unwrap()).collect();
        watchers.admit(client(0), now).unwrap_err();
        for last in 1..4 {
            admitted.extend((0..MAX_OF_CLIENT).map(|_| watchers.admit(client(last), now).unwrap()));
        }
        watchers.admit(client(4), now).unwrap_err();
        watchers.admit(None, now).unwrap_err();
        drop(admitted.pop());
        admitted.push(watchers.admit(None, now).unwrap());
        let later = now + STALE;
        admitted[0].used(later).unwrap();
        let next = watchers.admit(client(4), later).unwrap();
        admitted[0].used(later).unwrap();
        admitted[1].used(later).unwrap_err();
        next.used(later).unwrap();
        drop(admitted);
        assert_eq!(watchers.0.lock().places.len(), 1);
    }
}
