//! The limits of the edge. Each bounds the cost of clients, and names the threat without it.

mod tls;

use std::collections::BTreeMap;
use std::time::Duration;

use callboard_codec::DecodeLimits;
use callboard_core::Deadline;
use callboard_core::edge::{ErrorTraces, PaceLimits};
use thiserror::Error;

pub use self::tls::TlsConfig;

use crate::guard::{AccessPolicy, ApiKeys, Cors, Hosts, LoopbackGuard, RateLimit, TrustedProxies};
use callboard_telemetry::AccessLog;

/// Limits of the HTTP edge. The defaults are safe on the open internet; each field names the threat that it counters.
///
/// ```
/// use std::time::Duration;
/// use callboard_http::HttpConfig;
///
/// let config = HttpConfig {
///     max_body_bytes: 8 * 1024 * 1024,
///     body_progress_timeout: Duration::from_secs(5),
///     ..HttpConfig::default()
/// };
/// config.validate()?;
/// # Ok::<(), callboard_http::HttpConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Connections served at once. Default 10,000.
    ///
    /// *Threat*: a client that opens connections until memory or file descriptors are gone. A busy connection costs 24
    /// KiB besides its request, an idle HTTP/1 connection about 3 KiB, and each a descriptor, so raise the process's
    /// descriptor limit with it. At the limit no connection is dropped: new clients wait in the kernel's backlog. Pairs
    /// with [`idle_timeout`](Self::idle_timeout), which drops silent clients, and
    /// [`write_progress_timeout`](Self::write_progress_timeout), which drops clients that do not read.
    pub max_connections: usize,

    /// Connections served at once for one address: an IPv4 address, or an IPv6 /64 network. Default 1,000.
    ///
    /// *Threat*: one client that takes all of [`max_connections`](Self::max_connections). Further connections from this
    /// address are closed at once. Behind a proxy all clients come from the proxy's address: name
    /// it in [`trusted_proxies`](Self::trusted_proxies), whose connections do not count here.
    pub max_connections_per_address: usize,

    /// The proxies that name the client of a request, by `x-forwarded-for` or `forwarded`. Default none: the client is
    /// the peer.
    ///
    /// The client is the last address that is no trusted proxy. It is what the access log shows. `forwarded` is read
    /// only without `x-forwarded-for`. Connections of these proxies are not limited per address.
    ///
    /// *Threat*: clients that choose their address. Trust only proxies that add the address of their peer to
    /// `x-forwarded-for`, or that remove it and add the address to `forwarded`; a network in which clients are as well
    /// lets them choose it.
    pub trusted_proxies: TrustedProxies,

    /// TLS on the listener. Default none.
    ///
    /// *Threat*: any host on the network path can read and change the traffic, keys included. Omit it only on loopback
    /// and behind a proxy that speaks TLS.
    pub tls: Option<TlsConfig>,

    /// The longest time that a connection may stay open without a request, before its first or between two. Default
    /// 90 s.
    ///
    /// It has to be longer than that of any proxy in front: a proxy that still holds a connection which was closed here
    /// loses a request on it, and answers 502. Usual proxies keep theirs for 60 or 75 s, some for longer: set it above
    /// that. Proxies open connections in advance, so the first request has the same time.
    ///
    /// *Threat*: clients that connect and stay silent; [`max_connections`](Self::max_connections) and
    /// [`max_connections_per_address`](Self::max_connections_per_address) bound their number. HTTP/1 is cut without an
    /// answer, HTTP/2 gets a GOAWAY.
    pub idle_timeout: Duration,

    /// The longest time from the first byte of a request to the end of its headers. Default 30 s.
    ///
    /// *Threat*: slowloris, headers sent at ten bytes a second, or the HTTP/2 preface byte by byte. Cut without an
    /// answer. On HTTP/2 it is also the interval of pings, and the time for the answer to one.
    pub header_read_timeout: Duration,

    /// Request line and headers together, in bytes. Default 64 KiB, answered with 431.
    ///
    /// *Threat*: memory, by endless headers. Large cookies are the only honest reason to raise it. At most 100 headers
    /// are accepted, however short.
    pub max_header_bytes: usize,

    /// The largest request body in bytes, compressed and decompressed. Default 64 MiB, answered with 413: by its
    /// Content-Length if it has one, else at the chunk that exceeds the limit.
    ///
    /// *Threat*: memory. The node's own byte budget bounds all bodies together; this keeps one client from taking all
    /// of it.
    pub max_body_bytes: u64,

    /// The same for single routes, by name; larger or smaller. Default none.
    ///
    /// *Threat*: as above, if one route takes pictures and another a line of text. A larger body must fit into the
    /// node's `max_in_flight_bytes`, or it could never be admitted.
    pub max_body_bytes_by_route: BTreeMap<String, u64>,

    /// The accepted API keys. Default none: every client may call. Answered with 401.
    ///
    /// *Threat*: strangers. Only hashes are kept, and keys are compared in constant time. Health (`/livez`, `/readyz`,
    /// `/v2/health`), `/`, `/docs` and `/openapi.json` answer without a key. Without [`tls`](Self::tls) the keys can be
    /// read on the network path.
    pub api_keys: Option<ApiKeys>,

    /// How often a [file of keys](ApiKeys::read) is checked for changes. Default 10 s.
    ///
    /// *Threat*: a revoked key that is still accepted.
    pub api_keys_reload_interval: Duration,

    /// The rate limit of keys without their own, and of each caller that the app names. Default no limit. Answered with
    /// 429 and `retry-after`.
    ///
    /// *Threat*: one client that takes the capacity of all. The node's permits protect the node; this protects the
    /// other clients. Every call counts: each call of a stream, which waits for its turn at most for the timeout of a
    /// call, and each item of a request under `/v2`.
    pub rate_limit: Option<RateLimit>,

    /// Whether the route [`AUTH_ROUTE`](crate::AUTH_ROUTE) of the app names the callers that show no valid API key.
    /// Default false. It must say what the app has; [`HttpEdge::try_new`](crate::HttpEdge::try_new) and a server that
    /// starts an app set it.
    ///
    /// *Threat*: strangers, as for [`api_keys`](Self::api_keys), and on the same paths.
    pub auth: bool,

    /// The web pages that may read answers. Default only our own.
    ///
    /// *Threat*: a foreign page that reads from a service which only its visitor can reach. `*` allows every page.
    /// Other pages cannot read answers, but they can call: browsers send forms and plain text without a preflight. On
    /// loopback other pages may not call either (403), see [`hosts`](Self::hosts); beyond it, calls that change
    /// something need [`api_keys`](Self::api_keys).
    pub cors: Option<Cors>,

    /// The host names that a listener on loopback accepts, besides its address, `localhost` and names without a dot.
    /// Default none; others are answered 403. No effect beyond loopback, except for a mounted
    /// [`HttpEdge`](crate::HttpEdge): `axum::serve` does not tell the listener of a request, so there the rule always
    /// holds. List the names of the service, or `*` if another layer checks them.
    ///
    /// *Threat*: a web page that points its own name at this machine (DNS rebinding) counts as our page in its
    /// visitor's browser, and can call and read what only the visitor can reach. List the names that a proxy on this
    /// machine passes on, or let it set `host` to the address. Our own pages are recognised by that name as well: if
    /// the proxy sets another, list the page under [`cors`](Self::cors).
    pub hosts: Hosts,

    /// The time over which [`min_bytes_per_second`](Self::min_bytes_per_second) of a request body is measured. Default
    /// 10 s, answered with 408.
    ///
    /// *Threat*: a client that announces a body and does not send it, or sends a byte now and then. Raise it for
    /// clients that pause within a body; meanwhile they hold permits for what they have sent.
    pub body_progress_timeout: Duration,

    /// The longest time for a body to arrive, for any deadline of its request. Default 60 s, answered with 408.
    ///
    /// *Threat*: permits for the node's bytes are taken as a body arrives, so a client that sends most of a body
    /// quickly and the rest slowly holds them for that long. Raise it where honest clients send
    /// [`max_body_bytes`](Self::max_body_bytes) over lines of less than 10 Mbit/s, and let them ask for more time by
    /// `x-request-timeout-ms`: their deadline ends the reading, too (504).
    pub body_timeout: Duration,

    /// The least rate at which a client has to send a body and read an answer, in bytes per second; measured over
    /// [`body_progress_timeout`](Self::body_progress_timeout) and
    /// [`write_progress_timeout`](Self::write_progress_timeout). Default 1,024; 0 accepts any progress.
    ///
    /// *Threat*: a client that keeps thousands of requests open with a few bytes a minute. Lower it for links that are
    /// slower than an old modem.
    pub min_bytes_per_second: u64,

    /// The time over which [`min_bytes_per_second`](Self::min_bytes_per_second) of an answer is measured, while there
    /// are bytes to read. Default 30 s; then the connection is cut. A client of HTTP/2 that blocks answers, such as by
    /// an empty window, gets a GOAWAY after one to three times this.
    ///
    /// *Threat*: a client that requests much and reads nothing holds its place in
    /// [`max_connections`](Self::max_connections) and the answers in memory. Raise it for clients that pause within an
    /// answer.
    pub write_progress_timeout: Duration,

    /// The longest silence of an event stream before a comment is sent, which clients skip. Default 15 s.
    ///
    /// *Threat*: proxies and clients that take silence for a dead connection. A stream also waits no longer than this
    /// for its first item before it answers 200. Lower it below the idle timeout of the proxies in front.
    pub stream_heartbeat: Duration,

    /// The smallest reply in bytes that is compressed, if its client asks for it by `accept-encoding`. Default 1 KiB;
    /// `usize::MAX` disables compression.
    ///
    /// *Cost*: about 10 ms of a core for each megabyte of JSON. Numbers in other forms, and streams (some 300 KiB of
    /// memory each, a mebibyte with zstd), are compressed only for clients that put a coding above `identity`.
    /// *Threat*: a client that asks for it to keep cores busy; turn it off if clients are near or proxies compress.
    pub compress_from_bytes: usize,

    /// Limits of decoders: depth, elements, lengths. See [`DecodeLimits`]; answered with 400.
    ///
    /// *Threat*: a small body that becomes a large or deep value. Only [`max_body_bytes`](Self::max_body_bytes) limits
    /// the length of a body; `max_bytes` in here is ignored.
    pub decode: DecodeLimits,

    /// HTTP/2 requests in flight on one connection. Default 256; more wait at the client.
    ///
    /// *Threat*: one connection that takes the capacity of hundreds. Pairs with
    /// [`max_connections`](Self::max_connections): the product bounds the requests that the edge holds.
    pub max_concurrent_streams: u32,

    /// The bytes of one body that every HTTP/2 client may send before the edge has read them. Default 64 KiB; a
    /// connection may send nine times that on all its streams.
    ///
    /// *Threat*: memory that is charged to no call, bounded by nine times this per connection. *Cost*: a body comes no
    /// faster than one window per round trip, 1.3 MB/s at 50 ms. Raise it for clients that upload over slow links.
    /// Pairs with [`http2_windows_bytes`](Self::http2_windows_bytes), by which most connections have more.
    pub http2_stream_window_bytes: u32,

    /// The bytes that HTTP/2 clients may send ahead beyond those windows, all together. Default 128 MiB, and never more
    /// than half of the node's `max_in_flight_bytes`; 0 leaves each connection its own window only.
    ///
    /// A connection that begins gets up to an eighth of what is left, so that a stream has at most 1 MiB: the first
    /// eight connections get that, later ones less. *Threat*: as above. Raise it for many clients that send large
    /// tensors at a time.
    pub http2_windows_bytes: u64,

    /// The number of HTTP/2 requests that one connection may cancel (reset) beyond the finished ones. Default 1,000;
    /// then the connection is cut.
    ///
    /// *Threat*: "rapid reset": a client that begins requests and cancels each with the next frame causes work for the
    /// price of a few bytes, and never has more than one in flight. Raise it for clients that send every request twice
    /// and cancel the slower one.
    pub max_cancelled_streams: u32,

    /// One record per request, as an event of `tracing` or through a sink. Default off; the command line turns it on.
    ///
    /// *Cost*: the work of its sink or subscriber. *Threat*: paths are logged as clients send them, up to 200
    /// characters; headers, queries and bodies are not logged.
    pub access_log: AccessLog,

    /// The callers that get the trace of an error as `remote_trace`. Default: callers of a listener on loopback. A
    /// mounted [`HttpEdge`](crate::HttpEdge) under `axum::serve` does not know its listener, and sends none by default.
    ///
    /// *Threat*: a traceback shows strangers paths, source lines and values. A proxy on this machine calls over
    /// loopback: choose [`ErrorTraces::Log`] behind one.
    pub error_traces: ErrorTraces,

    /// Whether requests may ask for their timeline: stages, batches with their sizes, replicas, times. Default on.
    ///
    /// *Threat*: a client learns how a route is built and how busy it is, which is less than `/metrics` shows; hide
    /// both from strangers. *Cost*: for requests that ask, an allocation for each stage and up to 3 KiB of header.
    pub explain_requests: bool,

    /// The [short names](crate::protocol::Protocol::door) of protocols that are not served, such as `grpc`. Default
    /// none.
    ///
    /// Requests to them are answered as if they did not exist. *Threat*: each protocol is one more way to the same
    /// routes, with the same guards; switch off what no client uses.
    pub doors_off: Vec<String>,

    /// Whether `/metrics/load` needs no key. Default off: like `/metrics` it needs one where routes do.
    ///
    /// For load balancers that read it without credentials, such as an endpoint picker of Kubernetes. *Threat*:
    /// strangers see how busy the node is.
    pub open_load: bool,

    /// Whether clients may load and unload models of a protocol at this edge. Default off; the admin listener always
    /// allows it.
    ///
    /// *Threat*: any caller could close a route for all others.
    pub model_control: bool,

    /// Whether gateways of evaluations may call functions by the relay's service of gRPC, one call of a function at a
    /// time. Default off.
    ///
    /// *Threat*: its clients show no key unless they are told one, and their first call has no deadline.
    pub relay: bool,

    /// How long a closing connection (over HTTP/2 a refused body) is read and discarded after the answer, so that a
    /// client that sends everything before it reads gets the answer instead of a reset. Default 2 s; also at most 64
    /// MiB.
    ///
    /// *Cost*: a place in [`max_connections`](Self::max_connections) for that long, if the client does not close its
    /// side. *Threat*: refused clients that continue to send. The data is not kept. At most a tenth of
    /// `max_connections` linger at a time, and as many HTTP/2 streams, at most 4 of one connection; further ones are
    /// closed at once. One address has at most a quarter of these places.
    pub close_linger: Duration,

    /// How long an idle HTTP/1 connection stays open after shutdown began. Default 500 ms.
    ///
    /// A busy client sends its next request within it and learns from `Connection: close` to go elsewhere; closing at
    /// once would fail the request in transit. Zero closes at once.
    pub shutdown_linger: Duration,

    /// The longest time for running requests after shutdown began; then they are answered with 503, and 250 ms later
    /// their connections are cut. Default 30 s.
    ///
    /// It should not be shorter than the drain time of the node.
    pub shutdown_grace: Duration,
}

