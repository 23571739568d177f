//! `callboard openapi`: writes the document that a server would answer, without listening.

use std::path::Path;

use callboard_http::ApiInfo;
use callboard_server::own_protocols;

use super::block_on;
use crate::error::CliError;
use crate::output;
use crate::service::{Service, has_auth};

/// Starts the app, because a model's schema is known once it is loaded; asks for the document; stops again.
pub(crate) fn run(service: Service, info: &ApiInfo, output: Option<&Path>) -> Result<(), CliError> {
    let info = ApiInfo { needs_key: info.needs_key || has_auth(&service.app), ..info.clone() };
    let protocols = own_protocols().without(&service.plan.settings.doors_off.value);
    let protocols = protocols.map_err(|error| CliError::Failed(error.to_string()))?;
    let document = block_on(async {
        let node = Service::start(service.app).await?;
        let document = callboard_http::openapi(&node.client().routes(), &info, &protocols);
        node.abort();
        Ok(document)
    })?;
    let text = format!("{document:#}");
    match output {
        Some(path) => output::file(path, text),
        None => output::result(text),
    }
}
