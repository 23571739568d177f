//! What a Python file serves, as the configuration file that it means.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::app::{NodeStage, PythonApp, PythonHooks, PythonPipeline, PythonReplicas, PythonService};
use super::keyed::PythonKeyed;

impl PythonApp {
    /// The configuration file that it means.
    #[must_use]
    pub fn configuration(&self) -> String {
        let mut text = String::new();
        if let Some(PythonHooks { target, start_timeout_ms, stop_timeout_ms }) = &self.hooks {
            let _ = writeln!(
                text,
                "[[process]]\nname = \"hooks\"\nhooks = {}\nready_timeout = \"{start_timeout_ms}ms\"\n\
                 stop_timeout = \"{stop_timeout_ms}ms\"\n",
                quoted(target)
            );
        }
        for service in &self.services {
            let name = quoted(&service.stage_name());
            let _ = writeln!(text, "[[stage]]\nname = {name}\nkind = \"python\"\napp = {}", quoted(&service.target));
            let mut line = |key: &str, value: Option<String>| {
                let _ = value.map(|value| writeln!(text, "{key} = {value}"));
            };
            line("replicas_of", service.replicas_of.as_deref().map(quoted));
            line("max_batch_size", service.max_batch_size.filter(|size| *size > 1).map(|size| size.to_string()));
            let millis = |time: u64| format!("\"{time}ms\"");
            // Many requests share a replica of an app, and its bodies may take any time.
            line("timeout", service.timeout_ms.filter(|_| !service.is_asgi()).map(millis));
            line("max_delay", service.max_delay_ms.map(millis));
            line("queue", service.queue.map(|entries| entries.to_string()));
            line("contract", service.contract.as_deref().filter(|contract| *contract != "at_most_once").map(quoted));
            if service.replicas_of.is_none() {
                text.push_str(&replica_keys(service));
            }
            if !service.is_step {
                let _ = writeln!(text, "\n[[route]]\npath = {}\nstages = {name}", quoted(&service.route));
                let summary = service.description.as_deref().filter(|text| !text.is_empty());
                let _ = summary.map(|summary| writeln!(text, "summary = {}", quoted(summary)));
                if service.names_callers() || service.is_asgi() {
                    // The wait in the queue counts as well.
                    let timeout = service.timeout_ms.map(|time| format!("timeout = {}\n", millis(time)));
                    text.push_str(&timeout.unwrap_or_default());
                }
                text.push_str(&request_fields([service].into_iter()));
                let methods: Vec<String> = service.methods.iter().map(|method| quoted(method)).collect();
                if !methods.is_empty() {
                    let _ = writeln!(text, "methods = [{}]", methods.join(", "));
                }
                if service.mcp {
                    let text_of = service.documentation.as_deref().filter(|words| !words.is_empty());
                    let _ = text_of.map(|words| writeln!(text, "description = {}", quoted(words)));
                    text.push_str("mcp = true\n");
                }
                if let Some(task) = &service.openai {
                    let _ = writeln!(text, "openai = {}", quoted(task));
                    let aliases: Vec<String> = service.aliases.iter().map(|alias| quoted(alias)).collect();
                    if !aliases.is_empty() {
                        let _ = writeln!(text, "aliases = [{}]", aliases.join(", "));
                    }
                }
                let examples: Vec<String> = service.examples.iter().filter_map(inline).collect();
                if !examples.is_empty() {
                    let examples: Vec<String> = examples.iter().map(|each| format!("{{ json = {each} }}")).collect();
                    let _ = writeln!(text, "examples = [{}]", examples.join(", "));
                }
            }
            if service.keyed.is_some() {
                let route = quoted(&PythonKeyed::route_of(&service.stage_name()));
                let _ = writeln!(text, "\n[[route]]\npath = {route}\nstages = {name}");
            }
            text.push('\n');
        }
        for NodeStage { name, kind, keys } in &self.stages {
            let _ = writeln!(text, "[[stage]]\nname = {}\nkind = {}", quoted(name), quoted(kind));
            for (key, value) in keys {
                let _ = inline(value).map(|value| writeln!(text, "{key} = {value}"));
            }
            text.push('\n');
        }
        for PythonPipeline { route, steps, .. } in &self.pipelines {
            let written = serde_json::to_value(steps).ok().and_then(|steps| inline(&steps)).unwrap_or_default();
            let _ = writeln!(text, "[[route]]\npath = {}\nstages = {written}", quoted(route));
            let stages = steps.stages();
            let is_step = |service: &&PythonService| stages.contains(&&service.stage_name());
            text.push_str(&request_fields(self.services.iter().filter(is_step)));
            text.push('\n');
        }
        text
    }
}

/// The least time in which an app that says nothing is killed.
const ASGI_SILENCE_MS: u64 = 30_000;

