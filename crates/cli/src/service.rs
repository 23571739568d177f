//! The app that a command works on, with its settings.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use callboard_config::{ExamplePlan, Plan, SecretSource, Settings, Source, Sourced, Target};
use callboard_core::{App, Limits, LocalClient, Node};
use callboard_http::protocol::Protocol as _;
use callboard_http::{AUTH_ROUTE, ApiInfo, ApiKeys, ApiKeysError, HttpConfig, TlsConfig};
use callboard_mcp::{Authorization, McpConfig, McpProtocol};
use callboard_server::own_protocols;

use crate::error::CliError;
use crate::target::FILE_NAME;

/// An app and its settings.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) app: App,
    pub(crate) plan: Plan,
    /// The engine of each model, a line for each.
    pub(crate) engines: Vec<String>,
}

impl Service {
    /// Joins a plan with the app of a program, or with the app that the plan describes.
    pub(crate) fn new(plan: Plan, app: Option<App>) -> Result<Self, CliError> {
        let (app, engines) = match app {
            Some(app) => (app, Vec::new()),
            None => callboard_config::assemble::app_and_engines(&plan).map_err(CliError::from_build)?,
        };
        // A route of a program; the plan has checked the routes of a file.
        let protocols = own_protocols();
        for route in app.routes() {
            protocols.check_route(route.name()).map_err(|error| CliError::Failed(error.to_string()))?;
        }
        #[cfg(feature = "process")]
        let app = plan
            .helpers
            .iter()
            .fold(app, |app, helper| app.actors(callboard_process::helper(helper.config(plan.target.base()))));
        let limits = limits(app.node_limits().clone(), &plan.settings);
        Ok(Self { app: app.limits(limits), plan, engines })
    }

    /// For what a document says of the app: it starts without the processes of its hooks, which belong to a node.
    #[cfg_attr(not(feature = "process"), expect(unused_mut, reason = "there are no hooks"))]
    pub(crate) fn described(mut plan: Plan, app: Option<App>) -> Result<Self, CliError> {
        #[cfg(feature = "process")]
        plan.helpers.retain(|helper| helper.keys.hooks.is_none());
        Self::new(plan, app)
    }

    /// Starts the app on the current runtime.
    pub(crate) async fn start(app: App) -> Result<Node, CliError> {
        app.start().await.map_err(|error| CliError::because("not started", &error))
    }
}

/// What callers of such an app read instead of a key: only its own code knows what they have to send.
pub(crate) const NAMES_CALLERS: &str = "this app names its callers (`@cb.auth`)";

/// Whether the app names its callers.
pub(crate) fn has_auth(app: &App) -> bool {
    app.routes().iter().any(|route| route.name() == AUTH_ROUTE)
}

/// The name of the target in messages.
pub(crate) fn title(target: &Target) -> String {
    match target {
        Target::File { path, .. } | Target::Model { path } | Target::Models { path, .. } => path.display().to_string(),
        Target::Program { .. } => "this program".to_owned(),
    }
}

/// The file of the first example of a route, relative to the current directory.
pub(crate) fn example_file(plan: &Plan, route: &str) -> Option<PathBuf> {
    let route = plan.routes.iter().find(|planned| planned.path.value == route)?;
    route.examples.iter().find_map(|example| match example {
        ExamplePlan::File(path) => Some(without_detours(plan.target.base().join(path))),
        ExamplePlan::Json(_) => None,
    })
}

/// Removes `name/..` if the result is the same file; after a symbolic link it may be another file.
fn without_detours(path: PathBuf) -> PathBuf {
    let mut direct = PathBuf::new();
    for part in path.components() {
        match (part, direct.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => _ = direct.pop(),
            _ => direct.push(part),
        }
    }
    let is_same = direct.canonicalize().is_ok_and(|direct| path.canonicalize().is_ok_and(|path| path == direct));
    if is_same { direct } else { path }
}

