//! `/docs`: Swagger UI over `/openapi.json`. Its assets are in the binary, so that it works offline.
//!
//! `scripts/update-swagger-ui.sh` puts another version into `assets/swagger-ui`.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{OriginalUri, Path};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use callboard_core::ErrorKind;
use flate2::read::GzDecoder;
use parking_lot::Mutex;

use super::for_browsers;
use crate::error::ApiError;
use crate::mounted::prefix;
use crate::request::coding::ContentCoding;

/// A file of the page.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    is_gzipped: bool,
    /// In the binary: a copy per response would be memory for every slow client.
    bytes: &'static [u8],
}

macro_rules! asset {
    ($name:literal, $content_type:literal) => {
        Asset {
            name: $name,
            content_type: $content_type,
            is_gzipped: false,
            bytes: include_bytes!(concat!("../../assets/swagger-ui/", $name)),
        }
    };
    (gzipped $name:literal, $content_type:literal) => {
        Asset {
            name: $name,
            content_type: $content_type,
            is_gzipped: true,
            bytes: include_bytes!(concat!("../../assets/swagger-ui/", $name, ".gz")),
        }
    };
}

static ASSETS: [Asset; 8] = [
    asset!("index.html", "text/html"),
    asset!("index.css", "text/css"),
    asset!("favicon-16x16.png", "image/png"),
    asset!("favicon-32x32.png", "image/png"),
    asset!("swagger-initializer.js", "text/javascript"),
    asset!(gzipped "swagger-ui.css", "text/css"),
    asset!(gzipped "swagger-ui-bundle.js", "text/javascript"),
    asset!(gzipped "swagger-ui-standalone-preset.js", "text/javascript"),
];

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
    let page = asset("index.html").ok_or_else(|| broken("the documentation is not in this binary"))?;
    Ok(page.response(Bytes::from_static(page.bytes)))
}

pub(super) async fn file(
    OriginalUri(original): OriginalUri,
    uri: Uri,
    headers: HeaderMap,
    file: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let found = file.ok().and_then(|Path(file)| asset(&file));
    let asset = found.ok_or_else(|| ApiError::no_such_route(uri.path(), prefix(&original, &uri)))?;
    let takes_gzip =
        headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).is_some_and(ContentCoding::takes_gzip);
    let mut answer = if asset.is_gzipped && !takes_gzip {
        asset.response(asset.unpacked()?)
    } else {
        let mut answer = asset.response(Bytes::from_static(asset.bytes));
        if asset.is_gzipped {
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        answer
    };
    answer.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    Ok(answer)
}

fn asset(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

fn broken(message: &'static str) -> ApiError {
    ApiError::new(ErrorKind::Internal, message)
}

impl Asset {
    fn response(&self, body: Bytes) -> Response {
        let response = ([(CONTENT_TYPE, self.content_type)], Body::from(body)).into_response();
        if self.content_type == "text/html" { for_browsers(response, POLICY) } else { response }
    }

    /// The file for a client without gzip. Decompressed files are cached: they are few, and clients share them.
    fn unpacked(&self) -> Result<Bytes, ApiError> {
        static UNPACKED: LazyLock<Mutex<HashMap<&'static str, Bytes>>> = LazyLock::new(Mutex::default);
        if let Some(bytes) = UNPACKED.lock().get(self.name) {
            return Ok(bytes.clone());
        }
        let mut bytes = Vec::new();
        GzDecoder::new(self.bytes)
            .read_to_end(&mut bytes)
            .map_err(|_| broken("the documentation in this binary is broken"))?;
        let bytes = Bytes::from(bytes);
        UNPACKED.lock().insert(self.name, bytes.clone());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::{Format, Value};

    use super::*;

    fn text(name: &str) -> String {
        let asset = asset(name).unwrap();
        let bytes = if asset.is_gzipped { asset.unpacked().unwrap() } else { Bytes::from_static(asset.bytes) };
        String::from_utf8(bytes.into()).unwrap()
    }

    /// The version is that of the script, and the licences that Apache-2.0 and MIT ask for are beside it.
    #[test]
    fn the_assets_are_of_one_version_and_have_their_licences() {
        let version = include_str!("../../assets/swagger-ui/VERSION").trim();
        assert!(text("swagger-ui-bundle.js").contains(&format!("PACKAGE_VERSION:\"{version}\"")), "{version}");
        for (licence, words) in [
            (include_str!("../../assets/swagger-ui/LICENSE"), "Apache License"),
            (include_str!("../../assets/swagger-ui/NOTICE"), "swagger-ui"),
            (include_str!("../../assets/swagger-ui/swagger-ui-bundle.js.LICENSE.txt"), "@license MIT"),
        ] {
            assert!(licence.contains(words), "{words}");
        }
    }

    #[test]
    fn the_page_names_only_files_that_are_here() {
        let page = text("index.html");
        let named: Vec<&str> =
            page.split(['"']).filter(|word| word.ends_with(".js") || word.ends_with(".css")).collect();
        assert!(named.len() >= 4, "{page}");
        for file in named {
            assert!(asset(file.trim_start_matches("./")).is_some(), "{file}");
        }
        assert!(text("swagger-initializer.js").contains(&format!("../openapi.json?{WITH_FORMS}")));
    }

    #[test]
    fn the_policy_names_the_style_in_the_title_bar_by_its_hash() {
        let style = ".logo_small_svg__cls-2{fill:#fff}.logo_small_svg__cls-3{fill:#85ea2d}";
        assert!(
            text("swagger-ui-standalone-preset.js").contains(&format!("createElement(\"style\",null,\"{style}\")")),
            "another Swagger UI has another style"
        );
        let hash = <sha2::Sha256 as sha2::Digest>::digest(style.as_bytes());
        let base64 = Value::Bytes(Bytes::copy_from_slice(hash.as_ref())).encode(Format::Json).unwrap();
        let base64 = std::str::from_utf8(&base64).unwrap().trim_matches('"').to_owned();
        assert!(POLICY.contains(&format!("'sha256-{base64}'")), "{base64}");
    }
}
