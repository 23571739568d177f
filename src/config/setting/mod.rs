//! Every setting, in one table: its key in the file, its flag, its variable, its default, its form and limits.
//!
//! The file reader, the environment, the command line with its help, and `--explain` all read this table, so a setting
//! that exists in one place exists in all of them, under the same limits. Defaults are written as a user would write
//! them and go through the same reader.

pub(crate) mod route;
pub(crate) mod stage;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::form::{
    AdminListen, Bytes, Collector, Count, FilePath, Flag, HostNames, KeysFrom, Label, Listen, LogFilter, LogForm,
    MaybeBytes, MaybeListen, Offers, Pages, Peers, Rate, Ratio, Span,
};

/// What a setting is called in the places where it can be set.
#[derive(Debug)]
pub struct Name {
    /// In the file: table and key, such as `limits.default_timeout`.
    pub key: &'static str,
    /// On the command line, without the dashes.
    pub flag: &'static str,
    /// In the environment.
    pub env: &'static str,
    /// What stands for the value in the help.
    pub placeholder: &'static str,
    /// One line for the help.
    pub help: &'static str,
    /// The value when nobody sets it.
    pub default: &'static str,
}

impl Name {
    /// Whether a program with an app of its own has this setting, too. Its stages are set in its code.
    #[must_use]
    pub fn is_for_programs(&self) -> bool {
        self.key != QUEUE.name.key
    }

    /// The table and the key of [`key`](Self::key).
    #[must_use]
    pub fn table_and_key(&self) -> (&'static str, &'static str) {
        self.key.split_once('.').unwrap_or(("", self.key))
    }

