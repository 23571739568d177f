//! `callboard serve`: starts the node, serves, and shuts down in order.
//!
//! The shutdown: the first signal, or a request to drain at the admin listener or over QUIC, makes the node not ready.
//! After the delay, in which balancers notice, the listener closes and every connection finishes its running request.
//! When the last one is closed, or the drain time is over, the node stops its workers. A second signal ends the process
//! at once; after a drain request, the first signal only asks for the same. The exit code says whether all calls were
//! answered. Nothing waits for a reader of stderr.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_config::{FoundModel, Plan, Source, Target};
use callboard_core::{App, Drained, StartError};
use callboard_http::{AccessLog, ApiInfo, HttpConfig, ModelRepository, OtlpConfig};
use callboard_models::{ConfiguredRoutes, ModelDirectory, ReadAgain};
use callboard_net::{BindError, Cluster, Identity, NetConfig, NodeAddress, QuicEdge, StaticView};
use callboard_server::{Server, ServerBuilder, StartingServer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

use super::block_on;
use crate::admin::{AdminServer, AdminSocket};
use crate::client::trust;
use crate::error::CliError;
use crate::example;
use crate::identity::identity;
use crate::logging::Log;
use crate::reload::{self, WatchedFiles, watch};
use crate::service::{Service, file_of, has_auth, http_config, mcp_config};
use crate::signals::{INTERRUPT, Signals};

/// Serves until stopped.
pub(crate) fn run(
    plan: Plan,
    app: Option<App>,
    read_again: Option<ReadAgain>,
    watches: bool,
    info: ApiInfo,
    log: &Log,
) -> Result<(), CliError> {
    block_on(serve(plan, app, read_again, watches, info, log))
}

async fn serve(
    plan: Plan,
    app: Option<App>,
    read_again: Option<ReadAgain>,
    watches: bool,
    info: ApiInfo,
    log: &Log,
) -> Result<(), CliError> {
    let start_time = Instant::now();
    let mut signals = Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))?;
    #[cfg(feature = "process")]
    callboard_config::assemble::check_store(&plan)?;
    let mut config = http_config(&plan)?;
    config.auth = match &app {
        Some(app) => has_auth(app),
        None => plan.names_callers,
    };
    config.access_log = if plan.settings.access_log.value { log.access() } else { AccessLog::Off };
    // The port is bound first: a port in use should be known before a model is loaded, and probes need an answer
    // meanwhile.
    let listener = bind(&http_addresses(&plan)).await?;
    let quic = open_quic(&plan, &config).await?;
    let admin = AdminSocket::bind(&plan).await?;
    let traces = otlp_config(&plan, &info)?;
    let mut parts = Server::builder().http(config).mcp(mcp_config(&plan, &info)).info(info);
    parts = traces.into_iter().fold(parts, ServerBuilder::spans);
    if let Some(quic) = quic {
        parts = parts.quic_with_peers(quic, peers(&plan)?);
    }
    // Looked at before they are read: a change meanwhile is one.
    let files = WatchedFiles::of(&plan);
    let watched = if watches { reload::look(files.clone()).await.map(|read| (files, read)) } else { None };
    let starting = parts.open(listener).map_err(|error| CliError::because("not started", &error))?;
    let (cancel, cancelled) = oneshot::channel();
    let started = start(starting, plan, app, log, cancelled);
    tokio::pin!(started);
    let (server, plan, directory, engines) = tokio::select! {
        started = &mut started => started?,
        signal = signals.next() => {
            // It may be too late for that: the start has failed.
            let _ = cancel.send(());
            // What has started ends in good order, unless there is another signal.
            tokio::select! {
                started = started => if let Ok((server, ..)) = started {
                    let _ = server.shutdown(Duration::ZERO).await;
                },
                _ = signals.next() => {}
            }
            return Err(CliError::Failed(format!("{signal} before the start was complete")));
        }
    };
    // Dropped at the end, which ends it.
    let mut watching = JoinSet::new();
    #[cfg(feature = "process")]
    server.node().show_metrics_of(callboard_process::device_metrics);
    // The first answer of a driver may take longer than a page of metrics waits.
    #[cfg(feature = "process")]
    spawn_blocking(callboard_process::devices);
    let mut repository = directory.clone().map(|directory| directory as Arc<dyn ModelRepository>);
    if let Some(directory) = directory {
        let counted = Arc::clone(&directory);
        server.node().show_metrics_of(move || counted.metrics());
        if let Some(interval) = plan.settings.models_watch.value {
            watching.spawn(callboard_models::watch(directory, interval));
        }
    } else if let Some(read_again) = read_again {
        let routes = Arc::new(ConfiguredRoutes::new(read_again, server.node().handle(), &plan));
        repository = Some(Arc::clone(&routes) as Arc<dyn ModelRepository>);
        if let Some((files, read)) = watched {
            watching.spawn(watch(files, read, routes, log.stderr.lines()));
        }
    }
    if let Some(repository) = &repository {
        server.load_models_from(Arc::clone(repository));
    }
    let open_admin =
        |admin: AdminSocket| admin.open(server.node().handle(), server.edge(), repository, log.stderr.lines());
    let admin = admin.map(open_admin).transpose()?;
    let admin_address = admin.as_ref().map(|admin| admin.address);
    let client = server.client();
    let started = example::Started { elapsed: start_time.elapsed(), joining: server.node().health().joining };
    log.stderr.note(example::welcome(&plan, &engines, &client, server.address(), admin_address, &started));

    if let Some(quic) = server.quic() {
        log.stderr.note(format_args!("  listening on quic://{} for {}", quic.address(), quic.audience()));
        if let Some(advertised) = &plan.settings.advertise.value {
            log.stderr.note(format_args!("  other nodes reach it at {advertised}"));
        }
        let offers = &plan.settings.offers.value;
        if !offers.allow_all() {
            log.stderr.note(format_args!("  stages of other nodes: {offers}"));
        }
        let asks = &plan.settings.asks.value;
        if !asks.allow_all() {
            log.stderr.note(format_args!("  actors for other nodes: {asks}"));
        }
    }

    let (reason, mut has_signalled) = tokio::select! {
        signal = signals.next() => (signal, true),
        () = AdminServer::drain_asked(admin.as_ref()) => ("asked to drain", false),
        () = drain_ordered(server.quic()) => ("asked to drain by an operator", false),
    };
    // A server at a terminal has no balancer.
    let delay = if reason == INTERRUPT { Duration::ZERO } else { plan.settings.drain_delay.value };
    let first = if delay.is_zero() { String::new() } else { format!("not ready, serving for {delay:?}, then ") };
    // Callers over QUIC are told at once and use other nodes. Balancers of HTTP notice within the delay.
    watching.abort_all();
    server.withdraw();
    log.stderr.note(format_args!("{reason}: {first}finishing the running calls; another signal ends at once"));
    let shut_down = async {
        tokio::time::sleep(delay).await;
        server.shutdown(plan.settings.drain.value).await
    };
    tokio::pin!(shut_down);
    let drained = loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                if has_signalled {
                    return Err(CliError::Failed(format!("{signal} again: ended at once")));
                }
                // The signal of an orchestrator that has asked for the drain before.
                has_signalled = true;
                log.stderr.note(format_args!("{signal}: finishing the running calls; another signal ends at once"));
            }
            drained = &mut shut_down => break drained,
        }
    };
    let last_word = ended(drained)?;
    log.stderr.last_word(tracing::Level::INFO, last_word);
    Ok(())
}