/// A configured setting overrides the limit in the program, which overrides the default.
fn limits(own: Limits, settings: &Settings) -> Limits {
    Limits {
        max_in_flight: set_or(&settings.max_in_flight, own.max_in_flight),
        max_in_flight_bytes: set_or(&settings.max_in_flight_bytes, own.max_in_flight_bytes),
        max_loaded: set_or(&settings.max_loaded, own.max_loaded),
        max_loaded_bytes: set_or(&settings.max_loaded_bytes, own.max_loaded_bytes),
        default_timeout: set_or(&settings.default_timeout, own.default_timeout),
        max_timeout: set_or(&settings.max_timeout, own.max_timeout),
    }
}

fn set_or<T: Clone>(setting: &Sourced<T>, own: T) -> T {
    match setting.source {
        Source::Default => own,
        Source::Flag(_) | Source::Env(_) | Source::File { .. } | Source::ModelDefaults { .. } | Source::Target => {
            setting.value.clone()
        }
    }
}

/// The limits of the HTTP edge.
///
/// # Errors
///
/// Keys that cannot be read.
pub(crate) fn http_config(plan: &Plan) -> Result<HttpConfig, CliError> {
    let settings = &plan.settings;
    let own = plan.routes.iter().filter(|route| route.max_body_bytes.value != settings.max_body_bytes.value);
    let compress_from = settings.compress_from_bytes.value.and_then(|bytes| usize::try_from(bytes).ok());
    let mut config = HttpConfig {
        tls: tls_config(plan),
        max_connections_per_address: settings.max_connections_per_address.value,
        max_body_bytes: settings.max_body_bytes.value,
        max_connections: settings.max_connections.value,
        body_timeout: settings.body_timeout.value,
        max_body_bytes_by_route: own.map(|route| (route.path.value.clone(), route.max_body_bytes.value)).collect(),
        api_keys: api_keys(plan, &settings.api_keys)?,
        rate_limit: settings.rate_limit.value,
        cors: settings.cors.value.clone(),
        hosts: settings.hosts.value.clone(),
        stream_heartbeat: settings.stream_heartbeat.value,
        compress_from_bytes: compress_from.unwrap_or(usize::MAX),
        error_traces: settings.error_traces.value,
        explain_requests: settings.explain_requests.value,
        doors_off: settings.doors_off.value.clone(),
        open_load: settings.open_load.value,
        model_control: settings.model_control.value,
        relay: settings.relay.value,
        shutdown_grace: settings.drain.value,
        ..HttpConfig::default()
    };
    settings.http_limits.apply(&mut config);
    Ok(config)
}

/// What agents are told, and which routes they may call.
pub(crate) fn mcp_config(plan: &Plan, info: &ApiInfo) -> McpConfig {
    let (url, servers) = (&plan.settings.mcp_url.value, &plan.settings.authorization_servers.value);
    // Each URL was checked as it was read.
    let authorization = url.as_ref().and_then(|url| Authorization::try_new(url.as_str(), servers.clone()).ok());
    McpConfig { all_routes: plan.settings.mcp.value, authorization, ..callboard_server::mcp_config(info) }
}

/// Checks that the routes can be the tools that they are to be, as a server does at its start.
pub(crate) fn check_tools(plan: &Plan, client: &LocalClient) -> Result<(), CliError> {
    let protocol = McpProtocol::new(mcp_config(plan, &ApiInfo::default()));
    protocol.check(&client.routes()).map_err(CliError::Failed)
}

/// The limits of the admin listener: few connections, separate keys, and the edge's certificate beyond loopback.
///
/// # Errors
///
/// Keys that cannot be read.
pub(crate) fn admin_config(plan: &Plan, is_local: bool) -> Result<HttpConfig, CliError> {
    Ok(HttpConfig {
        max_connections: ADMIN_CONNECTIONS,
        max_connections_per_address: ADMIN_CONNECTIONS,
        api_keys: api_keys(plan, &plan.settings.admin_api_keys)?,
        tls: if is_local { None } else { tls_config(plan) },
        ..HttpConfig::default()
    })
}

