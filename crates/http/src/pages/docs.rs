//! `/docs`: Swagger UI over `/openapi.json`, with its assets in the binary, so that it works without the internet.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::Uri;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use callboard_core::ErrorKind;
use utoipa_swagger_ui::Config;

use crate::error::ApiError;

/// Relative, so that it also works where a proxy puts the edge under a path of its own.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    Arc::new(
        Config::from("../openapi.json").try_it_out_enabled(true).display_request_duration(true).validator_url("none"),
    )
});

/// The page's own links are relative to a path that ends with a slash.
pub(super) async fn redirect() -> Redirect {
    Redirect::permanent("docs/")
}

pub(super) async fn index() -> Result<Response, ApiError> {
    asset("index.html").ok_or_else(|| ApiError::of_kind(ErrorKind::Internal, "the documentation is not in this binary"))
}

pub(super) async fn file(uri: Uri, file: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    file.ok().and_then(|Path(file)| asset(&file)).ok_or_else(|| ApiError::no_such_route(uri.path()))
}

/// Assets are kept compressed, as every browser takes them; the one file that is written for us is not.
fn asset(file: &str) -> Option<Response> {
    let asset = utoipa_swagger_ui::serve(file, Arc::clone(&CONFIG)).ok().flatten()?;
    let content_type = [(CONTENT_TYPE, asset.content_type)];
    let encoding = asset.gzpipped.then_some([(CONTENT_ENCODING, "gzip")]);
    // What is in the binary stays there: a copy per answer would be memory for every client that reads slowly.
    let body = match asset.bytes {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    Some(match encoding {
        Some(encoding) => (content_type, encoding, body).into_response(),
        None => (content_type, body).into_response(),
    })
}
