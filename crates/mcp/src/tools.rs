//! Which routes are tools, and under which names. Pure.
//!
//! A route is a tool if it says so, or if all are; with a description, because a model chooses a tool by that. The name
//! is the route without its first slash, in the letters that hosts allow: `/vision/digits` is `vision_digits`. Of two
//! routes with one name neither is served: that is an error at the start. Later, when routes are changed while they are
//! served, the first one has the name, and a route without a description is no tool.

use std::fmt;
use std::sync::Arc;

use callboard_core::LocalClient;
use callboard_core::edge::{Route, nearest};
use serde_json::{Map, Value as Json, json};

use crate::era::Era;
use crate::schema;

/// The longest name that hosts pass to models.
const MAX_NAME_BYTES: usize = 64;

/// Which routes are tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tools {
    /// All that can be, not only those that say so.
    pub(crate) all: bool,
}

impl Tools {
    /// Checks the routes of a start.
    ///
    /// # Errors
    ///
    /// The first route that is to be a tool and cannot be.
    pub(crate) fn check(self, routes: &[Arc<Route>]) -> Result<(), String> {
        let mut names: Vec<(String, &str)> = Vec::new();
        for route in routes.iter().filter(|route| self.is_asked_for(route)) {
            let path = route.name();
            if !can_be_called(route) {
                return Err(format!(
                    "route `{path}` cannot be a tool: a tool has no parameters in its path, and `POST`"
                ));
            }
            if route.description().trim().is_empty() {
                return Err(format!(
                    "route `{path}` cannot be a tool without a description, by which models choose: give its function \
                     a documentation, or the route a `description`"
                ));
            }
            let name = name_of(path);
            if name.len() > MAX_NAME_BYTES {
                return Err(format!(
                    "route `{path}` cannot be a tool: its name is longer than {MAX_NAME_BYTES} letters"
                ));
            }
            if let Some((_, other)) = names.iter().find(|(known, _)| *known == name) {
                return Err(format!("routes `{other}` and `{path}` would both be the tool `{name}`"));
            }
            names.push((name, path));
        }
        Ok(())
    }

    /// The tools by their names, in their order.
    pub(crate) fn list(self, client: &LocalClient) -> Vec<(String, Arc<Route>)> {
        let routes = client.routes().into_iter().filter(|route| self.is_tool(route));
        let mut tools: Vec<_> = routes.map(|route| (name_of(route.name()), route)).collect();
        tools.sort_by(|(a, first), (b, second)| (a, first.name()).cmp(&(b, second.name())));
        tools.dedup_by(|(later, _), (first, _)| later == first);
        tools
    }

    /// The tool of this name.
    ///
    /// # Errors
    ///
    /// There is none; the message names a similar one.
    pub(crate) fn find(self, client: &LocalClient, name: &str) -> Result<Arc<Route>, String> {
        let routes = client.routes();
        let is_named = |route: &&Arc<Route>| Name(route.name()).is(name) && self.is_tool(route);
        let found = routes.iter().filter(is_named).min_by_key(|route| route.name());
        found.cloned().ok_or_else(|| {
            let known: Vec<String> = self.list(client).into_iter().map(|(name, _)| name).collect();
            let hint = nearest(name, known.iter().map(String::as_str)).map(|near| format!("; did you mean `{near}`?"));
            let shown: String = name.chars().take(MAX_NAME_BYTES).collect();
            format!("there is no tool `{shown}`{}", hint.unwrap_or_default())
        })
    }

    fn is_asked_for(self, route: &Route) -> bool {
        route.is_tool() || (self.all && can_be_called(route))
    }

    pub(crate) fn is_tool(self, route: &Route) -> bool {
        let has_name = Name(route.name()).len() <= MAX_NAME_BYTES;
        self.is_asked_for(route) && can_be_called(route) && has_name && !route.description().trim().is_empty()
    }
}

/// Whether a tool can call it: by its name alone, and with an input.
fn can_be_called(route: &Route) -> bool {
    !route.name().contains('{') && route.methods().any(|method| method == "POST")
}

/// The name of the tool of a route.
struct Name<'r>(&'r str);

impl Name<'_> {
    fn letters(&self) -> impl Iterator<Item = char> {
        let allowed = |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' };
        self.0.trim_start_matches('/').chars().map(allowed)
    }

    fn len(&self) -> usize {
        self.0.trim_start_matches('/').chars().count()
    }

    fn is(&self, name: &str) -> bool {
        self.letters().eq(name.chars())
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.letters().try_for_each(|letter| fmt::Write::write_char(f, letter))
    }
}

/// The name of the tool of a route.
pub(crate) fn name_of(route: &str) -> String {
    Name(route).to_string()
}

/// A tool as a list shows it.
pub(crate) fn shown(client: &LocalClient, name: &str, route: &Route, era: Era) -> Json {
    let mut tool = Map::new();
    tool.insert("name".to_owned(), json!(name));
    tool.insert("description".to_owned(), json!(route.description().trim()));
    tool.insert("inputSchema".to_owned(), schema::of_input(route.input()));
    let output = || schema::of_output(route.output(), era == Era::Stateless);
    if let Some(output) = (!route.streams()).then(output).flatten() {
        tool.insert("outputSchema".to_owned(), output);
    }
    if client.edge().may_run_again(route) {
        tool.insert("annotations".to_owned(), json!({ "idempotentHint": true }));
    }
    Json::Object(tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_letters_that_hosts_allow() {
        for (route, name) in
            [("/vision/digits", "vision_digits"), ("/a.b~c:d@e", "a_b_c_d_e"), ("/a-b_c", "a-b_c"), ("/V2", "V2")]
        {
            assert_eq!(name_of(route), name);
            assert!(Name(route).is(name) && !Name(route).is("other") && Name(route).len() == name.len());
        }
    }
}
