//! `--explain`: the resolved plan, and nothing else. No model is opened.

use std::fmt::Write as _;

use callboard_core::App;

use super::super::args::ExplainFormat;
use super::super::error::CliError;
use super::super::output;
use crate::config::{Explanation, Plan};

/// Prints the plan, and the routes of a program's own app.
pub(crate) fn run(plan: &Plan, own: Option<App>, form: ExplainFormat) -> Result<(), CliError> {
    let is_own = own.is_some();
    let drawn = own.unwrap_or_else(|| crate::assemble::sketch(plan)).diagram();
    let text = match form {
        ExplainFormat::Mermaid => drawn.to_mermaid(),
        ExplainFormat::Dot => drawn.to_dot(),
        ExplainFormat::Text => {
            let mut text = Explanation(plan).to_string();
            // The explanation has the routes of a file, with their lines. A line of the plan is `/route: its → steps`.
            for (route, steps) in drawn.to_string().lines().filter(|_| is_own).filter_map(|line| line.split_once(": "))
            {
                // Writing to a string cannot fail.
                let _ = write!(text, "\nroute {route}\n  stages  {steps}  program\n");
            }
            text
        }
    };
    output::result(text.trim_end())
}
