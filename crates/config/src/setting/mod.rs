//! Every setting, in one table: its key in the file, its flag, its variable, its default, its form and limits.
//!
//! The file, the environment, the command line with its help, and `--explain` all read this table, so a setting exists
//! in all of them with the same limits. Defaults are written as a user would write them and are parsed the same way.

pub(crate) mod route;
pub(crate) mod values;

use std::ops::RangeInclusive;
use std::time::Duration;

use callboard_core::edge::ErrorTraces;
use callboard_net::MembershipProfile;

use super::form::{
    AdminListen, Advertised, Bytes, Collector, Count, FileHosts, FilePath, Flag, HostNames, Interval, KeysFrom, Label,
    Listen, LogFilter, LogFormat, Names, OfMembers, OneOf, OptionalListen, OrNone, Pages, Peers, Proxies, Rate, Ratio,
    SecureUrl, SecureUrls, Span, StoreForm,
};

/// The names of a setting: in the file, on the command line and in the environment.
#[derive(Debug)]
pub struct Name {
    /// The table and key in the file, such as `limits.default_timeout`.
    pub key: &'static str,
    /// The flag, without the dashes.
    pub flag: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// The placeholder of the value in the help.
    pub placeholder: &'static str,
    /// One line for the help.
    pub help: &'static str,
    /// The default value.
    pub default: &'static str,
}

impl Name {
    /// Whether a program with its own app has this setting. Its code sets its stages.
    #[must_use]
    pub fn is_for_programs(&self) -> bool {
        ![QUEUE.name.key, WATCH.name.key, MODEL_UPLOADS.name.key, ACTOR_STORE.name.key].contains(&self.key)
    }

    /// Whether its value is true or false; on the command line, the flag without a value means true.
    #[must_use]
    pub fn is_yes_or_no(&self) -> bool {
        self.placeholder == YES_OR_NO
    }

    /// Whether the flag without a value means true, although its value is something else.
    #[must_use]
    pub fn is_on_without_value(&self) -> bool {
        self.key == WATCH.name.key
    }

    /// The table and the key of [`key`](Self::key).
    #[must_use]
    pub fn table_and_key(&self) -> (&'static str, &'static str) {
        self.key.split_once('.').unwrap_or(("", self.key))
    }

    /// The key, spelt as a flag: with its table, and `listen` without.
    pub fn spellings_of_key(&self) -> impl Iterator<Item = String> {
        let short = (self.key == HTTP.name.key).then(|| "listen".to_owned());
        std::iter::once(self.key.replace(['.', '_'], "-")).chain(short)
    }
}

/// A setting with the form of its value.
#[derive(Debug)]
pub(crate) struct Setting<F> {
    pub(crate) name: Name,
    pub(crate) form: F,
}

/// A queue of a million entries takes minutes to work off; a longer one is a typo.
pub(crate) const QUEUE_RANGE: RangeInclusive<usize> = 1..=1_000_000;

pub(crate) const SIZE_RANGE: RangeInclusive<u64> = 1..=1 << 40;

/// The short names of the protocols of every server.
pub(crate) const DOORS: [&str; 6] = ["anthropic", "cohere", "grpc", "mcp", "oip", "openai"];

pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);

/// The placeholder of a [`Flag`].
const YES_OR_NO: &str = "true|false";

/// Declares the settings and [`ALL`]. The environment variable of `X` is `CALLBOARD_X`; the last text is the help.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $form:ty = $value:expr, key $key:literal, flag $flag:literal,
       value $placeholder:literal, default $default:literal, $help:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) static $name: Setting<$form> = Setting {
                name: Name {
                    key: $key,
                    flag: $flag,
                    env: concat!("CALLBOARD_", stringify!($name)),
                    placeholder: $placeholder,
                    help: $help,
                    default: $default,
                },
                form: $value,
            };
        )*

        const COUNT: usize = [$($key),*].len();

        /// All settings, in the order of the help.
        pub static ALL: [&Name; COUNT] = [$(&$name.name),*];

        #[cfg(test)]
        fn each_setting_reads_its_default() {
            $(tests::reads_its_default(&$name);)*
        }
    };
}