/// Completes when an operator orders the drain over QUIC; never, if the node does not serve it.
async fn drain_ordered(quic: Option<&QuicEdge>) {
    match quic {
        Some(quic) => quic.drain_asked().await,
        None => std::future::pending().await,
    }
}

/// Binds the QUIC port with the configured identity, or the development identity of this user. With peers only, any
/// free port.
async fn open_quic(plan: &Plan, http: &HttpConfig) -> Result<Option<QuicEdge>, CliError> {
    let listen = plan.settings.quic.value;
    if listen.is_none() && plan.settings.join.value.is_empty() {
        return Ok(None);
    }
    let failed = |error: &dyn std::error::Error| CliError::because("could not serve QUIC", error);
    let identity = identity(file_of(plan, &plan.settings.cluster).as_deref())?;
    let peers = addresses_of(&plan.settings.join.value).await;
    peers.iter().try_for_each(|peer| identity.check_address(*peer)).map_err(|error| failed(&error))?;
    let address = listen.unwrap_or_else(|| any_port(&identity, &peers));
    // HTTP and QUIC have the same limits of bodies.
    let mut config = NetConfig {
        node: identity.name(),
        max_body_bytes: http.max_body_bytes,
        max_body_bytes_by_route: http.max_body_bytes_by_route.clone(),
        body_timeout: http.body_timeout,
        offers: plan.settings.offers.value.clone(),
        asks: plan.settings.asks.value.clone(),
        error_traces: plan.settings.error_traces.value,
        calls_back: plan.settings.calls_back.value,
        membership: Some(plan.settings.membership.value),
        advertise: plan.settings.advertise.value.clone(),
        ..NetConfig::default()
    };
    config.tuning.idle_timeout = plan.settings.quic_idle_timeout.value;
    config.tuning.silent_after = plan.settings.silent_after.value;
    let largest = http.max_body_bytes_by_route.values().copied().fold(http.max_body_bytes, u64::max);
    config.frames.max_body_bytes = usize::try_from(largest).unwrap_or(usize::MAX);
    config.decode.max_bytes = config.frames.max_body_bytes;
    QuicEdge::bind(address, identity, config).map(Some).map_err(|error| match error {
        BindError::Address { address, error } => CliError::not_listening(address, "quic", &error),
        error => failed(&error),
    })
}

