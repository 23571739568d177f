//! The bytes that clients of HTTP/2 may send ahead of the calls that read them.
//!
//! Unread bytes of a body are charged to no call. So every connection has a small window, that of the configuration,
//! and a larger one while a budget of all connections allows it: with 64 KiB, a tensor of a mebibyte takes sixteen
//! round trips. The window is chosen when the connection begins, because clients cannot be made to give it back.
//!
//! * **Full:** a connection gets at most an eighth of what is left, so later connections still get some.
//!   With nothing left it has the small window, which is slower and nothing else.
//! * **Ended:** the share of a connection is free again.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::HttpConfig;

/// The budget of the connections of one edge.
#[derive(Debug)]
pub(crate) struct Http2Windows {
    /// The window of a stream that every connection has.
    usual: u32,
    pool: Mutex<Pool>,
}

#[derive(Debug)]
struct Pool {
    total: u64,
    granted: u64,
}

/// The windows of one connection. Dropping it gives its share back.
#[derive(Debug)]
pub(super) struct WindowGrant {
    windows: Arc<Http2Windows>,
    granted: u64,
    /// Of one stream.
    pub(super) stream_bytes: u32,
    /// Of all its streams together.
    pub(super) connection_bytes: u32,
}

impl Http2Windows {
    pub(crate) fn new(config: &HttpConfig) -> Arc<Self> {
        let pool = Pool { total: config.http2_windows_bytes, granted: 0 };
        Arc::new(Self { usual: config.http2_stream_window_bytes, pool: Mutex::new(pool) })
    }

    /// Lowers the budget, if it is higher.
    pub(crate) fn limit(&self, bytes: u64) {
        let mut pool = self.pool.lock();
        pool.total = pool.total.min(bytes);
    }

    /// The windows of a connection that begins.
    pub(super) fn grant(self: &Arc<Self>) -> WindowGrant {
        let more = {
            let mut pool = self.pool.lock();
            let share = pool.total.saturating_sub(pool.granted) / POOL_SHARE / u64::from(STREAMS_OF_A_WINDOW);
            let more = LARGE_STREAM_BYTES.saturating_sub(self.usual);
            let more = u32::try_from(share).map_or(more, |share| more.min(share)) / STEP_BYTES * STEP_BYTES;
            pool.granted += u64::from(more) * u64::from(STREAMS_OF_A_WINDOW);
            more
        };
        let stream_bytes = self.usual + more;
        WindowGrant {
            windows: Arc::clone(self),
            granted: u64::from(more) * u64::from(STREAMS_OF_A_WINDOW),
            stream_bytes,
            connection_bytes: stream_bytes.saturating_mul(STREAMS_OF_A_WINDOW),
        }
    }
}

impl Drop for WindowGrant {
    fn drop(&mut self) {
        self.windows.pool.lock().granted -= self.granted;
    }
}

/// The window of a stream while the budget allows it: a tensor of usual size comes in one round trip.
const LARGE_STREAM_BYTES: u32 = 1 << 20;

/// A connection gets at most this part of what is left: an eighth.
const POOL_SHARE: u64 = 8;

/// Shares are whole frames.
const STEP_BYTES: u32 = 16 << 10;

/// The window of an HTTP/2 connection as a multiple of a stream's window. h2 closes a connection (ENHANCE_YOUR_CALM) if
/// the overhead of its unread small DATA frames exceeds half of its window; the overhead of a frame is what it lacks of
/// 256 bytes. The shortest call of an ordered stream has some 50 bytes, so a stream's window of them has an overhead of
/// 4.2 windows.
const STREAMS_OF_A_WINDOW: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(total: u64) -> Arc<Http2Windows> {
        Http2Windows::new(&HttpConfig { http2_windows_bytes: total, ..HttpConfig::default() })
    }

    #[test]
    fn the_first_connections_have_large_windows_and_ten_thousand_stay_within_the_budget() {
        let windows = windows(128 << 20);
        let grants: Vec<WindowGrant> = (0..10_000).map(|_| windows.grant()).collect();
        assert!(grants[..8].iter().all(|grant| grant.stream_bytes == 1 << 20));
        assert!(grants.is_sorted_by(|one, next| one.stream_bytes >= next.stream_bytes));
        assert_eq!(grants[9_999].stream_bytes, 64 << 10);
        let usual = 9 * (64 << 10);
        let more: u64 = grants.iter().map(|grant| u64::from(grant.connection_bytes) - usual).sum();
        assert!(more <= 128 << 20 && more == windows.pool.lock().granted, "{more}");
        drop(grants);
        assert_eq!(windows.pool.lock().granted, 0);
    }

    #[test]
    fn without_a_budget_each_connection_has_the_usual_window() {
        let none = windows(0);
        let grant = none.grant();
        assert_eq!((grant.stream_bytes, grant.connection_bytes), (64 << 10, 9 * (64 << 10)));
        let lowered = windows(128 << 20);
        lowered.limit(1 << 20);
        assert_eq!(lowered.grant().stream_bytes, 64 << 10);
    }

    #[test]
    fn a_larger_configured_window_needs_no_share() {
        let config = HttpConfig { http2_stream_window_bytes: 4 << 20, ..HttpConfig::default() };
        let windows = Http2Windows::new(&config);
        assert_eq!((windows.grant().stream_bytes, windows.pool.lock().granted), (4 << 20, 0));
    }
}
