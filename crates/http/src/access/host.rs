//! The host that a request names: read and checked in one place, for every listener.
//!
//! A request has one host (RFC 9112 §3.2, RFC 9113 §8.3.1): in the `host` header, in the target itself (`:authority` on HTTP/2, the
//! absolute form on HTTP/1), or the same in both. Two hosts, two different ones and an invalid one are answered 400 before
//! anything decides by the host, because a proxy in front may have decided by the other one. A socket that speaks HTTP/1.1 or 2 has
//! to name one; HTTP/1.0 and a call in process may name none.

use std::net::Ipv6Addr;

use axum::http::header::HOST;
use axum::http::{Request, Version};

use crate::error::ApiError;

/// The host of one request, with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedHost<'a>(Option<&'a str>);

impl<'a> NamedHost<'a> {
    /// The host of a request that came by a socket.
    ///
    /// # Errors
    ///
    /// 400 for a request without exactly one valid host.
    pub(crate) fn of<B>(request: &'a Request<B>) -> Result<Self, ApiError> {
        let named = Self::if_any(request)?;
        let may_be_missing = matches!(request.version(), Version::HTTP_09 | Version::HTTP_10);
        // On HTTP/1 the header is required beside an absolute target, too.
        let is_missing = match request.version() {
            Version::HTTP_11 => !request.headers().contains_key(HOST),
            _ => named.0.is_none(),
        };
        if is_missing && !may_be_missing { Err(ApiError::bad_host("given once")) } else { Ok(named) }
    }

    /// The host of a request that may have been made in process, where none has to be named.
    ///
    /// # Errors
    ///
    /// 400 for two hosts or an invalid one.
    pub(crate) fn if_any<B>(request: &'a Request<B>) -> Result<Self, ApiError> {
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
        match named {
            Some(named) if !is_valid(named) => Err(ApiError::bad_host(HOST_FORM)),
            _ => Ok(Self(named)),
        }
    }

    /// As it was named, with the port; `None` where none was.
    pub(crate) fn as_str(self) -> Option<&'a str> {
        self.0
    }

    /// Without the port.
    pub(crate) fn name(self) -> Option<&'a str> {
        self.0.map(|named| split(named).0)
    }

    /// Whether the host is an address, or a name without a dot, which cannot be registered on the internet. A request that names
    /// no host is local, too: HTTP/1.0, which no browser speaks, or a call in process.
    pub(crate) fn is_local(self) -> bool {
        let Some(host) = self.name() else { return true };
        let is_address = host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok();
        is_address || is_name(host) && !host.contains('.')
    }
}

const HOST_FORM: &str = "a host name or an address, and a port if any";

/// Letters, digits, dots, hyphens and underscores.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

/// The host and what stands behind its colon.
fn split(named: &str) -> (&str, Option<&str>) {
    // The colons of an IPv6 address are inside its brackets.
    let after_address = named.rfind(']').map_or(0, |end| end + 1);
    match named[after_address..].find(':') {
        Some(colon) => (&named[..after_address + colon], Some(&named[after_address + colon + 1..])),
        None => (named, None),
    }
}

/// `uri-host [ ":" port ]` (RFC 9110 §7.2), which may be empty. Addresses of future versions of IP are refused.
fn is_valid(named: &str) -> bool {
    let (host, port) = split(named);
    let is_port = port.is_none_or(|port| {
        port.bytes().all(|digit| digit.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok())
    });
    let is_host = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(&byte)),
    };
    is_host && is_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(named: &str) -> NamedHost<'_> {
        NamedHost(Some(named))
    }

    #[test]
    fn an_address_and_a_plain_name_are_local_and_other_names_are_not() {
        for local in ["localhost", "LOCALHOST:8001", "test", "127.0.0.1:8001", "[::1]:8001", "[::1]", "10.0.0.1"] {
            assert!(is_valid(local) && host(local).is_local(), "{local}");
        }
        for other in ["evil.example.org", "evil.example.org:8001", "localhost.evil.org:8001", "", "127.0.0.1.evil.org"]
        {
            assert!(is_valid(other) && !host(other).is_local(), "{other}");
        }
        assert!(NamedHost(None).is_local());
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_a_port() {
        for valid in ["a", "a.", "a:", "a:0", "a:65535", "%41", "a_b", "[::]", "[2001:db8::1]:1", ":80"] {
            assert!(is_valid(valid), "{valid}");
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
            assert!(!is_valid(invalid), "{invalid}");
        }
        assert_eq!(host("[2001:db8::1]:80").name(), Some("[2001:db8::1]"));
        assert_eq!(host("Models.example.org:80").name(), Some("Models.example.org"));
    }

    #[test]
    fn the_target_and_the_header_name_the_same() {
        let named = |target: &str, header: &[&str]| {
            let request = header.iter().fold(Request::get(target), |request, header| request.header(HOST, *header));
            let request = request.body(()).unwrap();
            NamedHost::if_any(&request).map(|host| host.as_str().map(str::to_owned)).map_err(|error| error.status())
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
    fn a_request_of_a_socket_names_its_host_where_its_version_has_one() {
        let status = |version: Version, target: &str, header: Option<&str>| {
            let request = header.into_iter().fold(Request::get(target), |request, header| request.header(HOST, header));
            let mut request = request.body(()).unwrap();
            *request.version_mut() = version;
            NamedHost::of(&request).map(|_| ()).map_err(|error| error.status().as_u16())
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