impl HttpConfig {
    /// Finds limits that could not work.
    ///
    /// # Errors
    ///
    /// Names the first field that is out of range, and the range.
    pub fn validate(&self) -> Result<(), HttpConfigError> {
        let tls = self.tls.as_ref();
        let above_zero: [(&'static str, bool); 14] = [
            ("max_connections", self.max_connections > 0),
            ("max_connections_per_address", self.max_connections_per_address > 0),
            ("idle_timeout", !self.idle_timeout.is_zero()),
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
            return Err(HttpConfigError::Zero { field });
        }
        if self.max_connections > MAX_CONNECTIONS {
            return Err(HttpConfigError::TooLarge { field: "max_connections", most: MAX_CONNECTIONS });
        }
        let largest = usize::try_from(self.largest_body_bytes()).unwrap_or(usize::MAX);
        if largest > MOST_BODY_BYTES {
            let field =
                if self.max_body_bytes > MOST_BODY_BYTES as u64 { "max_body_bytes" } else { "max_body_bytes_by_route" };
            return Err(HttpConfigError::TooLarge { field, most: MOST_BODY_BYTES });
        }
        if self.max_header_bytes < LEAST_HEADER_BYTES {
            return Err(HttpConfigError::TooSmall { field: "max_header_bytes", least: LEAST_HEADER_BYTES });
        }
        let window = usize::try_from(self.http2_stream_window_bytes).unwrap_or(usize::MAX);
        if window < LEAST_WINDOW_BYTES {
            return Err(HttpConfigError::TooSmall { field: "http2_stream_window_bytes", least: LEAST_WINDOW_BYTES });
        }
        if window > MOST_WINDOW_BYTES {
            return Err(HttpConfigError::TooLarge { field: "http2_stream_window_bytes", most: MOST_WINDOW_BYTES });
        }
        if self.rate_limit.is_some() && self.api_keys.is_none() && !self.auth {
            return Err(HttpConfigError::Without { field: "rate_limit", other: "api_keys" });
        }
        Ok(())
    }

    /// The rules of its keys and web pages; `None` without any.
    pub(crate) fn access_policy(&self) -> Option<AccessPolicy> {
        let (keys, cors) = (self.api_keys.clone(), self.cors.clone());
        AccessPolicy::new(keys, self.rate_limit, self.api_keys_reload_interval, cors, self.auth)
    }

    /// The rules of its loopback listeners.
    pub(crate) fn loopback_guard(&self) -> LoopbackGuard {
        LoopbackGuard::new(self.hosts.clone(), self.cors.clone())
    }

    /// The largest body of this route.
    #[must_use]
    pub fn max_body_bytes_of(&self, route: &str) -> u64 {
        // Usually the map is empty.
        self.max_body_bytes_by_route.get(route).copied().unwrap_or(self.max_body_bytes)
    }

    /// The largest body of any route.
    #[must_use]
    pub fn largest_body_bytes(&self) -> u64 {
        self.max_body_bytes_by_route.values().copied().fold(self.max_body_bytes, u64::max)
    }

    /// The limits of the time of a body whose call has this deadline.
    #[must_use]
    pub fn body_pace(&self, deadline: Deadline) -> PaceLimits {
        PaceLimits::new(self.body_progress_timeout, self.min_bytes_per_second).within(self.body_timeout).until(deadline)
    }

    /// The least progress of a client within this time; at least one byte.
    pub(crate) fn least_bytes_in(&self, window: Duration) -> u64 {
        PaceLimits::new(window, self.min_bytes_per_second).window_bytes()
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_connections_per_address: 1_000,
            trusted_proxies: TrustedProxies::default(),
            tls: None,
            idle_timeout: Duration::from_secs(90),
            header_read_timeout: Duration::from_secs(30),
            max_header_bytes: 64 * 1024,
            max_body_bytes: 64 * 1024 * 1024,
            max_body_bytes_by_route: BTreeMap::new(),
            api_keys: None,
            api_keys_reload_interval: Duration::from_secs(10),
            rate_limit: None,
            auth: false,
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
            http2_stream_window_bytes: 64 * 1024,
            http2_windows_bytes: 128 << 20,
            max_cancelled_streams: 1_000,
            access_log: AccessLog::Off,
            error_traces: ErrorTraces::default(),
            explain_requests: true,
            doors_off: Vec::new(),
            open_load: false,
            model_control: false,
            relay: false,
            close_linger: Duration::from_secs(2),
            shutdown_linger: Duration::from_millis(500),
            shutdown_grace: Duration::from_secs(30),
        }
    }
}

