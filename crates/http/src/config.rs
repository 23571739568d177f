//! The edge's limits: every one bounds something that a client decides, and says what a client could do without it.

use std::collections::BTreeMap;
use std::time::Duration;

use callboard_codec::DecodeLimits;
use callboard_core::Deadline;
use thiserror::Error;

use crate::access::{ApiKeys, Cors, Hosts, RateLimit};
use crate::access_log::AccessLog;
use crate::request::pace::PaceLimits;
use crate::tls::TlsConfig;

/// Limits of the HTTP edge. The defaults are safe on the open internet; each field names the threat that it answers.
///
/// ```
/// use std::time::Duration;
/// use callboard_http::HttpConfig;
///
/// let mut config = HttpConfig::default();
/// config.max_body_bytes = 8 * 1024 * 1024;
/// config.body_progress_timeout = Duration::from_secs(5);
/// config.validate()?;
/// # Ok::<(), callboard_http::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Connections served at once. Default 10,000.
    ///
    /// *Threat*: a client that opens connections until memory or file descriptors are gone. A connection at work costs 24 KiB
    /// beside its request, an idle one of HTTP/1 about 3 KiB, and each a descriptor, so raise the process's descriptor limit with
    /// it. At the limit nobody is dropped: new clients wait in the kernel's backlog. Pairs with [`header_read_timeout`](Self::header_read_timeout), which frees the
    /// places of silent clients, and [`write_progress_timeout`](Self::write_progress_timeout), which frees those of deaf
    /// ones.
    pub max_connections: usize,

    /// Connections served at once for one address: an IPv4 address, or an IPv6 network of 64 bits. Default 1,000.
    ///
    /// *Threat*: one client that takes all of [`max_connections`](Self::max_connections). Beyond it new connections of this
    /// address are closed at once. Behind a proxy all clients come from the proxy's address: set it to `max_connections` there.
    pub max_connections_per_address: usize,

    /// TLS on the listener. Default none.
    ///
    /// *Threat*: whoever is on the way reads and changes what is sent, keys included. Leave it out only on loopback and
    /// behind a proxy that speaks TLS.
    pub tls: Option<TlsConfig>,

    /// From accept until the client's first bytes tell which version of HTTP it speaks. Default 10 s.
    ///
    /// *Threat*: clients that connect and say nothing, or the HTTP/2 preface a byte at a time. Cut without an answer. Raise it
    /// only for clients that open connections ahead of need.
    pub first_byte_timeout: Duration,

    /// From the start of waiting for a request until the end of its headers, on HTTP/1. Default 30 s.
    ///
    /// *Threat*: slowloris, headers sent at ten bytes a second. The wait between two requests of a kept-alive connection
    /// counts, so this is also the longest time a connection may be idle. Cut without an answer. On HTTP/2 it is the interval of
    /// pings, and a client that does not answer one within [`first_byte_timeout`](Self::first_byte_timeout) is cut; one that
    /// answers them but has no answer in hand is told to go (GOAWAY) after one to two such times. So is one that holds answers
    /// back, by a window of nothing say: that reads less than [`min_bytes_per_second`](Self::min_bytes_per_second) of each that has
    /// waited for it the whole time.
    pub header_read_timeout: Duration,

    /// Request line and headers together, in bytes. Default 64 KiB, answered with 431.
    ///
    /// *Threat*: memory, by headers without end. Large cookies are the only honest reason to raise it. Of HTTP/1 headers
    /// there may be 100, however short.
    pub max_header_bytes: usize,

    /// A request body, in bytes, also of what a compressed one unpacks to. Default 64 MiB, answered with 413: by the Content-Length alone where there is one, else at the
    /// chunk that exceeds it.
    ///
    /// *Threat*: memory. The node's own byte budget holds for all bodies together; this keeps one client from taking it all.
    pub max_body_bytes: u64,

    /// The same for single routes, by their names; larger or smaller. Default none.
    ///
    /// *Threat*: as above, where one route takes pictures and another a line of text. A larger one has to fit into the
    /// node's `max_in_flight_bytes`, or it could never be let in.
    pub max_body_bytes_by_route: BTreeMap<String, u64>,

    /// The keys that let requests in. Default none: everybody may call. Answered with 401.
    ///
    /// *Threat*: strangers. Only hashes are kept, and what is shown is compared to the end. Health (`/livez`, `/readyz`,
    /// `/v2/health`), `/`, `/docs` and `/openapi.json` answer without a key. Without [`tls`](Self::tls), whoever is on the
    /// way reads the keys.
    pub api_keys: Option<ApiKeys>,

    /// How often [keys of a file](ApiKeys::read) are looked at for a change. Default 10 s.
    ///
    /// *Threat*: a key that was taken back and still lets requests in.
    pub api_keys_reload_interval: Duration,

    /// How often each key may be used that has no limit of its own. Default no limit. Answered with 429 and `retry-after`.
    ///
    /// *Threat*: one client that takes what all share. The node's own permits protect the node; this protects the others. Calls
    /// are counted: each of a stream of calls, which wait for their turn as long as a call may, and each item of a request
    /// under `/v2`.
    pub rate_limit: Option<RateLimit>,

    /// The web pages that may read answers. Default none but our own.
    ///
    /// *Threat*: a page somewhere that reads from a service which only its visitor can reach. `*` opens it to every page. It is the
    /// answer that is withheld from other pages, not the call: a form or a text needs no permission to be sent. On loopback other
    /// pages may not call either (403), see [`hosts`](Self::hosts); beyond it calls that change something need
    /// [`api_keys`](Self::api_keys).
    pub cors: Option<Cors>,

    /// The names by which a listener on loopback may be called, beside its address, `localhost` and names without a dot. Default
    /// none; others are answered 403. Has no meaning beyond loopback.
    ///
    /// *Threat*: a web page whose own name is made to lead to this machine (DNS rebinding) is taken for one of ours by its
    /// visitor's browser, and calls and reads what only its visitor can reach. List the names that a proxy on this machine passes
    /// on, or let it set `host` to the address. Pages of our own are told by that name, too: where the proxy sets another, list the
    /// page under [`cors`](Self::cors).
    pub hosts: Hosts,

    /// The time in which a client has to move on within a request body: [`min_bytes_per_second`](Self::min_bytes_per_second)
    /// is measured over it. Default 10 s, answered with 408.
    ///
    /// *Threat*: a client that announces a body and does not send it, or sends a byte now and then. Raise it for clients
    /// that pause within a body; what they hold meanwhile are the permits of what they have sent.
    pub body_progress_timeout: Duration,

    /// The longest that the reading of a body may take, whatever deadline its request asks for. Default 60 s, answered with
    /// 408.
    ///
    /// *Threat*: permits for the node's bytes are taken as a body arrives, so whoever sends most of a body and then the
    /// rest as slowly as is allowed holds them for that long. Raise it where honest clients send
    /// [`max_body_bytes`](Self::max_body_bytes) over lines of less than 10 Mbit/s, and let them ask for more time by
    /// `x-request-timeout-ms`: their deadline ends the reading, too (504).
    pub body_timeout: Duration,

    /// What a client has to send of a body, and to take of an answer, in bytes per second; measured over
    /// [`body_progress_timeout`](Self::body_progress_timeout) and [`write_progress_timeout`](Self::write_progress_timeout).
    /// Default 1,024; 0 accepts any progress at all.
    ///
    /// *Threat*: a client that keeps thousands of requests open with a few bytes a minute. Lower it for links that are
    /// slower than an old modem.
    pub min_bytes_per_second: u64,

    /// The time in which a client has to go on reading while there are bytes for it:
    /// [`min_bytes_per_second`](Self::min_bytes_per_second) is measured over it. Default 30 s; then the connection is cut.
    ///
    /// *Threat*: a client that asks for much and reads nothing holds its place in [`max_connections`](Self::max_connections)
    /// and the answers in memory. Raise it for clients that pause within an answer.
    pub write_progress_timeout: Duration,

    /// The longest silence of an event stream: then a comment is sent, which clients pass over. Default 15 s.
    ///
    /// *Threat*: proxies and clients that take silence for a dead connection. A stream also waits no longer than this for its
    /// first item before it answers 200. Lower it below the idle timeout of the proxies in front.
    pub stream_heartbeat: Duration,

    /// Replies of at least so many bytes are compressed where their client asks for it by `accept-encoding`. Default 1 KiB;
    /// `usize::MAX` compresses none.
    ///
    /// *Cost*: about 10 ms of a core for each megabyte of JSON. Numbers in other forms, and streams (some 300 KiB of memory
    /// each, a mebibyte with zstd), are compressed only for clients that put a coding above `identity`. *Threat*: a client
    /// that asks for it to keep cores busy; turn it off where clients are near or proxies compress.
    pub compress_from_bytes: usize,

    /// What a decoder may be talked into: depth, elements, lengths. See [`DecodeLimits`]; answered with 400.
    ///
    /// *Threat*: a small body that becomes a large or deep value. How long a body may be is decided by
    /// [`max_body_bytes`](Self::max_body_bytes) alone; `max_bytes` in here is not looked at.
    pub decode: DecodeLimits,

    /// HTTP/2 requests in flight on one connection. Default 256; more wait at the client.
    ///
    /// *Threat*: one connection that takes the share of hundreds. Pairs with [`max_connections`](Self::max_connections): the
    /// product bounds the requests that the edge holds.
    pub max_concurrent_streams: u32,

    /// HTTP/2 requests that one connection may take back (reset) beyond the number of those whose answers it took. Default
    /// 1,000; then the connection is cut.
    ///
    /// *Threat*: "rapid reset": a client that begins requests and cancels each with the next frame makes us work for the
    /// price of a few bytes, and never has more than one in flight. Raise it for clients that send every request twice and
    /// cancel the slower one.
    pub max_cancelled_streams: u32,

    /// One line of the log per request, as an event of `tracing` or lent to a sink. Default off; the command line turns it on.
    ///
    /// *Cost*: what its sink or subscriber does with it. *Threat*: paths are told as clients send them, up to 200 characters;
    /// headers, queries and bodies are not.
    pub access_log: AccessLog,

    /// Whether a request may ask for its timeline: stages, batches and how large they were, replicas, times. Default on.
    ///
    /// *Threat*: a client learns how a route is built and how busy others keep it, which is less than `/metrics` tells; turn both
    /// away from strangers. *Cost*: of those that ask, an allocation for each stage and up to 3 KiB of header.
    pub explain_requests: bool,

    /// Whether clients may load and unload models ([`Repository`](crate::Repository)) at this door. Default off; the admin listener
    /// always lets its callers.
    ///
    /// *Threat*: whoever may call a route could close it to all others.
    pub model_control: bool,

    /// How long a closed connection is read after its last answer, so that a client which still sends a refused body sees the
    /// answer and not a reset. Default 1 s.
    ///
    /// *Cost*: a place in [`max_connections`](Self::max_connections) for that long, where the client does not close its side.
    pub close_linger: Duration,

    /// How long an idle HTTP/1 connection stays open after shutdown began. Default 500 ms.
    ///
    /// A busy client sends its next request within it and learns by `Connection: close` to go elsewhere; closing at once would
    /// fail the request that is on its way. Zero closes at once.
    pub shutdown_linger: Duration,

    /// How long requests in hand may take after shutdown began; then their connections are cut. Default 30 s.
    ///
    /// Should not be shorter than the drain time of the node behind it.
    pub shutdown_grace: Duration,
}

