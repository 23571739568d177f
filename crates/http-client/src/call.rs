//! A request: a method, a path, headers and a body. It is checked once and can be sent many times.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::HOST;
use hyper::http::{HeaderName, HeaderValue, Method};

use crate::error::ClientError;
use crate::origin::Origin;
use crate::protocol::Protocol;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `POST`, `GET` or another.
    pub method: String,
    /// The route's path, with a query if it has one.
    pub route: String,
    /// Names and values, in order. `Host` and `Content-Length` are added.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// A valid request. Cheap to clone: the body is shared.
#[derive(Clone, Debug)]
pub struct Prepared(Request<Full<Bytes>>);

impl Prepared {
    pub(crate) fn request(&self) -> Request<Full<Bytes>> {
        self.0.clone()
    }
}

impl Call {
    /// A `POST` of a body of this media type.
    #[must_use]
    pub fn post(route: &str, media_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            method: "POST".to_owned(),
            route: route.to_owned(),
            headers: vec![("content-type".to_owned(), media_type.to_owned())],
            body: body.into(),
        }
    }

    /// Checks the request, and writes it in the form of this protocol.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unsendable`] for a method, path or header that HTTP cannot express.
    pub fn prepare(&self, origin: &Origin, protocol: Protocol) -> Result<Prepared, ClientError> {
        let uri = match protocol {
            Protocol::Http1 => origin.path_of(&self.route),
            // HTTP/2 has no `Host`: the authority is part of the URI.
            Protocol::Http2 => origin.url_of(&self.route),
        };
        let unsendable = ClientError::Unsendable;
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|error| unsendable(error.into()))?;
        let mut request = Request::builder().method(method).uri(uri);
        if protocol == Protocol::Http1 {
            request = request.header(HOST, origin.authority());
        }
        for (name, value) in &self.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| unsendable(error.into()))?;
            let value = HeaderValue::from_str(value).map_err(|error| unsendable(error.into()))?;
            request = request.header(name, value);
        }
        request.body(Full::new(self.body.clone())).map(Prepared).map_err(unsendable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, value: &str) -> Call {
        let headers = vec![(name.to_owned(), value.to_owned())];
        Call { method: "POST".to_owned(), route: "/x".to_owned(), headers, body: Bytes::new() }
    }

    #[test]
    fn an_invalid_request_is_refused_before_it_is_sent() {
        let origin: Origin = "http://host".parse().unwrap();
        for (name, value) in [("a b", "x"), ("x", "a\r\nb: c"), ("", "x")] {
            assert!(call(name, value).prepare(&origin, Protocol::Http1).is_err(), "{name}: {value}");
        }
        assert!(Call { route: "/a b".to_owned(), ..call("x", "y") }.prepare(&origin, Protocol::Http1).is_err());
        assert!(Call { method: "P T".to_owned(), ..call("x", "y") }.prepare(&origin, Protocol::Http1).is_err());
    }

    #[test]
    fn each_protocol_names_the_host_in_its_own_way() {
        let origin: Origin = "http://host:1/base".parse().unwrap();
        let http1 = call("x", "y").prepare(&origin, Protocol::Http1).unwrap().request();
        assert_eq!((http1.uri().to_string().as_str(), http1.headers()[HOST].to_str().unwrap()), ("/base/x", "host:1"));
        let http2 = call("x", "y").prepare(&origin, Protocol::Http2).unwrap().request();
        assert_eq!((http2.uri().to_string().as_str(), http2.headers().get(HOST)), ("http://host:1/base/x", None));
    }
}
