//! The protocols of an edge: which of them a request belongs to, and which paths no route may have.
//!
//! A route comes first, then the media type of the body, then the path, then the pages of the edge.

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request};
use callboard_core::edge::Route;
use thiserror::Error;

use super::Protocol;
use crate::guard;
use crate::guard::is_below;
use crate::upgrade;

/// The owner of the edge's own paths, in errors.
const EDGE: &str = "the http edge";

/// Paths that no route may have, with all paths below. Of `/v1`, which has function calls, protocols may claim parts.
const RESERVED: [&str; 7] = ["/favicon.ico", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1"];

/// Paths that no protocol may claim.
const OWN: [&str; 8] = ["/", "/favicon.ico", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/call"];

/// What a protocol takes of the requests to an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Paths such as `/v2`, each with all paths below. No route may have one of them.
    pub paths: &'static [&'static str],
    /// Paths such as `/rerank`, without those below, which a route may have: a request to one of them belongs to the
    /// protocol if it is for no route. They may lie below a path of another protocol, such as `/v2/rerank`, and hide
    /// what that one has there.
    pub shared_paths: &'static [&'static str],
    /// Media types of bodies, such as `application/grpc`, each with all its suffixes (`application/grpc+proto`): a
    /// request with such a body belongs to the protocol, whatever its path, if it is not that of a route.
    pub content_types: &'static [&'static str],
    /// Upgrades of connections, such as `websocket`: a request that is not `POST` and asks a route for one of them
    /// belongs to the protocol. At its own paths it offers [upgrades](crate::protocol::RequestContext::upgrade) itself.
    pub upgrades: &'static [&'static str],
    /// Paths below a prefix that end so, such as `("/v1/models", ":predict")`, also where another protocol claims the
    /// prefix. No route may be below the prefix.
    pub endings: &'static [(&'static str, &'static str)],
    /// Those of the paths that need no key, such as `/v2/health`, each with all paths below. A body of another
    /// protocol's media type needs one there.
    pub open_paths: &'static [&'static str],
}

/// The protocols of an edge. No two of them claim the same.
///
/// ```
/// use callboard_http::protocol::Protocols;
///
/// let none = Protocols::default();
/// assert_eq!(none.owner_of("/metrics"), Some("the http edge"));
/// assert_eq!(none.owner_of("/v2"), None);
/// ```
#[derive(Clone, Debug)]
pub struct Protocols(Arc<List>);

#[derive(Debug)]
struct List {
    protocols: Vec<Arc<dyn Protocol>>,
    /// The paths that no route may have.
    reserved: Vec<&'static str>,
    /// The first letters of these paths, as bits: most routes begin with another one.
    initials: u128,
    /// The open paths of the protocols, and a page of the edge that is open by its settings.
    open: Vec<&'static str>,
    /// The claimed paths and media types, each with the index of its protocol.
    paths: Claimed,
    shared_paths: Claimed,
    content_types: Claimed,
    upgrades: Claimed,
    /// The claimed endings with their prefixes.
    endings: Vec<(&'static str, &'static str, usize)>,
}