/// A limit that could not work.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpConfigError {
    /// Set it above zero, or omit it for the default.
    #[error("`{field}` must be above zero")]
    Zero {
        /// The field of [`HttpConfig`].
        field: &'static str,
    },
    /// A smaller limit could not serve any request.
    #[error("`{field}` must be at least {least}")]
    TooSmall {
        /// The field of [`HttpConfig`].
        field: &'static str,
        /// The least valid value.
        least: usize,
    },
    /// Set the other field too, or neither.
    #[error("`{field}` has no effect without `{other}`")]
    Without {
        /// The field of [`HttpConfig`].
        field: &'static str,
        /// The field that it needs.
        other: &'static str,
    },
    /// A larger limit cannot be counted.
    #[error("`{field}` must be at most {most}")]
    TooLarge {
        /// The field of [`HttpConfig`].
        field: &'static str,
        /// The largest valid value.
        most: usize,
    },
}

/// The limit of a semaphore.
const MAX_CONNECTIONS: usize = tokio::sync::Semaphore::MAX_PERMITS;

/// A request line and a Host header with room to spare.
const LEAST_HEADER_BYTES: usize = 1024;

/// A terabyte: no node admits a larger body.
const MOST_BODY_BYTES: usize = 1 << 40;

/// One frame of HTTP/2.
const LEAST_WINDOW_BYTES: usize = 16 * 1024;

/// The window of a connection, nine times this, stays below 2 GiB, as HTTP/2 requires.
const MOST_WINDOW_BYTES: usize = 128 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        HttpConfig::default().validate().unwrap();
    }

    #[test]
    fn an_invalid_limit_is_named() {
        let config = HttpConfig { max_body_bytes: 0, ..HttpConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "`max_body_bytes` must be above zero");
        let config = HttpConfig { max_body_bytes: u64::MAX, ..HttpConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "`max_body_bytes` must be at most 1099511627776");
        let config = HttpConfig { max_header_bytes: 10, ..HttpConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "`max_header_bytes` must be at least 1024");
        for (bytes, words) in [(16_383, "at least 16384"), (134_217_729, "at most 134217728")] {
            let config = HttpConfig { http2_stream_window_bytes: bytes, ..HttpConfig::default() };
            let error = config.validate().unwrap_err().to_string();
            assert_eq!(error, format!("`http2_stream_window_bytes` must be {words}"));
        }
    }

    #[test]
    fn an_invalid_tls_timer_is_named() {
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
