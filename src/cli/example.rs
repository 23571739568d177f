//! What a starting server says: where to go, and for each route a command that works when it is pasted.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::{Client, Route};

use super::service::{example_file, title};
use crate::config::Plan;

/// Longer examples are not pasted by anybody.
const MAX_COMMAND_BYTES: usize = 400;

/// The first lines of a server.
pub(crate) fn welcome(plan: &Plan, client: &Client, address: SocketAddr, took: Duration) -> String {
    let base = base_url(address);
    let mut text = format!(
        "callboard {} serves {}, ready in {} ms\n  listening on {base}\n  documentation {base}/docs",
        env!("CARGO_PKG_VERSION"),
        title(&plan.target),
        took.as_millis(),
    );
    for route in client.routes() {
        let stages = route.stages().iter().map(ToString::to_string).collect::<Vec<_>>().join(" → ");
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  POST {}  {stages}", route.name());
        if let Some(command) = command(plan, &route, &base) {
            let _ = write!(text, "\n    {command}");
        }
    }
    for stage in plan.unused_stages() {
        let _ = write!(text, "\n  stage {} is used by no route and was not started", stage.name.value);
    }
    text
}

/// A listener on all interfaces is reached on loopback.
fn base_url(address: SocketAddr) -> String {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(host, address.port()))
}

/// A call of this route by curl, if it has an example.
fn command(plan: &Plan, route: &Route, base: &str) -> Option<String> {
    let url = format!("{base}{}", route.name());
    match (example_file(plan, route.name()), route.input().raw_body()) {
        (Some(file), Some(raw)) => Some(format!("curl -F {}=@{} {url}", raw.field, quoted_path(&file))),
        (Some(file), None) => Some(format!("curl --json @{} {url}", quoted_path(&file))),
        (None, _) => {
            let json = json(route.examples().first()?)?;
            Some(format!("curl --json {} {url}", quoted(&json)))
        }
    }
}

fn json(example: &Value) -> Option<String> {
    let json = example.encode(Format::Json).ok()?;
    let json = std::str::from_utf8(&json).ok()?;
    (json.len() <= MAX_COMMAND_BYTES).then(|| json.to_owned())
}

fn quoted_path(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if path.chars().all(plain) { path } else { quoted(&path) }
}

/// For a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_interfaces_is_reached_on_loopback() {
        assert_eq!(base_url(SocketAddr::from(([0, 0, 0, 0], 80))), "http://127.0.0.1:80");
        assert_eq!(base_url("[::]:80".parse().unwrap()), "http://[::1]:80");
        assert_eq!(base_url(SocketAddr::from(([10, 0, 0, 1], 80))), "http://10.0.0.1:80");
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        assert_eq!(quoted(r#"{"text":"it's"}"#), r#"'{"text":"it'\''s"}'"#);
        assert_eq!(quoted_path(Path::new("a dir/seven.png")), "'a dir/seven.png'");
        assert_eq!(quoted_path(Path::new("digits/seven.png")), "digits/seven.png");
    }
}