type Claimed = Vec<(&'static str, usize)>;

impl Protocols {
    /// The list of these protocols.
    ///
    /// # Errors
    ///
    /// See [`ProtocolError`]; it names both protocols that claim the same.
    pub fn try_new(protocols: Vec<Arc<dyn Protocol>>) -> Result<Self, ProtocolError> {
        let [mut paths, mut shared_paths, mut content_types, mut upgrades] = [const { Claimed::new() }; 4];
        let (mut open, mut endings) = (Vec::new(), Vec::<(&str, &str, usize)>::new());
        for (index, protocol) in protocols.iter().enumerate() {
            let (name, claims) = (protocol.name(), protocol.claims());
            let clash = |other: &str, claim: &str| {
                let [first, second, claim] = [other, name, claim].map(str::to_owned);
                Err(ProtocolError::Clash { first, second, claim })
            };
            for &path in claims.paths {
                if OWN.iter().any(|own| overlap(own, path, is_below)) {
                    return clash(EDGE, path);
                }
                if let Some((_, other)) = paths.iter().find(|(claimed, _)| overlap(claimed, path, is_below)) {
                    return clash(name_of(&protocols, *other), path);
                }
                if !path.starts_with('/') || path.ends_with('/') {
                    return Err(ProtocolError::Path { protocol: name.to_owned(), path: path.to_owned() });
                }
            }
            for &path in claims.shared_paths {
                let is_page = OWN.contains(&path) || !path.starts_with('/') || path.ends_with('/');
                if let Some((_, other)) = shared_paths.iter().find(|(claimed, _)| *claimed == path) {
                    return clash(name_of(&protocols, *other), path);
                }
                if is_page {
                    return Err(ProtocolError::Path { protocol: name.to_owned(), path: path.to_owned() });
                }
            }
            for &media in claims.content_types {
                if let Some((_, other)) = content_types.iter().find(|(claimed, _)| overlap(claimed, media, is_media)) {
                    return clash(name_of(&protocols, *other), media);
                }
            }
            for &upgrade in claims.upgrades {
                if let Some((_, other)) = upgrades.iter().find(|(claimed, _)| claimed.eq_ignore_ascii_case(upgrade)) {
                    return clash(name_of(&protocols, *other), upgrade);
                }
            }
            for &(prefix, ending) in claims.endings {
                let is_same =
                    |(other, known, _): &&(&str, &str, usize)| *known == ending && overlap(other, prefix, is_below);
                if let Some((.., other)) = endings.iter().find(is_same) {
                    return clash(name_of(&protocols, *other), ending);
                }
                endings.push((prefix, ending, index));
            }
            let is_unclaimed = |path: &&&str| !claims.paths.iter().any(|claimed| is_below(path, claimed));
            if let Some(path) = claims.open_paths.iter().find(is_unclaimed) {
                return Err(ProtocolError::OpenPath { protocol: name.to_owned(), path: (*path).to_owned() });
            }
            paths.extend(claims.paths.iter().map(|path| (*path, index)));
            shared_paths.extend(claims.shared_paths.iter().map(|path| (*path, index)));
            content_types.extend(claims.content_types.iter().map(|media| (*media, index)));
            upgrades.extend(claims.upgrades.iter().map(|upgrade| (*upgrade, index)));
            open.extend(claims.open_paths);
        }
        let claimed = paths.iter().map(|(path, _)| *path).chain(endings.iter().map(|(prefix, ..)| *prefix));
        let reserved: Vec<_> = RESERVED.into_iter().chain(claimed).collect();
        let initials = reserved.iter().filter_map(|path| initial(path)).fold(0, |bits, bit| bits | bit);
        Ok(Self(Arc::new(List {
            protocols,
            reserved,
            initials,
            open,
            paths,
            shared_paths,
            content_types,
            upgrades,
            endings,
        })))
    }

    /// The same list, with this page of the edge open.
    pub(crate) fn with_open_page(mut self, page: Option<&'static str>) -> Self {
        if let Some(list) = Arc::get_mut(&mut self.0) {
            list.open.extend(page);
        }
        self
    }

    /// The owner of a path that no route may have: the name of a protocol, or that of the edge for its own pages.
    #[must_use]
    pub fn owner_of(&self, path: &str) -> Option<&str> {
        let claimed = self.own_claimant(path).and_then(|index| self.protocol(index)).map(|protocol| protocol.name());
        claimed.or_else(|| self.is_reserved(path).then_some(EDGE))
    }

    /// Checks that a route may have this path.
    ///
    /// # Errors
    ///
    /// If the path is one of the edge's own pages, or a protocol claims it.
    pub fn check_route(&self, path: &str) -> Result<(), ReservedRoute> {
        let reserved = |owner: &str| ReservedRoute { route: path.to_owned(), owner: owner.to_owned() };
        self.owner_of(path).map_or(Ok(()), |owner| Err(reserved(owner)))
    }

    /// Whether no route may have this path. Asked for every call.
    pub(crate) fn is_reserved(&self, path: &str) -> bool {
        let List { reserved, initials, .. } = &*self.0;
        path == "/"
            || initial(path).is_some_and(|bit| initials & bit != 0) && reserved.iter().any(|own| is_below(path, own))
    }

    /// Whether this path needs no key, for a body that belongs to the path and not to a protocol by its media type.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        guard::is_open(path) || self.0.open.iter().any(|open| is_below(path, open))
    }

    /// Whether this request needs no key.
    pub(crate) fn admits_all<B>(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        self.is_open(path) && self.reader(request.headers()).is_none_or(|reader| self.claimant(path) == Some(reader))
    }

    /// The protocol of a request that is not for a route.
    pub(crate) fn find(&self, path: &str, headers: &HeaderMap) -> Option<&dyn Protocol> {
        self.protocol(self.reader(headers).or_else(|| self.claimant(path))?)
    }

    /// The protocol of an upgrade that a request asks a route for.
    pub(crate) fn upgrading<B>(&self, request: &Request<B>) -> Option<&dyn Protocol> {
        let claim = |asked: &str| self.0.upgrades.iter().find(|(claimed, _)| asked.eq_ignore_ascii_case(claimed));
        let (_, index) = upgrade::asked(request.headers(), request.extensions()).find_map(claim)?;
        self.protocol(*index)
    }

    fn protocol(&self, index: usize) -> Option<&dyn Protocol> {
        self.0.protocols.get(index).map(|protocol| &**protocol)
    }

    /// The index of the protocol that claims this path.
    fn claimant(&self, path: &str) -> Option<usize> {
        let shared = self.0.shared_paths.iter().find(|(claimed, _)| *claimed == path).map(|(_, index)| *index);
        shared.or_else(|| self.own_claimant(path))
    }

    /// The same, of a path that no route may have.
    fn own_claimant(&self, path: &str) -> Option<usize> {
        let List { paths, endings, .. } = &*self.0;
        let ends = |(prefix, ending, _): &&(&str, &str, usize)| path.ends_with(ending) && is_below(path, prefix);
        let by_ending = endings.iter().find(ends).map(|(.., index)| *index);
        by_ending.or_else(|| paths.iter().find(|(claimed, _)| is_below(path, claimed)).map(|(_, index)| *index))
    }

    /// The index of the protocol that claims the media type of the body.
    fn reader(&self, headers: &HeaderMap) -> Option<usize> {
        let List { content_types, .. } = &*self.0;
        if content_types.is_empty() {
            return None;
        }
        let media = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        content_types.iter().find(|(claimed, _)| is_media(media, claimed)).map(|(_, index)| *index)
    }

    /// Asks every protocol whether it can serve these routes; of the first that cannot, its name and its reason.
    pub(crate) fn check_all(&self, routes: &[Arc<Route>]) -> Result<(), (String, String)> {
        let refused = |protocol: &dyn Protocol| {
            let refusal = protocol.check(routes).err()?;
            Some((protocol.name().to_owned(), refusal))
        };
        self.iter().find_map(refused).map_or(Ok(()), Err)
    }

    /// The same without those of these [short names](Protocol::door): their paths and media types belong to no one.
    ///
    /// # Errors
    ///
    /// [`ProtocolError::UnknownDoor`] for a name that none of them has.
    pub fn without(&self, doors: &[String]) -> Result<Self, ProtocolError> {
        let known = self.doors();
        if let Some(door) = doors.iter().find(|door| !known.contains(&door.as_str())) {
            return Err(ProtocolError::UnknownDoor { door: door.clone(), known: known.join(", ") });
        }
        let is_kept = |protocol: &&Arc<dyn Protocol>| !doors.iter().any(|door| door == protocol.door());
        Self::try_new(self.0.protocols.iter().filter(is_kept).cloned().collect())
    }

    /// The short names of the protocols, each once, in their order.
    #[must_use]
    pub fn doors(&self) -> Vec<&'static str> {
        let mut doors = Vec::new();
        for door in self.iter().map(Protocol::door) {
            if !doors.contains(&door) {
                doors.push(door);
            }
        }
        doors
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Protocol> {
        self.0.protocols.iter().map(|protocol| &**protocol)
    }
}

