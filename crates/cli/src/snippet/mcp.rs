//! A program with the library of the Model Context Protocol for Python: a call of each tool. Below it, as a comment,
//! the configuration of a desktop host that starts the app itself.

use std::path::Path;

use callboard_core::edge::Route;
use serde_json::{Value, json};

use super::python::{literal, text};
use super::{Body, Example, NOTHING, ServedRoutes, resolved};

const CALL: &str = r#"

async def call(client, tool, arguments):
    result = await client.call_tool(tool, arguments)
    shown = "".join(part.text if part.type == "text" else f"({part.type})" for part in result.content)
    if result.is_error:
        raise SystemExit(f"{tool}: {shown}")
    print(shown)
"#;

const ENCODED: &str = r#"

def encoded(path):
    with open(path, "rb") as file:
        return base64.b64encode(file.read()).decode()
"#;

const PARSED: &str = r#"

def parsed(path):
    with open(path, "rb") as file:
        return json.load(file)
"#;

/// Stands for the content of a file until the arguments are written.
const FILE: &str = "\u{0}file";

/// Lists the tools, then calls each of them.
pub(super) fn program(served: &ServedRoutes<'_>) -> String {
    let host = desktop_host(served.desktop_host);
    if let Some(refusal) = served.refusal("mcp") {
        return format!("{refusal}\n{host}");
    }
    let calls: Vec<String> = served.routes.iter().map(|(route, file)| called(served, route, file.as_deref())).collect();
    let calls = calls.concat();
    let uses = |name: &str| calls.contains(&format!("{name}(\""));
    let (key, note) = served.key();
    let mut modules = vec!["asyncio"];
    modules.extend(uses("encoded").then_some("base64"));
    modules.extend(uses("parsed").then_some("json"));
    modules.extend(key.is_some().then_some("os"));
    let modules: String = modules.into_iter().map(|module| format!("import {module}\n")).collect();
    let url = text(&format!("{}/mcp", served.base));
    let (library, open) = match key {
        Some(key) => (
            "from mcp import Client\nfrom mcp.client.streamable_http import create_mcp_http_client, \
             streamable_http_client\n",
            format!(
                "    http = create_mcp_http_client(headers={{\"x-api-key\": {key}}})\n    \
                 async with http, Client(streamable_http_client({url}, http_client=http)) as client:\n"
            ),
        ),
        None => ("from mcp import Client\n", format!("    async with Client({url}) as client:\n")),
    };
    let helpers: String = [("call", CALL), ("encoded", ENCODED), ("parsed", PARSED)]
        .into_iter()
        .filter(|(name, _)| if *name == "call" { calls.contains("call(client, ") } else { uses(name) })
        .map(|(_, helper)| helper)
        .collect();
    format!(
        "# pip install mcp\n{note}\n{modules}\n{library}{helpers}\n\nasync def main():\n{open}        \
         print([tool.name for tool in (await client.list_tools()).tools])\n{calls}\n\n\
         asyncio.run(main())\n\n{host}"
    )
}

/// The lines that call the tool of a route, or the reason for their absence.
fn called(served: &ServedRoutes<'_>, route: &Route, file: Option<&Path>) -> String {
    let example = Example::new(route, file);
    let (input, content) = match &example.body {
        Body::Nothing => (None, None),
        Body::Json(json) => (Some(json.clone()), None),
        Body::File { path, field: Some(field), .. } => {
            let is_field = !resolved(route.input().schema())["properties"][field].is_null();
            let input = if is_field { json!({ field: FILE }) } else { json!(FILE) };
            (Some(input), Some(format!("encoded({})", text(path))))
        }
        Body::File { path, media_type, field: None } if media_type == "application/json" => {
            (Some(json!(FILE)), Some(format!("parsed({})", text(path))))
        }
        Body::File { .. } => (None, None),
    };
    // The input decides the arguments only.
    let tool = served.tools.tool_call(route, input.clone().unwrap_or_default());
    match (tool, input) {
        (None, _) => comment(&not_a_tool(route, served.is_own_program)),
        (Some(_), None) => comment(&format!("{} {NOTHING}", example.route)),
        (Some((tool, arguments)), Some(_)) => {
            let mut arguments = literal(&arguments);
            if let Some(content) = content {
                arguments = arguments.replace(&text(FILE), &content);
            }
            format!("{}        await call(client, {}, {arguments})\n", comment(&example.title()), text(&tool))
        }
    }
}

fn comment(words: &str) -> String {
    format!("\n        # {words}\n")
}

fn not_a_tool(route: &Route, is_own_program: bool) -> String {
    let name = route.name();
    if name.contains('{') || !route.methods().any(|method| method == "POST") {
        return format!("{name} cannot be a tool: a tool has no parameters in its path, and POST");
    }
    needs(name, route.is_tool(), route.description().trim().is_empty(), is_own_program)
}

fn needs(name: &str, is_asked_for: bool, lacks_description: bool, is_own_program: bool) -> String {
    let [tool, description] =
        if is_own_program { [".tool()", ".description(\"…\")"] } else { ["mcp = true", "a description"] };
    let mut needs = Vec::new();
    needs.extend((!is_asked_for).then_some(tool));
    needs.extend(lacks_description.then_some(description));
    format!(
        "{name} is no tool: it needs {}",
        if needs.is_empty() { "a shorter path".to_owned() } else { needs.join(" and ") }
    )
}

/// The configuration of a desktop host, as a comment.
fn desktop_host(host: &Value) -> String {
    let lines: Vec<String> = format!("{host:#}").lines().map(|line| format!("# {line}\n")).collect();
    format!("# A desktop host that starts the app by itself has this in its configuration:\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_no_tool_names_what_it_needs() {
        assert_eq!(needs("/a", false, true, false), "/a is no tool: it needs mcp = true and a description");
        assert_eq!(needs("/a", false, false, true), "/a is no tool: it needs .tool()");
        assert_eq!(needs("/a", true, true, false), "/a is no tool: it needs a description");
    }

    #[test]
    fn the_configuration_of_a_host_is_a_comment() {
        let shown = desktop_host(&json!({ "mcpServers": {} }));
        assert!(shown.ends_with("configuration:\n# {\n#   \"mcpServers\": {}\n# }\n"), "{shown}");
        assert!(shown.lines().all(|line| line.starts_with("# ")), "{shown}");
    }
}
