//! The settings of a node: each resolved from flags, environment and file, and all of them consistent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use callboard_core::edge::ErrorTraces;
use callboard_http::{Cors, Hosts, RateLimit, SampleRatio};
use callboard_http_client::Origin;
use callboard_net::{NodeAddress, OfferRules};

use crate::error::ConfigError;
use crate::form::{AdminAddress, Form, LogFormat, SecretSource};
use crate::http::HttpLimits;
use crate::layers::Layers;
use crate::models::settings::ModelDefaults;
use crate::setting::{
    ACCESS_LOG, ADMIN, ADMIN_API_KEYS, API_KEYS, API_TITLE, API_VERSION, BODY_TIMEOUT, CALLS_BACK, CLUSTER,
    COMPRESS_FROM_BYTES, CORS, DEFAULT_TIMEOUT, DRAIN, DRAIN_DELAY, ERROR_TRACES, EXPLAIN_REQUESTS, FILE_HOSTS,
    FILE_MAX_BYTES, FILE_TIMEOUT, HOSTS, HTTP, JOIN, LOG, LOG_FORMAT, MAX_BODY_BYTES, MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_ADDRESS, MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, MAX_LOADED, MAX_LOADED_BYTES, MAX_TIMEOUT,
    MODEL_CONTROL, MODEL_UPLOADS, Name, OFFERS, OTLP_CA_FILE, OTLP_ENDPOINT, QUEUE, QUIC, RATE_LIMIT, STREAM_HEARTBEAT,
    Setting, TLS_CERTIFICATE, TLS_KEY, TRACE_RATIO, WATCH,
};
use crate::source::{Source, Sourced};
#[cfg(feature = "process")]
use crate::stage::StagePlan;

/// The values of all settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address of HTTP.
    pub http: Sourced<SocketAddr>,
    /// The largest request body.
    pub max_body_bytes: Sourced<u64>,
    /// The time limit of a request body.
    pub body_timeout: Sourced<Duration>,
    /// HTTP connections at once.
    pub max_connections: Sourced<usize>,
    /// HTTP connections at once for one address.
    pub max_connections_per_address: Sourced<usize>,
    /// The certificate of HTTPS.
    pub tls_certificate: Sourced<Option<PathBuf>>,
    /// Its private key.
    pub tls_key: Sourced<Option<PathBuf>>,
    /// The source of the API keys.
    pub api_keys: Sourced<Option<SecretSource>>,
    /// The rate limit of each key.
    pub rate_limit: Sourced<Option<RateLimit>>,
    /// The web pages that may read answers.
    pub cors: Sourced<Option<Cors>>,
    /// The names by which a server on loopback may be called.
    pub hosts: Sourced<Hosts>,
    /// The hosts that files are fetched from where a client sends a URL.
    pub file_hosts: Sourced<Vec<String>>,
    /// The bytes of all files that are fetched for one call.
    pub file_max_bytes: Sourced<u64>,
    /// The time to fetch a file.
    pub file_timeout: Sourced<Duration>,
    /// The longest silence of an event stream.
    pub stream_heartbeat: Sourced<Duration>,
    /// The shortest answer that is compressed; `None` turns compression off.
    pub compress_from_bytes: Sourced<Option<u64>>,
    /// The limits of the HTTP edge.
    pub http_limits: HttpLimits,
    /// The address of QUIC, if enabled.
    pub quic: Sourced<Option<SocketAddr>>,
    /// Whether a request may ask for its timeline.
    pub explain_requests: Sourced<bool>,
    /// Whether clients may load and unload models.
    pub model_control: Sourced<bool>,
    /// Other nodes.
    pub join: Sourced<Vec<NodeAddress>>,
    /// The directory with the identity for QUIC; that of this user on this machine if `None`.
    pub cluster: Sourced<Option<PathBuf>>,
    /// The stages that each member may run for this node.
    pub offers: Sourced<OfferRules>,
    /// Whether nodes that connect to this one may run stages for it.
    pub calls_back: Sourced<bool>,
    /// The address of the admin listener.
    pub admin: Sourced<AdminAddress>,
    /// The source of its API keys.
    pub admin_api_keys: Sourced<Option<SecretSource>>,
    /// The title of the OpenAPI document, if set.
    pub api_title: Sourced<Option<String>>,
    /// The version in the OpenAPI document, if set.
    pub api_version: Sourced<Option<String>>,
    /// How often a directory of models is looked at, if at all.
    pub models_watch: Sourced<Option<Duration>>,
    /// The largest model file that operators may upload, if any.
    pub model_uploads: Sourced<Option<u64>>,
    /// The file with the settings that all models of a directory have by default.
    pub model_defaults: Option<ModelDefaults>,
    /// The filter of log lines.
    pub log: Sourced<String>,
    /// The format of log lines.
    pub log_format: Sourced<LogFormat>,
    /// Whether every request has a line in the log.
    pub access_log: Sourced<bool>,
    /// The callers that get the trace of an error.
    pub error_traces: Sourced<ErrorTraces>,
    /// The URL of the collector of spans.
    pub otlp_endpoint: Sourced<Option<Origin>>,
    /// The CA certificates to trust there.
    pub otlp_ca_file: Sourced<Option<PathBuf>>,
    /// The share of requests with spans.
    pub trace_ratio: Sourced<SampleRatio>,
    /// The timeout of calls without their own.
    pub default_timeout: Sourced<Duration>,
    /// The longest timeout of any call.
    pub max_timeout: Sourced<Duration>,
    /// The default queue length of a stage.
    pub queue: Sourced<usize>,
    /// Calls in flight on the node.
    pub max_in_flight: Sourced<usize>,
    /// The bytes of calls in flight on the node.
    pub max_in_flight_bytes: Sourced<u64>,
    /// The most loaded stages, among stages that may be unloaded.
    pub max_loaded: Sourced<Option<usize>>,
    /// Their bytes.
    pub max_loaded_bytes: Sourced<Option<u64>>,
    /// The time limit of a drain.
    pub drain: Sourced<Duration>,
    /// The time for which a draining node still serves, not ready, before the drain begins.
    pub drain_delay: Sourced<Duration>,
}

