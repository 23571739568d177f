//! The settings of a node: each resolved from flags, environment and file, and all of them consistent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use callboard_core::edge::ErrorTraces;
use callboard_http::{Cors, Hosts, RateLimit, SampleRatio};
use callboard_http_client::Origin;
use callboard_net::{MemberRules, MembershipProfile, NodeAddress};

use crate::error::ConfigError;
use crate::form::{AdminAddress, Form, LogFormat, SecretSource, StateStoreAt};
use crate::http::HttpLimits;
use crate::layers::Layers;
use crate::models::settings::ModelDefaults;
use crate::setting::values::{Row, setting_values};
use crate::setting::{
    ACCESS_LOG, ACTOR_STORE, ADMIN, ADMIN_API_KEYS, ADVERTISE, ALL, API_KEYS, API_TITLE, API_VERSION, ASKS,
    AUTHORIZATION_SERVERS, BODY_TIMEOUT, CALLS_BACK, CLUSTER, COMPRESS_FROM_BYTES, CORS, DEFAULT_TIMEOUT, DOORS_OFF,
    DRAIN, DRAIN_DELAY, ERROR_TRACES, EXPLAIN_REQUESTS, FILE_HOSTS, FILE_MAX_BYTES, FILE_TIMEOUT, HOSTS, HTTP, JOIN,
    LOG, LOG_FORMAT, MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES,
    MAX_LOADED, MAX_LOADED_BYTES, MAX_TIMEOUT, MCP, MCP_URL, MEMBERSHIP, MODEL_CONTROL, MODEL_UPLOADS, OFFERS,
    OPEN_LOAD, OTLP_CA_FILE, OTLP_ENDPOINT, QUEUE, QUIC, QUIC_IDLE_TIMEOUT, RATE_LIMIT, RELAY, SILENT_AFTER,
    STREAM_HEARTBEAT, Setting, TLS_CERTIFICATE, TLS_KEY, TRACE_RATIO, WATCH,
};
use crate::source::{Source, Sourced};
#[cfg(feature = "process")]
use crate::stage::StagePlan;