/// The known addresses of the named nodes; a name without an address may get one later.
async fn addresses_of(peers: &[NodeAddress]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for peer in peers {
        addresses.extend(peer.resolve(LOOK_UP_TIMEOUT).await.unwrap_or_default());
    }
    addresses
}

/// A working name server answers sooner.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// An address that reaches those peers and is open no further than needed.
fn any_port(identity: &Identity, peers: &[SocketAddr]) -> SocketAddr {
    let are_all_local = !peers.is_empty() && peers.iter().all(|peer| peer.ip().is_loopback());
    let is_local = are_all_local || identity.is_for_loopback_only();
    if is_local { ANY_LOOPBACK_PORT } else { SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0) }
}

const ANY_LOOPBACK_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The addresses of HTTP, of which the first free one is taken. A node that joins others leaves the default port to
/// them. Gateways of evaluations come from other machines, and look for their participant on several ports.
fn http_addresses(plan: &Plan) -> Vec<SocketAddr> {
    let http = &plan.settings.http;
    let joins = !plan.settings.join.value.is_empty();
    if http.source != Source::Default {
        vec![http.value]
    } else if plan.settings.relay.value {
        let every = RELAY_INTERFACES.iter().flat_map(|ip| RELAY_PORTS.map(|port| SocketAddr::new(*ip, port)));
        every.collect()
    } else {
        vec![if joins { ANY_LOOPBACK_PORT } else { http.value }]
    }
}

/// Both families, or IPv4 alone where there is no IPv6.
const RELAY_INTERFACES: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];

/// The ports on which gateways look for their participant, in their order.
const RELAY_PORTS: [u16; 11] = [50051, 60053, 60063, 60073, 60083, 60093, 60103, 60113, 60123, 60133, 60143];

/// Connects the named nodes, so that stages may run on them, and divides calls as the plan says.
fn peers(plan: &Plan) -> Result<impl FnOnce(&QuicEdge) -> Cluster + Send + 'static, CliError> {
    let view = StaticView::resolve(plan.settings.join.value.iter().cloned());
    let view = view.map_err(|error| CliError::because("could not join", &error))?;
    let divided = plan.stages.iter().filter(|stage| !stage.split.value.is_empty());
    let splits: Vec<_> = divided.map(|stage| (stage.name.value.clone(), stage.split.value.clone())).collect();
    Ok(move |quic: &QuicEdge| {
        let cluster = Cluster::start(quic, quic.view(view));
        for (stage, weights) in splits {
            cluster.split(&stage, weights);
        }
        cluster
    })
}

