//! Where nodes are: `quic://host:port`, or several of them behind one scheme, `quic://a:4433,b:4433`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use super::error::ConnectError;

/// More than this is a list that somebody generated wrongly.
const MAX_HOSTS: usize = 64;

/// One or more nodes, any of which may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicUrl {
    hosts: Vec<String>,
}

impl QuicUrl {
    /// The addresses behind the names, in their order.
    ///
    /// # Errors
    ///
    /// When no name has an address: the host is gone, and waiting for it is of no use. A name whose address is not found within `limit` has
    /// none.
    pub(crate) async fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>, ConnectError> {
        let mut addresses = Vec::new();
        let mut last = None;
        for host in &self.hosts {
            match tokio::time::timeout(limit, tokio::net::lookup_host(host.as_str())).await {
                Ok(Ok(found)) => addresses.extend(found),
                Ok(Err(error)) => last = Some((host.clone(), error)),
                Err(late) => last = Some((host.clone(), late.into())),
            }
        }
        match (addresses.is_empty(), last) {
            (true, Some((host, source))) => Err(ConnectError::Unresolved { host, source }),
            (true, None) => Err(ConnectError::Nowhere),
            (false, _) => Ok(addresses),
        }
    }
}

impl FromStr for QuicUrl {
    type Err = ConnectError;

    fn from_str(text: &str) -> Result<Self, ConnectError> {
        let wrong = |reason: &'static str| ConnectError::Url { url: text.to_owned(), reason };
        let rest = text.strip_prefix("quic://").ok_or_else(|| wrong("expected quic://HOST:PORT"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('/') {
            return Err(wrong("expected quic://HOST:PORT and nothing behind it; a route is named apart"));
        }
        let hosts: Vec<String> = rest.split(',').map(|host| host.trim().to_owned()).collect();
        if hosts.len() > MAX_HOSTS {
            return Err(wrong("expected at most 64 hosts"));
        }
        for host in &hosts {
            let (name, port) = host.rsplit_once(':').ok_or_else(|| wrong("expected a port behind each host"))?;
            if name.is_empty() || !matches!(port.parse::<u16>(), Ok(1..)) {
                return Err(wrong("expected hosts as HOST:PORT, with ports from 1 to 65535"));
            }
        }
        Ok(Self { hosts })
    }
}

impl fmt::Display for QuicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quic://{}", self.hosts.join(","))
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
    fn what_is_no_url_says_what_was_expected() {
        for wrong in
            ["http://a:1", "quic://", "quic://a", "quic://a:0", "quic://a:70000", "quic://a:1,", "quic://a/b:1"]
        {
            let error = wrong.parse::<QuicUrl>().unwrap_err().to_string();
            assert!(error.contains("expected"), "{wrong}: {error}");
        }
    }
}
