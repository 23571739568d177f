//! `callboard examples`: prints one program that calls every route.

use callboard_core::edge::Route;

use super::block_on;
use crate::error::CliError;
use crate::example::base_of;
use crate::output;
use crate::service::{NAMES_CALLERS, Service, example_file, has_auth};
use crate::snippet::{Language, snippet};

/// Starts the app, because a model's example is known once it is loaded. Prints the program and stops the app.
pub(crate) fn run(service: Service, language: Language) -> Result<(), CliError> {
    let Service { app, plan, .. } = service;
    let needs_key = plan.settings.api_keys.value.is_some();
    let note = if has_auth(&app) { language.comment(NAMES_CALLERS) } else { String::new() };
    let base = base_of(&plan, plan.settings.http.value);
    let program = block_on(async {
        let node = Service::start(app).await?;
        let routes = node.client().routes();
        let with_files: Vec<(&Route, _)> =
            routes.iter().map(|route| (&**route, example_file(&plan, route.name()))).collect();
        let program = snippet(language, &with_files, &base, needs_key);
        node.abort();
        Ok(note + &program)
    })?;
    output::result(program.trim_end())
}
