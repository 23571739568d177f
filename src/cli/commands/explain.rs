//! `--explain`: the resolved plan, and nothing else. No model is opened.

use std::fmt::Write as _;

use callboard_core::App;

use super::super::args::Form;
use super::super::error::CliError;
use super::super::output;
use crate::config::{Explanation, Plan};

/// Prints the plan; with the routes of a program's app where there is one.
pub(crate) fn run(plan: &Plan, own: Option<App>, form: Form) -> Result<(), CliError> {
    let is_own = own.is_some();
    let drawn = own.unwrap_or_else(|| crate::build::sketch(plan)).diagram();
    let text = match form {
        Form::Mermaid => drawn.to_mermaid(),
        Form::Dot => drawn.to_dot(),
        Form::Text => {
            let mut text = Explanation(plan).to_string();
            // Those of a file are in the explanation, with their lines. A line of a plan is `/route: its → steps`.
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
