//! `--explain`: the resolved plan, and nothing else.

use std::fmt::Write as _;

use callboard_core::App;

use super::super::error::CliError;
use super::super::output;
use crate::config::{Explanation, Plan};

/// Prints the plan; with the routes of a program's app where there is one.
pub(crate) fn run(plan: &Plan, app: Option<&App>) -> Result<(), CliError> {
    let mut text = Explanation(plan).to_string();
    for route in app.map(App::routes).unwrap_or_default() {
        let stages = route.stages().iter().map(ToString::to_string).collect::<Vec<_>>().join(" → ");
        // Writing to a string cannot fail.
        let _ = write!(text, "\nroute {}\n  stages  {stages}  program\n", route.name());
    }
    output::result(text.trim_end())
}
