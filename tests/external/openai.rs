//! The clients of OpenAI's API that people use, against `examples/openai` and against models in trouble.

use std::fs;
use std::path::{Path, PathBuf};

use crate::node::Node;
use crate::python::Python;
use crate::python_apps::{command, python, serve};
use crate::support::{Server, directory};

const EXAMPLE: &str = "examples/openai/app.py";

fn base(server: &Server) -> String {
    format!("http://{}/v1", server.address)
}

/// Models in trouble, and the file in which they note each run.
fn trouble(python: &Python) -> (Server, PathBuf) {
    let runs = directory().join("runs");
    fs::write(&runs, "").unwrap();
    let mut command = command(python, &["serve", "tests/external/scripts/openai_app.py", "--http", "127.0.0.1:0"]);
    command.env("RUNS", &runs);
    (Server::start(command), runs)
}

#[test]
fn the_client_of_openai_finds_models_reads_streams_and_repeats_nothing_that_ran() {
    let Some((python, openai)) = python().zip(Python::with("openai")) else { return };
    let example = serve(&python, EXAMPLE);
    let (trouble, runs) = trouble(&python);
    let output = openai.run("openai_python.py", &[&base(&example), &base(&trouble), runs.to_str().unwrap()]);
    let parts = [
        &["models", "chat", "streams", "embeddings", "refused", "responses"][..],
        &["failures", "cancelled", "tool_calls", "typed", "others", "responses_in_trouble"],
        &["recordings", "speech", "pictures", "overload"],
    ];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts.concat());
}

/// One environment has the model, another one the client.
#[test]
fn a_real_model_embeds_for_the_client_of_openai() {
    let Some((model, openai)) = Python::with("cookbook").zip(Python::with("openai")) else { return };
    let server = serve(&model, "examples/openai/embeddings.py");
    openai.run("openai_embeddings.py", &[&base(&server)]);
}

#[test]
fn the_client_of_anthropic_talks_to_the_same_models() {
    let Some((python, anthropic)) = python().zip(Python::with("openai")) else { return };
    let example = serve(&python, EXAMPLE);
    let (trouble, runs) = trouble(&python);
    let bases = [&example, &trouble].map(|server| format!("http://{}", server.address));
    let output = anthropic.run("anthropic_python.py", &[&bases[0], &bases[1], runs.to_str().unwrap()]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["chat", "tools", "failures"]);
}

#[test]
fn the_client_of_cohere_ranks_and_repeats_nothing_that_ran() {
    let Some((python, cohere)) = python().zip(Python::with("cohere")) else { return };
    let example = serve(&python, EXAMPLE);
    let (trouble, runs) = trouble(&python);
    let bases = [&example, &trouble].map(|server| format!("http://{}", server.address));
    let output = cohere.run("cohere_python.py", &[&bases[0], &bases[1], runs.to_str().unwrap()]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["ranked", "once"]);
}

#[test]
fn libraries_for_many_providers_use_it_as_one_of_them() {
    let Some((python, others)) = python().zip(Python::with("openai-others")) else { return };
    let example = serve(&python, EXAMPLE);
    let (trouble, runs) = trouble(&python);
    let output = others.run("openai_others.py", &[&base(&example), &base(&trouble), runs.to_str().unwrap()]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["langchain", "litellm", "llama_index"]);
}

#[test]
fn clients_in_javascript_chat_stream_and_embed() {
    let Some((python, node)) = python().zip(Node::with("openai")) else { return };
    let example = serve(&python, EXAMPLE);
    let (trouble, runs) = trouble(&python);
    let directory = node.scratch("clients");
    let script = "openai_clients.mjs";
    fs::copy(Path::new("tests/external/scripts").join(script), directory.join(script)).unwrap();
    let bases = [&example, &trouble].map(base);
    let arguments = [bases[0].as_str(), &bases[1], runs.to_str().unwrap()];
    assert_eq!(node.script(script, &arguments, &directory).trim(), "openai\nai");
}
