//! Apps that answer HTTP by themselves, mounted below a path: ASGI apps of Python, and anything alike.
//!
//! A private route such as `@asgi/legacy` gets every request to `/legacy` and to the paths below it, of any method, as
//! an [`AsgiRequest`]. It answers with a stream of [`AsgiPart`]s: first the head of the response, then its body. The
//! request passes the guards of every request, and its body is received as those of routes.
//!
//! * **Full:** a request without a permit, or without room in the queue of the stage, is answered as one of a route. A
//!   slow reader uses up the credit of its own stream.
//! * **Late:** 504 without a head within the timeout of the route, or of the request. A body may take any time, unless
//!   the request has a timeout of its own.
//! * **Broken:** an error before the head is a response like that of a route. After it the body is cut.
//! * **Cancelled:** a client that leaves cancels the call.
//! * **Ending:** the requests of apps end before the drain of the node does, by the time in which their replicas
//!   [stop](longest_stop_timeout). Those of an app that a change has replaced or removed have the time of a drain.

mod call;
mod end;
mod head;
mod streamed;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Media;
use callboard_core::edge::Route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use self::call::answer;
use crate::guard::is_below;

/// The beginning of the name of a route to which requests are given whole: the path of the app comes behind it.
const ASGI: &str = "@asgi";

/// A request, as the pipeline of a mounted app gets it: what
/// [ASGI](https://asgi.readthedocs.io/en/latest/specs/www.html) calls the scope of a connection, with the body.
///
/// ```
/// use callboard_core::{App, StreamStage};
/// use callboard_http::{AsgiPart, AsgiRequest};
/// use futures_util::stream;
///
/// let legacy = StreamStage::each("legacy", |request: &AsgiRequest| {
///     let body = format!("{} of {}", request.method, request.path);
///     stream::iter([Ok(AsgiPart::head(200).with_header("content-type", "text/plain")), Ok(AsgiPart::body(body))])
/// });
/// let app = App::new().route_streaming("@asgi/legacy", legacy);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct AsgiRequest {
    /// Its method, such as `PUT`.
    pub method: String,
    /// `http` or `https`, also as a [trusted proxy](crate::HttpConfig::trusted_proxies) says.
    pub scheme: String,
    /// `1.0`, `1.1` or `2`.
    pub http_version: String,
    /// The path below which the app is mounted, such as `/legacy`.
    pub root_path: String,
    /// The whole path, as the client wrote it. It begins with `root_path`.
    pub path: String,
    /// What follows the question mark, as the client wrote it.
    pub query: String,
    /// The lines of its head, with names in lower case, but for those of the connection alone. Each character of a
    /// value is one byte (ISO 8859-1). Lines of `cookie` are one line, and `host` is always there.
    pub headers: Vec<(String, String)>,
    /// The address of the client, if the connection is the edge's own; see
    /// [`trusted_proxies`](crate::HttpConfig::trusted_proxies).
    pub client: Option<String>,
    /// The body, as it was sent: a `content-encoding` is the app's.
    pub body: Media,
}

/// A part of a response, as the pipeline of a mounted app answers: the first one has the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct AsgiPart {
    /// The status, from 200 to 599. Ignored after the first part, as are headers.
    #[serde(default)]
    pub status: Option<u16>,
    /// The headers, of which a name may be there more than once. Each character of a value is one byte. Those of the
    /// connection are dropped: the edge has its own. At most 128 of them, with 64 KiB in all.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The next bytes of the body.
    #[serde(default)]
    pub body: Media,
}

impl AsgiPart {
    /// A head with this status, without headers or body.
    #[must_use]
    pub fn head(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// A piece of the body.
    pub fn body(bytes: impl Into<Bytes>) -> Self {
        Self { body: Media::new(bytes), ..Self::default() }
    }
}

/// The path of the app that a route of this name is given requests for; `None` for any other route.
#[must_use]
pub fn asgi_path(route: &str) -> Option<&str> {
    route.strip_prefix(ASGI).filter(|path| path.starts_with('/'))
}

/// Checks that no route of these, and no app, is below the path of an app: one of them would hide the other.
///
/// # Errors
///
/// The first two that clash.
pub fn check_asgi<'a>(routes: impl IntoIterator<Item = &'a str>) -> Result<(), AsgiError> {
    let routes: Vec<&str> = routes.into_iter().collect();
    for app in routes.iter().filter_map(|route| asgi_path(route)) {
        let is_other = |route: &&&str| asgi_path(route) != Some(app);
        let paths = routes.iter().filter(is_other).map(|route| asgi_path(route).unwrap_or(route));
        if let Some(route) = paths.into_iter().find(|path| may_be_below(path, app)) {
            return Err(AsgiError::Clash { route: route.to_owned(), app: app.to_owned() });
        }
    }
    Ok(())
}

