//! `--explain`: the resolved plan, and nothing else. No model is opened.

use std::fmt::Write as _;

use callboard_config::{Explanation, Plan};
use callboard_core::{App, Diagram};
use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::error::CliError;
use crate::output;

/// The format in which a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExplainFormat {
    /// Every setting with its source, every route with its steps.
    Text,
    /// A picture of the routes: a Mermaid flowchart.
    Mermaid,
    /// The same picture in the DOT language of Graphviz.
    Dot,
}

impl ValueEnum for ExplainFormat {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Text, Self::Mermaid, Self::Dot]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Text => "text",
            Self::Mermaid => "mermaid",
            Self::Dot => "dot",
        }))
    }
}

/// Prints the plan, and the routes of a program's own app.
pub(crate) fn run(plan: &Plan, own: Option<App>, form: ExplainFormat) -> Result<(), CliError> {
    let drawn = || match &own {
        Some(app) => Diagram::for_app(app),
        None => Diagram::for_routes(plan.routes.iter().map(|route| (route.path.value.as_str(), plan.steps_of(route)))),
    };
    let text = match form {
        ExplainFormat::Mermaid => drawn().to_mermaid(),
        ExplainFormat::Dot => drawn().to_dot(),
        ExplainFormat::Text => {
            let mut text = Explanation(plan).to_string();
            // The explanation has the routes of a file, with their lines.
            for route in own.iter().flat_map(App::routes) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\nroute {}\n  stages  {}  program\n", route.name(), route.plan());
            }
            text
        }
    };
    output::result(text.trim_end())
}
