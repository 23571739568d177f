//! The endpoint of a path under `/v2`, or of a prediction by version 1 under `/v1`. Pure.
//!
//! A model's name is its route's path without the leading slash, percent-decoded, so it may contain slashes. The last
//! segment is matched first: `/v2/models/a/ready` asks whether `a` is ready, although a model `a/ready` may exist,
//! whose slash can be written `%2F`. Versions are whole numbers.

use std::borrow::Cow;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v2`.
    Server,
    /// `/v2/health/live`.
    Live,
    /// `/v2/health/ready`.
    Ready,
    /// `/v2/models/stats`.
    AllStatistics,
    /// Below `/v2/repository`.
    Repository(RepositoryAction),
    /// `/v2/models/{name}[/versions/{version}][/{action}]`.
    Model { name: String, version: Option<u64>, action: Action },
    /// An extension of the protocol that is not offered.
    Missing(&'static str),
    /// No endpoint.
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RepositoryAction {
    /// `/v2/repository/index`.
    Index,
    /// `/v2/repository/models/{name}/load` and `unload`.
    Change { name: String, load: bool },
}

/// An action on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Metadata,
    Ready,
    Config,
    Statistics,
    Infer,
    Generate,
    GenerateStream,
    /// Of version 1.
    Predict,
}

/// The prefix and the ending of predictions by version 1: `/v1/models/{name}[/versions/{version}]:predict`.
pub(crate) const PREDICT: (&str, &str) = ("/v1/models", ":predict");

impl Action {
    fn parse(segment: &str) -> Option<Self> {
        Some(match segment {
            "ready" => Self::Ready,
            "config" => Self::Config,
            "stats" => Self::Statistics,
            "infer" => Self::Infer,
            "generate" => Self::Generate,
            "generate_stream" => Self::GenerateStream,
            _ => return None,
        })
    }
}

impl Endpoint {
    pub(crate) fn parse(path: &str) -> Self {
        let (front, ending) = PREDICT;
        if let Some(model) = path.strip_prefix(front).and_then(|rest| rest.strip_suffix(ending)) {
            return predict(model).unwrap_or(Self::Unknown);
        }
        let rest = path.strip_prefix("/v2").unwrap_or_default();
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        match rest {
            "" => Self::Server,
            "health/live" => Self::Live,
            "health/ready" => Self::Ready,
            "models/stats" => Self::AllStatistics,
            _ => missing(rest).or_else(|| model(rest)).or_else(|| repository(rest)).unwrap_or(Self::Unknown),
        }
    }
}

/// Shared memory, trace and logging: the error should say that the feature is missing, not the path.
fn missing(rest: &str) -> Option<Endpoint> {
    let is_below = |path: &str| rest.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let extension = match rest {
        _ if ["systemsharedmemory", "cudasharedmemory", "tpusharedmemory"].into_iter().any(is_below) => {
            "regions of shared memory"
        }
        _ if rest == "trace/setting" || rest.starts_with("models/") && rest.ends_with("/trace/setting") => {
            "trace settings"
        }
        "logging" => "log settings",
        _ => return None,
    };
    Some(Endpoint::Missing(extension))
}

fn model(rest: &str) -> Option<Endpoint> {
    let rest = rest.strip_prefix("models/")?;
    let (rest, action) = match rest.rsplit_once('/').map(|(front, last)| (front, Action::parse(last))) {
        Some((front, Some(action))) => (front, action),
        _ => (rest, Action::Metadata),
    };
    versioned(rest, action)
}

fn predict(rest: &str) -> Option<Endpoint> {
    versioned(rest.strip_prefix('/')?, Action::Predict)
}

fn versioned(rest: &str, action: Action) -> Option<Endpoint> {
    let (name, version) = match rest.rsplit_once("/versions/") {
        Some((name, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, Some(version.parse().ok()?))
        }
        _ => (rest, None),
    };
    Some(Endpoint::Model { name: decoded(name)?, version, action })
}

fn repository(rest: &str) -> Option<Endpoint> {
    let rest = rest.strip_prefix("repository/")?;
    // The protocol may name one of several repositories; here there is one.
    let rest = match rest.split_once('/') {
        Some((named, what)) if named != "models" => what,
        _ => rest,
    };
    if rest == "index" {
        return Some(Endpoint::Repository(RepositoryAction::Index));
    }
    let (name, verb) = rest.strip_prefix("models/")?.rsplit_once('/')?;
    let load = match verb {
        "load" => true,
        "unload" => false,
        _ => return None,
    };
    Some(Endpoint::Repository(RepositoryAction::Change { name: decoded(name)?, load }))
}

/// Percent-decoded. `None` if the name is empty or not UTF-8.
fn decoded(name: &str) -> Option<String> {
    let name: Cow<'_, str> = percent_encoding::percent_decode_str(name).decode_utf8().ok()?;
    (!name.is_empty()).then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(path: &str) -> (String, Option<u64>, Action) {
        match Endpoint::parse(path) {
            Endpoint::Model { name, version, action } => (name, version, action),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn every_endpoint_is_known_with_and_without_a_version() {
        let of = |name: &str, version, action| (name.to_owned(), version, action);
        assert_eq!(model("/v2/models/digits"), of("digits", None, Action::Metadata));
        assert_eq!(model("/v2/models/digits/versions/3"), of("digits", Some(3), Action::Metadata));
        assert_eq!(model("/v2/models/digits/versions/3/infer"), of("digits", Some(3), Action::Infer));
        assert_eq!(model("/v2/models/digits/ready"), of("digits", None, Action::Ready));
        assert_eq!(model("/v2/models/digits/config"), of("digits", None, Action::Config));
        assert_eq!(model("/v2/models/digits/stats"), of("digits", None, Action::Statistics));
        assert_eq!(model("/v2/models/digits/generate"), of("digits", None, Action::Generate));
        assert_eq!(model("/v2/models/digits/generate_stream"), of("digits", None, Action::GenerateStream));
        for (path, endpoint) in [
            ("/v2", Endpoint::Server),
            ("/v2/", Endpoint::Server),
            ("/v2/health/live", Endpoint::Live),
            ("/v2/health/ready", Endpoint::Ready),
            ("/v2/models/stats", Endpoint::AllStatistics),
            ("/v2/repository/index", Endpoint::Repository(RepositoryAction::Index)),
            ("/v2/repository/mine/index", Endpoint::Repository(RepositoryAction::Index)),
            ("/v2/repository/models/m/load", control("m", true)),
            ("/v2/repository/models/a/b/load", control("a/b", true)),
            ("/v2/repository/mine/models/m/unload", control("m", false)),
        ] {
            assert_eq!(Endpoint::parse(path), endpoint, "{path}");
        }
        for path in
            ["/v2/repository/models/index", "/v2/repository/mymodels/m/load", "/v2/repository/a/b/models/m/load"]
        {
            assert_eq!(Endpoint::parse(path), Endpoint::Unknown, "{path}");
        }
        for (path, extension) in [
            ("/v2/systemsharedmemory/status", "regions of shared memory"),
            ("/v2/cudasharedmemory/region/x/register", "regions of shared memory"),
            ("/v2/models/m/trace/setting", "trace settings"),
            ("/v2/trace/setting", "trace settings"),
            ("/v2/logging", "log settings"),
        ] {
            assert_eq!(Endpoint::parse(path), Endpoint::Missing(extension), "{path}");
        }
        for path in ["/v2/nothing", "/v2/models/", "/v2/models/%ff", "/v2/models/m/versions/99999999999999999999"] {
            assert_eq!(Endpoint::parse(path), Endpoint::Unknown, "{path}");
        }
    }

    fn control(name: &str, load: bool) -> Endpoint {
        Endpoint::Repository(RepositoryAction::Change { name: name.to_owned(), load })
    }

    #[test]
    fn a_name_may_have_plain_or_encoded_slashes() {
        assert_eq!(model("/v2/models/vision/digits/infer").0, "vision/digits");
        assert_eq!(model("/v2/models/vision%2Fdigits/infer").0, "vision/digits");
        assert_eq!(model("/v2/models/a%2Fready"), ("a/ready".to_owned(), None, Action::Metadata));
        assert_eq!(model("/v2/models/versions/x").0, "versions/x");
    }
}