    /// The key as somebody would write it who takes it for a flag: with its table, and `listen`, which needs none.
    pub(crate) fn spellings_of_key(&self) -> impl Iterator<Item = String> {
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

/// On: it tells no more than `/metrics`, which answers at the same door.
pub(crate) static EXPLAIN_REQUESTS: Setting<Flag> = Setting {
    name: Name {
        key: "http.explain_requests",
        flag: "explain-requests",
        env: "CALLBOARD_EXPLAIN_REQUESTS",
        placeholder: "true|false",
        help: "Whether requests may ask for their timeline",
        default: "true",
    },
    form: Flag,
};

/// Off: whoever may call a model should not thereby be able to close another's.
pub(crate) static MODEL_CONTROL: Setting<Flag> = Setting {
    name: Name {
        key: "http.model_control",
        flag: "model-control",
        env: "CALLBOARD_MODEL_CONTROL",
        placeholder: "true|false",
        help: "Whether clients may load and unload models",
        default: "false",
    },
    form: Flag,
};

/// Loopback, because a server that nobody asked to be public should not be.
pub(crate) static HTTP: Setting<Listen> = Setting {
    name: Name {
        key: "http.listen",
        flag: "http",
        env: "CALLBOARD_HTTP",
        placeholder: "ADDR",
        help: "Address and port to serve HTTP on",
        default: "127.0.0.1:8000",
    },
    form: Listen,
};

/// Nothing, because an open port that nobody asked for is a surprise.
pub(crate) static QUIC: Setting<MaybeListen> = Setting {
    name: Name {
        key: "quic.listen",
        flag: "quic",
        env: "CALLBOARD_QUIC",
        placeholder: "ADDR",
        help: "Address and port to serve QUIC on, for clients and other nodes; none to disable",
        default: "none",
    },
    form: MaybeListen,
};

pub(crate) static JOIN: Setting<Peers> = Setting {
    name: Name {
        key: "quic.join",
        flag: "join",
        env: "CALLBOARD_JOIN",
        placeholder: "HOST:PORT[,HOST:PORT…]",
        help: "Peer nodes that may run stages for this node",
        default: "none",
    },
    form: Peers,
};

/// None: on one machine, one user needs none.
pub(crate) static CLUSTER: Setting<FilePath> = Setting {
    name: Name {
        key: "quic.cluster",
        flag: "cluster",
        env: "CALLBOARD_CLUSTER",
        placeholder: "DIR",
        help: "Directory of the identity to serve QUIC with: a cluster's authority, or a member that has joined",
        default: "none",
    },
    form: FilePath,
};

/// Any: within one cluster, every node is trusted with every stage unless somebody says otherwise.
pub(crate) static OFFERS: Setting<Offers> = Setting {
    name: Name {
        key: "quic.offers",
        flag: "offers",
        env: "CALLBOARD_OFFERS",
        placeholder: "MEMBER=STAGE[+STAGE…][,…]",
        help: "Stages that each member may run for this node; * for any member or stage",
        default: "any",
    },
    form: Offers,
};

/// On: a worker that joins its gateway is to be used by it.
pub(crate) static CALLS_BACK: Setting<Flag> = Setting {
    name: Name {
        key: "quic.calls_back",
        flag: "calls-back",
        env: "CALLBOARD_CALLS_BACK",
        placeholder: "true|false",
        help: "Whether nodes that connect to this one may run stages for it",
        default: "true",
    },
    form: Flag,
};

/// Warnings and worse: what a server has to say while all is well, its start-up lines have said.
pub(crate) static LOG: Setting<LogFilter> = Setting {
    name: Name {
        key: "log.filter",
        flag: "log",
        env: "CALLBOARD_LOG",
        placeholder: "FILTER",
        help: "Log lines to write to stderr: a level, or target=level pairs",
        default: "warn",
    },
    form: LogFilter,
};

/// For people: who gathers lines says so.
pub(crate) static LOG_FORMAT: Setting<LogForm> = Setting {
    name: Name {
        key: "log.format",
        flag: "log-format",
        env: "CALLBOARD_LOG_FORMAT",
        placeholder: "text|json",
        help: "Form of all lines on stderr: text, which is short and in colours at a terminal, or JSON",
        default: "text",
    },
    form: LogForm,
};

/// On: who runs a server wants to see that it is used, and by whom.
pub(crate) static ACCESS_LOG: Setting<Flag> = Setting {
    name: Name {
        key: "log.access",
        flag: "access-log",
        env: "CALLBOARD_ACCESS_LOG",
        placeholder: "true|false",
        help: "Whether to write a line to stderr for every request",
        default: "true",
    },
    form: Flag,
};

/// Nowhere: who wants traces has a collector.
pub(crate) static OTLP_ENDPOINT: Setting<Collector> = Setting {
    name: Name {
        key: "traces.endpoint",
        flag: "otlp-endpoint",
        env: "CALLBOARD_OTLP_ENDPOINT",
        placeholder: "URL",
        help: "OpenTelemetry collector to send spans to",
        default: "none",
    },
    form: Collector,
};

/// Those of the system, here as for the commands that call.
pub(crate) static OTLP_CA_FILE: Setting<FilePath> = Setting {
    name: Name {
        key: "traces.ca_file",
        flag: "otlp-ca-file",
        env: "CALLBOARD_OTLP_CA_FILE",
        placeholder: "PEM",
        help: "CA certificates (PEM) to trust for an https collector, instead of the system's",
        default: "none",
    },
    form: FilePath,
};

/// All, as OpenTelemetry's own libraries have it.
pub(crate) static TRACE_RATIO: Setting<Ratio> = Setting {
    name: Name {
        key: "traces.ratio",
        flag: "trace-ratio",
        env: "CALLBOARD_TRACE_RATIO",
        placeholder: "RATIO",
        help: "Fraction of requests to trace when the caller sends no traceparent",
        default: "1",
    },
    form: Ratio,
};

/// A million waiting entries are minutes of work for any stage; more is a typo.
pub(crate) const QUEUE_RANGE: RangeInclusive<usize> = 1..=1_000_000;

const SIZE_RANGE: RangeInclusive<u64> = 1..=1 << 40;

const HOUR: Duration = Duration::from_secs(60 * 60);

pub(crate) static MAX_BODY_BYTES: Setting<Bytes> = Setting {
    name: Name {
        key: "http.max_body_bytes",
        flag: "max-body-bytes",
        env: "CALLBOARD_MAX_BODY_BYTES",
        placeholder: "SIZE",
        help: "Largest request body",
        default: "64MiB",
    },
    form: Bytes(SIZE_RANGE),
};

pub(crate) static MAX_CONNECTIONS: Setting<Count> = Setting {
    name: Name {
        key: "http.max_connections",
        flag: "max-connections",
        env: "CALLBOARD_MAX_CONNECTIONS",
        placeholder: "COUNT",
        help: "Most HTTP connections at a time",
        default: "10000",
    },
    form: Count(1..=1_000_000),
};

pub(crate) static MAX_CONNECTIONS_PER_ADDRESS: Setting<Count> = Setting {
    name: Name {
        key: "http.max_connections_per_address",
        flag: "max-connections-per-address",
        env: "CALLBOARD_MAX_CONNECTIONS_PER_ADDRESS",
        placeholder: "COUNT",
        help: "Most HTTP connections at a time from one address",
        default: "1000",
    },
    form: Count(1..=1_000_000),
};

pub(crate) static TLS_CERTIFICATE: Setting<FilePath> = Setting {
    name: Name {
        key: "http.tls_certificate",
        flag: "tls-certificate",
        env: "CALLBOARD_TLS_CERTIFICATE",
        placeholder: "FILE",
        help: "Serve HTTPS with the certificate in this PEM file; reloaded when it changes",
        default: "none",
    },
    form: FilePath,
};

pub(crate) static TLS_KEY: Setting<FilePath> = Setting {
    name: Name {
        key: "http.tls_key",
        flag: "tls-key",
        env: "CALLBOARD_TLS_KEY",
        placeholder: "FILE",
        help: "PEM file with the private key of the certificate",
        default: "none",
    },
    form: FilePath,
};

pub(crate) static API_KEYS: Setting<KeysFrom> = Setting {
    name: Name {
        key: "http.api_keys",
        flag: "api-keys",
        env: "CALLBOARD_API_KEYS",
        placeholder: "FILE",
        help: "Require an API key: a file that lists the keys, or env:NAME for a variable that does",
        default: "none",
    },
    form: KeysFrom,
};

pub(crate) static RATE_LIMIT: Setting<Rate> = Setting {
    name: Name {
        key: "http.rate_limit",
        flag: "rate-limit",
        env: "CALLBOARD_RATE_LIMIT",
        placeholder: "RATE",
        help: "Rate limit for keys that set none of their own, such as 20/s",
        default: "none",
    },
    form: Rate,
};

pub(crate) static CORS: Setting<Pages> = Setting {
    name: Name {
        key: "http.cors",
        flag: "cors",
        env: "CALLBOARD_CORS",
        placeholder: "ORIGINS",
        help: "Origins of web pages that may read answers, such as https://app.example.org; * for all",
        default: "none",
    },
    form: Pages,
};

pub(crate) static HOSTS: Setting<HostNames> = Setting {
    name: Name {
        key: "http.hosts",
        flag: "hosts",
        env: "CALLBOARD_HOSTS",
        placeholder: "NAMES",
        help: "Host names accepted by a server on loopback, besides localhost and its address; * for all",
        default: "none",
    },
    form: HostNames,
};

/// A second at least: more would be a stream of comments. A quarter of an hour at most: no proxy waits longer.
pub(crate) static STREAM_HEARTBEAT: Setting<Span> = Setting {
    name: Name {
        key: "http.stream_heartbeat",
        flag: "stream-heartbeat",
        env: "CALLBOARD_STREAM_HEARTBEAT",
        placeholder: "DURATION",
        help: "Longest silence of an event stream before a comment is sent",
        default: "15s",
    },
    form: Span(Duration::from_secs(1)..=Duration::from_secs(15 * 60)),
};

/// Below a few hundred bytes what is packed is longer than what is not.
pub(crate) static COMPRESS_FROM_BYTES: Setting<MaybeBytes> = Setting {
    name: Name {
        key: "http.compress_from_bytes",
        flag: "compress-from-bytes",
        env: "CALLBOARD_COMPRESS_FROM_BYTES",
        placeholder: "SIZE",
        help: "Smallest answer to compress, for clients that accept it; none to disable",
        default: "1KiB",
    },
    form: MaybeBytes(Bytes(SIZE_RANGE)),
};

/// A second at least, for the slowest of honest lines; an hour at most, as any call.
pub(crate) static BODY_TIMEOUT: Setting<Span> = Setting {
    name: Name {
        key: "http.body_timeout",
        flag: "body-timeout",
        env: "CALLBOARD_BODY_TIMEOUT",
        placeholder: "DURATION",
        help: "Longest time for a request body to arrive, whatever its client asks for",
        default: "1m",
    },
    form: Span(Duration::from_secs(1)..=HOUR),
};

/// Beside the edge, and on loopback: who may call is not who may take the service down.
pub(crate) static ADMIN: Setting<AdminListen> = Setting {
    name: Name {
        key: "admin.listen",
        flag: "admin",
        env: "CALLBOARD_ADMIN",
        placeholder: "ADDR",
        help: "Address and port of the admin listener; auto: 127.0.0.1:8001 if that is free; none to disable",
        default: "auto",
    },
    form: AdminListen,
};

pub(crate) static ADMIN_API_KEYS: Setting<KeysFrom> = Setting {
    name: Name {
        key: "admin.api_keys",
        flag: "admin-api-keys",
        env: "CALLBOARD_ADMIN_API_KEYS",
        placeholder: "FILE",
        help: "API keys of the admin listener, given as for --api-keys",
        default: "none",
    },
    form: KeysFrom,
};

pub(crate) static API_TITLE: Setting<Label> = Setting {
    name: Name {
        key: "api.title",
        flag: "api-title",
        env: "CALLBOARD_API_TITLE",
        placeholder: "TEXT",
        help: "Title of the OpenAPI document; auto: the name of what is served",
        default: "auto",
    },
    form: Label,
};

pub(crate) static API_VERSION: Setting<Label> = Setting {
    name: Name {
        key: "api.version",
        flag: "api-version",
        env: "CALLBOARD_API_VERSION",
        placeholder: "TEXT",
        help: "Version in the OpenAPI document; auto: that of the program, else of callboard",
        default: "auto",
    },
    form: Label,
};

/// A millisecond at least: below it every call would be refused. An hour at most: beyond it a queued call is a leak.
pub(crate) static DEFAULT_TIMEOUT: Setting<Span> = Setting {
    name: Name {
        key: "limits.default_timeout",
        flag: "default-timeout",
        env: "CALLBOARD_DEFAULT_TIMEOUT",
        placeholder: "DURATION",
        help: "Default deadline of a call",
        default: "30s",
    },
    form: Span(Duration::from_millis(1)..=HOUR),
};

/// As the default one.
pub(crate) static MAX_TIMEOUT: Setting<Span> = Setting {
    name: Name {
        key: "limits.max_timeout",
        flag: "max-timeout",
        env: "CALLBOARD_MAX_TIMEOUT",
        placeholder: "DURATION",
        help: "Longest deadline of a call, whatever its caller or its route asks for",
        default: "1h",
    },
    form: Span(Duration::from_millis(1)..=HOUR),
};

pub(crate) static QUEUE: Setting<Count> = Setting {
    name: Name {
        key: "limits.queue",
        flag: "queue",
        env: "CALLBOARD_QUEUE",
        placeholder: "ENTRIES",
        help: "Queue length of stages that set none",
        default: "1024",
    },
    form: Count(QUEUE_RANGE),
};

pub(crate) static MAX_IN_FLIGHT: Setting<Count> = Setting {
    name: Name {
        key: "limits.max_in_flight",
        flag: "max-in-flight",
        env: "CALLBOARD_MAX_IN_FLIGHT",
        placeholder: "CALLS",
        help: "Most calls in flight on this node",
        default: "16384",
    },
    form: Count(1..=1_000_000),
};

pub(crate) static MAX_IN_FLIGHT_BYTES: Setting<Bytes> = Setting {
    name: Name {
        key: "limits.max_in_flight_bytes",
        flag: "max-in-flight-bytes",
        env: "CALLBOARD_MAX_IN_FLIGHT_BYTES",
        placeholder: "SIZE",
        help: "Most bytes of requests in flight on this node",
        default: "256MiB",
    },
    form: Bytes(SIZE_RANGE),
};

pub(crate) static DRAIN: Setting<Span> = Setting {
    name: Name {
        key: "limits.drain",
        flag: "drain",
        env: "CALLBOARD_DRAIN",
        placeholder: "DURATION",
        help: "Longest time for admitted calls to finish at shutdown",
        default: "30s",
    },
    form: Span(Duration::ZERO..=HOUR),
};

pub(crate) static DRAIN_DELAY: Setting<Span> = Setting {
    name: Name {
        key: "limits.drain_delay",
        flag: "drain-delay",
        env: "CALLBOARD_DRAIN_DELAY",
        placeholder: "DURATION",
        help: "How long HTTP is served on, not ready, before a drain",
        default: "5s",
    },
    form: Span(Duration::ZERO..=HOUR),
};

/// All of them, in the order of the help.
pub static ALL: [&Name; 37] = [
    &HTTP.name,
    &MAX_BODY_BYTES.name,
    &BODY_TIMEOUT.name,
    &MAX_CONNECTIONS.name,
    &MAX_CONNECTIONS_PER_ADDRESS.name,
    &TLS_CERTIFICATE.name,
    &TLS_KEY.name,
    &API_KEYS.name,
    &RATE_LIMIT.name,
    &CORS.name,
    &HOSTS.name,
    &STREAM_HEARTBEAT.name,
    &COMPRESS_FROM_BYTES.name,
    &EXPLAIN_REQUESTS.name,
    &MODEL_CONTROL.name,
    &QUIC.name,
    &JOIN.name,
    &CLUSTER.name,
    &OFFERS.name,
    &CALLS_BACK.name,
    &ADMIN.name,
    &ADMIN_API_KEYS.name,
    &API_TITLE.name,
    &API_VERSION.name,
    &LOG.name,
    &LOG_FORMAT.name,
    &ACCESS_LOG.name,
    &OTLP_ENDPOINT.name,
    &OTLP_CA_FILE.name,
    &TRACE_RATIO.name,
    &DEFAULT_TIMEOUT.name,
    &MAX_TIMEOUT.name,
    &QUEUE.name,
    &MAX_IN_FLIGHT.name,
    &MAX_IN_FLIGHT_BYTES.name,
    &DRAIN.name,
    &DRAIN_DELAY.name,
];

#[cfg(test)]
mod tests {
    use super::super::form::{Form, Raw};
    use super::*;

    fn reads_its_default<F: Form>(setting: &Setting<F>) {
        let default = setting.name.default;
        let value = setting.form.read(Raw::Text(default)).expect(default);
        assert_eq!(setting.form.show(&value), default);
    }

    #[test]
    fn every_default_is_valid_and_shown_as_it_is_written() {
        reads_its_default(&HTTP);
        reads_its_default(&QUIC);
        reads_its_default(&JOIN);
        reads_its_default(&CLUSTER);
        reads_its_default(&OFFERS);
        reads_its_default(&CALLS_BACK);
        reads_its_default(&MAX_BODY_BYTES);
        reads_its_default(&MAX_CONNECTIONS);
        reads_its_default(&MAX_CONNECTIONS_PER_ADDRESS);
        reads_its_default(&TLS_CERTIFICATE);
        reads_its_default(&TLS_KEY);
        reads_its_default(&API_KEYS);
        reads_its_default(&RATE_LIMIT);
        reads_its_default(&CORS);
        reads_its_default(&HOSTS);
        reads_its_default(&STREAM_HEARTBEAT);
        reads_its_default(&COMPRESS_FROM_BYTES);
        reads_its_default(&EXPLAIN_REQUESTS);
        reads_its_default(&MODEL_CONTROL);
        reads_its_default(&BODY_TIMEOUT);
        reads_its_default(&ADMIN);
        reads_its_default(&ADMIN_API_KEYS);
        reads_its_default(&API_TITLE);
        reads_its_default(&API_VERSION);
        reads_its_default(&LOG);
        reads_its_default(&LOG_FORMAT);
        reads_its_default(&ACCESS_LOG);
        reads_its_default(&OTLP_ENDPOINT);
        reads_its_default(&OTLP_CA_FILE);
        reads_its_default(&TRACE_RATIO);
        reads_its_default(&DEFAULT_TIMEOUT);
        reads_its_default(&MAX_TIMEOUT);
        reads_its_default(&QUEUE);
        reads_its_default(&MAX_IN_FLIGHT);
        reads_its_default(&MAX_IN_FLIGHT_BYTES);
        reads_its_default(&DRAIN);
    }

    #[test]
    fn the_three_names_of_a_setting_line_up() {
        for name in ALL {
            assert_eq!(name.env, format!("CALLBOARD_{}", name.flag.replace('-', "_").to_uppercase()));
            assert!(name.key.contains('.'), "{}", name.key);
        }
    }
}
