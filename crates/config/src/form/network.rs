//! Forms of network values: addresses, host names, origins of pages, the URL of a collector.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use callboard_http::{Cors, Hosts, TrustedProxies};
use callboard_http_client::Origin;
use callboard_mcp::Authorization;
use callboard_net::{MAX_PEERS, MemberRules, NodeAddress};
use toml::de::DeValue;

use super::{AUTO, Form, NONE, Raw};

fn or_none(shown: &str) -> String {
    if shown.is_empty() { NONE } else { shown }.to_owned()
}

/// An address to listen on. `localhost` is 127.0.0.1; other names are not looked up, because the address of the
/// listener would depend on a name server.
#[derive(Clone, Debug)]
pub(crate) struct Listen;

impl Form for Listen {
    type Value = SocketAddr;

    fn read(&self, raw: Raw<'_>) -> Option<SocketAddr> {
        let text = raw.text()?;
        if let Some(port) = text.strip_prefix("localhost:") {
            return Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().ok()?)));
        }
        text.parse().ok()
    }

    fn expected(&self) -> String {
        "an IP address and port, such as \"127.0.0.1:8000\" (port 0: any free one)".to_owned()
    }

    fn show(&self, value: &SocketAddr) -> String {
        value.to_string()
    }
}

/// An address to listen on, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct OptionalListen;

impl Form for OptionalListen {
    type Value = Option<SocketAddr>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<SocketAddr>> {
        match raw.text()? {
            NONE | OFF => Some(None),
            _ => Listen.read(raw).map(Some),
        }
    }

    fn expected(&self) -> String {
        format!("{}, or \"{NONE}\"", Listen.expected())
    }

    fn show(&self, value: &Option<SocketAddr>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), |address| Listen.show(address))
    }
}

/// The address of the admin listener: an address, `none`, or `auto`.
#[derive(Clone, Debug)]
pub(crate) struct AdminListen;

/// The address of an optional listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// On loopback, at the usual port if that is free.
    Auto,
    /// No address.
    Off,
    /// This address.
    At(SocketAddr),
}

/// A synonym of [`NONE`]: accepted, and shown as `none`.
const OFF: &str = "off";

impl Form for AdminListen {
    type Value = AdminAddress;

    fn read(&self, raw: Raw<'_>) -> Option<AdminAddress> {
        match raw.text()? {
            AUTO => Some(AdminAddress::Auto),
            NONE | OFF => Some(AdminAddress::Off),
            _ => Listen.read(raw).map(AdminAddress::At),
        }
    }

    fn expected(&self) -> String {
        format!("\"{AUTO}\", \"{NONE}\", or {}", Listen.expected())
    }

    fn show(&self, value: &AdminAddress) -> String {
        match value {
            AdminAddress::Auto => AUTO.to_owned(),
            AdminAddress::Off => NONE.to_owned(),
            AdminAddress::At(address) => Listen.show(address),
        }
    }
}

/// Other nodes, by address or by name, with commas between them, or `none`; in the file a list as well.
#[derive(Clone, Debug)]
pub(crate) struct Peers;

impl Form for Peers {
    type Value = Vec<NodeAddress>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<NodeAddress>> {
        let peers = raw.texts()?.into_iter().map(|peer| peer.parse().ok()).collect::<Option<Vec<_>>>()?;
        (peers.len() <= MAX_PEERS).then_some(peers)
    }

    fn expected(&self) -> String {
        format!(
            "nodes as HOST:PORT, such as \"127.0.0.1:4433\" or \"node.example:4433\", at most {MAX_PEERS} with commas between \
             them, or \"{NONE}\""
        )
    }