/// The keys of the replicas of a service.
fn replica_keys(service: &PythonService) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: Option<String>| {
        let _ = value.map(|value| writeln!(text, "{key} = {value}"));
    };
    line("concurrency", service.concurrency.filter(|calls| *calls > 1).map(|calls| calls.to_string()));
    let replicas = service.replicas.filter(|replicas| *replicas != PythonReplicas::Fixed(1));
    line("replicas", replicas.map(|replicas| replicas.to_string()));
    // What takes longer blocks all requests of its app; one that may take longer says so by its timeout.
    let silence = service.is_asgi().then(|| service.timeout_ms.unwrap_or_default().max(ASGI_SILENCE_MS));
    line("silence_timeout", silence.map(|time| format!("\"{time}ms\"")));
    line("start_timeout", service.start_timeout_ms.map(|time| format!("\"{time}ms\"")));
    line("memory_limit", service.memory_limit.as_deref().map(quoted));
    line("devices", inline(&service.devices));
    line("env", inline(&service.env).filter(|variables| variables != "{  }"));
    line("affinity", inline(&service.affinity));
    line("warm", (!service.warm).then(|| "false".to_owned()));
    text
}

/// The keys of a route for what the code of its services reads of a request.
fn request_fields<'a>(services: impl Iterator<Item = &'a PythonService> + Clone) -> String {
    let line = |key: &str, names: BTreeSet<&String>| {
        let names = names.into_iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        if names.is_empty() { String::new() } else { format!("{key} = [{names}]\n") }
    };
    line("headers", services.clone().flat_map(|service| &service.headers).collect())
        + &line("query", services.flat_map(|service| &service.query).collect())
}

/// A text in TOML. JSON's texts are also TOML's, but for one character.
fn quoted(text: &str) -> String {
    Json::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A value of TOML on one line, without what is null; `None` if nothing else would be left, or a number is too large.
fn inline(value: &Json) -> Option<String> {
    match value {
        Json::Null => None,
        Json::Bool(_) => Some(value.to_string()),
        Json::Number(number) => (number.is_i64() || number.is_f64()).then(|| number.to_string()),
        Json::String(text) => Some(quoted(text)),
        Json::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(inline).collect();
            Some(format!("[{}]", items?.join(", ")))
        }
        Json::Object(entries) => {
            let kept = entries.iter().filter(|(_, value)| !value.is_null());
            let entries = kept.map(|(key, value)| Some(format!("{} = {}", key_of(key), inline(value)?)));
            Some(format!("{{ {} }}", entries.collect::<Option<Vec<_>>>()?.join(", ")))
        }
    }
}

