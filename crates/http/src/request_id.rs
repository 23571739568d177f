//! The id of a request: sent by its client or generated here. Every response and problem document has it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::header::{HeaderName, HeaderValue};

use callboard_core::edge::is_valid_request_id;
use callboard_telemetry::StackText;

/// The header of the id, in requests and responses.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether requests have ids. Off only in a build that measures their cost: see `benches/metrics-cost.sh`. Not a
/// feature: no dependent crate should turn it off.
pub(crate) const HAS_REQUEST_IDS: bool = !cfg!(callboard_no_request_id);

/// Visible ASCII, at most 128 characters.
#[derive(Clone, Debug)]
pub enum RequestId {
    /// Sent by the client.
    Client(HeaderValue),
    /// Generated here, in place: a header value would be an allocation for most requests.
    Generated(StackText<33>),
}

impl RequestId {
    /// The client's id, if it may enter logs: visible ASCII, not too long.
    pub(crate) fn from_client(value: &HeaderValue) -> Option<Self> {
        is_valid_request_id(value.as_bytes()).then(|| Self::Client(value.clone()))
    }

    /// The text of the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Client(value) => value.to_str().unwrap_or_default(),
            Self::Generated(text) => text.as_str(),
        }
    }

    pub(crate) fn to_header(&self) -> HeaderValue {
        match self {
            Self::Client(value) => value.clone(),
            Self::Generated(text) => header_value(text),
        }
    }
}

pub(crate) fn header_value<const N: usize>(text: &StackText<N>) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Generates ids that are unique across processes: a random number of this process, then a count.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// The random part, with its dash.
    process: StackText<17>,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        // The standard library's source of randomness for maps: enough for an id, without a dependency.
        Self::for_process(RandomState::new().build_hasher().finish())
    }

    fn for_process(number: u64) -> Self {
        let mut process = StackText::default();
        process.push_hex(number, 16);
        process.push(b"-");
        Self { process, next: AtomicU64::new(0) }
    }

    /// A new id such as `9f3ac27e01b4d658-0000002a`.
    pub(crate) fn generate(&self) -> RequestId {
        let mut id = StackText::<33>::default();
        if !HAS_REQUEST_IDS {
            return RequestId::Generated(id);
        }
        id.push(self.process.as_bytes());
        id.push_hex(self.next.fetch_add(1, Ordering::Relaxed), 8);
        RequestId::Generated(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_that_is_safe_in_a_log_is_accepted() {
        let id_of = |text: &[u8]| RequestId::from_client(&HeaderValue::from_bytes(text).unwrap());
        assert_eq!(id_of(b"a-client's/own:id").unwrap().as_str(), "a-client's/own:id");
        assert!(id_of(&[b'x'; 128]).is_some());
        for refused in [&b""[..], &[b'x'; 129], b"two words", "ünïcode".as_bytes()] {
            assert!(id_of(refused).is_none(), "{refused:?}");
        }
    }

    #[test]
    fn generated_ids_differ_and_are_valid() {
        let (first, second) = (RequestIds::new(), RequestIds::new());
        let ids = [first.generate(), first.generate(), second.generate()].map(|id| id.to_header());
        assert_ne!(ids[0], ids[1]);
        assert_ne!(ids[0].as_bytes()[..16], ids[2].as_bytes()[..16]);
        assert!(ids.iter().all(|id| id.len() == 25 && RequestId::from_client(id).is_some()));
    }

    #[test]
    fn a_generated_id_may_have_more_than_eight_digits() {
        let ids = RequestIds { next: AtomicU64::new(0x1_0000_0000), ..RequestIds::for_process(0) };
        assert_eq!(ids.generate().as_str(), "0000000000000000-100000000");
    }
}