impl HttpConfig {
    /// Finds limits that could not work.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range, and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let tls = self.tls.as_ref();
        let above_zero: [(&'static str, bool); 14] = [
            ("max_connections", self.max_connections > 0),
            ("max_connections_per_address", self.max_connections_per_address > 0),
            ("first_byte_timeout", !self.first_byte_timeout.is_zero()),
            ("header_read_timeout", !self.header_read_timeout.is_zero()),
            ("max_body_bytes", self.max_body_bytes > 0),
            ("body_progress_timeout", !self.body_progress_timeout.is_zero()),
            ("body_timeout", !self.body_timeout.is_zero()),
            ("write_progress_timeout", !self.write_progress_timeout.is_zero()),
            ("stream_heartbeat", !self.stream_heartbeat.is_zero()),
            ("max_concurrent_streams", self.max_concurrent_streams > 0),
            ("max_body_bytes_by_route", self.max_body_bytes_by_route.values().all(|bytes| *bytes > 0)),
            ("api_keys_reload_interval", !self.api_keys_reload_interval.is_zero()),
            ("tls.handshake_timeout", tls.is_none_or(|tls| !tls.handshake_timeout.is_zero())),
            ("tls.reload_interval", tls.is_none_or(|tls| !tls.reload_interval.is_zero())),
        ];
        if let Some((field, _)) = above_zero.into_iter().find(|(_, holds)| !holds) {
            return Err(ConfigError::Zero { field });
        }
        if self.max_connections > MAX_CONNECTIONS {
            return Err(ConfigError::TooLarge { field: "max_connections", most: MAX_CONNECTIONS });
        }
        if self.max_header_bytes < LEAST_HEADER_BYTES {
            return Err(ConfigError::TooSmall { field: "max_header_bytes", least: LEAST_HEADER_BYTES });
        }
        if self.rate_limit.is_some() && self.api_keys.is_none() {
            return Err(ConfigError::Without { field: "rate_limit", other: "api_keys" });
        }
        Ok(())
    }

