//! Which public route a path and a method of HTTP call: several routes may share a path by different methods. Made anew
//! with each version of the table; looking up takes no lock.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::path_template::{has_parameters, rank, takes};
use super::route::Route;
use crate::id::RouteName;

/// The public routes of a table by their paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    /// Those that are alone at their path, and that a `POST` of it calls, so that such a call asks no more. A fast hash
    /// without protection, as in the table: callers choose what is looked up, and not what is in the map.
    direct: FxHashMap<RouteName, Arc<Route>>,
    /// Those without parameters.
    plain: FxHashMap<Box<str>, Vec<Arc<Route>>>,
    /// Those with parameters, each path once: of two that take a path the first is meant.
    with_parameters: Vec<Vec<Arc<Route>>>,
}

impl Paths {
    pub(super) fn of<'a>(routes: impl IntoIterator<Item = &'a Arc<Route>>) -> Self {
        let mut paths = Self::default();
        for route in routes.into_iter().filter(|route| !route.is_private()) {
            if !has_parameters(route.path()) {
                paths.plain.entry(route.path().into()).or_default().push(Arc::clone(route));
            } else if let Some(at) = paths.with_parameters.iter_mut().find(|at| at[0].path() == route.path()) {
                at.push(Arc::clone(route));
            } else {
                paths.with_parameters.push(vec![Arc::clone(route)]);
            }
        }
        paths.with_parameters.sort_by_cached_key(|at| rank(at[0].path()));
        let alone = paths.plain.values().filter_map(|at| if let [only] = &**at { Some(only) } else { None });
        let direct = alone.filter(|route| route.is_direct());
        paths.direct = direct.map(|route| (route.id().clone(), Arc::clone(route))).collect();
        paths
    }

    /// The route at this path, if no more than the path and a `POST` is needed to call it.
    pub(super) fn direct(&self, path: &str) -> Option<&Arc<Route>> {
        self.direct.get(path)
    }

    /// The routes that the methods of HTTP call at this path.
    pub(super) fn at(&self, path: &str) -> &[Arc<Route>] {
        let template = || self.with_parameters.iter().find(|at| takes(at[0].path(), path));
        self.plain.get(path).or_else(template).map_or(&[], Vec::as_slice)
    }

    /// The route that this method calls at this path. Without a method that of `POST`, else that of `GET`, else the
    /// only one.
    pub(super) fn called(&self, path: &str, method: Option<&str>) -> Option<&Arc<Route>> {
        let routes = self.at(path);
        let called_by = |method: &str| routes.iter().find(|route| route.has_method(method));
        match (method, routes) {
            (Some(method), _) => called_by(method),
            (None, [only]) => Some(only),
            (None, _) => called_by("POST").or_else(|| called_by("GET")),
        }
    }
}
