//! `/` and `/v1/live`: the running node, drawn again each second.
//!
//! ```text
//!  sampler, once a second while somebody looks ─► the last minute ─► /v1/live of each viewer ─► the page
//! ```
//!
//! `GET /v1/live` is a stream of events, each with the [`sample`] of one second; a new viewer gets those of the last
//! minute first. The page at `/` is three files in the binary, needs nobody's network, and holds no secret: it is
//! served without a key, and asks for the stream with the key that its user types.
//!
//! *Threat*: viewers that hold a stream open and do not read. Such a viewer misses samples and holds up nobody, there
//! are at most [`MAX_VIEWERS`], and a sample is bounded ([`sample`]). Without viewers nothing is sampled, and no other
//! node is asked for its load.

mod figures;
mod sample;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use callboard_core::{ErrorKind, LocalClient};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::MissedTickBehavior;

pub use self::figures::{Calls, DeviceFigures, Figures, Histogram};
use self::sample::{LiveSampler, Loads};
use super::{Admin, AdminState};
use crate::describe::for_browsers;
use crate::error::ApiError;

/// The most streams at a time.
const MAX_VIEWERS: usize = 16;

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);

/// The samples that a new viewer gets: a minute's. Without viewers for that long, sampling ends.
const KEPT: usize = 60;

/// The samples are taken for all viewers together.
#[derive(Debug)]
pub(super) struct Live {
    viewers: Arc<Semaphore>,
    /// `None` while nobody has looked for a minute.
    samples: Mutex<Option<watch::Sender<Minute>>>,
}

impl Default for Live {
    fn default() -> Self {
        Self { viewers: Arc::new(Semaphore::new(MAX_VIEWERS)), samples: Mutex::default() }
    }
}

/// The events of the last minute.
#[derive(Clone, Debug, Default)]
struct Minute {
    events: VecDeque<Bytes>,
    /// The number of all events so far.
    count: u64,
}

impl Minute {
    fn push(&mut self, event: Bytes) {
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.count += 1;
    }

    /// The events after the first `seen`, as far as they are kept.
    fn since(&self, seen: u64) -> Bytes {
        let fresh = usize::try_from(self.count - seen).unwrap_or(usize::MAX).min(self.events.len());
        let events: Vec<_> = self.events.iter().skip(self.events.len() - fresh).map(AsRef::as_ref).collect();
        match self.events.back() {
            Some(last) if fresh == 1 => last.clone(),
            _ => events.concat().into(),
        }
    }
}

/// The paths of the page, which need no key.
pub(super) fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/live.css" | "/live.js")
}

pub(super) fn routes() -> Router<Admin> {
    let text = |media_type: &'static str, text: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, media_type), (CACHE_CONTROL, "no-cache")], text) })
    };
    Router::new()
        .route("/", get(|| async { for_browsers(axum::response::Html(PAGE).into_response(), POLICY) }))
        .route("/live.css", text("text/css; charset=utf-8", include_str!("../../../assets/live/live.css")))
        .route("/live.js", text("text/javascript; charset=utf-8", include_str!("../../../assets/live/live.js")))
        .route("/v1/live", get(stream))
}

const PAGE: &str = include_str!("../../../assets/live/index.html");

/// Its own files, and its own stream.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /v1/live`.
async fn stream(State(admin): State<Admin>, headers: HeaderMap) -> Result<Response, ApiError> {
    // Another site's page cannot read it, but would take a place.
    if headers.get("sec-fetch-site").is_some_and(|site| *site != "same-origin" && *site != "none") {
        return Err(ApiError::forbidden("the admin listener answers no web page but its own"));
    }
    let place = Arc::clone(&admin.0.live.viewers).try_acquire_owned().map_err(|_| {
        ApiError::new(ErrorKind::Overloaded, format!("{MAX_VIEWERS} viewers look at this node: close another one"))
    })?;
    let events = futures_util::stream::unfold(Viewer::new(&admin, place), Viewer::next);
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// One open stream.
struct Viewer {
    samples: watch::Receiver<Minute>,
    /// The number of the events that it has, or has missed.
    seen: u64,
    _place: OwnedSemaphorePermit,
}

impl Viewer {
    /// Looks at the samples, which are taken from now on if nobody else looks.
    fn new(admin: &Admin, place: OwnedSemaphorePermit) -> Self {
        let mut samples = admin.0.live.samples.lock();
        let sender = samples.get_or_insert_with(|| {
            tokio::spawn(take_samples(Arc::downgrade(&admin.0)));
            watch::Sender::default()
        });
        let seen = {
            let minute = sender.borrow();
            minute.count - minute.events.len() as u64
        };
        let mut samples = sender.subscribe();
        samples.mark_changed();
        Self { samples, seen, _place: place }
    }

    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            self.samples.changed().await.ok()?;
            let (events, count) = {
                let minute = self.samples.borrow_and_update();
                (minute.since(self.seen), minute.count)
            };
            self.seen = count;
            if !events.is_empty() {
                return Some((Ok(events), self));
            }
        }
    }
}

/// Takes a sample each second until nobody has looked for a minute, or the listener is gone.
async fn take_samples(admin: Weak<AdminState>) {
    let (mut ticks, mut sampler, mut unseen) = (tokio::time::interval(EVERY), LiveSampler::default(), 0);
    let mut members = MemberLoads::default();
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(state) = admin.upgrade() else { return };
        let loads = members.latest(&state.client);
        let taking = spawn_blocking(move || {
            let event = sampler.event(&state, &loads);
            (sampler, state, event)
        });
        // The runtime ends, or the sample has panicked: its viewers connect again.
        let Ok((next, state, event)) = taking.await else { return end(&admin) };
        sampler = next;
        let mut samples = state.live.samples.lock();
        let Some(sender) = samples.as_ref() else { return };
        unseen = if sender.receiver_count() == 0 { unseen + 1 } else { 0 };
        if unseen > KEPT {
            *samples = None;
            return;
        }
        sender.send_modify(|minute| minute.push(event));
    }
}

/// The loads of the members, which take up to a second: a sample has those of the question before it.
#[derive(Debug, Default)]
struct MemberLoads {
    last: Arc<Loads>,
    /// At most one question is under way. It ends with the samples.
    asking: JoinSet<Loads>,
}

impl MemberLoads {
    /// The last answer, after which the members are asked again.
    fn latest(&mut self, client: &LocalClient) -> Arc<Loads> {
        if let Some(answered) = self.asking.try_join_next() {
            // After a panic, which was printed, the loads are unknown.
            self.last = Arc::new(answered.unwrap_or_default());
        }
        if self.asking.is_empty() {
            let client = client.clone();
            self.asking.spawn(async move {
                let mut members = client.edge().members();
                client.edge().add_loads(&mut members).await;
                members.into_iter().filter_map(|member| Some((member.name, member.load?))).collect()
            });
        }
        Arc::clone(&self.last)
    }
}

fn end(admin: &Weak<AdminState>) {
    if let Some(state) = admin.upgrade() {
        *state.live.samples.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_gets_what_it_has_not_seen_and_at_most_a_minute() {
        let mut minute = Minute::default();
        assert!(minute.since(0).is_empty());
        (0..3).for_each(|n: u8| minute.push(n.to_string().into()));
        assert_eq!([0, 1, 2].map(|seen| minute.since(seen)), ["012", "12", "2"]);
        assert!(minute.since(3).is_empty());
        (0..KEPT).for_each(|_| minute.push("x".into()));
        assert_eq!(minute.since(0), "x".repeat(KEPT));
    }
}
