//! The start-up lines of a server: its addresses, and a working command for each route.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use callboard_config::{AdminAddress, Plan};
use callboard_core::LocalClient;
use callboard_http::AUTH_ROUTE;

use crate::admin::DEFAULT_ADDRESS;
use crate::service::{NAMES_CALLERS, example_file, title};

/// How long a start took, and what it still lacks.
pub(crate) struct Started {
    pub(crate) elapsed: Duration,
    /// What a node with keyed actors waits for: `/readyz` says no until then.
    pub(crate) joining: Option<String>,
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.elapsed.as_millis();
        match &self.joining {
            None => write!(f, "ready in {millis} ms"),
            Some(reason) => write!(f, "started in {millis} ms, not ready until it has joined the cluster: {reason}"),
        }
    }
}

/// The start-up lines.
pub(crate) fn welcome(
    plan: &Plan,
    engines: &[String],
    client: &LocalClient,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    started: &Started,
) -> String {
    let base = base_of(plan, address);
    let needs_key = plan.settings.api_keys.value.is_some();
    let mut text = format!(
        "callboard {} serves {}, {started}\n  listening on {base}\n  documentation {base}/docs",
        env!("CARGO_PKG_VERSION"),
        title(&plan.target),
    );
    if let Some(admin) = admin {
        let base = if admin.ip().is_loopback() { base_url("http", admin) } else { base_of(plan, admin) };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  admin on {base}");
    } else if plan.settings.admin.value == AdminAddress::Auto {
        let _ =
            write!(text, "\n  no admin listener: {DEFAULT_ADDRESS} is in use; --admin ADDR:PORT chooses another one");
    }
    for engine in engines {
        let _ = write!(text, "\n  {engine}");
    }
    if client.route(AUTH_ROUTE).is_some() {
        let _ = write!(text, "\n  {NAMES_CALLERS}");
    }
    for route in client.routes() {
        let planned = plan.routes.iter().find(|planned| planned.path.value == route.name());
        let stages = match planned {
            Some(planned) => plan.steps_of(planned).to_string(),
            None => route.stages().iter().map(ToString::to_string).collect::<Vec<_>>().join(" → "),
        };
        // Writing to a string cannot fail.
        let methods = route.methods().collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\n  {methods} {}  {stages}", route.path());
        let file = example_file(plan, route.name());
        if let Some(command) = callboard_http::curl(&route, &base, file.as_deref(), needs_key) {
            let _ = write!(text, "\n    {command}");
        }
    }
    for path in plan.routes.iter().filter_map(|planned| callboard_http::asgi_path(&planned.path.value)) {
        let _ = write!(text, "\n  an ASGI app answers {path} and all below it: {base}{path}/");
    }
    if plan.stages.iter().enumerate().any(|(index, stage)| stage.kind.is_remote() && plan.uses(index)) {
        text.push_str("\n  ↗ marks a remote stage; /readyz says whether a node that runs it is connected");
    }
    for stage in plan.unused_stages() {
        let _ = write!(text, "\n  stage {} is used by no route and was not started", stage.name.value);
    }
    text
}

/// The base URL of the server at this address.
pub(crate) fn base_of(plan: &Plan, address: SocketAddr) -> String {
    let scheme = if plan.settings.tls_certificate.value.is_some() { "https" } else { "http" };
    base_url(scheme, address)
}

/// The URL of a listener on all interfaces has the loopback address.
fn base_url(scheme: &str, address: SocketAddr) -> String {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_interfaces_is_reached_on_loopback() {
        assert_eq!(base_url("http", SocketAddr::from(([0, 0, 0, 0], 80))), "http://127.0.0.1:80");
        assert_eq!(base_url("http", "[::]:80".parse().unwrap()), "http://[::1]:80");
        assert_eq!(base_url("http", SocketAddr::from(([10, 0, 0, 1], 80))), "http://10.0.0.1:80");
    }
}
