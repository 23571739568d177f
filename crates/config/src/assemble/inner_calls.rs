//! The calls that stages make to routes of this node, as far as their code says so before it runs.
//!
//! A route that is called must be served. Stages that call each other in a cycle could all wait for each other, so
//! that is an error as well; core refuses such a call in any case.

use callboard_core::split_route_name;

use super::part::Part;
use crate::{ConfigError, Hint, Plan, RoutePlan, StagePlan};

/// Checks the calls of those stages of the plan that were built.
pub(super) fn check(plan: &Plan, parts: &[Option<Part>]) -> Result<(), ConfigError> {
    for index in 0..parts.len() {
        for (attribute, route) in calls(parts, index) {
            let place = || place(plan, &plan.stages[index], attribute);
            let Some(called) = stages_of(plan, route) else {
                let paths = plan.routes.iter().map(|route| &*route.path.value);
                let (what, hint, name) = ("route", Hint::new(route, paths), route.clone());
                return Err(ConfigError::UnknownName { place: place(), what, hint, name });
            };
            if let Some(way) = called.into_iter().find_map(|next| way_back(plan, parts, next, index, &mut Vec::new())) {
                let names: Vec<String> =
                    way.iter().map(|stage| format!("`{}`", plan.stages[*stage].name.value)).collect();
                let way = names.join(", which calls ");
                let message = format!("it calls {way}: in such a cycle all replicas could wait for each other");
                return Err(ConfigError::Rejected { place: place(), message });
            }
        }
    }
    Ok(())
}

fn calls(parts: &[Option<Part>], stage: usize) -> &[(String, String)] {
    parts[stage].as_ref().map_or(&[], |part| &part.calls)
}

fn stages_of(plan: &Plan, route: &str) -> Option<Vec<usize>> {
    let route = called(plan, route)?;
    Some(route.steps.value.stages().into_iter().copied().collect())
}

/// The route that a name means: a path alone means the route of `POST`, else of `GET`, else the only one. As core finds
/// it, except that a path with parameters is found by its template only.
fn called<'p>(plan: &'p Plan, name: &str) -> Option<&'p RoutePlan> {
    let (method, path) = split_route_name(name);
    let at: Vec<&RoutePlan> = plan.routes.iter().filter(|route| route.http_path() == path).collect();
    let by = |method: &str| at.iter().copied().find(|route| route.has_method(method));
    match (method, &*at) {
        (Some(method), _) => by(method),
        (None, [only]) => Some(*only),
        (None, _) => by("POST").or_else(|| by("GET")),
    }
}

/// The stages from `at` to `to`, by calls.
fn way_back(plan: &Plan, parts: &[Option<Part>], at: usize, to: usize, seen: &mut Vec<usize>) -> Option<Vec<usize>> {
    if plan.with_replicas(at) == plan.with_replicas(to) {
        return Some(vec![at]);
    }
    if seen.contains(&at) {
        return None;
    }
    seen.push(at);
    let called = calls(parts, at).iter().filter_map(|(_, route)| stages_of(plan, route)).flatten();
    let rest = called.into_iter().find_map(|next| way_back(plan, parts, next, to, seen))?;
    Some([vec![at], rest].concat())
}

fn place(plan: &Plan, stage: &StagePlan, attribute: &str) -> crate::Place {
    plan.place(&stage.name.source, format!("stage `{}`: {attribute}", stage.name.value))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use callboard_codec::DataType;
    use callboard_core::Pipeline;
    use callboard_core::description::Planned;

    use super::*;
    use crate::{Environment, Flags, Target};

    /// The routes `/a`, `/b` and `/c`, each with a stage of its own; the routes that the code of each calls.
    fn checked(called: [&[&str]; 3]) -> Result<(), String> {
        let stages = ["a", "b", "c"].map(|name| {
            format!(
                "[[stage]]\nname = \"{name}\"\nkind = \"labels\"\n[[route]]\npath = \"/{name}\"\nstages = \"{name}\"\n"
            )
        });
        let target = Target::File { path: PathBuf::from("f"), text: stages.concat() };
        let plan = Plan::resolve(target, &Flags::new(), &Environment::default()).unwrap();
        let part = |routes: &[&str]| Part {
            code: Planned::Single(Pipeline::pass_through()),
            needs: None,
            output: DataType::value(),
            arguments: Vec::new(),
            response: None,
            calls: routes.iter().map(|route| ("embed".to_owned(), (*route).to_owned())).collect(),
            auth: None,
            engine: None,
            host: None,
            #[cfg(feature = "process")]
            computed: None,
        };
        check(&plan, &called.map(|routes| Some(part(routes)))).map_err(|error| error.to_string())
    }

    #[test]
    fn calls_without_a_cycle_are_fine() {
        assert_eq!(checked([&["/b", "/c"], &["/c"], &[]]), Ok(()));
    }

    #[test]
    fn a_method_before_a_path_is_a_part_of_the_name() {
        assert_eq!(checked([&["POST /b"], &[], &[]]), Ok(()));
        let error = checked([&["GET /b"], &[], &[]]).unwrap_err();
        assert!(error.contains("unknown route `GET /b`"), "{error}");
    }

    #[test]
    fn a_route_that_is_not_served_is_named_with_the_nearest() {
        let error = checked([&[], &["/aa"], &[]]).unwrap_err();
        assert!(error.starts_with("f:8: stage `b`: embed: ") && error.contains("did you mean `/a`?"), "{error}");
    }

    #[test]
    fn a_cycle_of_calls_is_refused_with_its_way() {
        let error = checked([&["/b"], &["/c"], &["/b"]]).unwrap_err();
        assert_eq!(
            error,
            "f:8: stage `b`: embed: it calls `c`, which calls `b`: in such a cycle all replicas could wait for each other"
        );
        let error = checked([&["/a"], &[], &[]]).unwrap_err();
        assert_eq!(
            error,
            "f:2: stage `a`: embed: it calls `a`: in such a cycle all replicas could wait for each other"
        );
    }
}