impl Settings {
    pub(super) fn resolve(layers: &Layers<'_>) -> Result<Self, ConfigError> {
        let settings = Self {
            http: layers.resolve(&HTTP)?,
            max_body_bytes: layers.resolve(&MAX_BODY_BYTES)?,
            body_timeout: layers.resolve(&BODY_TIMEOUT)?,
            max_connections: layers.resolve(&MAX_CONNECTIONS)?,
            max_connections_per_address: layers.resolve(&MAX_CONNECTIONS_PER_ADDRESS)?,
            tls_certificate: layers.resolve(&TLS_CERTIFICATE)?,
            tls_key: layers.resolve(&TLS_KEY)?,
            api_keys: layers.resolve(&API_KEYS)?,
            rate_limit: layers.resolve(&RATE_LIMIT)?,
            cors: layers.resolve(&CORS)?,
            hosts: layers.resolve(&HOSTS)?,
            file_hosts: layers.resolve(&FILE_HOSTS)?,
            file_max_bytes: layers.resolve(&FILE_MAX_BYTES)?,
            file_timeout: layers.resolve(&FILE_TIMEOUT)?,
            stream_heartbeat: layers.resolve(&STREAM_HEARTBEAT)?,
            compress_from_bytes: layers.resolve(&COMPRESS_FROM_BYTES)?,
            explain_requests: layers.resolve(&EXPLAIN_REQUESTS)?,
            model_control: layers.resolve(&MODEL_CONTROL)?,
            http_limits: HttpLimits::resolve(layers)?,
            quic: layers.resolve(&QUIC)?,
            join: layers.resolve(&JOIN)?,
            cluster: layers.resolve(&CLUSTER)?,
            offers: layers.resolve(&OFFERS)?,
            calls_back: layers.resolve(&CALLS_BACK)?,
            admin: layers.resolve(&ADMIN)?,
            admin_api_keys: layers.resolve(&ADMIN_API_KEYS)?,
            api_title: layers.resolve(&API_TITLE)?,
            api_version: layers.resolve(&API_VERSION)?,
            models_watch: layers.resolve(&WATCH)?,
            model_uploads: layers.resolve(&MODEL_UPLOADS)?,
            model_defaults: None,
            log: layers.resolve(&LOG)?,
            log_format: layers.resolve(&LOG_FORMAT)?,
            access_log: layers.resolve(&ACCESS_LOG)?,
            error_traces: layers.resolve(&ERROR_TRACES)?,
            otlp_endpoint: layers.resolve(&OTLP_ENDPOINT)?,
            otlp_ca_file: layers.resolve(&OTLP_CA_FILE)?,
            trace_ratio: layers.resolve(&TRACE_RATIO)?,
            default_timeout: layers.resolve(&DEFAULT_TIMEOUT)?,
            max_timeout: layers.resolve(&MAX_TIMEOUT)?,
            queue: layers.resolve(&QUEUE)?,
            max_in_flight: layers.resolve(&MAX_IN_FLIGHT)?,
            max_in_flight_bytes: layers.resolve(&MAX_IN_FLIGHT_BYTES)?,
            max_loaded: layers.resolve(&MAX_LOADED)?,
            max_loaded_bytes: layers.resolve(&MAX_LOADED_BYTES)?,
            drain: layers.resolve(&DRAIN)?,
            drain_delay: layers.resolve(&DRAIN_DELAY)?,
        };
        settings.check()?;
        Ok(settings)
    }