settings! {
    // Each comment gives the reason of the default or the range.
    /// Loopback: a server is public only if its operator configures it.
    HTTP: Listen = Listen, key "http.listen", flag "http",
        value "ADDR", default "127.0.0.1:8000", "Address and port to serve HTTP on";
    MAX_BODY_BYTES: Bytes = Bytes(SIZE_RANGE), key "http.max_body_bytes", flag "max-body-bytes",
        value "SIZE", default "64MiB", "Largest request body";
    /// A second is enough for the slowest honest connection; an hour is the longest call.
    BODY_TIMEOUT: Span = Span(Duration::from_secs(1)..=HOUR), key "http.body_timeout", flag "body-timeout",
        value "DURATION", default "1m", "Longest time for a request body to arrive, whatever its client asks for";
    MAX_CONNECTIONS: Count = Count(1..=1_000_000), key "http.max_connections", flag "max-connections",
        value "COUNT", default "10000", "Most HTTP connections at a time";
    MAX_CONNECTIONS_PER_ADDRESS: Count = Count(1..=1_000_000),
        key "http.max_connections_per_address", flag "max-connections-per-address",
        value "COUNT", default "1000", "Most HTTP connections at a time from one address";
    TLS_CERTIFICATE: FilePath = FilePath, key "http.tls_certificate", flag "tls-certificate",
        value "FILE", default "none", "Serve HTTPS with the certificate in this PEM file; reloaded when it changes";
    TLS_KEY: FilePath = FilePath, key "http.tls_key", flag "tls-key",
        value "FILE", default "none", "PEM file with the private key of the certificate";
    API_KEYS: KeysFrom = KeysFrom, key "http.api_keys", flag "api-keys",
        value "FILE", default "none",
        "Require an API key: a file that lists the keys, or env:NAME for a variable that does";
    RATE_LIMIT: OrNone<Rate> = OrNone(Rate), key "http.rate_limit", flag "rate-limit",
        value "RATE", default "none", "Rate limit for keys without their own, such as 20/s";
    CORS: Pages = Pages, key "http.cors", flag "cors",
        value "ORIGINS", default "none",
        "Origins of web pages that may read answers, such as https://app.example.org; * for all";
    HOSTS: HostNames = HostNames, key "http.hosts", flag "hosts",
        value "NAMES", default "none",
        "Host names accepted by a server on loopback, besides localhost and its address; * for all";
    /// Below a second a stream would be mostly comments; no proxy waits longer than a quarter of an hour.
    STREAM_HEARTBEAT: Span = Span(Duration::from_secs(1)..=Duration::from_secs(15 * 60)),
        key "http.stream_heartbeat", flag "stream-heartbeat",
        value "DURATION", default "15s", "Longest silence of an event stream before a comment is sent";
    /// Below a few hundred bytes a compressed answer is longer.
    COMPRESS_FROM_BYTES: OrNone<Bytes> = OrNone(Bytes(SIZE_RANGE)),
        key "http.compress_from_bytes", flag "compress-from-bytes",
        value "SIZE", default "1KiB", "Smallest answer to compress, for clients that accept it; none to disable";
    /// On: a timeline says no more than `/metrics`, which the same listener serves.
    EXPLAIN_REQUESTS: Flag = Flag, key "http.explain_requests", flag "explain-requests",
        value "true|false", default "true", "Whether requests may ask for their timeline";
    /// None: each has the guards of the routes.
    DOORS_OFF: Names = Names(&DOORS), key "http.doors_off", flag "doors-off",
        value "NAMES", default "none",
        "Protocols beside the routes that are not served: anthropic, cohere, grpc, mcp, oip, openai";
    /// Off: it says how busy the node is.
    OPEN_LOAD: Flag = Flag, key "http.open_load", flag "open-load",
        value "true|false", default "false", "Whether /metrics/load needs no key";
    /// Off: a client that may call a model should not be able to unload one.
    MODEL_CONTROL: Flag = Flag, key "http.model_control", flag "model-control",
        value "true|false", default "false", "Whether clients may load and unload models";
    /// Off: it answers on all interfaces, and gives calls without a deadline the longest time.
    RELAY: Flag = Flag, key "http.relay", flag "relay",
        value "true|false", default "false",
        "Whether gateways of Kaggle's evaluations call functions; without --http on port 50051 of all interfaces";
    /// Above the 60 s and 75 s that proxies usually keep connections to a server.
    IDLE_TIMEOUT: Span = Span(Duration::from_secs(1)..=HOUR), key "http.idle_timeout", flag "idle-timeout",
        value "DURATION", default "90s",
        "Longest time of a connection without a request; above that of any proxy in front";
    /// A slow honest client needs some seconds for 64 KiB of head.
    HEADER_READ_TIMEOUT: Span = Span(Duration::from_secs(1)..=HOUR),
        key "http.header_read_timeout", flag "header-read-timeout",
        value "DURATION", default "30s", "Longest time from the first byte of a request to the end of its headers";
    MAX_HEADER_BYTES: Bytes = Bytes(1024..=16 << 20), key "http.max_header_bytes", flag "max-header-bytes",
        value "SIZE", default "64KiB", "Largest request line with headers";
    BODY_PROGRESS_TIMEOUT: Span = Span(Duration::from_secs(1)..=HOUR),
        key "http.body_progress_timeout", flag "body-progress-timeout",
        value "DURATION", default "10s", "Time over which the pace of a request body is measured";
    WRITE_PROGRESS_TIMEOUT: Span = Span(Duration::from_secs(1)..=HOUR),
        key "http.write_progress_timeout", flag "write-progress-timeout",
        value "DURATION", default "30s", "Time over which the pace is measured at which a client reads an answer";
    /// Some modems.
    MIN_BYTES_PER_SECOND: Bytes = Bytes(0..=1 << 30),
        key "http.min_bytes_per_second", flag "min-bytes-per-second",
        value "SIZE", default "1KiB", "Slowest pace of a request body, and of reading an answer";
    /// None: any client may write the header.
    TRUSTED_PROXIES: Proxies = Proxies, key "http.trusted_proxies", flag "trusted-proxies",
        value "NETWORKS", default "none",
        "Proxies whose x-forwarded-for or forwarded names the client, such as 10.0.0.0/8 or loopback";
    MAX_CONCURRENT_STREAMS: Count = Count(1..=100_000),
        key "http.max_concurrent_streams", flag "max-concurrent-streams",
        value "COUNT", default "256", "Most HTTP/2 requests in flight on one connection";
    HTTP2_STREAM_WINDOW_BYTES: Bytes = Bytes(16 << 10..=128 << 20),
        key "http.http2_stream_window_bytes", flag "http2-stream-window-bytes",
        value "SIZE", default "64KiB", "Bytes of a body that every HTTP/2 client may send ahead";
    HTTP2_WINDOWS_BYTES: Bytes = Bytes(0..=1 << 40),
        key "http.http2_windows_bytes", flag "http2-windows-bytes",
        value "SIZE", default "128MiB", "Bytes that HTTP/2 clients may send ahead beyond that, all together";
    MAX_CANCELLED_STREAMS: Count = Count(0..=1_000_000),
        key "http.max_cancelled_streams", flag "max-cancelled-streams",
        value "COUNT", default "1000", "HTTP/2 requests that a connection may cancel beyond the finished ones";
    /// Deeper values would need more stack than a thread has.
    MAX_DEPTH: Count = Count(1..=callboard_codec::MAX_DEPTH), key "http.max_depth", flag "max-depth",
        value "LEVELS", default "128", "Deepest nesting of lists and maps in an input";
    MAX_ELEMENTS: Count = Count(1..=1 << 32), key "http.max_elements", flag "max-elements",
        value "COUNT", default "1048576", "Most list items and map entries in an input";
    MAX_STRING_BYTES: Bytes = Bytes(SIZE_RANGE), key "http.max_string_bytes", flag "max-string-bytes",
        value "SIZE", default "16MiB", "Longest text in an input";
    MAX_TREE_BYTES: Bytes = Bytes(SIZE_RANGE), key "http.max_tree_bytes", flag "max-tree-bytes",
        value "SIZE", default "64MiB", "Most memory for the structure of an input, without its texts and arrays";
    MAX_DECOMPRESSED_BYTES: Bytes = Bytes(SIZE_RANGE),
        key "http.max_decompressed_bytes", flag "max-decompressed-bytes",
        value "SIZE", default "256MiB", "Most bytes that the compressed columns of an input may unpack to";
    API_KEYS_RELOAD_INTERVAL: Span = Span(Duration::from_millis(100)..=HOUR),
        key "http.api_keys_reload_interval", flag "api-keys-reload-interval",
        value "DURATION", default "10s", "How often a file of keys is checked for changes";
    TLS_HANDSHAKE_TIMEOUT: Span = Span(Duration::from_millis(100)..=HOUR),
        key "http.tls_handshake_timeout", flag "tls-handshake-timeout",
        value "DURATION", default "10s", "Longest time of a TLS handshake";
    TLS_RELOAD_INTERVAL: Span = Span(Duration::from_millis(100)..=HOUR),
        key "http.tls_reload_interval", flag "tls-reload-interval",
        value "DURATION", default "10s", "How often the files of certificate and key are checked for changes";
    CLOSE_LINGER: Span = Span(Duration::ZERO..=HOUR), key "http.close_linger", flag "close-linger",
        value "DURATION", default "2s",
        "How long a connection that closes reads on, so that its client gets the answer";
    SHUTDOWN_LINGER: Span = Span(Duration::ZERO..=HOUR), key "http.shutdown_linger", flag "shutdown-linger",
        value "DURATION", default "500ms", "How long an idle connection stays open after a shutdown began";
    /// Off: an open port must be requested.
    QUIC: OptionalListen = OptionalListen, key "quic.listen", flag "quic",
        value "ADDR", default "none", "Address and port to serve QUIC on, for clients and other nodes; none to disable";
    JOIN: Peers = Peers, key "quic.join", flag "join",
        value "HOST:PORT[,HOST:PORT…]", default "none", "Peer nodes that may run stages for this node";
    /// None: others see the address of a node, unless its machine or its network translates it.
    ADVERTISE: OrNone<Advertised> = OrNone(Advertised), key "quic.advertise", flag "advertise",
        value "HOST:PORT", default "none", "Address at which other nodes reach this one, where they would not find it";
    /// None: one user on one machine needs no cluster.
    CLUSTER: FilePath = FilePath, key "quic.cluster", flag "cluster",
        value "DIR", default "none",
        "Directory of the identity to serve QUIC with: a cluster's authority, or a member that has joined";
    /// Any: within one cluster, every node may run every stage by default.
    OFFERS: OfMembers = OfMembers("stages"), key "quic.offers", flag "offers",
        value "MEMBER=STAGE[+STAGE…][,…]", default "any",
        "Stages that each member may run for this node; * for any member or stage";
    /// Any: actors say what they accept, and every node of a cluster is trusted with that by default.
    ASKS: OfMembers = OfMembers("actors"), key "quic.asks", flag "asks",
        value "MEMBER=ACTOR[+ACTOR…][,…]", default "any",
        "Actors of this node that each member may ask; * for any member or actor";
    /// On: a gateway should use a worker that joins it.
    CALLS_BACK: Flag = Flag, key "quic.calls_back", flag "calls-back",
        value "true|false", default "true", "Whether nodes that connect to this one may run stages for it";
    /// Pauses of a machine or a process take up to seconds; callers of a dead one wait no longer than that.
    QUIC_IDLE_TIMEOUT: Span = Span(Duration::from_millis(500)..=Duration::from_secs(600)),
        key "quic.idle_timeout", flag "quic-idle-timeout",
        value "DURATION", default "3s", "Longest silence of a QUIC connection with calls before it is lost, with them";
    /// Four keep-alives of 0.2 s have no answer by then; two are the least that tell a silence from a lost packet.
    SILENT_AFTER: Span = Span(Duration::from_millis(400)..=Duration::from_secs(600)),
        key "quic.silent_after", flag "silent-after",
        value "DURATION", default "900ms",
        "Silence of a node with calls after which they are repeated elsewhere, if they may run again";
    /// Near: most clusters are in one region.
    MEMBERSHIP: OneOf<MembershipProfile> =
        OneOf(&[("near", MembershipProfile::Near), ("far", MembershipProfile::Far)]),
        key "quic.membership", flag "membership",
        value "near|far", default "near",
        "How soon a silent node is called down; far: for round trips above 100 ms";
    /// On loopback and apart from the edge: a caller may not be allowed to end the service.
    ADMIN: AdminListen = AdminListen, key "admin.listen", flag "admin",
        value "ADDR", default "auto",
        "Address and port of the admin listener; auto: 127.0.0.1:8001 if that is free; none to disable";
    ADMIN_API_KEYS: KeysFrom = KeysFrom, key "admin.api_keys", flag "admin-api-keys",
        value "FILE", default "none", "API keys of the admin listener, given as for --api-keys";
    API_TITLE: Label = Label, key "api.title", flag "api-title",
        value "TEXT", default "auto", "Title of the OpenAPI document; auto: the name of what is served";
    API_VERSION: Label = Label, key "api.version", flag "api-version",
        value "TEXT", default "auto", "Version in the OpenAPI document; auto: that of the program, else of callboard";
    /// Off: a route was written for programs, and a model chooses by a description that it may not have.
    MCP: Flag = Flag, key "mcp.all_routes", flag "mcp",
        value "true|false", default "false", "Whether agents may call all routes as tools, not only those that say so";
    /// None: the node sees only the address that a proxy calls.
    MCP_URL: OrNone<SecureUrl> = OrNone(SecureUrl), key "mcp.url", flag "mcp-url",
        value "URL", default "none",
        "URL of /mcp as agents see it, such as https://tools.example.org/mcp, if they get tokens elsewhere";
    /// None: clients are given keys.
    AUTHORIZATION_SERVERS: SecureUrls = SecureUrls, key "mcp.authorization_servers", flag "authorization-servers",
        value "URL[,URL…]", default "none", "OAuth servers whose tokens the app checks, told to agents without one";
    /// None: a server that fetches what its clients name reaches what they cannot.
    FILE_HOSTS: FileHosts = FileHosts, key "files.hosts", flag "file-hosts",
        value "HOSTS", default "none",
        "Hosts that files may be fetched from where a client sends a URL, such as https://cdn.example.org";
    FILE_MAX_BYTES: Bytes = Bytes(SIZE_RANGE), key "files.max_bytes", flag "file-max-bytes",
        value "SIZE", default "16MiB", "Most bytes of all files that are fetched for one call";
    /// Below a tenth of a second nothing answers; files that take minutes should be sent by the client.
    FILE_TIMEOUT: Span = Span(Duration::from_millis(100)..=Duration::from_secs(600)),
        key "files.timeout", flag "file-timeout",
        value "DURATION", default "10s", "Longest time to fetch a file, within the call's own deadline";
    /// Off: the served models change by order only. Below a tenth of a second looks would cost more than they find.
    WATCH: OrNone<Interval> = OrNone(Interval(Span(Duration::from_millis(100)..=HOUR))),
        key "models.watch", flag "watch",
        value "DURATION", default "none",
        "How often to look for new and changed models in a directory of models; without a value: 2s; none to disable";
    /// None: only users who may write the directory change the models.
    MODEL_UPLOADS: OrNone<Bytes> = OrNone(Bytes(SIZE_RANGE)), key "models.uploads", flag "model-uploads",
        value "SIZE", default "none",
        "Largest model file that the admin listener takes into a directory of models; none to take none";
    /// A file: state that survives a restart is what keyed classes are for.
    ACTOR_STORE: StoreForm = StoreForm, key "actors.store", flag "actor-store",
        value "FILE", default "auto",
        "Where the state of keyed classes is: a file, env:NAME for a PostgreSQL server, memory; \
         auto: .callboard/actors.redb";
    /// Warnings and errors: the start-up lines show the rest.
    LOG: LogFilter = LogFilter, key "log.filter", flag "log",
        value "FILTER", default "warn",
        "Log lines to write to stderr: a level, or target=level pairs; by default also what code in Python prints";
    /// For people; a log collector asks for JSON.
    LOG_FORMAT: OneOf<LogFormat> = OneOf(&[("text", LogFormat::Text), ("json", LogFormat::Json)]), key "log.format", flag "log-format",
        value "text|json", default "text",
        "Form of all lines on stderr: text, which is short and in colours at a terminal, or JSON";
    /// On: an operator wants to see requests.
    ACCESS_LOG: Flag = Flag, key "log.access", flag "access-log",
        value "true|false", default "true", "Whether to write a line to stderr for every request";
    /// On loopback: a developer wants to see them, and strangers must not read paths and source lines.
    ERROR_TRACES: OneOf<ErrorTraces> = OneOf(&[
        ("loopback", ErrorTraces::Loopback), ("callers", ErrorTraces::Callers), ("log", ErrorTraces::Log),
    ]), key "errors.traces", flag "error-traces",
        value "loopback|callers|log", default "loopback",
        "The callers that get the traceback of an error: those of a listener on loopback, all, or none (in the log alone)";
    /// None: traces need a collector.
    OTLP_ENDPOINT: OrNone<Collector> = OrNone(Collector), key "traces.endpoint", flag "otlp-endpoint",
        value "URL", default "none", "OpenTelemetry collector to send spans to";
    /// The system's, as for the commands that call.
    OTLP_CA_FILE: FilePath = FilePath, key "traces.ca_file", flag "otlp-ca-file",
        value "PEM", default "none", "CA certificates (PEM) to trust for an https collector, instead of the system's";
    /// All, the default of OpenTelemetry's own libraries.
    TRACE_RATIO: Ratio = Ratio, key "traces.ratio", flag "trace-ratio",
        value "RATIO", default "1", "Fraction of requests to trace when the caller sends no traceparent";
    /// Below a millisecond every call would be refused; a call queued for more than an hour is a leak.
    DEFAULT_TIMEOUT: Span = Span(Duration::from_millis(1)..=HOUR), key "limits.default_timeout", flag "default-timeout",
        value "DURATION", default "30s", "Default deadline of a call";
    /// The range of the default timeout.
    MAX_TIMEOUT: Span = Span(Duration::from_millis(1)..=HOUR), key "limits.max_timeout", flag "max-timeout",
        value "DURATION", default "1h", "Longest deadline of a call, whatever its caller or its route asks for";
    QUEUE: Count = Count(QUEUE_RANGE), key "limits.queue", flag "queue",
        value "ENTRIES", default "1024", "Queue length of stages that set none";
    MAX_IN_FLIGHT: Count = Count(1..=1_000_000), key "limits.max_in_flight", flag "max-in-flight",
        value "CALLS", default "16384", "Most calls in flight on this node";
    MAX_IN_FLIGHT_BYTES: Bytes = Bytes(SIZE_RANGE), key "limits.max_in_flight_bytes", flag "max-in-flight-bytes",
        value "SIZE", default "256MiB", "Most bytes of requests in flight on this node";
    MAX_LOADED: OrNone<Count> = OrNone(Count(1..=1_000_000)), key "limits.max_loaded", flag "max-loaded",
        value "STAGES", default "none", "Most stages in memory, of those that are loaded by their first call";
    MAX_LOADED_BYTES: OrNone<Bytes> = OrNone(Bytes(SIZE_RANGE)), key "limits.max_loaded_bytes", flag "max-loaded-bytes",
        value "SIZE", default "none", "Most bytes of these stages, as far as they are known";
    DRAIN: Span = Span(Duration::ZERO..=HOUR), key "limits.drain", flag "drain",
        value "DURATION", default "30s", "Longest time for admitted calls to finish at shutdown";
    DRAIN_DELAY: Span = Span(Duration::ZERO..=HOUR), key "limits.drain_delay", flag "drain-delay",
        value "DURATION", default "5s", "How long HTTP is served on, not ready, before a drain";
}