impl Default for Protocols {
    /// No protocols.
    fn default() -> Self {
        Self::try_new(Vec::new()).expect("nothing claims the same as nothing")
    }
}

/// A route has the path of a page of the edge, or of a protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("route `{route}` has a path that is reserved for {owner}")]
#[non_exhaustive]
pub struct ReservedRoute {
    /// The path.
    pub route: String,
    /// The name of the protocol, or "the http edge".
    pub owner: String,
}

/// The reason why protocols cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Serve one of them only, or on another edge.
    #[error("{first} and {second} both claim `{claim}`")]
    Clash {
        /// The name of the protocol that comes first in the list, or of the edge.
        first: String,
        /// The name of the other.
        second: String,
        /// A path or a media type.
        claim: String,
    },
    /// A protocol opens only paths that it claims.
    #[error("{protocol} opens `{path}`, which it does not claim")]
    OpenPath {
        /// Its name.
        protocol: String,
        /// The path.
        path: String,
    },
    /// A door that is switched off has the short name of a protocol.
    #[error("there is no door `{door}` to switch off; there are: {known}")]
    UnknownDoor {
        /// The name.
        door: String,
        /// Those that there are.
        known: String,
    },
    /// A claimed path begins with a slash and ends without one.
    #[error("{protocol} claims `{path}`, which is not a path such as `/v2`")]
    Path {
        /// Its name.
        protocol: String,
        /// The path.
        path: String,
    },
}

