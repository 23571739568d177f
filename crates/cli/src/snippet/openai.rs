//! A program with OpenAI's library for Python: a call of each route with a task.

use std::fmt::Write as _;
use std::path::Path;

use callboard_core::Task;
use callboard_core::edge::Route;
use callboard_http::example_of;
use callboard_openai::request_fields;
use serde_json::{Map, Value, json};

use super::python::{literal, text};
use super::{Example, ServedRoutes, resolved};

/// A recording for a route without a file.
const SILENCE: &str = r#"

def silence():
    """A recording of half a second, in which nobody speaks."""
    recording = io.BytesIO()
    with wave.open(recording, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(16000))
    return "silence.wav", recording.getvalue()
"#;

/// Lists the models, then calls each of them.
pub(super) fn program(served: &ServedRoutes<'_>) -> String {
    if let Some(refusal) = served.refusal("openai") {
        return refusal;
    }
    let models = served.routes.iter().map(|(route, file)| match route.task() {
        Some(task) => Model::new(route, task, file.as_deref()).called(),
        None => not_a_model(route.name(), served.is_own_program),
    });
    let calls: Vec<String> = models.collect();
    let needs_recording = calls.iter().any(|call| call.contains("silence()"));
    let (key, note) = served.key();
    let mut modules = Vec::new();
    modules.extend(needs_recording.then_some("import io\n"));
    modules.extend(key.is_some().then_some("import os\n"));
    modules.extend(needs_recording.then_some("import wave\n"));
    let modules = if modules.is_empty() { String::new() } else { modules.concat() + "\n" };
    let (recording, gap) = if needs_recording { (SILENCE, "\n") } else { ("", "") };
    let base = text(&format!("{}/v1", served.base));
    let key = key.unwrap_or_else(|| text("none"));
    format!(
        "# pip install openai\n{note}\n{modules}from openai import OpenAI\n{recording}{gap}\n\
         client = OpenAI(base_url={base}, api_key={key})\n\
         print([model.id for model in client.models.list()])\n\n{}",
        calls.join("\n")
    )
}

fn not_a_model(route: &str, is_own_program: bool) -> String {
    let needs = if is_own_program { ".task(Task::Chat)" } else { "openai = \"chat\"" };
    let tasks: Vec<&str> = Task::ALL.into_iter().filter(|task| *task != Task::Chat).map(Task::as_str).collect();
    format!("# {route} is no model of OpenAI's API: it needs a task, {needs} (or {})\n", tasks.join(", "))
}

/// A route that is called.
struct Model {
    title: String,
    id: String,
    task: Task,
    streams: bool,
    fields: Map<String, Value>,
    /// A recording.
    file: Option<String>,
}

impl Model {
    fn new(route: &Route, task: Task, file: Option<&Path>) -> Self {
        let schema = route.input().schema();
        let has_own = !route.examples().is_empty();
        let mut fields = example_of(route).map(|example| request_fields(task, schema, &example)).unwrap_or_default();
        if !has_own {
            let required = resolved(schema)["required"].as_array();
            // A sample of a type in which nothing is required has all fields.
            fields.retain(|name, _| required.is_some_and(|names| names.iter().any(|required| required == name)));
            for (name, value) in usual_fields(task) {
                // Token ids stay.
                if fields.get(name).is_none_or(|sample| sample.is_string() || task == Task::Chat || name == "documents")
                {
                    fields.insert(name.to_owned(), value);
                }
            }
        }
        Self {
            title: Example::new(route, None).title(),
            id: route.name().trim_start_matches('/').to_owned(),
            task,
            streams: route.streams(),
            fields,
            file: file.map(|file| file.display().to_string()),
        }
    }

    /// The lines that call it and print its answer.
    fn called(&self) -> String {
        let call = match self.task {
            Task::Chat => self.generated("chat.completions", "message.content", "delta.content or \"\""),
            Task::Complete => self.generated("completions", "text", "text"),
            Task::Embed => self.printed("embeddings.create", "len(answer.data[0].embedding), \"numbers\""),
            Task::Moderate => self.printed("moderations.create", "answer.results[0].flagged"),
            Task::Transcribe => self.printed("audio.transcriptions.create", "answer.text"),
            Task::Speak => self.printed("audio.speech.create", "len(answer.content), \"bytes\""),
            Task::Image => self.printed("images.generate", "len(answer.data[0].b64_json), \"letters of base64\""),
            Task::Rerank => self.ranked(),
        };
        format!("# {}\n{call}", self.title)
    }

    fn printed(&self, method: &str, answer: &str) -> String {
        format!("answer = client.{method}({})\nprint({answer})\n", self.arguments())
    }

    fn generated(&self, method: &str, whole: &str, piece: &str) -> String {
        if !self.streams {
            return self.printed(&format!("{method}.create"), &format!("answer.choices[0].{whole}"));
        }
        format!(
            "for chunk in client.{method}.create({}, stream=True):\n    for choice in chunk.choices:\n        \
             print(choice.{piece}, end=\"\")\nprint()\n",
            self.arguments()
        )
    }

