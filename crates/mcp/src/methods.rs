//! The methods that call no route: what the server is, and which tools it has.

use std::time::Duration;

use callboard_http::axum::response::Response;
use callboard_http::protocol::RequestContext;
use serde_json::{Value as Json, json};

use crate::answer::Asked;
use crate::config::McpConfig;
use crate::era::{self, DISCOVER, Era};
use crate::respond::{Refusal, json_response};
use crate::rpc::{self, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Message, RpcError};
use crate::tools::{self, Tools};

/// How long a client may keep a list: routes change when files are loaded again, and a call of a tool that has changed
/// is refused with a reason.
const FRESH: Duration = Duration::from_secs(60);

/// Answers a request of one of these methods.
pub(crate) fn answer(
    config: &McpConfig,
    tools: Tools,
    context: RequestContext<'_>,
    asked: &Asked,
    message: &Message,
) -> Result<Response, Refusal> {
    let list = |name: &str, items: Vec<Json>| {
        let mut list = json!({ name: items });
        add_hints(asked.era, context, &mut list);
        list
    };
    let result = match (asked.era, message.method.as_str()) {
        (Era::Stateless, DISCOVER) => discovered(config, context),
        (Era::Handshake, "initialize") => agreed(config, message),
        (Era::Handshake, "ping") => json!({}),
        (era, "tools/list") => {
            let all = tools.list(context.client).into_iter();
            list("tools", all.map(|(name, route)| tools::shown(context.client, &name, &route, era)).collect())
        }
        // There are none, and some clients ask without looking at the capabilities.
        (_, "prompts/list") => list("prompts", Vec::new()),
        (_, "resources/list") => list("resources", Vec::new()),
        (_, "resources/templates/list") => list("resourceTemplates", Vec::new()),
        (_, method @ ("prompts/get" | "resources/read")) => {
            let what = if method == "prompts/get" { "prompts" } else { "resources" };
            let error = RpcError::new(INVALID_PARAMS, format!("this server has no {what}"));
            return Err(Refusal::rpc(asked, error));
        }
        (_, other) => {
            let shown: String = other.chars().take(64).collect();
            let error = RpcError::new(METHOD_NOT_FOUND, format!("there is no method `{shown}`"));
            return Err(Refusal::rpc(asked, error));
        }
    };
    match rpc::result(&asked.id, result) {
        Ok(answer) => Ok(json_response(200, answer)),
        Err(error) => Err(Refusal::rpc(asked, RpcError::new(INTERNAL_ERROR, error.to_string()))),
    }
}

/// The answer to `server/discover`.
fn discovered(config: &McpConfig, context: RequestContext<'_>) -> Json {
    let mut result = json!({
        "supportedVersions": era::STATELESS,
        "capabilities": capabilities(),
        "_meta": { "io.modelcontextprotocol/serverInfo": server_info(config) },
    });
    add_instructions(config, &mut result);
    add_hints(Era::Stateless, context, &mut result);
    result
}

/// The answer to `initialize`.
fn agreed(config: &McpConfig, message: &Message) -> Json {
    let mut result = json!({
        "protocolVersion": era::agreed(message.params.protocol_version.as_deref()),
        "capabilities": capabilities(),
        "serverInfo": server_info(config),
    });
    add_instructions(config, &mut result);
    result
}

/// Also of the lists that are empty, because they are answered.
fn capabilities() -> Json {
    json!({ "tools": {}, "prompts": {}, "resources": {} })
}

fn server_info(config: &McpConfig) -> Json {
    json!({ "name": config.name, "version": config.version })
}

fn add_instructions(config: &McpConfig, result: &mut Json) {
    if !config.instructions.is_empty() {
        result["instructions"] = json!(config.instructions);
    }
}

/// What every result of the new era has, and how long it may be kept, by whom.
fn add_hints(era: Era, context: RequestContext<'_>, result: &mut Json) {
    if era == Era::Stateless {
        result["resultType"] = json!("complete");
        result["ttlMs"] = json!(FRESH.as_millis() as u64);
        result["cacheScope"] = json!(if context.key_holder.is_some() { "private" } else { "public" });
    }
}