setting_values! {
    /// The values of all settings.
    pub struct Settings {
        /// The address of HTTP.
        http: SocketAddr = HTTP;
        /// The largest request body.
        max_body_bytes: u64 = MAX_BODY_BYTES;
        /// The time limit of a request body.
        body_timeout: Duration = BODY_TIMEOUT;
        /// HTTP connections at once.
        max_connections: usize = MAX_CONNECTIONS;
        /// HTTP connections at once for one address.
        max_connections_per_address: usize = MAX_CONNECTIONS_PER_ADDRESS;
        /// The certificate of HTTPS.
        tls_certificate: Option<PathBuf> = TLS_CERTIFICATE;
        /// Its private key.
        tls_key: Option<PathBuf> = TLS_KEY;
        /// The source of the API keys.
        api_keys: Option<SecretSource> = API_KEYS;
        /// The rate limit of each key.
        rate_limit: Option<RateLimit> = RATE_LIMIT;
        /// The web pages that may read answers.
        cors: Option<Cors> = CORS;
        /// The names by which a server on loopback may be called.
        hosts: Hosts = HOSTS;
        /// The hosts that files are fetched from where a client sends a URL.
        file_hosts: Vec<String> = FILE_HOSTS;
        /// The bytes of all files that are fetched for one call.
        file_max_bytes: u64 = FILE_MAX_BYTES;
        /// The time to fetch a file.
        file_timeout: Duration = FILE_TIMEOUT;
        /// The longest silence of an event stream.
        stream_heartbeat: Duration = STREAM_HEARTBEAT;
        /// The shortest answer that is compressed; `None` turns compression off.
        compress_from_bytes: Option<u64> = COMPRESS_FROM_BYTES;
        /// The address of QUIC, if enabled.
        quic: Option<SocketAddr> = QUIC;
        /// Whether a request may ask for its timeline.
        explain_requests: bool = EXPLAIN_REQUESTS;
        /// The protocols that are not served.
        doors_off: Vec<String> = DOORS_OFF;
        /// Whether `/metrics/load` needs no key.
        open_load: bool = OPEN_LOAD;
        /// Whether clients may load and unload models.
        model_control: bool = MODEL_CONTROL;
        /// Whether gateways of evaluations call functions.
        relay: bool = RELAY;
        /// Whether agents may call all routes as tools.
        mcp: bool = MCP;
        /// The URL at which agents reach them.
        mcp_url: Option<String> = MCP_URL;
        /// The servers that give agents tokens.
        authorization_servers: Vec<String> = AUTHORIZATION_SERVERS;
        /// Other nodes.
        join: Vec<NodeAddress> = JOIN;
        /// The address at which other nodes reach this one, where they would not find it by themselves.
        advertise: Option<NodeAddress> = ADVERTISE;
        /// The directory with the identity for QUIC; that of this user on this machine if `None`.
        cluster: Option<PathBuf> = CLUSTER;
        /// The stages that each member may run for this node.
        offers: MemberRules = OFFERS;
        /// The actors that each member may ask.
        asks: MemberRules = ASKS;
        /// Whether nodes that connect to this one may run stages for it.
        calls_back: bool = CALLS_BACK;
        /// The silence after which a QUIC connection is lost.
        quic_idle_timeout: Duration = QUIC_IDLE_TIMEOUT;
        /// The silence of a node with calls after which they are repeated elsewhere.
        silent_after: Duration = SILENT_AFTER;
        /// How soon a silent node is called down.
        membership: MembershipProfile = MEMBERSHIP;
        /// The address of the admin listener.
        admin: AdminAddress = ADMIN;
        /// The source of its API keys.
        admin_api_keys: Option<SecretSource> = ADMIN_API_KEYS;
        /// The title of the OpenAPI document, if set.
        api_title: Option<String> = API_TITLE;
        /// The version in the OpenAPI document, if set.
        api_version: Option<String> = API_VERSION;
        /// How often a directory of models is looked at, if at all.
        models_watch: Option<Duration> = WATCH;
        /// The largest model file that operators may upload, if any.
        model_uploads: Option<u64> = MODEL_UPLOADS;
        /// Where the state of keyed classes is.
        actor_store: StateStoreAt = ACTOR_STORE;
        /// The filter of log lines.
        log: String = LOG;
        /// The format of log lines.
        log_format: LogFormat = LOG_FORMAT;
        /// Whether every request has a line in the log.
        access_log: bool = ACCESS_LOG;
        /// The callers that get the trace of an error.
        error_traces: ErrorTraces = ERROR_TRACES;
        /// The URL of the collector of spans.
        otlp_endpoint: Option<Origin> = OTLP_ENDPOINT;
        /// The CA certificates to trust there.
        otlp_ca_file: Option<PathBuf> = OTLP_CA_FILE;
        /// The share of requests with spans.
        trace_ratio: SampleRatio = TRACE_RATIO;
        /// The timeout of calls without their own.
        default_timeout: Duration = DEFAULT_TIMEOUT;
        /// The longest timeout of any call.
        max_timeout: Duration = MAX_TIMEOUT;
        /// The default queue length of a stage.
        queue: usize = QUEUE;
        /// Calls in flight on the node.
        max_in_flight: usize = MAX_IN_FLIGHT;
        /// The bytes of calls in flight on the node.
        max_in_flight_bytes: u64 = MAX_IN_FLIGHT_BYTES;
        /// The most loaded stages, among stages that may be unloaded.
        max_loaded: Option<usize> = MAX_LOADED;
        /// Their bytes.
        max_loaded_bytes: Option<u64> = MAX_LOADED_BYTES;
        /// The time limit of a drain.
        drain: Duration = DRAIN;
        /// The time for which a draining node still serves, not ready, before the drain begins.
        drain_delay: Duration = DRAIN_DELAY;
        => /// The limits of the HTTP edge.
        http_limits: HttpLimits = HttpLimits::resolve;
        => /// The file with the settings that all models of a directory have by default.
        model_defaults: Option<ModelDefaults> = |_: &Layers<'_>| Ok::<_, ConfigError>(None);
    }
}

impl Settings {
    /// All settings, consistent.
    pub(super) fn checked(layers: &Layers<'_>) -> Result<Self, ConfigError> {
        let settings = Self::resolve(layers)?;
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
        if self.mcp_url.value.is_none() != self.authorization_servers.value.is_empty() {
            return Err(ConfigError::Contradiction {
                one: described(&MCP_URL, &self.mcp_url),
                other: described(&AUTHORIZATION_SERVERS, &self.authorization_servers),
                why: "an agent that gets tokens needs to know for which URL",
            });
        }
        if self.advertise.value.is_some() && self.quic.value.is_none() {
            return Err(ConfigError::Contradiction {
                one: described(&ADVERTISE, &self.advertise),
                other: described(&QUIC, &self.quic),
                why: "an address for other nodes needs a port that stays",
            });
        }
        if let AdminAddress::At(address) = self.admin.value
            && !address.ip().is_loopback()
        {
            self.check_admin_beyond_loopback()?;
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

    /// A program sets the queues of its stages and the stores of its keyed actors in its code, so these settings would
    /// have no effect.
    pub(super) fn check_program(&self) -> Result<(), ConfigError> {
        if self.actor_store.source != Source::Default {
            return Err(ConfigError::NotHere {
                what: described(&ACTOR_STORE, &self.actor_store),
                why: "the keyed actors of a program have the stores that its code gives them",
            });
        }
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
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = self.own_rows();
        rows.extend(self.http_limits.own_rows());
        rows.sort_by_key(|(name, ..)| ALL.iter().position(|other| other.key == name.key));
        rows
    }
}

pub(super) fn described<F: Form>(setting: &Setting<F>, value: &Sourced<F::Value>) -> String {
    format!("{} = {} ({})", setting.name.key, setting.form.show(&value.value), value.source)
}