    /// The largest body of this route.
    pub(crate) fn max_body_bytes_of(&self, route: &str) -> u64 {
        // As a rule there is none, and nothing is looked up.
        self.max_body_bytes_by_route.get(route).copied().unwrap_or(self.max_body_bytes)
    }

    /// The largest body of any route.
    pub(crate) fn largest_body_bytes(&self) -> u64 {
        self.max_body_bytes_by_route.values().copied().fold(self.max_body_bytes, u64::max)
    }

    /// What bounds the time of a body whose request has this deadline.
    pub(crate) fn pace(&self, deadline: Deadline) -> PaceLimits {
        PaceLimits {
            progress_timeout: self.body_progress_timeout,
            progress_bytes: self.least_bytes_in(self.body_progress_timeout),
            body_timeout: self.body_timeout,
            deadline,
        }
    }

    /// What a client has to move within this time; one byte at least.
    pub(crate) fn least_bytes_in(&self, window: Duration) -> u64 {
        let bytes = u128::from(self.min_bytes_per_second) * window.as_millis() / 1000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_connections_per_address: 1_000,
            tls: None,
            first_byte_timeout: Duration::from_secs(10),
            header_read_timeout: Duration::from_secs(30),
            max_header_bytes: 64 * 1024,
            max_body_bytes: 64 * 1024 * 1024,
            max_body_bytes_by_route: BTreeMap::new(),
            api_keys: None,
            api_keys_reload_interval: Duration::from_secs(10),
            rate_limit: None,
            cors: None,
            hosts: Hosts::default(),
            body_progress_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            min_bytes_per_second: 1024,
            write_progress_timeout: Duration::from_secs(30),
            stream_heartbeat: Duration::from_secs(15),
            compress_from_bytes: 1024,
            decode: DecodeLimits::default(),
            max_concurrent_streams: 256,
            max_cancelled_streams: 1_000,
            access_log: AccessLog::Off,
            explain_requests: true,
            model_control: false,
            close_linger: Duration::from_secs(1),
            shutdown_linger: Duration::from_millis(500),
            shutdown_grace: Duration::from_secs(30),
        }
    }
}

