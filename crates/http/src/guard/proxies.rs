//! The proxies that are believed when they name the client of a request.
//!
//! Each proxy adds the address of its own peer at the end of `x-forwarded-for` (or of `forwarded`, RFC 7239), and keeps
//! what a client sent before it. So only addresses that a trusted proxy added are true: the client is the last address
//! that is not a trusted proxy itself. By default no proxy is trusted, and the header is not read.
//!
//! The walk is from the end, and ends at the first address that is not trusted: what the client wrote before it costs
//! nothing, and can hide nothing. `forwarded` is read only without `x-forwarded-for`: a proxy sets one of the two and
//! passes on the other as its client sent it, and most proxies set `x-forwarded-for`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use axum::http::HeaderMap;
use axum::http::header::{FORWARDED, GetAll, HeaderValue};

/// Networks of trusted proxies: addresses, networks such as `10.0.0.0/8`, or `loopback`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<Network>,
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

const LOOPBACK: &str = "loopback";
const LOOPBACK_NETWORKS: [&str; 2] = ["127.0.0.0/8", "::1"];

const X_FORWARDED_FOR: &str = "x-forwarded-for";

impl TrustedProxies {
    /// Reads addresses and networks; `None` if one is neither.
    #[must_use]
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut read = Vec::new();
        for text in networks {
            match text {
                LOOPBACK => read.extend(LOOPBACK_NETWORKS.iter().filter_map(|network| Network::parse(network))),
                text => read.push(Network::parse(text)?),
            }
        }
        Some(Self { networks: read })
    }

    /// Whether none is trusted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Whether this address is a trusted proxy.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(address))
    }

    /// The client of a request that came from this peer.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.contains(peer) {
            return peer;
        }
        if headers.contains_key(X_FORWARDED_FOR) {
            self.last_untrusted(peer, last_hops(headers.get_all(X_FORWARDED_FOR)))
        } else {
            self.last_untrusted(peer, last_hops(headers.get_all(FORWARDED)).map(|hop| for_of(hop?)))
        }
    }

    /// The last address that is no trusted proxy; the hops are from the last to the first. What stands before a hop
    /// without an address was not added by a proxy that can be believed.
    fn last_untrusted<'a>(&self, peer: IpAddr, hops: impl Iterator<Item = Option<&'a str>>) -> IpAddr {
        let mut client = peer;
        for hop in hops {
            let Some(address) = hop.and_then(address_of) else { break };
            client = address;
            if !self.contains(address) {
                break;
            }
        }
        client
    }
}

/// The list, as it is written in the configuration.
impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, network) in self.networks.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}/{}", network.address, network.bits)?;
        }
        Ok(())
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most))?;
        Some(Self { address, bits })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
            (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= u32::from(self.bits)
    }
}

/// The elements of a header from the last to the first; `None` stands for an element that is no text.
fn last_hops<'a>(lines: GetAll<'a, HeaderValue>) -> impl Iterator<Item = Option<&'a str>> {
    let hops = lines.into_iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    hops.map(|hop| str::from_utf8(hop).ok().map(str::trim))
}

/// The value of `for` of one element of `forwarded`.
fn for_of(element: &str) -> Option<&str> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.eq_ignore_ascii_case("for"))?;
    Some(value.trim_matches('"'))
}

/// An address, also with a port: `192.0.2.1:443`, `[2001:db8::1]:443`.
fn address_of(text: &str) -> Option<IpAddr> {
    let address = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0.parse::<Ipv6Addr>().ok()?.into(),
        None => text.parse().ok().or_else(|| text.rsplit_once(':')?.0.parse().ok())?,
    };
    Some(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn client(trusted: &[&str], peer: &str, lines: &[(&str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let proxies = TrustedProxies::parse(trusted.iter().copied()).unwrap();
        proxies.client(peer.parse().unwrap(), &headers).to_string()
    }

    const XFF: &str = X_FORWARDED_FOR;

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
        let trusted = ["loopback", "10.0.0.0/8", "2001:db8::/32"];
        for (peer, lines, expected) in [
            ("127.0.0.1", vec![(XFF, "203.0.113.7")], "203.0.113.7"),
            ("::ffff:127.0.0.1", vec![(XFF, "203.0.113.7:5123")], "203.0.113.7"),
            ("10.1.2.3", vec![(XFF, "203.0.113.7, 10.9.9.9"), (XFF, "127.0.0.1")], "203.0.113.7"),
            ("10.1.2.3", vec![(XFF, "10.0.0.1, 10.0.0.2")], "10.0.0.1"),
            ("2001:db8::1", vec![("forwarded", "For=\"[2a00::7]:443\";proto=https, for=10.0.0.1")], "2a00::7"),
            ("127.0.0.1", vec![], "127.0.0.1"),
        ] {
            assert_eq!(client(&trusted, peer, &lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn what_a_client_writes_itself_is_not_believed() {
        let trusted = ["10.0.0.0/8"];
        for (peer, lines, expected) in [
            ("203.0.113.7", vec![(XFF, "198.51.100.9")], "203.0.113.7"),
            ("10.0.0.1", vec![(XFF, "198.51.100.9, 203.0.113.7")], "203.0.113.7"),
            ("10.0.0.1", vec![(XFF, "198.51.100.9, unknown, 10.0.0.2")], "10.0.0.2"),
            ("10.0.0.1", vec![(XFF, "unknown")], "10.0.0.1"),
            ("10.0.0.1", vec![("forwarded", "for=198.51.100.9, proto=https")], "10.0.0.1"),
        ] {
            assert_eq!(client(&trusted, peer, &lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn a_client_cannot_hide_the_address_that_its_proxy_added() {
        let many = format!("{}203.0.113.7", "198.51.100.9, ".repeat(1_000));
        for lines in [
            vec![("forwarded", "for=198.51.100.9"), (XFF, "203.0.113.7")],
            vec![(XFF, many.as_str())],
            vec![(XFF, "\u{e9}, 203.0.113.7")],
            vec![(XFF, "\u{e9}"), (XFF, "203.0.113.7")],
            vec![("forwarded", "for=\"\u{e9}, for=203.0.113.7")],
        ] {
            assert_eq!(client(&["10.0.0.0/8"], "10.0.0.1", &lines), "203.0.113.7", "{lines:?}");
        }
    }

    #[test]
    fn networks_are_addresses_with_bits() {
        for wrong in ["", "10.0.0.0/33", "::/129", "10.0.0", "proxy.example.org", "10.0.0.0/-1", "10.0.0.0/8/8"] {
            assert_eq!(TrustedProxies::parse([wrong]), None, "{wrong}");
        }
        let all = TrustedProxies::parse(["0.0.0.0/0"]).unwrap();
        assert!(all.contains([1, 2, 3, 4].into()) && !all.contains("::1".parse().unwrap()));
        assert_eq!(TrustedProxies::parse(["loopback"]).unwrap().to_string(), "127.0.0.0/8,::1/128");
    }
}
