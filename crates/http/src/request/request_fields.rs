//! What the code of a route reads of a request beside its body: headers, query parameters and extensions that
//! the route lists.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::http::{Extensions, HeaderMap, HeaderName, Method, Uri};
use callboard_core::edge::RequestFields;
use callboard_core::{CallOptions, split_route_name};
use percent_encoding::percent_decode_str;

use super::arguments::name_of;
use crate::error::ApiError;
use crate::guard::AuthRequest;
use crate::mounted::original_uri;

/// What the code of a route may read of a request beside its body.
pub type RequestParts<'a> = (&'a Uri, &'a HeaderMap, &'a Extensions);

/// Adds them to the options of the call. Several lines of a header are joined with `, `, those of `cookie` with `; `
/// (RFC 9113, section 8.2.3).
pub(crate) fn add(
    mut options: CallOptions,
    fields: &RequestFields,
    (uri, headers, extensions): RequestParts<'_>,
) -> Result<CallOptions, ApiError> {
    options = match name_of(uri.path()).filter(|_| fields.path) {
        // The name is decoded, and the parameters are read from what is not.
        Some(name) => options.with_path(split_route_name(&name).1.replace('%', "%25")),
        None => options.with_path(original_uri(uri, extensions).path()),
    };
    for name in &fields.headers {
        if let Some(text) = joined(headers, name) {
            options = options.with_header(name.clone(), text);
        }
    }
    for (name, value) in query_pairs(uri) {
        if fields.has_query(&name) {
            options = options.with_query(name, decoded(value));
        }
    }
    options = fields.extensions.iter().fold(options, |options, listed| listed.copy(extensions, options));
    options.check()?;
    Ok(options)
}

/// The address of the client, as an extension of a request, if the connection is the edge's own. A protocol has it of
/// requests whose bodies it takes. See [`trusted_proxies`](crate::HttpConfig::trusted_proxies).
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress(pub IpAddr);

/// The head of a request, for the app that names its caller.
pub(crate) fn auth_request(
    method: &Method,
    (uri, headers, extensions): RequestParts<'_>,
    client: Option<IpAddr>,
) -> AuthRequest {
    let mut query = BTreeMap::<_, Vec<_>>::new();
    for (name, value) in query_pairs(uri) {
        query.entry(name.into_owned()).or_default().push(decoded(value).into_owned());
    }
    let header = |name: &HeaderName| Some((name.as_str().to_owned(), joined(headers, name.as_str())?));
    AuthRequest {
        method: method.as_str().to_owned(),
        path: original_uri(uri, extensions).path().to_owned(),
        query,
        headers: headers.keys().filter_map(header).collect(),
        client: client.map(|client| client.to_string()),
    }
}

/// The decoded names of the query's parameters, with the values as written.
pub(crate) fn query_pairs(uri: &Uri) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let parts = uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, ""))).map(|(name, value)| (decoded(name), value))
}

/// The lines of a header as one text; `None` without any that is text.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(if name == "cookie" { "; " } else { ", " }))
}

/// A name or value as a form encodes it. Bytes that are no UTF-8 become replacement characters.
fn decoded(text: &str) -> Cow<'_, str> {
    let spaced = if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) };
    match spaced {
        Cow::Borrowed(text) => percent_decode_str(text).decode_utf8_lossy(),
        Cow::Owned(text) => Cow::Owned(percent_decode_str(&text).decode_utf8_lossy().into_owned()),
    }
}

/// The same of a text in UTF-8; `None` of other bytes.
pub(crate) fn decoded_text(text: &str) -> Option<String> {
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(Cow::into_owned)
}
