//! Addresses of nodes: `host:port`; a client writes `quic://host:port`, or several hosts: `quic://a:4433,b:4433`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

/// A longer list is a mistake of the program that generated it.
const MAX_HOSTS: usize = 64;

/// The longest name (RFC 1035, 2.3.4), and the longest label of it.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// The address of a node, `10.0.0.1:4433` or `[::1]:4433`, or a name with a port, which may have several addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeAddress(String);

/// The text is not the address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidNodeAddress(&'static str);

impl NodeAddress {
    /// The address, unless this is a name.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.parse().ok()
    }

    /// Whether packets to this address reach one node: it is neither every address of a machine nor that of a group.
    #[must_use]
    pub fn is_of_one_node(ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
    }

    /// Its addresses, from the system's resolver.
    ///
    /// # Errors
    ///
    /// When it has none, or the resolver does not answer within `limit`.
    pub async fn resolve(&self, limit: Duration) -> io::Result<Vec<SocketAddr>> {
        let found = tokio::time::timeout(limit, tokio::net::lookup_host(self.0.as_str())).await??;
        let found: Vec<SocketAddr> = found.collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }
}

impl FromStr for NodeAddress {
    type Err = InvalidNodeAddress;

    fn from_str(text: &str) -> Result<Self, InvalidNodeAddress> {
        let (host, port) = text.rsplit_once(':').ok_or(InvalidNodeAddress("expected a port after each host"))?;
        if !matches!(port.parse::<u16>(), Ok(1..)) || port.starts_with('+') {
            return Err(InvalidNodeAddress("expected hosts as HOST:PORT, with ports from 1 to 65535"));
        }
        if !is_name(host) && text.parse::<SocketAddr>().is_err() {
            return Err(InvalidNodeAddress("expected a name, an IPv4 address or [an IPv6 address] before each port"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Whether the system's resolver may know the name. Names of containers have underscores.
fn is_name(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let is_label = |label: &str| !label.is_empty() && label.len() <= MAX_LABEL_BYTES && label.chars().all(is_letter);
    text.len() <= MAX_NAME_BYTES && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why an address cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is not a URL of nodes.
    #[error("`{url}` is not an address: {reason}")]
    InvalidUrl {
        /// The text.
        url: String,
        /// The expected form.
        reason: &'static str,
    },
    /// No name has an address. Clients do not wait for one: names do not appear within seconds.
    #[error("`{host}` has no address")]
    Unresolved {
        /// The last of the names.
        host: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// The list of addresses is empty.
    #[error("no address was given")]
    NoAddress,
}

/// One or more nodes, any of which may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicUrl {
    hosts: Vec<NodeAddress>,
}

impl QuicUrl {
    /// The addresses of all hosts, in their order.
    ///
    /// # Errors
    ///
    /// When no host has an address. A host that the resolver does not find within `limit` has none.
    pub async fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>, AddressError> {
        let mut addresses = Vec::new();
        let mut last = None;
        for host in &self.hosts {
            match host.resolve(limit).await {
                Ok(found) => addresses.extend(found),
                Err(error) => last = Some((host.to_string(), error)),
            }
        }
        match (addresses.is_empty(), last) {
            (true, Some((host, source))) => Err(AddressError::Unresolved { host, source }),
            (true, None) => Err(AddressError::NoAddress),
            (false, _) => Ok(addresses),
        }
    }
}

impl FromStr for QuicUrl {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |reason: &'static str| AddressError::InvalidUrl { url: text.to_owned(), reason };
        let rest = text.strip_prefix("quic://").ok_or_else(|| wrong("expected quic://HOST:PORT"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('/') {
            return Err(wrong("expected quic://HOST:PORT and nothing after it; the route is a separate argument"));
        }
        if rest.split(',').count() > MAX_HOSTS {
            return Err(wrong("expected at most 64 hosts"));
        }
        let hosts = rest.split(',').map(|host| host.trim().parse().map_err(|InvalidNodeAddress(reason)| wrong(reason)));
        Ok(Self { hosts: hosts.collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for QuicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<&str> = self.hosts.iter().map(|host| host.0.as_str()).collect();
        write!(f, "quic://{}", hosts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_one_node_or_several() {
        for good in ["quic://127.0.0.1:4433", "quic://[::1]:1,other.example:65535"] {
            assert_eq!(good.parse::<QuicUrl>().unwrap().to_string(), good);
        }
        assert_eq!("quic://a:1/".parse::<QuicUrl>().unwrap().to_string(), "quic://a:1");
    }

    #[test]
    fn an_invalid_url_reports_the_expected_form() {
        for wrong in
            ["http://a:1", "quic://", "quic://a", "quic://a:0", "quic://a:70000", "quic://a:1,", "quic://a/b:1"]
        {
            let error = wrong.parse::<QuicUrl>().unwrap_err().to_string();
            assert!(error.contains("expected"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_node_has_an_address_or_a_name() {
        for (text, is_address) in
            [("127.0.0.1:4433", true), ("[::1]:4433", true), ("node.example:1", false), ("a_b-c.svc.:65535", false)]
        {
            let address: NodeAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.address().is_some()), (text, is_address));
        }
        let long = format!("{}:1", "a".repeat(64));
        for wrong in ["", ":1", "a", "a:", "a:0", "a:+1", "a b:1", "a..b:1", "-\n:1", "::1:1", "[::1:1", "a/b:1", &long]
        {
            assert!(wrong.parse::<NodeAddress>().is_err(), "{wrong}");
        }
    }
}
