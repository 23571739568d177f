//! Generators of clients get the OpenAPI document: their clients compile unchanged and call a route, a model and a
//! function of a server. Common linters check the document as well.

use std::fs;
use std::path::Path;

use crate::node::Node;
use crate::python::Python;
use crate::support::{Server, callboard, run};

const SERVED: &str = "examples/digits";

fn serve() -> Server {
    Server::start(callboard(["serve", SERVED, "--http", "127.0.0.1:0"]))
}

/// The OpenAPI document of the served routes, in a file.
fn document(served: &str, directory: &Path) -> String {
    let file = directory.join("openapi.json").to_str().unwrap().to_owned();
    assert_eq!(run(&["openapi", served, "-o", &file]).status.code(), Some(0));
    file
}

fn scripts() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("external").join("scripts")
}

#[test]
fn openapi_python_client_writes_a_client_that_works() {
    let Some(python) = Python::with("generators") else { return };
    let server = serve();
    let directory = crate::support::directory();
    let document = document(SERVED, &directory);
    python.run("generated.py", &[&document, directory.to_str().unwrap(), &format!("http://{}", server.address)]);
}

#[test]
fn openapi_typescript_and_hey_api_write_clients_that_compile_and_work() {
    let Some(node) = Node::with("generators") else { return };
    let server = serve();
    let directory = node.scratch("typescript");
    document(SERVED, &directory);
    node.run("openapi-typescript", &["openapi.json", "-o", "schema.ts"], &directory);
    node.run("openapi-ts", &["-i", "openapi.json", "-o", "hey"], &directory);
    for script in ["generated_fetch.ts", "generated_hey.ts"] {
        fs::copy(scripts().join(script), directory.join(script)).unwrap();
    }
    let seven = callboard::codec::Value::Bytes(fs::read("examples/digits/seven.png").unwrap().into());
    let seven = seven.encode(callboard::codec::Format::Json).unwrap();
    fs::write(
        directory.join("seven.b64"),
        seven.trim_ascii_start().strip_prefix(b"\"").unwrap().strip_suffix(b"\"").unwrap(),
    )
    .unwrap();
    let strict = ["--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"];
    let files = ["--skipLibCheck", "--types", "node", "--outDir", "out", "generated_fetch.ts"];
    node.run("tsc", &[&strict[..], &files[..]].concat(), &directory);
    // Its files import each other without an extension, as bundlers expect.
    let bundled = ["--strict", "--target", "es2022", "--module", "commonjs", "--moduleResolution", "node10"];
    let files = ["--skipLibCheck", "--types", "node", "--outDir", "cjs", "generated_hey.ts"];
    node.run("tsc", &[&bundled[..], &files[..]].concat(), &directory);
    fs::write(directory.join("cjs").join("package.json"), "{\"type\":\"commonjs\"}").unwrap();
    let base = format!("http://{}", server.address);
    for script in ["out/generated_fetch.js", "cjs/generated_hey.js"] {
        let output = node.script(script, &[&base], &directory);
        assert_eq!(output, "7 7 7", "{script}");
    }
}

#[test]
fn redocly_and_spectral_find_no_errors() {
    let Some(node) = Node::with("generators") else { return };
    for (name, served) in
        [("lint-digits", SERVED), ("lint-graph", "examples/graph"), ("lint-model", "examples/digits/digits.onnx")]
    {
        let directory = node.scratch(name);
        document(served, &directory);
        fs::write(directory.join("redocly.yaml"), "extends: [recommended]\n").unwrap();
        fs::write(directory.join("spectral.yaml"), "extends: [\"spectral:oas\"]\n").unwrap();
        node.run("redocly", &["lint", "--config", "redocly.yaml", "openapi.json"], &directory);
        node.run("spectral", &["lint", "-r", "spectral.yaml", "--fail-severity", "error", "openapi.json"], &directory);
    }
}

/// openapi-generator is large and slow, so `just generators` runs this test, and CI does not.
#[test]
#[ignore = "minutes, and needs java; `just generators` runs it"]
fn openapi_generator_writes_clients_that_compile_and_work() {
    let Some(python) = Python::with("openapi-generator") else { return };
    let Some(node) = Node::with("generators") else { return };
    let server = serve();
    let directory = node.scratch("openapi-generator");
    let document = document(SERVED, &directory);
    let base = format!("http://{}", server.address);
    let Some(go) = Python::with("go") else { return };
    let go = go.program("go");
    python.run("openapi_generator.py", &[&document, directory.to_str().unwrap(), &base, go.to_str().unwrap()]);
}