/// Whether a route, which may have parameters, takes a path that belongs to this app.
fn may_be_below(route: &str, app: &str) -> bool {
    let mut segments = route.split('/');
    app.split('/').all(|own| segments.next().is_some_and(|segment| segment == own || segment.starts_with('{')))
}

/// The reason why an app cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AsgiError {
    /// Give one of them another path.
    #[error("`{route}` is a path of the app that is mounted at `{app}`")]
    Clash {
        /// The path of the route or of the other app.
        route: String,
        /// The path of the app.
        app: String,
    },
    /// Make its pipeline one that answers with a stream.
    #[error(
        "the route `{route}` is that of an app, and answers with one output: it has to stream the parts of a response"
    )]
    NotStreaming {
        /// The name of the route.
        route: String,
    },
}

/// Checks the apps among the private routes of a node that has these public ones.
pub(crate) fn check_apps(private: &[Arc<Route>], public: &[Arc<Route>]) -> Result<(), AsgiError> {
    let apps = || private.iter().filter(|route| asgi_path(route.name()).is_some());
    check_asgi(apps().chain(public).map(|route| route.path()))?;
    match apps().find(|route| !route.streams()) {
        Some(route) => Err(AsgiError::NotStreaming { route: route.name().to_owned() }),
        None => Ok(()),
    }
}

/// Whether the route of this name is that of the app that has this path.
fn has_path(route: &str, path: &str) -> bool {
    asgi_path(route).is_some_and(|app| is_below(path, app))
}

/// The app that has this path, among the private routes of a node at this moment: a change may mount others.
pub(crate) fn app_of(private: Vec<Arc<Route>>, path: &str) -> Option<Arc<Route>> {
    private.into_iter().find(|route| has_path(route.name(), path) && route.streams())
}

/// The longest time in which the replicas of apps among these routes stop: their requests end this much earlier than
/// the node. Zero without apps.
pub(crate) fn longest_stop_timeout(private: &[Arc<Route>]) -> Duration {
    let apps = private.iter().filter(|route| asgi_path(route.name()).is_some());
    apps.map(|route| route.stop_timeout()).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use callboard_core::{App, StreamStage};
    use futures_util::stream;
    use tokio::time::Instant;

    use super::*;
    use crate::{ApiInfo, HttpConfig, HttpEdge};

    #[tokio::test(start_paused = true)]
    async fn requests_end_before_the_node_by_the_time_in_which_their_app_stops_and_at_most_by_half() {
        for (stop, grace, end) in [(5, 30, 25), (5, 6, 3)] {
            let app = StreamStage::each("a", |_: &AsgiRequest| stream::iter([Ok(AsgiPart::head(200))]));
            let app = app.stop_timeout(Duration::from_secs(stop));
            let node = App::new().route_streaming("@asgi/a", app).start().await.unwrap();
            let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), Vec::new()).unwrap();
            let begun = Instant::now();
            edge.end_apps_within(Duration::from_secs(grace)).await;
            assert_eq!(begun.elapsed().as_secs(), end);
        }
    }

    #[test]
    fn an_app_has_its_path_and_those_below_alone() {
        let clash = |routes: &[&str]| check_asgi(routes.iter().copied()).is_err();
        for clashing in [
            ["@asgi/a", "/a"],
            ["@asgi/a", "/a/b"],
            ["/{x}/b", "@asgi/a"],
            ["@asgi/a/b", "@asgi/a"],
            ["/{x}", "@asgi/a"],
        ] {
            assert!(clash(&clashing), "{clashing:?}");
        }
        for fine in
            [["@asgi/a", "/ab"], ["@asgi/a/b", "/a"], ["@asgi/a", "@asgi/b"], ["@auth", "@asgi/a"], ["/a", "/a/b"]]
        {
            assert!(!clash(&fine), "{fine:?}");
        }
        let find = |path: &str| ["@asgi/a", "@asgi/b/c"].into_iter().find(|route| has_path(route, path));
        for (path, app) in [
            ("/a", Some("@asgi/a")),
            ("/a/", Some("@asgi/a")),
            ("/a/x%2fy", Some("@asgi/a")),
            ("/ab", None),
            ("/b", None),
        ] {
            assert_eq!(find(path), app, "{path}");
        }
    }
}
