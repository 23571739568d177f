//! `callboard examples`: one program that calls every route of what would be served, and works as it is printed.

use callboard_core::edge::Route;
use callboard_http::Language;

use super::super::error::CliError;
use super::super::example::base_of;
use super::super::output;
use super::super::service::{Service, example_file};
use super::block_on;

/// Starts the app, because a model's example is known once it is loaded; writes the program; stops again.
pub(crate) fn run(service: Service, language: Language) -> Result<(), CliError> {
    let Service { app, plan } = service;
    let base = base_of(&plan, plan.settings.http.value);
    let program = block_on(async {
        let node = Service::start(app).await?;
        let routes = node.client().routes();
        let with_files: Vec<(&Route, _)> =
            routes.iter().map(|route| (&**route, example_file(&plan, route.name()))).collect();
        let needs_key = plan.settings.api_keys.value.is_some();
        let program = callboard_http::snippet(language, &with_files, &base, needs_key);
        node.abort();
        Ok(program)
    })?;
    output::result(program.trim_end())
}
