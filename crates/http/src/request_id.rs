//! The name of one request, taken from its client or made here, found in the answer and in every problem document.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::header::{HeaderName, HeaderValue};

use callboard_core::edge::is_valid_request_id;

use crate::ascii::Ascii;

/// Taken, or made, and always given back.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether requests have ids. Off only in a build that finds out what they cost: see `benches/metrics-cost.sh`. Not a feature,
/// because nobody is meant to turn it on by depending on this crate.
pub(crate) const NAMING: bool = !cfg!(callboard_no_request_id);

/// One request's id: visible ASCII, at most 128 characters.
#[derive(Clone, Debug)]
pub(crate) enum RequestId {
    /// The client's own.
    Taken(HeaderValue),
    /// One of ours, in place: most requests have one, and each copy of a header's value is an allocation.
    Made(Ascii<33>),
}

impl RequestId {
    /// The client's own id, if it is one that may enter logs: visible ASCII, not too long.
    pub(crate) fn from_client(value: &HeaderValue) -> Option<Self> {
        is_valid_request_id(value.as_bytes()).then(|| Self::Taken(value.clone()))
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Taken(value) => value.to_str().unwrap_or_default(),
            Self::Made(text) => text.as_str(),
        }
    }

    pub(crate) fn to_header(&self) -> HeaderValue {
        match self {
            Self::Taken(value) => value.clone(),
            Self::Made(text) => text.to_header(),
        }
    }
}

/// Makes ids that no other process makes: a random number of this process, then a count.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// The process's part, as text and with its dash.
    process: Ascii<17>,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        // The standard library's own source of randomness for its maps: enough for a name, and no dependency.
        Self::of_process(RandomState::new().build_hasher().finish())
    }

    fn of_process(number: u64) -> Self {
        let mut process = Ascii::new();
        process.push_hex(number, 16);
        process.push(b"-");
        Self { process, next: AtomicU64::new(0) }
    }

    /// A new id such as `9f3ac27e01b4d658-0000002a`.
    pub(crate) fn make(&self) -> RequestId {
        let mut id = Ascii::<33>::new();
        if !NAMING {
            return RequestId::Made(id);
        }
        id.push(self.process.as_bytes());
        id.push_hex(self.next.fetch_add(1, Ordering::Relaxed), 8);
        RequestId::Made(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_what_may_enter_a_log() {
        let take = |text: &[u8]| RequestId::from_client(&HeaderValue::from_bytes(text).unwrap());
        assert_eq!(take(b"a-client's/own:id").unwrap().as_str(), "a-client's/own:id");
        assert!(take(&[b'x'; 128]).is_some());
        for refused in [&b""[..], &[b'x'; 129], b"two words", "ünïcode".as_bytes()] {
            assert!(take(refused).is_none(), "{refused:?}");
        }
    }

    #[test]
    fn makes_ids_that_differ_and_that_we_would_take() {
        let (here, there) = (RequestIds::new(), RequestIds::new());
        let made = [here.make(), here.make(), there.make()].map(|id| id.to_header());
        assert_ne!(made[0], made[1]);
        assert_ne!(made[0].as_bytes()[..16], made[2].as_bytes()[..16]);
        assert!(made.iter().all(|id| id.len() == 25 && RequestId::from_client(id).is_some()));
    }

    #[test]
    fn counts_on_beyond_eight_digits() {
        let ids = RequestIds { next: AtomicU64::new(0x1_0000_0000), ..RequestIds::of_process(0) };
        assert_eq!(ids.make().as_str(), "0000000000000000-100000000");
    }
}