/// The collector of spans, if there is one.
fn otlp_config(plan: &Plan, info: &ApiInfo) -> Result<Option<OtlpConfig>, CliError> {
    let Some(endpoint) = plan.settings.otlp_endpoint.value.clone() else { return Ok(None) };
    let trusted = match file_of(plan, &plan.settings.otlp_ca_file) {
        Some(path) => trust::authorities(&path).map(Some).map_err(CliError::Failed)?,
        None if endpoint.is_secure() => {
            let failed = |problem| CliError::Failed(format!("{endpoint}: {problem}; --otlp-ca-file PEM names some"));
            Some(trust::system_authorities().map_err(failed)?)
        }
        None => None,
    };
    let mut config = OtlpConfig::new(endpoint);
    config.trust = trusted;
    config.ratio = plan.settings.trace_ratio.value;
    config.service.clone_from(&info.title);
    let config = config.with_env(|name| std::env::var(name).ok());
    config.map(Some).map_err(|error| CliError::Failed(error.to_string()))
}

/// A server with its plan, the models of a directory, and the lines that say what runs each model of a file.
type Started = (Server, Plan, Option<Arc<ModelDirectory>>, Vec<String>);

/// Loads the models of the plan and starts the app, unless that is cancelled.
async fn start(
    starting: StartingServer,
    plan: Plan,
    app: Option<App>,
    log: &Log,
    mut cancelled: oneshot::Receiver<()>,
) -> Result<Started, CliError> {
    if let Target::Models { path, models, .. } = plan.target.clone() {
        return tokio::select! {
            started = start_models(starting, plan, &path, models, log) => started,
            _ = &mut cancelled => Err(cancelled_start()),
        };
    }
    let loaded = tokio::select! {
        loaded = spawn_blocking(move || Service::new(plan, app)) => loaded,
        _ = &mut cancelled => return Err(cancelled_start()),
    };
    let Service { app, plan, engines } = loaded.map_err(|panic| CliError::because("could not load", &panic))??;
    let server = starting.start_unless(app, async { _ = cancelled.await }).await;
    let server = server.map_err(|error| CliError::because("not started", &error))?;
    Ok((server, plan, None, engines))
}

/// Of a start before anything runs that has to be ended in good order.
fn cancelled_start() -> CliError {
    CliError::because("not started", &StartError::Cancelled)
}

/// Starts a node without routes and gives it the models before callers can reach it: a broken one costs no other.
async fn start_models(
    starting: StartingServer,
    plan: Plan,
    path: &Path,
    models: Vec<FoundModel>,
    log: &Log,
) -> Result<Started, CliError> {
    let Service { app, plan, engines } = Service::new(plan, Some(App::new()))?;
    let node = Service::start(app).await?;
    let lines = log.stderr.lines();
    let directory = Arc::new(ModelDirectory::new(path, &plan, node.handle(), move |note| lines.note(note)));
    let opened = directory.open(models).await;
    opened.map_err(|reason| CliError::Failed(format!("{}: {reason}", path.display())))?;
    let server = starting.open_node(node).map_err(|error| CliError::because("not started", &error))?;
    Ok((server, plan, Some(directory), engines))
}

/// Listens on the first address that is free.
async fn bind(addresses: &[SocketAddr]) -> Result<TcpListener, CliError> {
    let mut refused = None;
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) => _ = refused.get_or_insert_with(|| CliError::not_listening(*address, "http", &error)),
        }
    }
    Err(refused.unwrap_or_else(|| CliError::Failed("no address to listen on".to_owned())))
}

fn ended(drained: Drained) -> Result<&'static str, CliError> {
    match drained {
        Drained::Completely => Ok("stopped"),
        Drained::TimedOut { in_flight } => {
            let calls = if in_flight == 1 { "call" } else { "calls" };
            Err(CliError::Failed(format!("the drain time was over with {in_flight} {calls} unfinished")))
        }
    }
}