/// A limit that could not work.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Set it above zero, or leave it out for the default.
    #[error("`{field}` must be above zero")]
    Zero {
        /// The field of [`HttpConfig`].
        field: &'static str,
    },
    /// Nothing could be served with less.
    #[error("`{field}` must be at least {least}")]
    TooSmall {
        /// The field of [`HttpConfig`].
        field: &'static str,
        /// The least value that works.
        least: usize,
    },
    /// Set the other one, too, or neither.
    #[error("`{field}` has no effect without `{other}`")]
    Without {
        /// The field of [`HttpConfig`].
        field: &'static str,
        /// The field that it needs.
        other: &'static str,
    },
    /// More cannot be counted.
    #[error("`{field}` must be at most {most}")]
    TooLarge {
        /// The field of [`HttpConfig`].
        field: &'static str,
        /// The largest value that works.
        most: usize,
    },
}

/// What the places' semaphore can count.
const MAX_CONNECTIONS: usize = tokio::sync::Semaphore::MAX_PERMITS;

/// A request line and a Host header with room to spare.
const LEAST_HEADER_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        HttpConfig::default().validate().unwrap();
    }

    #[test]
    fn names_the_limit_that_cannot_work() {
        let config = HttpConfig { max_body_bytes: 0, ..HttpConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "`max_body_bytes` must be above zero");
        let config = HttpConfig { max_header_bytes: 10, ..HttpConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "`max_header_bytes` must be at least 1024");
    }

    #[test]
    fn names_the_timer_of_tls_that_cannot_work() {
        for field in ["tls.handshake_timeout", "tls.reload_interval"] {
            let mut tls = TlsConfig::new("certificate.pem", "key.pem");
            match field {
                "tls.reload_interval" => tls.reload_interval = Duration::ZERO,
                _ => tls.handshake_timeout = Duration::ZERO,
            }
            let config = HttpConfig { tls: Some(tls), ..HttpConfig::default() };
            assert_eq!(config.validate().unwrap_err().to_string(), format!("`{field}` must be above zero"));
        }
    }
}