fn key_of(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { quoted(key) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::app::tests::app;
    use super::*;

    #[test]
    fn pipelines_are_routes_and_steps_have_none() {
        let text = app().configuration();
        assert!(text.contains("[[stage]]\nname = \"m\"\nkind = \"onnx\"\nmodel = \"m.onnx\"\nmax_batch_size = 32\n"));
        let steps = r#"stages = ["decode", "m", { switch = "n", cases = { "a b" = "best" } }]"#;
        assert!(text.contains(&format!("path = \"/app\"\n{steps}\n")), "{text}");
        assert!(text.contains("path = \"/other\"") && !text.contains("path = \"/decode\""), "{text}");
    }

    #[test]
    fn a_method_of_a_keyed_class_has_a_route_that_computes_it() {
        let mut app = app();
        app.services[3].route = "/cart/{key}/add".to_owned();
        let keyed = json!({ "source": "app.py:Cart", "kind": "cart", "save_every_ms": null, "idle_after_ms": 60_000, "max_active": 100 });
        app.services[3].keyed = Some(serde_json::from_value(keyed).unwrap());
        let text = app.configuration();
        for path in ["/cart/{key}/add", "@keyed/cart-:key-add"] {
            let route = format!("[[route]]\npath = \"{path}\"\nstages = \"cart-:key-add\"\n");
            assert_eq!(text.matches(&route).count(), 1, "{text}");
        }
        assert_eq!(text.matches("@keyed").count(), 1, "other services have none");
    }

    #[test]
    fn hooks_are_a_process() {
        let mut app = app();
        app.hooks = Some(PythonHooks { target: "app.py".to_owned(), start_timeout_ms: 60_000, stop_timeout_ms: 5000 });
        let expected = "[[process]]\nname = \"hooks\"\nhooks = \"app.py\"\nready_timeout = \"60000ms\"\n\
                        stop_timeout = \"5000ms\"\n\n[[stage]]\n";
        assert!(app.configuration().starts_with(expected), "{}", app.configuration());
        assert_eq!(app.clone().only("app.py", "alone").unwrap().hooks, app.hooks);
    }

    #[test]
    fn the_timeout_of_an_app_is_that_of_its_route_alone() {
        let mut app = app();
        app.services[3].route = "@asgi/old".to_owned();
        app.services[3].timeout_ms = Some(500);
        let text = app.configuration();
        let route = "path = \"@asgi/old\"\nstages = \"asgi-old\"\ntimeout = \"500ms\"\n";
        assert!(text.contains(route) && text.matches("\ntimeout").count() == 1, "{text}");
        assert!(text.contains("\nsilence_timeout = \"30000ms\"\n"), "{text}");
        let others = app.only("app.py", "more").unwrap();
        assert!(!others.configuration().contains("asgi-old"), "it is no part of another service");
    }

    #[test]
    fn a_route_lists_the_headers_and_query_parameters_of_all_its_services() {
        let mut app = app();
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for service in &mut app.services {
            match service.route.as_str() {
                "/decode" => service.headers = texts(&["x-user", "x-city"]),
                "/best" => (service.headers, service.query) = (texts(&["x-user"]), texts(&["lang"])),
                "/alone" => service.query = texts(&["top"]),
                _ => {}
            }
        }
        let text = app.configuration();
        let of_pipeline = "} }]\nheaders = [\"x-city\", \"x-user\"]\nquery = [\"lang\"]\n\n";
        let of_service = "path = \"/alone\"\nstages = \"alone\"\nquery = [\"top\"]\n";
        assert!(text.contains(of_pipeline) && text.contains(of_service), "{text}");
        assert_eq!(text.matches("headers =").count(), 1, "{text}");
    }

    #[test]
    fn what_a_service_says_of_its_stage_is_a_line_each() {
        let mut app = app();
        let says = json!({
            "target": "app.py:alone", "route": "/alone", "input": {}, "output": {}, "max_batch_size": 8, "replicas": 2,
            "timeout_ms": 700, "contract": "idempotent", "warm": false, "start_timeout_ms": 9000, "max_delay_ms": 5,
            "queue": 64, "memory_limit": "1 GiB", "devices": ["cuda:0", "cuda:1"], "env": { "A": "1" }, "affinity": [[0, 1]],
            "concurrency": 4, "description": "Adds.", "examples": [{ "a": 1 }, null], "methods": ["GET", "POST"],
            "openai": "chat", "aliases": ["small", "large"], "mcp": true, "documentation": "Adds two numbers.",
        });
        app.services[3] = serde_json::from_value(says).unwrap();
        let text = app.configuration();
        let expected = r#"[[stage]]
name = "alone"
kind = "python"
app = "app.py:alone"
max_batch_size = 8
timeout = "700ms"
max_delay = "5ms"
queue = 64
contract = "idempotent"
concurrency = 4
replicas = 2
start_timeout = "9000ms"
memory_limit = "1 GiB"
devices = ["cuda:0", "cuda:1"]
env = { A = "1" }
affinity = [[0, 1]]
warm = false

[[route]]
path = "/alone"
stages = "alone"
summary = "Adds."
methods = ["GET", "POST"]
description = "Adds two numbers."
mcp = true
openai = "chat"
aliases = ["small", "large"]
examples = [{ json = { a = 1 } }]

"#;
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn what_is_the_default_is_no_line() {
        let mut app = app();
        let says = json!({
            "target": "app.py:alone", "route": "/alone", "input": {}, "output": {}, "max_batch_size": 1, "replicas": 1,
            "contract": "at_most_once", "env": {}, "concurrency": 1, "description": "", "mcp": true, "documentation": "",
            "openai": "chat",
        });
        app.services[3] = serde_json::from_value(says).unwrap();
        let expected = r#"[[stage]]
name = "alone"
kind = "python"
app = "app.py:alone"

[[route]]
path = "/alone"
stages = "alone"
mcp = true
openai = "chat"

"#;
        assert!(app.configuration().contains(expected), "{}", app.configuration());
        app.services[3].mcp = false;
        app.services[3].documentation = Some("For agents.".to_owned());
        assert!(!app.configuration().contains("For agents."), "agents may not call it");
    }

    #[test]
    fn the_function_that_names_callers_has_the_timeout_of_its_route_and_an_app_may_set_a_longer_silence() {
        let mut app = app();
        (app.services[3].route, app.services[3].timeout_ms) = ("@auth".to_owned(), Some(500));
        let text = app.configuration();
        assert_eq!(text.matches("timeout = \"500ms\"\n").count(), 2, "of the stage, and of the route: {text}");
        (app.services[3].route, app.services[3].timeout_ms) = ("@asgi/a".to_owned(), Some(90_000));
        assert!(app.configuration().contains("\nsilence_timeout = \"90000ms\"\n"));
        (app.services[3].route, app.services[3].timeout_ms) = ("/alone".to_owned(), Some(500));
        let text = app.configuration();
        assert!(text.matches("timeout").count() == 1 && !text.contains("silence_timeout"), "{text}");
    }

    #[test]
    fn keys_that_are_no_words_are_quoted() {
        let keys = json!({ "a-b_1": true, "": 1, "a b": "x", "ä": null, "ö": -1.5 });
        assert_eq!(inline(&keys).as_deref(), Some(r#"{ a-b_1 = true, "" = 1, "a b" = "x", "ö" = -1.5 }"#));
    }

    #[test]
    fn an_example_is_a_value_of_toml_if_it_can_be() {
        let example =
            json!({ "text": "a\u{7f}\"", "top": 3, "scale": 0.5, "none": null, "names": [["a"], []], "on": true });
        let expected = r#"{ text = "a\u007f\"", top = 3, scale = 0.5, names = [["a"], []], on = true }"#;
        assert_eq!(inline(&example).as_deref(), Some(expected));
        for none in [json!(null), json!([1, null]), json!({ "a": u64::MAX })] {
            assert_eq!(inline(&none), None, "{none}");
        }
    }
}
