//! The host that a request names, read and checked for every listener.
//!
//! A request has one host (RFC 9112 §3.2, RFC 9113 §8.3.1): in the `host` header, in the target (`:authority` on
//! HTTP/2, the absolute form on HTTP/1), or the same in both. Two different hosts and an invalid host are answered 400
//! before any decision uses the host, because a proxy may have used the other one. HTTP/1.1 and 2 require a host;
//! HTTP/1.0 and a request in process may name none.

use std::net::Ipv6Addr;

use axum::http::header::HOST;
use axum::http::{Request, Version};

use crate::error::ApiError;

/// The host of one request, with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedHost<'a> {
    /// The host with its port.
    named: Option<&'a str>,
    /// Without the port; empty if no host is named.
    name: &'a str,
    /// The kinds of its characters.
    kinds: u8,
}

impl<'a> NamedHost<'a> {
    /// The host of a request that came over a socket.
    ///
    /// # Errors
    ///
    /// 400 for a request without exactly one valid host.
    pub(crate) fn from_request<B>(request: &'a Request<B>) -> Result<Self, ApiError> {
        let (named, has_header) = Self::read(request)?;
        let is_missing = match request.version() {
            Version::HTTP_09 | Version::HTTP_10 => false,
            // HTTP/1 requires the header besides an absolute target, too.
            Version::HTTP_11 => !has_header,
            _ => named.named.is_none(),
        };
        if is_missing { Err(ApiError::bad_host("given once")) } else { Ok(named) }
    }

    /// The host of a request that may have been made in process, which needs none.
    ///
    /// # Errors
    ///
    /// 400 for two hosts or an invalid one.
    pub(crate) fn from_request_in_process<B>(request: &'a Request<B>) -> Result<Self, ApiError> {
        Self::read(request).map(|(named, _)| named)
    }

    /// The host, and whether the header exists.
    fn read<B>(request: &'a Request<B>) -> Result<(Self, bool), ApiError> {
        let mut lines = request.headers().get_all(HOST).iter();
        let header = match lines.next() {
            Some(line) => Some(line.to_str().map_err(|_| ApiError::bad_host(HOST_FORM))?),
            None => None,
        };
        if lines.next().is_some() {
            return Err(ApiError::bad_host("given once"));
        }
        let target = request.uri().authority().map(|authority| authority.as_str());
        if let (Some(header), Some(target)) = (header, target)
            && !header.eq_ignore_ascii_case(target)
        {
            return Err(ApiError::bad_host("the host of the request's target"));
        }
        let named = target.or(header);
        let (name, kinds) = match named.map(valid_name) {
            Some(name) => name.ok_or_else(|| ApiError::bad_host(HOST_FORM))?,
            None => ("", 0),
        };
        Ok((Self { named, name, kinds }, header.is_some()))
    }

    /// The host in this text, if it is one.
    pub(crate) fn of(named: &'a str) -> Option<Self> {
        valid_name(named).map(|(name, kinds)| Self { named: Some(named), name, kinds })
    }

    /// The host with its port, if one is named.
    pub(crate) fn as_str(self) -> Option<&'a str> {
        self.named
    }

    /// Without the port.
    pub(crate) fn name(self) -> Option<&'a str> {
        self.named.map(|_| self.name)
    }

    /// Whether the host is an address, or a name without a dot, which cannot be registered on the internet. A request
    /// without a host is local, too: HTTP/1.0, which no browser speaks, or a request in process.
    pub(crate) fn is_local(self) -> bool {
        let Some(host) = self.name() else { return true };
        // The usual address is compared: parsing it costs ten times as much.
        self.kinds == LETTERS
            || host == "127.0.0.1"
            || host.starts_with('[')
            || host.parse::<std::net::Ipv4Addr>().is_ok()
    }
}

const HOST_FORM: &str = "a host name or an address, and a port if any";

/// Kinds of characters in a host: letters, digits, hyphens and underscores; dots; other characters of RFC 3986; invalid
/// ones.
const LETTERS: u8 = 1;
const DOTS: u8 = 2;
const SIGNS: u8 = 4;
const INVALID: u8 = 8;

/// The kind of each byte: a table, because every request needs it.
const KINDS: [u8; 256] = {
    let mut kinds = [INVALID; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => LETTERS,
            b'.' => DOTS,
            b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=' => SIGNS,
            _ => INVALID,
        };
        byte += 1;
    }
    kinds
};

fn kinds_of(host: &str) -> u8 {
    host.bytes().fold(0, |kinds, byte| kinds | KINDS[usize::from(byte)])
}

/// Letters, digits, dots, hyphens and underscores.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && kinds_of(name) & !(LETTERS | DOTS) == 0
}

