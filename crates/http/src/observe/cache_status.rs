//! The `Cache-Status` header (RFC 9211): what the response caches of a call's stages did.

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, HeaderValue};
use callboard_core::CacheUse;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Adds the header to the answer of a call whose stages have a cache.
pub fn insert_cache_status(headers: &mut HeaderMap, cache_use: Option<CacheUse>) {
    let status = match cache_use {
        None => return,
        Some(CacheUse::Hit) => "callboard; hit",
        Some(CacheUse::Collapsed) => "callboard; fwd=miss; collapsed",
        Some(CacheUse::Miss) => "callboard; fwd=miss",
    };
    headers.insert(CACHE_STATUS, HeaderValue::from_static(status));
}
