//! Services in Python: `callboard serve app.py`, with real interpreters as its workers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process;
use crate::python::Python;
use crate::support::{Answer, Server, TEST_TIMEOUT, callboard, directory, failure};
use crate::tool::NODE;

/// The interpreter with what the package needs.
fn python() -> Option<Python> {
    Python::with("callboard")
}

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// A command of `callboard` whose workers find the package.
fn command(python: &Python, args: &[&str]) -> Command {
    let mut command = callboard(args);
    command.env("VIRTUAL_ENV", python.environment()).env("PYTHONPATH", package().join("src"));
    command
}

fn serve(python: &Python, target: &str) -> Server {
    Server::start(command(python, &["serve", target, "--http", "127.0.0.1:0"]))
}

fn post(server: &Server, path: &str, input: &Value) -> Answer {
    server.request(&format!("POST {path} HTTP/1.1\r\ncontent-type: application/json"), input.to_string().as_bytes())
}

fn answer(server: &Server, path: &str, input: &Value) -> (u16, Value) {
    let answer = post(server, path, input);
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

#[test]
fn a_python_file_is_served_with_its_types() {
    let Some(python) = python() else { return };
    let server = serve(&python, "examples/python/app.py");
    assert_eq!(answer(&server, "/sentiment", &json!("a good day")), (200, json!("good")));
    assert_eq!(answer(&server, "/add", &json!({ "a": 3 })), (200, json!(4)));
    assert_eq!(answer(&server, "/normalise", &json!([3, 4])), (200, json!([0.6, 0.8])));

    let (status, problem) = answer(&server, "/add", &json!({ "a": "three" }));
    assert_eq!((status, problem["kind"].as_str()), (422, Some("invalid_input")));
    assert!(problem["message"].as_str().unwrap().contains("$.a"), "{problem}");
    let (status, problem) = answer(&server, "/sentiment", &json!(" "));
    assert_eq!((status, problem["message"].as_str()), (422, Some("the text is empty")));
    let (status, problem) = answer(&server, "/normalise", &json!([0, 0]));
    assert_eq!((status, problem["error_type"].as_str()), (500, Some("ValueError")));
    assert!(problem["remote_trace"].as_str().unwrap().contains("app.py"), "{problem}");

    let words = post(&server, "/words", &json!("one two"));
    assert_eq!(words.body.matches("data: \"").count(), 2);

    let document = server.request("GET /openapi.json HTTP/1.1", b"");
    let document: Value = serde_json::from_str(&document.body).unwrap();
    let operation = &document["paths"]["/sentiment"]["post"];
    assert_eq!(operation["summary"], "Tells whether a text is good or bad.");
}

/// The exported file serves the same.
#[test]
fn a_python_file_is_exported_as_a_configuration_file() {
    let Some(python) = python() else { return };
    let output = command(&python, &["export", "examples/python/app.py"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("app = \"app.py:Sentiment\"") && text.contains("timeout = \"5000ms\""), "{text}");
    let directory = directory();
    fs::copy("examples/python/app.py", directory.join("app.py")).unwrap();
    fs::write(directory.join("callboard.toml"), &*text).unwrap();
    let server = serve(&python, directory.to_str().unwrap());
    assert_eq!(answer(&server, "/add", &json!({ "a": 3 })), (200, json!(4)));
}

#[test]
fn python_onnx_and_rust_are_steps_of_one_pipeline() {
    let Some(python) = python() else { return };
    let server = serve(&python, "examples/python-digits");
    let output = command(&python, &["check", "examples/python-digits"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = serde_json::from_slice(&fs::read("examples/python-digits/seven.json").unwrap()).unwrap();
    let (status, digit) = answer(&server, "/digits", &rows);
    assert_eq!((status, digit["label"].as_str()), (200, Some("7")), "{digit}");
    let (status, problem) = answer(&server, "/digits", &json!([[1]]));
    assert_eq!((status, problem["stage"].as_str()), (422, Some("centre")));
}

/// One file: a pipeline of Python, a model and Rust, and an asynchronous service that calls it and another service.
#[test]
fn a_service_calls_a_pipeline_with_a_model_and_another_service() {
    let Some(python) = python() else { return };
    let app = "examples/python-depends/app.py";
    let server = serve(&python, app);
    let seven: Value = serde_json::from_slice(&fs::read("examples/python-digits/seven.json").unwrap()).unwrap();
    assert_eq!(answer(&server, "/digit", &seven).1["label"], "7");
    let (status, number) = answer(&server, "/read-number", &json!([seven, seven, seven]));
    assert_eq!((status, number["number"].as_str()), (200, Some("777")), "{number}");
    assert!(number["ink"].as_f64().unwrap() > 0.1, "{number}");
    // The error of a call is passed on, with the way to it.
    let (status, problem) = answer(&server, "/read-number", &json!([seven, [[1]]]));
    assert_eq!((status, problem["stage"].as_str()), (422, Some("read-number > centre")), "{problem}");
    assert_eq!(answer(&server, "/centre", &seven).0, 404, "a step has no route of its own");

    let output = |args: &[&str]| {
        let output = command(&python, args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    output(&["check", app]);
    let exported = output(&["export", app]);
    assert!(exported.contains("stages = [\"centre\", \"digits\", \"labels\"]"), "{exported}");
    assert!(exported.contains("model = \"../digits/digits.onnx\"\nmax_batch_size = 32\n"), "{exported}");
    let explained = output(&["serve", app, "--explain"]);
    assert!(explained.contains("centre → digits → labels"), "{explained}");
    let alone = output(&["export", &format!("{app}:digit")]);
    assert!(alone.contains("/digit") && !alone.contains("/read-number"), "{alone}");
}

#[test]
fn mistakes_in_a_composition_are_one_clear_line() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let start = "import callboard as cb\n@cb.function\ndef text(x: str) -> str:\n    return x\n\
                 @cb.function\ndef count(x: int) -> int:\n    return x\n";
    let service = |name: &str, called: &str| {
        let method = "def predict(self, x: str) -> str:\n        return x";
        format!("@cb.service\nclass {name}:\n    other = cb.depends({called})\n    {method}\n")
    };
    for (code, message) in [
        ("app = cb.pipeline(text, count)".to_owned(), "text gives `str`, and count takes `int`"),
        ("app = cb.pipeline(text, cb.onnx('no.onnx'))".to_owned(), "cb.onnx('no.onnx'): there is no file"),
        ("app = cb.pipeline(text, 'count')".to_owned(), "line 8: TypeError: pipeline: step 2: 'count' is no step"),
        (service("A", "'/tex'"), "stage `a`: other: unknown route `/tex`; did you mean `/text`?"),
        (service("A", "'/b'") + &service("B", "A"), "it calls `b`, which calls `a`: all their replicas could wait"),
    ] {
        fs::write(&app, format!("{start}{code}\n")).unwrap();
        let printed = failure(command(&python, &["serve", app.to_str().unwrap(), "--http", "127.0.0.1:0"])).0;
        assert!(printed.contains(message) && !printed.contains("Traceback"), "{printed}");
    }
}

/// The client leaves: the call that the service has made ends, and both run for others again.
#[test]
fn a_call_ends_with_its_caller() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let code = "import asyncio\nimport callboard as cb\n\n@cb.service\nclass Slow:\n    left = 0\n    \
                async def predict(self, seconds: float) -> int:\n        open('begun', 'w').close()\n        try:\n            \
                await asyncio.sleep(seconds)\n        except asyncio.CancelledError:\n            \
                self.left += 1\n            raise\n        return self.left\n\n\
                @cb.service\nclass Outer:\n    slow = cb.depends(Slow)\n    \
                async def predict(self, seconds: float) -> int:\n        return await self.slow(seconds)\n";
    fs::write(&app, code).unwrap();
    let server = serve(&python, app.to_str().unwrap());
    let mut left = server.connect();
    let head = "POST /outer HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n600";
    left.write_all(head.as_bytes()).unwrap();
    let (begun, start) = (app.with_file_name("begun"), Instant::now());
    while !begun.exists() && start.elapsed() < TEST_TIMEOUT {
        std::thread::yield_now();
    }
    drop(left);
    // One replica each: it would wait for 10 minutes.
    assert_eq!(answer(&server, "/outer", &json!(0)), (200, json!(1)));
}

#[test]
fn a_killed_interpreter_is_replaced_and_its_call_is_explained() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let code = "import os, signal\nimport callboard as cb\n\n@cb.function\ndef end(how: str) -> int:\n    \
                if how == 'kill':\n        os.kill(os.getpid(), signal.SIGKILL)\n    return os.getpid()\n";
    fs::write(&app, code).unwrap();
    let server = serve(&python, app.to_str().unwrap());
    let (_, first) = answer(&server, "/end", &json!("pid"));
    let (status, problem) = answer(&server, "/end", &json!("kill"));
    let message = problem["message"].as_str().unwrap();
    assert_eq!((status, problem["kind"].as_str()), (500, Some("worker_failed")));
    assert!(message.contains("killed by signal 9 (SIGKILL), possibly out of memory"), "{message}");
    let (status, second) = answer(&server, "/end", &json!("pid"));
    assert_eq!(status, 200);
    assert_ne!(first, second);
}

/// The service never pauses, and has one replica.
#[test]
fn an_endless_stream_ends_with_its_reader() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let code = "from collections.abc import Iterator\nimport callboard as cb\n\n@cb.function\n\
                def count(start: int) -> Iterator[int]:\n    while True:\n        yield start\n        start += 1\n";
    fs::write(&app, code).unwrap();
    let server = serve(&python, app.to_str().unwrap());
    for _ in 0..3 {
        let mut stream = server.connect();
        let head = "POST /count HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1";
        stream.write_all(head.as_bytes()).unwrap();
        let mut begun = [0; 4096];
        stream.read_exact(&mut begun).unwrap();
        assert!(begun.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begun));
    }
}

/// Each call waits until three have begun.
#[test]
fn calls_of_a_concurrent_service_run_at_the_same_time() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let code = "import asyncio\nimport callboard as cb\n\n@cb.service\nclass Meet:\n    def __init__(self):\n        \
                self.count, self.all = 0, asyncio.Event()\n\n    @cb.concurrent(max=8)\n    \
                async def predict(self, name: str) -> str:\n        self.count += 1\n        \
                if self.count == 3:\n            self.all.set()\n        await self.all.wait()\n        return name\n";
    fs::write(&app, code).unwrap();
    let server = serve(&python, app.to_str().unwrap());
    let calls = ["a", "b", "c"].map(|name| {
        let mut stream = server.connect();
        let head = "POST /meet HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: 3\r\n\r\n\"{name}\"").unwrap();
        (name, stream)
    });
    for (name, mut stream) in calls {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&format!("\"{name}\"")), "{answer}");
    }
}

