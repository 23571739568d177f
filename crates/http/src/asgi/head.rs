//! The heads of a request and of a response of a mounted app: which headers pass, and how bytes are texts.
//!
//! The known headers of one connection pass in neither direction (RFC 9110 §7.6.1). What `connection` names beside them
//! passes: the app is the origin of its responses and no hop, and by this header a client could take away what a proxy
//! has added. `content-length` is written anew.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use axum::http::{HeaderMap, Request, StatusCode, Version};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::Media;
use callboard_core::ErrorKind;

use super::{AsgiPart, AsgiRequest};
use crate::error::ApiError;
use crate::mounted::original_uri;

/// The most headers of a response, and the bytes of their names and values.
const MAX_HEADERS: usize = 128;
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// The headers of one connection.
const OF_CONNECTION: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a connection says of a request beside its head.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) client: Option<IpAddr>,
    pub(super) is_secure: bool,
}

/// The request to the app at this path, once its body was read.
pub(super) fn request_of<B>(request: &Request<B>, app: &str, origin: &Origin, body: Bytes) -> AsgiRequest {
    let uri = original_uri(request.uri(), request.extensions());
    // The edge may be mounted in a router, which cuts the beginning of the path off.
    let mounted = uri.path().strip_suffix(request.uri().path()).unwrap_or_default();
    let http_version = match request.version() {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    AsgiRequest {
        method: request.method().as_str().to_owned(),
        scheme: if origin.is_secure { "https" } else { "http" }.to_owned(),
        http_version: http_version.to_owned(),
        root_path: format!("{mounted}{app}"),
        path: uri.path().to_owned(),
        query: uri.query().unwrap_or_default().to_owned(),
        headers: headers_of(request, body.len()),
        client: origin.client.map(|client| client.to_string()),
        body: Media::new(body),
    }
}

fn headers_of<B>(request: &Request<B>, body_bytes: usize) -> Vec<(String, String)> {
    let headers = request.headers();
    let is_dropped = |name: &HeaderName| {
        [CONTENT_LENGTH, COOKIE, EXPECT, PROXY_AUTHORIZATION].contains(name) || is_of_connection(name)
    };
    let own = headers.iter().filter(|(name, _)| !is_dropped(name));
    let mut found: Vec<_> = own.map(|(name, value)| (name.as_str().to_owned(), text_of(value))).collect();
    let mut add = |name: HeaderName, value: String| found.push((name.as_str().to_owned(), value));
    if headers.contains_key(COOKIE) {
        add(COOKIE, headers.get_all(COOKIE).iter().map(text_of).collect::<Vec<_>>().join("; "));
    }
    // HTTP/2 has it in the target.
    if let Some(authority) = request.uri().authority().filter(|_| !headers.contains_key(HOST)) {
        add(HOST, authority.as_str().to_owned());
    }
    // A body in chunks had no length before it was here.
    if body_bytes > 0 || headers.contains_key(CONTENT_LENGTH) {
        add(CONTENT_LENGTH, body_bytes.to_string());
    }
    found
}

/// The memory of the texts of a request.
pub(super) fn text_bytes(request: &AsgiRequest) -> usize {
    let headers: usize = request.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    size_of::<(String, String)>() * request.headers.len() + headers + 2 * request.path.len() + request.query.len()
}

/// The head of a response without its body, with the length that it announces.
pub(super) fn response_of(first: &AsgiPart) -> Result<(Response, Option<u64>), ApiError> {
    let failed = |message: String| ApiError::new(ErrorKind::Failed, message);
    let number = first.status.ok_or_else(|| failed("the first part of the response has no status".to_owned()))?;
    let status = StatusCode::from_u16(number).ok().filter(|_| (200..600).contains(&number));
    let status = status.ok_or_else(|| failed(format!("the status {number} is not from 200 to 599")))?;
    let bytes: usize = first.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if first.headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        let limits = format!("at most {MAX_HEADERS}, with {MAX_HEADER_BYTES} bytes in all");
        return Err(failed(format!("the response has {} headers with {bytes} bytes; {limits}", first.headers.len())));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &first.headers {
        let header = name.parse::<HeaderName>().ok().zip(value_of(value));
        let (name, value) =
            header.ok_or_else(|| failed(format!("the header {name:?} has characters that HTTP does not allow")))?;
        headers.append(name, value);
    }
    for name in OF_CONNECTION {
        headers.remove(name);
    }
    let announced = length_of(&headers);
    let announced =
        announced.map_err(|()| failed("the header `content-length` is not one number of bytes".to_owned()))?;
    headers.remove(CONTENT_LENGTH);
    let length = match status {
        StatusCode::NO_CONTENT => None,
        StatusCode::RESET_CONTENT => Some(0),
        _ => announced,
    };
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    let mut response = Response::new(Body::empty());
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    Ok((response, length))
}

/// The length that all lines say; an error if they differ, or if one is not digits alone.
fn length_of(headers: &HeaderMap) -> Result<Option<u64>, ()> {
    let mut found = None;
    for line in headers.get_all(CONTENT_LENGTH) {
        // A sign would parse.
        let digits = line.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let length = digits.and_then(|text| text.parse().ok()).ok_or(())?;
        if found.replace(length).is_some_and(|other: u64| other != length) {
            return Err(());
        }
    }
    Ok(found)
}

fn is_of_connection(name: &HeaderName) -> bool {
    OF_CONNECTION.contains(&name.as_str())
}

/// Each byte as a character (ISO 8859-1).
fn text_of(value: &HeaderValue) -> String {
    value.as_bytes().iter().map(|byte| char::from(*byte)).collect()
}

/// Each character as a byte. `None` if one is no byte, or none that a header may have.
fn value_of(text: &str) -> Option<HeaderValue> {
    let bytes: Option<Vec<u8>> = text.chars().map(|character| u8::try_from(character).ok()).collect();
    HeaderValue::try_from(bytes?).ok()
}