fn name_of(protocols: &[Arc<dyn Protocol>], index: usize) -> &str {
    protocols.get(index).map_or("", |protocol| protocol.name())
}

/// Whether something belongs to both of two claims.
fn overlap(first: &str, second: &str, belongs: fn(&str, &str) -> bool) -> bool {
    belongs(first, second) || belongs(second, first)
}

/// Whether a `content-type` is of the claimed media type, perhaps with a suffix or parameters.
fn is_media(content_type: &str, claimed: &str) -> bool {
    let Some((start, rest)) = content_type.split_at_checked(claimed.len()) else { return false };
    start.eq_ignore_ascii_case(claimed) && (rest.is_empty() || rest.starts_with(['+', ';', ' ', '\t']))
}

/// The bit of a path's first letter.
fn initial(path: &str) -> Option<u128> {
    path.as_bytes().get(1).map(|letter| 1 << (letter & 127))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_reserves_its_own_paths_and_the_paths_below_them() {
        let none = Protocols::default();
        for reserved in ["/", "/livez", "/readyz", "/openapi.json", "/metrics", "/docs", "/docs/mine", "/v1/call/x"] {
            assert!(none.is_reserved(reserved), "{reserved}");
            assert_eq!(none.owner_of(reserved), Some(EDGE));
        }
        // A route there would need no key.
        assert!(guard::OPEN_PATHS.iter().all(|open| none.is_reserved(open)));
        for free in ["/digits", "/metrics2", "/docsearch", "/v10", "/my/docs", "/v2", "", "/\u{f1}"] {
            assert!(!none.is_reserved(free), "{free}");
        }
    }

    #[test]
    fn a_media_type_is_claimed_with_its_suffixes_and_parameters() {
        for claimed in ["application/grpc", "Application/GRPC", "application/grpc+proto", "application/grpc; x=1"] {
            assert!(is_media(claimed, "application/grpc"), "{claimed}");
        }
        for other in ["application/grpc-web", "application/grp", "application/json", ""] {
            assert!(!is_media(other, "application/grpc"), "{other}");
        }
    }
}