/// Also a node that is killed leaves no worker behind.
#[test]
fn no_worker_outlives_its_node() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    fs::write(&app, "import os\nimport callboard as cb\n\n@cb.function\ndef pid() -> int:\n    return os.getpid()\n")
        .unwrap();
    for signal in ["TERM", "INT", "KILL"] {
        let mut server = serve(&python, app.to_str().unwrap());
        let (status, pid) = answer(&server, "/pid", &json!({}));
        assert_eq!(status, 200, "{pid}");
        server.signal(signal);
        server.wait();
        let worker = PathBuf::from(format!("/proc/{pid}"));
        let start = Instant::now();
        while worker.exists() && start.elapsed() < TEST_TIMEOUT {
            std::thread::yield_now();
        }
        assert!(!worker.exists(), "worker {pid} lives after SIG{signal}");
    }
}

#[test]
fn what_is_missing_is_one_clear_line() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let message = |code: &str, prepare: &dyn Fn(&mut Command)| {
        fs::write(&app, code).unwrap();
        let mut command = command(&python, &["serve", app.to_str().unwrap(), "--http", "127.0.0.1:0"]);
        prepare(&mut command);
        failure(command).0
    };
    let good = "import callboard as cb\n\n@cb.function\ndef one() -> int:\n    return 1\n";
    let no_package = message(good, &|command| _ = command.env_remove("PYTHONPATH"));
    assert!(no_package.contains("lacks the package `callboard`; install it: "), "{no_package}");
    let no_interpreter = message(good, &|command| _ = command.env_remove("VIRTUAL_ENV").env("PATH", "/nowhere"));
    assert!(no_interpreter.contains("the Python interpreter `python3` cannot be run"), "{no_interpreter}");
    let no_module = message("import not_there\n", &|_| {});
    assert!(no_module.contains("app.py, line 1: ModuleNotFoundError: No module named 'not_there'; if"), "{no_module}");
    assert!(no_module.contains("-m pip install not_there") && !no_module.contains("Traceback"), "{no_module}");
    let nothing = message("x = 1\n", &|_| {});
    assert!(nothing.contains("app.py"), "{nothing}");
    let setup = "import callboard as cb\n\n@cb.service\nclass Bad:\n    def setup(self):\n        \
                 raise RuntimeError('no weights')\n    def predict(self, x: int) -> int:\n        return x\n";
    fs::write(&app, setup).unwrap();
    let output = command(&python, &["serve", app.to_str().unwrap(), "--http", "127.0.0.1:0"]).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("app.py\", line 6, in setup"), "the log has the traceback: {printed}");
    assert!(printed.trim_end().ends_with("app.py:Bad`: could not start: RuntimeError: no weights"), "{printed}");
}