/// The host, and the port after its colon.
fn split(named: &str) -> (&str, Option<&str>) {
    // The colons of an IPv6 address are in its brackets.
    let after_address = if named.starts_with('[') { named.rfind(']').map_or(0, |end| end + 1) } else { 0 };
    // Bytes: a search for a character costs more than all the rest for a short name.
    match named.as_bytes()[after_address..].iter().position(|byte| *byte == b':') {
        Some(colon) => (&named[..after_address + colon], Some(&named[after_address + colon + 1..])),
        None => (named, None),
    }
}

/// The host of `uri-host [ ":" port ]` (RFC 9110 §7.2), which may be empty, and the kinds of its characters. Addresses
/// of future IP versions are invalid.
fn valid_name(named: &str) -> Option<(&str, u8)> {
    let (host, port) = split(named);
    let is_port = port.is_none_or(|port| {
        port.bytes().all(|digit| digit.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok())
    });
    let kinds = kinds_of(host);
    let is_host = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => kinds & INVALID == 0,
    };
    (is_host && is_port).then_some((host, kinds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(named: &str) -> NamedHost<'_> {
        let (name, kinds) = valid_name(named).expect("a valid host");
        NamedHost { named: Some(named), name, kinds }
    }

    #[test]
    fn an_address_and_a_plain_name_are_local_and_other_names_are_not() {
        for local in ["localhost", "LOCALHOST:8001", "test", "127.0.0.1:8001", "[::1]:8001", "[::1]", "10.0.0.1"] {
            assert!(host(local).is_local(), "{local}");
        }
        for other in ["evil.example.org", "evil.example.org:8001", "localhost.evil.org:8001", "", "127.0.0.1.evil.org"]
        {
            assert!(!host(other).is_local(), "{other}");
        }
        assert!(NamedHost { named: None, name: "", kinds: 0 }.is_local());
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_a_port() {
        for valid in ["a", "a.", "a:", "a:0", "a:65535", "%41", "a_b", "[::]", "[2001:db8::1]:1", ":80"] {
            assert!(valid_name(valid).is_some(), "{valid}");
        }
        let invalid = [
            "[[::1]]",
            "[::1",
            "::1",
            "[]",
            "[a]",
            "[::1]x",
            "a:b",
            "a:65536",
            "a:1:1",
            "a b",
            "a/b",
            "u@a",
            "a,b",
            "a?",
            "é",
            "[::1]:80]",
            "[v1.a]",
        ];
        for invalid in invalid {
            assert_eq!(valid_name(invalid), None, "{invalid}");
        }
        assert_eq!(host("[2001:db8::1]:80").name(), Some("[2001:db8::1]"));
        assert_eq!(host("Models.example.org:80").name(), Some("Models.example.org"));
    }

    #[test]
    fn the_target_and_the_header_name_the_same() {
        let named = |target: &str, header: &[&str]| {
            let request = header.iter().fold(Request::get(target), |request, header| request.header(HOST, *header));
            let request = request.body(()).unwrap();
            NamedHost::from_request_in_process(&request)
                .map(|host| host.as_str().map(str::to_owned))
                .map_err(|error| error.status())
        };
        assert_eq!(named("/", &[]), Ok(None));
        assert_eq!(named("/", &["a:1"]), Ok(Some("a:1".to_owned())));
        assert_eq!(named("http://a:1/", &["A:1"]), Ok(Some("a:1".to_owned())));
        for (target, header) in [("http://a/", &["b"][..]), ("http://a:1/", &["a"]), ("/", &["a", "a"]), ("/", &["é"])]
        {
            assert!(named(target, header).is_err_and(|status| status == 400), "{target} {header:?}");
        }
    }

    #[test]
    fn a_request_from_a_socket_must_name_its_host_unless_it_is_http_1_0() {
        let status = |version: Version, target: &str, header: Option<&str>| {
            let request = header.into_iter().fold(Request::get(target), |request, header| request.header(HOST, header));
            let mut request = request.body(()).unwrap();
            *request.version_mut() = version;
            NamedHost::from_request(&request).map(|_| ()).map_err(|error| error.status().as_u16())
        };
        assert_eq!(status(Version::HTTP_10, "/", None), Ok(()));
        for (version, target, header) in
            [(Version::HTTP_11, "/", None), (Version::HTTP_11, "http://a/", None), (Version::HTTP_2, "/", None)]
        {
            assert_eq!(status(version, target, header), Err(400), "{version:?} {target}");
        }
        for (version, target, header) in [
            (Version::HTTP_11, "/", Some("a")),
            (Version::HTTP_11, "http://a/", Some("a")),
            (Version::HTTP_2, "http://a/", None),
            (Version::HTTP_2, "/", Some("a")),
        ] {
            assert_eq!(status(version, target, header), Ok(()), "{version:?} {target}");
        }
    }
}
