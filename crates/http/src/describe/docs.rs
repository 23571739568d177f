//! `/docs`: Swagger UI over `/openapi.json`. Its assets are in the binary, so that it works offline.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read as _;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, Path};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use callboard_core::ErrorKind;
use flate2::read::GzDecoder;
use parking_lot::Mutex;
use utoipa_swagger_ui::Config;

use super::for_browsers;
use super::mounted::prefix;
use crate::error::ApiError;
use crate::request::coding::ContentCoding;

/// Relative, so that it works behind a proxy with a path prefix.
static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    Arc::new(
        Config::from("../openapi.json?forms")
            .try_it_out_enabled(true)
            .display_request_duration(true)
            .validator_url("none"),
    )
});

/// The query by which the page requests its document.
pub(super) const WITH_FORMS: &str = "forms";

/// Scripts and styles come from our files, and calls go to our routes. Swagger UI shows small pictures as data, and
/// responses that are pictures or sounds as blobs. The style hash is of the picture in its title bar.
const POLICY: &str = "default-src 'none'; script-src 'self'; \
                      style-src 'self' 'sha256-RL3ie0nH+Lzz2YNqQN83mnU0J1ot4QL7b99vMdIX99w='; \
                      img-src 'self' data: blob:; media-src blob:; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The page's links are relative to a path that ends with a slash.
pub(super) async fn redirect() -> Redirect {
    Redirect::permanent("docs/")
}

pub(super) async fn index() -> Result<Response, ApiError> {
    asset("index.html").ok_or_else(|| ApiError::new(ErrorKind::Internal, "the documentation is not in this binary"))
}

pub(super) async fn file(
    OriginalUri(original): OriginalUri,
    uri: Uri,
    headers: HeaderMap,
    file: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let file = file.ok().map(|Path(file)| file);
    let not_found = || ApiError::no_such_route(uri.path(), prefix(&original, &uri));
    let found = file.as_ref().and_then(|file| asset(file)).ok_or_else(not_found)?;
    let is_packed = found.headers().contains_key(CONTENT_ENCODING);
    let takes_gzip =
        headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).is_some_and(ContentCoding::takes_gzip);
    let mut answer = match file.filter(|_| is_packed && !takes_gzip) {
        Some(file) => unpacked(file, found).await?,
        None => found,
    };
    answer.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    Ok(answer)
}

/// The same file for a client without gzip. Decompressed files are cached: they are few, and clients share them.
async fn unpacked(file: String, packed: Response) -> Result<Response, ApiError> {
    static UNPACKED: LazyLock<Mutex<HashMap<String, Bytes>>> = LazyLock::new(Mutex::default);
    let (mut head, body) = packed.into_parts();
    head.headers.remove(CONTENT_ENCODING);
    let known = UNPACKED.lock().get(&file).cloned();
    let bytes = match known {
        Some(bytes) => bytes,
        None => {
            let packed = to_bytes(body, usize::MAX).await.unwrap_or_default();
            let mut bytes = Vec::new();
            GzDecoder::new(&packed[..])
                .read_to_end(&mut bytes)
                .map_err(|_| ApiError::new(ErrorKind::Internal, "the documentation in this binary is broken"))?;
            let bytes = Bytes::from(bytes);
            UNPACKED.lock().insert(file, bytes.clone());
            bytes
        }
    };
    Ok(Response::from_parts(head, Body::from(bytes)))
}

/// All assets but one are stored compressed.
fn asset(file: &str) -> Option<Response> {
    let asset = utoipa_swagger_ui::serve(file, Arc::clone(&CONFIG)).ok().flatten()?;
    let is_page = asset.content_type.starts_with("text/html");
    let content_type = [(CONTENT_TYPE, asset.content_type)];
    let encoding = asset.gzpipped.then_some([(CONTENT_ENCODING, "gzip")]);
    // Assets stay in the binary: a copy per response would be memory for every slow client.
    let body = match asset.bytes {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    let response = match encoding {
        Some(encoding) => (content_type, encoding, body).into_response(),
        None => (content_type, body).into_response(),
    };
    Some(if is_page { for_browsers(response, POLICY) } else { response })
}

#[cfg(test)]
mod tests {
    use callboard_codec::{Format, Value};

    use super::*;

    #[test]
    fn the_policy_names_the_style_in_the_title_bar_by_its_hash() {
        let style = ".logo_small_svg__cls-2{fill:#fff}.logo_small_svg__cls-3{fill:#85ea2d}";
        let preset = utoipa_swagger_ui::serve("swagger-ui-standalone-preset.js", Arc::clone(&CONFIG)).unwrap().unwrap();
        let mut script = String::new();
        GzDecoder::new(&preset.bytes[..]).read_to_string(&mut script).unwrap();
        assert!(
            script.contains(&format!("createElement(\"style\",null,\"{style}\")")),
            "another Swagger UI has another style"
        );
        let hash = ring::digest::digest(&ring::digest::SHA256, style.as_bytes());
        let base64 = Value::Bytes(Bytes::copy_from_slice(hash.as_ref())).encode(Format::Json).unwrap();
        let base64 = std::str::from_utf8(&base64).unwrap().trim_matches('"').to_owned();
        assert!(POLICY.contains(&format!("'sha256-{base64}'")), "{base64}");
    }
}