#[test]
fn the_worker_in_javascript_conforms_and_its_example_runs() {
    let Some(python) = python() else { return };
    let node = process::run(Command::new("node").arg("--version"), TEST_TIMEOUT);
    if NODE.or_skip(node).is_none() {
        return;
    }
    let mut suite = Command::new(python.program("python"));
    suite.args(["-m", "callboard.conformance", "node", "worker.js"]).current_dir("examples/worker-js");
    suite.env("PYTHONPATH", package().join("src"));
    let printed = process::run(&mut suite, Duration::from_secs(120)).unwrap_or_else(|error| panic!("{error}"));
    assert!(printed.lines().filter(|line| line.starts_with("ok ")).count() > 20, "{printed}");

    let server = Server::start(callboard(["serve", "examples/worker-js", "--http", "127.0.0.1:0"]));
    assert_eq!(answer(&server, "/shout", &json!("hello")), (200, json!("HELLO")));
}

#[test]
fn the_package_passes_its_own_tests() {
    let Some(python) = python() else { return };
    let run = |args: &[&str]| {
        let mut command = Command::new(python.program("python"));
        command.arg("-m").args(args).current_dir(package()).env("PYTHONPATH", package().join("src"));
        process::run(&mut command, Duration::from_secs(300)).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    };
    run(&["pytest", "-q", "-p", "no:cacheprovider"]);
    run(&["ruff", "check", "--no-cache", "."]);
    run(&["ruff", "format", "--check", "--no-cache", "."]);
    run(&["mypy", "--no-incremental", "src"]);
}
