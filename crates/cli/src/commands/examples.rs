//! `callboard examples`: prints one program that calls every route.

use std::path::{Path, PathBuf};

use callboard_config::{Plan, Source, Target};
use callboard_core::edge::Route;
use callboard_http::ApiInfo;
use callboard_mcp::McpProtocol;
use serde_json::{Value, json};

use super::block_on;
use crate::error::CliError;
use crate::example::base_of;
use crate::output;
use crate::service::{NAMES_CALLERS, Service, example_file, has_auth, mcp_config};
use crate::snippet::{Language, ServedRoutes, snippet};

/// Starts the app, because a model's example is known once it is loaded. Prints the program and stops the app. `typed`
/// is the target as it was typed.
pub(crate) fn run(service: Service, language: Language, info: &ApiInfo, typed: Option<&Path>) -> Result<(), CliError> {
    let Service { app, plan, .. } = service;
    let note = if has_auth(&app) { language.comment(NAMES_CALLERS) } else { String::new() };
    let base = base_of(&plan, plan.settings.http.value);
    let tools = McpProtocol::new(mcp_config(&plan, info));
    let desktop_host = desktop_host(&plan, &info.title, typed);
    let program = block_on(async {
        let node = Service::start(app).await?;
        let routes = node.client().routes();
        let with_files: Vec<(&Route, _)> =
            routes.iter().map(|route| (&**route, example_file(&plan, route.name()))).collect();
        let served = ServedRoutes {
            routes: &with_files,
            base: &base,
            needs_key: plan.settings.api_keys.value.is_some(),
            is_own_program: matches!(plan.target, Target::Program { .. }),
            doors_off: &plan.settings.doors_off.value,
            tools: &tools,
            desktop_host: &desktop_host,
        };
        let program = snippet(language, &served);
        node.abort();
        Ok(note + &program)
    })?;
    output::result(program.trim_end())
}

/// The part of the configuration of a desktop host that starts `callboard mcp` with the same app.
fn desktop_host(plan: &Plan, name: &str, typed: Option<&Path>) -> Value {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("callboard"));
    let mut arguments = vec!["mcp".to_owned()];
    let served = match &plan.target {
        Target::Program { .. } => typed,
        _ => Some(typed.unwrap_or_else(|| Path::new("."))),
    };
    arguments.extend(served.map(from_anywhere));
    let mcp = &plan.settings.mcp;
    if mcp.value && matches!(mcp.source, Source::Flag(_) | Source::Env(_)) {
        arguments.push("--mcp=true".to_owned());
    }
    let mut server = json!({ "command": program.display().to_string(), "args": arguments });
    // A host has no variables of a shell.
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV").filter(|_| runs_python(plan)) {
        server["env"] = json!({ "VIRTUAL_ENV": environment.to_string_lossy() });
    }
    json!({ "mcpServers": { name: server } })
}

/// The target for a program that starts in another directory. A module has no path.
fn from_anywhere(typed: &Path) -> String {
    let text = typed.to_string_lossy();
    let (file, service) = match text.rsplit_once(':') {
        Some((file, _)) if !typed.exists() => (file, &text[file.len()..]),
        _ => (&*text, ""),
    };
    match std::path::absolute(file) {
        Ok(path) if path.exists() => {
            // The directory itself for `.`, which is its last part.
            let path: PathBuf = path.components().collect();
            format!("{}{service}", path.display())
        }
        _ => text.into_owned(),
    }
}

#[cfg(feature = "process")]
fn runs_python(plan: &Plan) -> bool {
    plan.stages.iter().any(|stage| matches!(stage.kind, callboard_config::StageKind::Python(_)))
}

#[cfg(not(feature = "process"))]
fn runs_python(_: &Plan) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_found_from_every_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(from_anywhere(Path::new(".")), here.display().to_string());
        assert_eq!(from_anywhere(Path::new("src/lib.rs:Name")), format!("{}/src/lib.rs:Name", here.display()));
        assert_eq!(from_anywhere(Path::new("shop.app:Name")), "shop.app:Name");
    }
}