    /// The library has no method for this.
    fn ranked(&self) -> String {
        let mut body = self.fields.clone();
        body.insert("model".to_owned(), Value::from(self.id.as_str()));
        let body = literal(&Value::Object(body));
        format!("answer = client.post(\"/rerank\", cast_to=object, body={body})\nprint(answer[\"results\"])\n")
    }

    /// What the library has a name for is an argument of its own.
    fn arguments(&self) -> String {
        let mut arguments = format!("model={}", text(&self.id));
        if self.task == Task::Transcribe {
            let file = self.file.as_ref().map(|file| format!("open({}, \"rb\")", text(file)));
            // Writing to a string cannot fail, here and below.
            let _ = write!(arguments, ", file={}", file.unwrap_or_else(|| "silence()".to_owned()));
        }
        let mut extra = Map::new();
        for (name, value) in self.fields.iter().filter(|(name, _)| *name != "file") {
            if arguments_of(self.task).contains(&name.as_str()) {
                let _ = write!(arguments, ", {name}={}", literal(value));
            } else {
                extra.insert(name.clone(), value.clone());
            }
        }
        if !extra.is_empty() {
            let _ = write!(arguments, ", extra_body={}", literal(&Value::Object(extra)));
        }
        arguments
    }
}

/// What a program asks for if a route has no example of its own. The library demands a voice.
fn usual_fields(task: Task) -> Vec<(&'static str, Value)> {
    match task {
        Task::Chat => vec![("messages", json!([{ "role": "user", "content": "Hello there!" }]))],
        Task::Complete => vec![("prompt", json!("Once upon a time"))],
        Task::Embed | Task::Moderate => vec![("input", json!("Hello there!"))],
        Task::Speak => vec![("input", json!("Hello there!")), ("voice", json!("alloy"))],
        Task::Image => vec![("prompt", json!("A lighthouse at night"))],
        Task::Rerank => vec![
            ("query", json!("where do ships find a light")),
            ("documents", json!(["A lighthouse shows ships a light.", "A harbour has walls."])),
        ],
        Task::Transcribe => Vec::new(),
    }
}

/// Those arguments of the library's methods that routes have, too.
fn arguments_of(task: Task) -> &'static [&'static str] {
    match task {
        Task::Chat => &["messages", "max_tokens", "temperature", "top_p", "stop", "seed", "tools", "tool_choice"],
        Task::Complete => &["prompt", "max_tokens", "temperature", "top_p", "stop", "seed", "suffix"],
        Task::Embed | Task::Moderate => &["input"],
        Task::Speak => &["input", "voice", "instructions", "speed"],
        Task::Image => &["prompt", "size", "quality", "style"],
        Task::Transcribe => &["language", "prompt", "temperature"],
        Task::Rerank => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(task: Task, streams: bool, fields: Value) -> Model {
        let Value::Object(fields) = fields else { unreachable!() };
        Model { title: "/m: it".to_owned(), id: "m".to_owned(), task, streams, fields, file: None }
    }

    #[test]
    fn a_model_is_called_by_the_method_of_its_task() {
        let fields = json!({ "messages": [], "max_tokens": 3, "mood": "good" });
        let chat = model(Task::Chat, false, fields.clone()).called();
        let expected = "# /m: it\nanswer = client.chat.completions.create(model=\"m\", messages=[], max_tokens=3, \
                        extra_body={\"mood\": \"good\"})\nprint(answer.choices[0].message.content)\n";
        assert_eq!(chat, expected);
        let streamed = model(Task::Chat, true, fields).called();
        assert!(streamed.contains(", stream=True):\n    for choice in chunk.choices:\n"), "{streamed}");
        let ranked = model(Task::Rerank, false, json!({ "query": "q" })).called();
        assert!(ranked.contains("client.post(\"/rerank\", cast_to=object, body={\"query\": \"q\", \"model\": \"m\"})"));
    }

    #[test]
    fn a_recording_is_the_file_of_the_route_or_silence() {
        let mut hear = model(Task::Transcribe, false, json!({}));
        assert!(hear.called().contains("file=silence())"), "{}", hear.called());
        hear.file = Some("a \"b\".wav".to_owned());
        assert!(hear.called().contains(r#"file=open("a \"b\".wav", "rb"))"#), "{}", hear.called());
    }

    #[test]
    fn a_route_without_a_task_names_the_setting() {
        let line = not_a_model("/a", false);
        let tasks = "complete, embed, rerank, moderate, transcribe, speak, image";
        assert_eq!(
            line,
            format!("# /a is no model of OpenAI's API: it needs a task, openai = \"chat\" (or {tasks})\n")
        );
        assert!(not_a_model("/a", true).contains(".task(Task::Chat)"));
    }
}
