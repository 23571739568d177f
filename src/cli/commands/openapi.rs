//! `callboard openapi`: writes the document that a server would answer, without listening.

use std::path::Path;

use super::super::error::CliError;
use super::super::output;
use super::super::service::{Service, api_info};
use super::block_on;

/// Starts the app, because a model's schema is known once it is loaded; asks for the document; stops again.
pub(crate) fn run(service: Service, output: Option<&Path>) -> Result<(), CliError> {
    let info = api_info(&service.plan.target);
    let document = block_on(async {
        let node = Service::start(service.app).await?;
        let document = callboard_http::openapi(&node.client().routes(), &info);
        node.abort();
        Ok(document)
    })?;
    let text = format!("{document:#}");
    match output {
        Some(path) => output::file(path, text),
        None => output::result(text),
    }
}