    fn show(&self, value: &Vec<NodeAddress>) -> String {
        or_none(&value.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}

/// The address of this node for others: an address that a packet can be sent to, or a name.
#[derive(Clone, Debug)]
pub(crate) struct Advertised;

impl Form for Advertised {
    type Value = NodeAddress;

    fn read(&self, raw: Raw<'_>) -> Option<NodeAddress> {
        let address: NodeAddress = raw.text()?.parse().ok()?;
        let is_usable = address.address().is_none_or(|address| NodeAddress::is_of_one_node(address.ip()));
        is_usable.then_some(address)
    }

    fn expected(&self) -> String {
        "the address of this node for others as HOST:PORT, such as \"node-1.example:4433\" or \"192.0.2.7:4433\"; not an \
         address on which it only listens, such as 0.0.0.0, and not port 0"
            .to_owned()
    }

    fn show(&self, value: &NodeAddress) -> String {
        value.to_string()
    }
}

/// What each member may do by name, such as `stages`: `any`, or members with their names, separated by commas; in the
/// file also a list.
#[derive(Clone, Debug)]
pub(crate) struct OfMembers(pub(crate) &'static str);

impl Form for OfMembers {
    type Value = MemberRules;

    fn read(&self, raw: Raw<'_>) -> Option<MemberRules> {
        match raw {
            Raw::Toml(DeValue::Array(rules)) => {
                let rules: Option<Vec<&str>> = rules.iter().map(|rule| rule.get_ref().as_str()).collect();
                // A rule of the list is one rule.
                let rules = rules.filter(|rules| rules.iter().all(|rule| rule.contains('=') && !rule.contains(',')));
                rules?.join(",").parse().ok()
            }
            _ => raw.text()?.parse().ok(),
        }
    }

    fn expected(&self) -> String {
        format!(
            "\"any\", or members with their {}, such as \"gpu-1=digits+decode,*=labels\" (\"*\" for any of them)",
            self.0
        )
    }

    fn show(&self, value: &MemberRules) -> String {
        value.to_string()
    }
}

/// The URL of the collector of spans.
#[derive(Clone, Debug)]
pub(crate) struct Collector;

impl Form for Collector {
    type Value = Origin;

    fn read(&self, raw: Raw<'_>) -> Option<Origin> {
        let url = raw.text()?;
        // A URL without a scheme would parse as well, but is probably a mistake.
        let has_scheme = url.starts_with("http://") || url.starts_with("https://");
        has_scheme.then(|| url.parse().ok()).flatten()
    }

    fn expected(&self) -> String {
        "a URL such as \"http://127.0.0.1:4318\"".to_owned()
    }

    fn show(&self, value: &Origin) -> String {
        value.to_string()
    }
}

/// A URL whose answers nobody between can change: `https`, or `http` on this machine.
#[derive(Clone, Debug)]
pub(crate) struct SecureUrl;

impl Form for SecureUrl {
    type Value = String;

    fn read(&self, raw: Raw<'_>) -> Option<String> {
        raw.text().filter(|url| is_secure(url)).map(str::to_owned)
    }

    fn expected(&self) -> String {
        "a URL such as \"https://tools.example.org/mcp\"".to_owned()
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// Several of them: a list in the file, else separated by commas, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct SecureUrls;

impl Form for SecureUrls {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        let urls = raw.texts()?.into_iter();
        urls.map(|url| is_secure(url).then(|| url.to_owned())).collect()
    }

    fn expected(&self) -> String {
        format!("URLs such as \"https://login.example.org\", or \"{NONE}\"")
    }

    fn show(&self, value: &Vec<String>) -> String {
        or_none(&value.join(","))
    }
}

fn is_secure(url: &str) -> bool {
    Authorization::try_new(url, [url]).is_ok()
}

/// Origins of web pages: a list in the file, else separated by commas; `*` for all, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct Pages;

impl Form for Pages {
    type Value = Option<Cors>;

    fn read(&self, raw: Raw<'_>) -> Option<Option<Cors>> {
        match raw.text() {
            Some(NONE) => Some(None),
            _ => Cors::parse(raw.texts()?).ok().map(Some),
        }
    }

    fn expected(&self) -> String {
        format!("origins such as \"https://app.example.org\", \"*\" for all, or \"{NONE}\"")
    }

    fn show(&self, value: &Option<Cors>) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), ToString::to_string)
    }
}

/// Hosts to fetch files from: a list in the file, else separated by commas, or `none`. Each is a host with `https://`
/// or `http://` (without a scheme `https`) and maybe a port; `*.` before a name means all names below it.
#[derive(Clone, Debug)]
pub(crate) struct FileHosts;

impl Form for FileHosts {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        raw.texts()?.into_iter().map(file_host).collect()
    }

    fn expected(&self) -> String {
        format!(
            "hosts such as \"https://cdn.example.org\", \"*.example.org\" or \"http://10.0.0.7:8080\", or \"{NONE}\""
        )
    }

    fn show(&self, value: &Vec<String>) -> String {
        or_none(&value.join(","))
    }
}

/// The host with its scheme, in lower case.
fn file_host(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (scheme, authority) = text.split_once("://").unwrap_or(("https", &text));
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let name = authority.strip_prefix("*.").unwrap_or(authority);
    let (host, port) = name.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).unwrap_or((name, "1"));
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let is_host = inner.map_or(is_name, |address| address.parse::<Ipv6Addr>().is_ok());
    let is_port = port.parse::<NonZeroU16>().is_ok();
    (matches!(scheme, "http" | "https") && is_host && is_port).then(|| format!("{scheme}://{authority}"))
}