    /// What user code prints and logs is shown by default where it is that of an app in Python: its developer looks for
    /// it. A filter that was set is obeyed.
    #[cfg(feature = "process")]
    pub(super) fn show_output_of(&mut self, stages: &[StagePlan]) {
        if self.log.source == Source::Default && stages.iter().any(|stage| stage.kind.is_python()) {
            self.log.value = format!("{},{}=info", self.log.value, callboard_process::OUTPUT_TARGET);
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        // A body larger than all bytes together would be answered "try again later" for ever.
        if self.max_body_bytes.value > self.max_in_flight_bytes.value {
            return Err(ConfigError::Contradiction {
                one: described(&MAX_BODY_BYTES, &self.max_body_bytes),
                other: described(&MAX_IN_FLIGHT_BYTES, &self.max_in_flight_bytes),
                why: "such a body could never be admitted",
            });
        }
        if self.tls_certificate.value.is_some() != self.tls_key.value.is_some() {
            return Err(ConfigError::Contradiction {
                one: described(&TLS_CERTIFICATE, &self.tls_certificate),
                other: described(&TLS_KEY, &self.tls_key),
                why: "HTTPS needs both",
            });
        }
        if let AdminAddress::At(address) = self.admin.value
            && !address.ip().is_loopback()
        {
            self.check_admin_beyond_loopback()?;
        }
        if self.rate_limit.value.is_some() && self.api_keys.value.is_none() {
            return Err(ConfigError::NotHere {
                what: described(&RATE_LIMIT, &self.rate_limit),
                why: "it is a limit of each key, and http.api_keys is not set",
            });
        }
        let is_secure = self.otlp_endpoint.value.as_ref().is_some_and(Origin::is_secure);
        if !is_secure && self.otlp_ca_file.value.is_some() {
            return Err(ConfigError::NotHere {
                what: described(&OTLP_CA_FILE, &self.otlp_ca_file),
                why: "certificates are shown over https only, and traces.endpoint is not https",
            });
        }
        Ok(())
    }

    fn check_admin_beyond_loopback(&self) -> Result<(), ConfigError> {
        let contradiction =
            |other, why| Err(ConfigError::Contradiction { one: described(&ADMIN, &self.admin), other, why });
        if self.admin_api_keys.value.is_none() {
            let keys = described(&ADMIN_API_KEYS, &self.admin_api_keys);
            return contradiction(keys, "beyond loopback anybody could end the service");
        }
        if self.tls_certificate.value.is_none() {
            let certificate = described(&TLS_CERTIFICATE, &self.tls_certificate);
            return contradiction(certificate, "beyond loopback anybody could read the keys that end the service");
        }
        Ok(())
    }

    /// A program sets the queues of its stages in its code, so this setting would have no effect.
    pub(super) fn check_program(&self) -> Result<(), ConfigError> {
        match self.queue.source {
            Source::Default => Ok(()),
            _ => Err(ConfigError::NotHere {
                what: described(&QUEUE, &self.queue),
                why: "the stages of a program set their own queues",
            }),
        }
    }

    /// Settings of a directory of models.
    pub(super) fn check_without_models(&self) -> Result<(), ConfigError> {
        if self.model_uploads.source != Source::Default {
            return Err(ConfigError::NotHere {
                what: described(&MODEL_UPLOADS, &self.model_uploads),
                why: "only a directory of models takes model files",
            });
        }
        match self.models_watch.source {
            Source::Default => Ok(()),
            _ => Err(ConfigError::NotHere {
                what: described(&WATCH, &self.models_watch),
                why: "only a directory of models is watched; `serve --reload` builds the routes of a file again",
            }),
        }
    }

    /// Name, value and source of each, in the order of the table.
    pub fn rows(&self) -> Vec<(&'static Name, String, &Source)> {
        let mut rows = vec![
            row(&HTTP, &self.http),
            row(&MAX_BODY_BYTES, &self.max_body_bytes),
            row(&BODY_TIMEOUT, &self.body_timeout),
            row(&MAX_CONNECTIONS, &self.max_connections),
            row(&MAX_CONNECTIONS_PER_ADDRESS, &self.max_connections_per_address),
            row(&TLS_CERTIFICATE, &self.tls_certificate),
            row(&TLS_KEY, &self.tls_key),
            row(&API_KEYS, &self.api_keys),
            row(&RATE_LIMIT, &self.rate_limit),
            row(&CORS, &self.cors),
            row(&HOSTS, &self.hosts),
            row(&STREAM_HEARTBEAT, &self.stream_heartbeat),
            row(&COMPRESS_FROM_BYTES, &self.compress_from_bytes),
            row(&EXPLAIN_REQUESTS, &self.explain_requests),
            row(&MODEL_CONTROL, &self.model_control),
        ];
        rows.extend(self.http_limits.rows());
        rows.extend([
            row(&QUIC, &self.quic),
            row(&JOIN, &self.join),
            row(&CLUSTER, &self.cluster),
            row(&OFFERS, &self.offers),
            row(&CALLS_BACK, &self.calls_back),
            row(&ADMIN, &self.admin),
            row(&ADMIN_API_KEYS, &self.admin_api_keys),
            row(&API_TITLE, &self.api_title),
            row(&API_VERSION, &self.api_version),
            row(&FILE_HOSTS, &self.file_hosts),
            row(&FILE_MAX_BYTES, &self.file_max_bytes),
            row(&FILE_TIMEOUT, &self.file_timeout),
            row(&WATCH, &self.models_watch),
            row(&MODEL_UPLOADS, &self.model_uploads),
            row(&LOG, &self.log),
            row(&LOG_FORMAT, &self.log_format),
            row(&ACCESS_LOG, &self.access_log),
            row(&ERROR_TRACES, &self.error_traces),
            row(&OTLP_ENDPOINT, &self.otlp_endpoint),
            row(&OTLP_CA_FILE, &self.otlp_ca_file),
            row(&TRACE_RATIO, &self.trace_ratio),
            row(&DEFAULT_TIMEOUT, &self.default_timeout),
            row(&MAX_TIMEOUT, &self.max_timeout),
            row(&QUEUE, &self.queue),
            row(&MAX_IN_FLIGHT, &self.max_in_flight),
            row(&MAX_IN_FLIGHT_BYTES, &self.max_in_flight_bytes),
            row(&MAX_LOADED, &self.max_loaded),
            row(&MAX_LOADED_BYTES, &self.max_loaded_bytes),
            row(&DRAIN, &self.drain),
            row(&DRAIN_DELAY, &self.drain_delay),
        ]);
        rows
    }
}

/// Name, value and source of a setting.
pub(crate) fn row<'a, F: Form>(
    setting: &'static Setting<F>,
    value: &'a Sourced<F::Value>,
) -> (&'static Name, String, &'a Source) {
    (&setting.name, setting.form.show(&value.value), &value.source)
}

fn described<F: Form>(setting: &Setting<F>, value: &Sourced<F::Value>) -> String {
    format!("{} = {} ({})", setting.name.key, setting.form.show(&value.value), value.source)
}