/// Enough connections for a few people and monitoring systems.
const ADMIN_CONNECTIONS: usize = 100;

fn tls_config(plan: &Plan) -> Option<TlsConfig> {
    let Settings { tls_certificate, tls_key, .. } = &plan.settings;
    let (certificate, key) = file_of(plan, tls_certificate).zip(file_of(plan, tls_key))?;
    let mut tls = TlsConfig::new(certificate, key);
    plan.settings.http_limits.apply_tls(&mut tls);
    Some(tls)
}

/// Reads the API keys. Errors do not repeat text that may be a key.
fn api_keys(plan: &Plan, setting: &Sourced<Option<SecretSource>>) -> Result<Option<ApiKeys>, CliError> {
    let Some(source) = &setting.value else { return Ok(None) };
    let (place, keys) = match source {
        SecretSource::File(path) => {
            let path = seen_from_here(plan, &setting.source, path);
            (path.display().to_string(), ApiKeys::read(path))
        }
        SecretSource::Variable(name) => {
            let text = std::env::var(name)
                .map_err(|error| CliError::because(format_args!("the api keys: the variable {name}"), &error))?;
            (format!("the variable {name}"), ApiKeys::parse(&text))
        }
    };
    keys.map(Some).map_err(|error| match error {
        ApiKeysError::Read { .. } => CliError::because("the api keys", &error),
        _ => CliError::because(format_args!("the api keys: {place}"), &error),
    })
}

/// The file of a setting, relative to the current directory. The configuration file names files relative to itself.
pub(crate) fn file_of(plan: &Plan, setting: &Sourced<Option<PathBuf>>) -> Option<PathBuf> {
    Some(seen_from_here(plan, &setting.source, setting.value.as_ref()?))
}

fn seen_from_here(plan: &Plan, source: &Source, path: &Path) -> PathBuf {
    match source {
        Source::File { .. } | Source::ModelDefaults { .. } => plan.target.base().join(path),
        Source::Flag(_) | Source::Env(_) | Source::Target | Source::Default => path.to_owned(),
    }
}

/// The title and version of the OpenAPI document: the setting, else the program's own, else the name of the target. Of
/// a directory or model only the last part of the path is shown to clients.
pub(crate) fn api_info(plan: &Plan, own: Option<ApiInfo>) -> ApiInfo {
    let name = match &plan.target {
        Target::File { path, .. } if path.ends_with(FILE_NAME) => path.parent().and_then(directory_name),
        Target::File { path, .. } | Target::Model { path } => path.file_stem().map(OsStr::to_owned),
        Target::Models { path, .. } => directory_name(path),
        Target::Program { .. } => None,
    };
    let mut info = own.unwrap_or_else(|| {
        let mut info = ApiInfo::default();
        if let Some(name) = name {
            info.title = name.to_string_lossy().into_owned();
        }
        info
    });
    info.needs_key |= plan.settings.api_keys.value.is_some();
    if let Some(title) = &plan.settings.api_title.value {
        info.title.clone_from(title);
    }
    if let Some(version) = &plan.settings.api_version.value {
        info.version.clone_from(version);
    }
    info
}