/// Host names: a list in the file, else separated by commas; `*` for all, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct HostNames;

impl Form for HostNames {
    type Value = Hosts;

    fn read(&self, raw: Raw<'_>) -> Option<Hosts> {
        Hosts::parse(raw.texts()?).ok()
    }

    fn expected(&self) -> String {
        format!("names such as \"models.example.org\", \"*\" for all, or \"{NONE}\"")
    }

    fn show(&self, value: &Hosts) -> String {
        or_none(&value.to_string())
    }
}

/// Names of headers: a list of different ones, in lower case.
#[derive(Clone, Debug)]
pub(crate) struct HeaderNames;

/// What a call may have of each.
const MAX_NAMES: usize = callboard_core::CallOptions::MAX_ATTRIBUTES;

fn different(names: Vec<String>) -> Option<Vec<String>> {
    let is_new = |(index, name): (usize, &String)| !names[..index].contains(name);
    (names.len() <= MAX_NAMES && names.iter().enumerate().all(is_new)).then_some(names)
}

impl Form for HeaderNames {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        let Raw::Toml(value) = raw else { return None };
        let names = value.as_array()?.iter().map(|name| header_name(name.get_ref().as_str()?));
        different(names.collect::<Option<_>>()?)
    }

    fn expected(&self) -> String {
        format!("a list of at most {MAX_NAMES} different names of headers, such as [\"x-user\"]")
    }

    fn show(&self, value: &Vec<String>) -> String {
        or_none(&value.join(","))
    }
}

/// Names of query parameters: a list of different ones.
#[derive(Clone, Debug)]
pub(crate) struct QueryNames;

impl Form for QueryNames {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        let Raw::Toml(value) = raw else { return None };
        let is_name = |name: &&str| (1..=128).contains(&name.len()) && !name.contains(char::is_control);
        let names = value.as_array()?.iter().map(|name| name.get_ref().as_str().filter(is_name).map(str::to_owned));
        different(names.collect::<Option<_>>()?)
    }

    fn expected(&self) -> String {
        format!("a list of at most {MAX_NAMES} different names of query parameters, such as [\"lang\"]")
    }

    fn show(&self, value: &Vec<String>) -> String {
        HeaderNames.show(value)
    }
}

/// Methods of HTTP: a list in the file.
#[derive(Clone, Debug)]
pub(crate) struct Methods;

/// The methods that call a route. A route that takes `GET` takes `HEAD` as well.
pub(crate) const CALL_METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

impl Form for Methods {
    type Value = Vec<String>;

    fn read(&self, raw: Raw<'_>) -> Option<Vec<String>> {
        let Raw::Toml(value) = raw else { return None };
        let names = value
            .as_array()?
            .iter()
            .map(|name| name.get_ref().as_str().filter(|name| CALL_METHODS.contains(name)).map(str::to_owned));
        different(names.collect::<Option<_>>()?)
    }

    fn expected(&self) -> String {
        format!("a list of different methods of {}", CALL_METHODS.join(", "))
    }

    fn show(&self, value: &Vec<String>) -> String {
        if value.is_empty() { "POST".to_owned() } else { HeaderNames.show(value) }
    }
}

/// The name in lower case (RFC 9110 §5.6.2).
fn header_name(text: &str) -> Option<String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (!text.is_empty() && text.len() <= 128 && text.bytes().all(is_token)).then(|| text.to_ascii_lowercase())
}

/// Trusted proxies: a list in the file, else separated by commas, or `none`.
#[derive(Clone, Debug)]
pub(crate) struct Proxies;

impl Form for Proxies {
    type Value = TrustedProxies;

    fn read(&self, raw: Raw<'_>) -> Option<TrustedProxies> {
        TrustedProxies::parse(raw.texts()?)
    }

    fn expected(&self) -> String {
        format!("networks such as \"10.0.0.0/8\", \"2001:db8::7\" or \"loopback\", or \"{NONE}\"")
    }

    fn show(&self, value: &TrustedProxies) -> String {
        or_none(&value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_files_have_a_scheme_and_maybe_a_port() {
        for (text, host) in [
            ("cdn.example.org", "https://cdn.example.org"),
            ("HTTP://Example.org:8080/", "http://example.org:8080"),
            ("*.example.org", "https://*.example.org"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("http://[::1]", "http://[::1]"),
        ] {
            assert_eq!(file_host(text).as_deref(), Some(host), "{text}");
        }
        let wrong = ["", "*", "a b", "ftp://a", "a:0", "a:65536", "user@a", "a/b", "a*b", "http://[x]", "[::1", "a:"];
        for text in wrong {
            assert_eq!(file_host(text), None, "{text}");
        }
    }
}