#[cfg(test)]
mod tests {
    use super::super::form::{Form, Raw};
    use super::*;

    pub(super) fn reads_its_default<F: Form>(setting: &Setting<F>) {
        let default = setting.name.default;
        let value = setting.form.read(Raw::Text(default)).expect(default);
        assert_eq!(setting.form.show(&value), default);
    }

    #[test]
    fn every_default_is_valid_and_shown_as_it_is_written() {
        each_setting_reads_its_default();
    }

    #[test]
    fn the_doors_are_those_of_a_server() {
        let mut doors = callboard_server::own_protocols().doors();
        doors.sort_unstable();
        assert_eq!(doors, DOORS);
        assert!(DOORS_OFF.name.help.ends_with(&DOORS.join(", ")));
        assert_eq!(DOORS_OFF.form.read(Raw::Text("grpc,mcp")), Some(vec!["grpc".to_owned(), "mcp".to_owned()]));
        for wrong in ["grcp", "grpc,grpc", "", "none,grpc"] {
            assert_eq!(DOORS_OFF.form.read(Raw::Text(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn the_three_names_of_a_setting_correspond() {
        for name in ALL {
            assert_eq!(name.env, format!("CALLBOARD_{}", name.flag.replace('-', "_").to_uppercase()));
            assert!(name.key.contains('.'), "{}", name.key);
        }
    }
}