/// The name of a directory, also for `.` and `..`.
fn directory_name(path: &Path) -> Option<OsString> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match path.file_name() {
        Some(name) => Some(name.to_owned()),
        None => path.canonicalize().ok()?.file_name().map(OsStr::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_config::{Environment, Flags, SETTINGS};

    use super::*;

    #[test]
    fn a_setting_wins_over_a_programs_own_limit() {
        let flags: Flags = vec![("max-in-flight", "7".to_owned())];
        let plan = Plan::resolve(Target::Program { file: None }, &flags, &Environment::default()).unwrap();
        let own = Limits { max_in_flight: 1, default_timeout: Duration::from_secs(1), ..Limits::default() };
        let service = Service::new(plan, Some(App::new().limits(own))).unwrap();
        let limits = service.app.node_limits();
        assert_eq!((limits.max_in_flight, limits.default_timeout), (7, Duration::from_secs(1)));
    }

    #[test]
    fn a_path_in_a_file_is_relative_to_the_file_and_a_path_in_a_flag_is_not() {
        let text = "[http]\ntls_certificate = \"tls/chain.pem\"\n";
        let target = Target::Program { file: Some(("etc/callboard.toml".into(), text.to_owned())) };
        let flags: Flags = vec![("tls-key", "key.pem".to_owned())];
        let plan = Plan::resolve(target, &flags, &Environment::default()).unwrap();
        assert_eq!(http_config(&plan).unwrap().tls, Some(TlsConfig::new("etc/tls/chain.pem", "key.pem")));
    }

    #[test]
    fn the_defaults_equal_those_of_core_and_of_the_edge() {
        let plan = Plan::resolve(Target::Program { file: None }, &Flags::new(), &Environment::default()).unwrap();
        assert_eq!(http_config(&plan).unwrap(), HttpConfig::default());
        let (settings, core) = (plan.settings, Limits::default());
        assert_eq!(settings.max_in_flight.value, core.max_in_flight);
        assert_eq!(settings.max_in_flight_bytes.value, core.max_in_flight_bytes);
        assert_eq!(settings.default_timeout.value, core.default_timeout);
        assert_eq!(settings.max_timeout.value, core.max_timeout);
        assert_eq!(settings.queue.value, callboard_core::StageSettings::DEFAULT_QUEUE_ENTRIES);
    }

    /// Each with a value of its form that is not the default.
    #[test]
    fn every_setting_of_http_reaches_the_edge() {
        let certificate = [("tls-certificate", "c.pem"), ("tls-key", "k.pem")];
        let config = |flag: &'static str, value: &str| {
            let flags: Flags =
                certificate.into_iter().chain([(flag, value)]).map(|(flag, value)| (flag, value.to_owned())).collect();
            Plan::resolve(Target::Program { file: None }, &flags, &Environment::default())
                .map(|plan| http_config(&plan).unwrap())
        };
        let default = config("access-log", "true").unwrap();
        let others = ["http", "api-keys", "rate-limit", "tls-certificate", "tls-key"];
        for name in SETTINGS.iter().filter(|name| name.key.starts_with("http.") && !others.contains(&name.flag)) {
            let values = ["7", "7s", "7KiB", "32KiB", "false", "true", "10.0.0.1", "https://a.example", "grpc"];
            let changed = values.into_iter().filter_map(|value| config(name.flag, value).ok());
            assert!(changed.into_iter().any(|config| config != default), "{} has no effect", name.key);
        }
    }

    #[test]
    fn a_setting_overrides_the_program_which_overrides_the_name() {
        let info = |target: Target, flags: &[(&'static str, &str)], own: Option<ApiInfo>| {
            let flags = flags.iter().map(|(flag, value)| (*flag, (*value).to_owned())).collect();
            let info = api_info(&Plan::resolve(target, &flags, &Environment::default()).unwrap(), own);
            (info.title, info.version)
        };
        let texts = |title: &str, version: &str| (title.to_owned(), version.to_owned());
        let (model, program) =
            (|| Target::Model { path: "models/digits.onnx".into() }, || Target::Program { file: None });
        let own = || {
            let mut own = ApiInfo::default();
            (own.title, own.version) = texts("Mine", "7.1.0");
            Some(own)
        };
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(info(model(), &[], None), texts("digits", version));
        assert_eq!(info(model(), &[("api-title", "Digits"), ("api-version", "2")], None), texts("Digits", "2"));
        assert_eq!(info(program(), &[], own()), texts("Mine", "7.1.0"));
        assert_eq!(info(program(), &[("api-version", "8")], own()), texts("Mine", "8"));
        assert_eq!(info(program(), &[], None), texts("Callboard", version));
    }
}
