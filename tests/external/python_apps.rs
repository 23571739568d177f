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
pub(crate) fn python() -> Option<Python> {
    Python::with("callboard")
}

pub(crate) fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// A command of `callboard` whose workers find the package.
pub(crate) fn command(python: &Python, args: &[&str]) -> Command {
    let mut command = callboard(args);
    command.env("VIRTUAL_ENV", python.environment()).env("PYTHONPATH", package().join("src"));
    command
}

pub(crate) fn serve(python: &Python, target: &str) -> Server {
    Server::start(command(python, &["serve", target, "--http", "127.0.0.1:0"]))
}

pub(crate) fn post(server: &Server, path: &str, input: &Value) -> Answer {
    server.request(&format!("POST {path} HTTP/1.1\r\ncontent-type: application/json"), input.to_string().as_bytes())
}

pub(crate) fn answer(server: &Server, path: &str, input: &Value) -> (u16, Value) {
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

/// Also where a file of its own names the route, and not what its code takes.
#[test]
fn parts_of_a_request_are_arguments_of_python_code() {
    let Some(python) = python() else { return };
    let app = app("from typing import Annotated\nimport callboard as cb\n\n@cb.function\n\
                   def greet(name: str, user: Annotated[str, cb.Header('x-user')],\n          \
                   times: Annotated[int, cb.Query()] = 1, theme: Annotated[str, cb.Cookie()] = 'light') -> str:\n    \
                   return f'{name} {user} {times} {theme}'\n");
    let file = "[[stage]]\nname = \"greet\"\nkind = \"python\"\napp = \"app.py:greet\"\n\
                [[route]]\npath = \"/greet\"\nstages = \"greet\"\n";
    fs::write(app.with_file_name("callboard.toml"), file).unwrap();
    for target in [app.as_path(), app.parent().unwrap()] {
        let server = serve(&python, target.to_str().unwrap());
        let ask = |query: &str, headers: &str| {
            let head = format!("POST /greet{query} HTTP/1.1\r\ncontent-type: application/json{headers}");
            let answer = server.request(&head, b"\"a\"");
            (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap())
        };
        let given = "\r\nX-User: ada\r\ncookie: a=b; theme=dark";
        assert_eq!(ask("?times=2", given), (200, json!("a ada 2 dark")));
        let (status, problem) = ask("?times=x", "");
        let fields = problem["details"]["fields"].as_array().unwrap();
        let places: Vec<&str> = fields.iter().filter_map(|field| field["path"].as_str()).collect();
        assert_eq!((status, places.as_slice()), (422, &["header.x-user", "query.times"][..]), "{problem}");
    }
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

/// Also through a service that calls the one that raises.
#[test]
fn headers_of_an_exception_reach_the_answer() {
    let Some(python) = python() else { return };
    let app = app("import callboard as cb\n\n@cb.function\ndef deny(how: str) -> str:\n    \
                   name = 'WWW-Authenticate' if how == 'own' else 'Set-Cookie'\n    \
                   headers = [(name, 'Basic'), (name, 'Bearer'), ('Retry-After', '3')]\n    \
                   raise cb.HTTPException(401, {'realm': how}, headers=headers)\n\n\
                   @cb.service\nclass Outer:\n    deny = cb.depends(deny)\n    \
                   def predict(self, how: str) -> str:\n        return self.deny(how)\n");
    let server = serve(&python, app.to_str().unwrap());
    for route in ["/deny", "/outer"] {
        let Answer { status, head, body } = post(&server, route, &json!("own"));
        assert_eq!(status, 401, "{body}");
        assert!(head.contains("\r\nwww-authenticate: Basic\r\nwww-authenticate: Bearer\r\n"), "{head}");
        assert!(head.contains("retry-after: 3"), "{head}");
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&problem["details"]["realm"], &problem["error_type"]), (&json!("own"), &json!(null)), "{problem}");
        assert_eq!(problem["remote_trace"], json!(null), "{problem}");
        let refused = post(&server, route, &json!("other"));
        assert!(refused.status == 500 && !refused.head.contains("set-cookie"), "{}", refused.head);
        assert!(refused.body.contains("ValueError: the header 'Set-Cookie' is the server's own"), "{}", refused.body);
    }
}

/// A real server of files: what the operator lists is fetched, and what it redirects to is not.
#[test]
fn files_are_fetched_from_the_hosts_that_the_operator_lists() {
    let Some(python) = python() else { return };
    let files = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = files.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in files.incoming().flatten() {
            let mut head = [0; 1024];
            let read = stream.read(&mut head).unwrap_or_default();
            let answer = if head[..read].starts_with(b"GET /away") {
                "302 Found\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0\r\n\r\n"
            } else {
                "200 OK\r\ncontent-type: image/png\r\ncontent-length: 3\r\n\r\nabc"
            };
            let _ = write!(stream, "HTTP/1.1 {answer}");
        }
    });
    let app = app("import callboard as cb\n\n@cb.function\ndef size(image: cb.Image) -> int:\n    return len(image)\n");
    let app = app.to_str().unwrap();
    let hosts = format!("--file-hosts=http://{address}");
    let listed = Server::start(command(&python, &["serve", app, "--http", "127.0.0.1:0", &hosts]));
    let url = |path: &str| json!({ "image": { "url": format!("http://{address}{path}") } });
    assert_eq!(answer(&listed, "/size", &url("/a.png")), (200, json!(3)));
    let (status, problem) = answer(&listed, "/size", &url("/away"));
    assert_eq!((status, problem["details"]["fields"][0]["path"].as_str()), (422, Some("$.image")), "{problem}");
    assert!(problem["message"].as_str().unwrap().contains("http://127.0.0.1:1 are not allowed"), "{problem}");
    let (status, problem) = answer(&serve(&python, app), "/size", &url("/a.png"));
    assert!(status == 422 && problem["message"].as_str().unwrap().contains("files.hosts"), "{problem}");
}

/// A call of a route that nothing serves is found before anything starts, also in a configuration file.
#[test]
fn the_doctor_finds_calls_of_unknown_routes() {
    let Some(python) = python() else { return };
    let app = app("import callboard as cb\n\n@cb.service\nclass Outer:\n    other = cb.depends('/oter')\n    \
                   def predict(self, x: int) -> int:\n        return x\n");
    let output = command(&python, &["doctor", app.to_str().unwrap()]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && printed.contains("problem: "), "{output:?}");
    assert!(printed.contains("stage `outer`: other: unknown route `/oter`"), "{printed}");
    let output = command(&python, &["check", &format!("{}:Oter", app.to_str().unwrap())]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `Outer`?"), "{output:?}");
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
        (
            service("A", "'/text'") + "app = cb.pipeline(text, A)",
            "A.other: `/text` is a step of a pipeline, without a route of its own: give it one, @function(route='/text')",
        ),
        (
            service("A", "'/b'") + &service("B", "A"),
            "it calls `b`, which calls `a`: in such a cycle all replicas could",
        ),
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

/// Notes each import, and tells the process of its replica and the parent of that.
const PIDS: &str = "import os\nimport callboard as cb\n\nwith open('imports', 'a') as imports:\n    \
                    imports.write('imported\\n')\n\n@cb.function\ndef pids() -> list[int]:\n    \
                    return [os.getpid(), os.getppid()]\n";

/// An app of this code, in a directory of its own.
fn app(code: &str) -> PathBuf {
    let app = directory().join("app.py");
    fs::write(&app, code).unwrap();
    app
}

fn pids(server: &Server) -> (u32, u32) {
    let (status, pids) = answer(server, "/pids", &json!({}));
    assert_eq!(status, 200, "{pids}");
    serde_json::from_value(pids).unwrap()
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// Waits until no process has this number. A zombie is still one.
fn until_gone(pid: u32) {
    let (process, start) = (PathBuf::from(format!("/proc/{pid}")), Instant::now());
    while process.exists() && start.elapsed() < TEST_TIMEOUT {
        std::thread::yield_now();
    }
    assert!(!process.exists(), "process {pid} lives");
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

/// Also a node that is killed leaves no worker and no fork server behind.
#[test]
fn no_worker_outlives_its_node() {
    let Some(python) = python() else { return };
    let app = app(PIDS);
    for signal in ["TERM", "INT", "KILL"] {
        let mut server = serve(&python, app.to_str().unwrap());
        let (worker, fork_server) = pids(&server);
        server.signal(signal);
        server.wait();
        until_gone(worker);
        until_gone(fork_server);
    }
}

#[test]
fn replicas_are_forked_and_leave_nothing_when_they_are_killed() {
    let Some(python) = python() else { return };
    let app = app(PIDS);
    let imports = || fs::read_to_string(app.with_file_name("imports")).unwrap().lines().count();
    let server = serve(&python, app.to_str().unwrap());
    let (first, fork_server) = pids(&server);
    // One tells what the file serves.
    assert_eq!(imports(), 2);
    let entries = |pid: u32, of: &str| fs::read_dir(format!("/proc/{pid}/{of}")).unwrap().count();
    let open = entries(fork_server, "fd");
    let mut worker = first;
    for _ in 0..100 {
        kill(worker);
        until_gone(worker);
        let (next, parent) = pids(&server);
        assert_eq!(parent, fork_server);
        worker = next;
    }
    assert_eq!((imports(), entries(fork_server, "fd"), entries(fork_server, "task")), (2, open, 1));
    let children = fs::read_to_string(format!("/proc/{fork_server}/task/{fork_server}/children")).unwrap();
    assert_eq!(children.trim(), worker.to_string());

    kill(fork_server);
    until_gone(worker);
    let (_, parent) = pids(&server);
    assert_ne!(parent, fork_server);
    assert_eq!(imports(), 3);
}

/// It leaves the memory without a call, and the next call brings it back from the fork server, which stays.
#[test]
fn a_service_with_no_replica_at_least_sleeps_and_wakes() {
    let Some(python) = python() else { return };
    let app = app(PIDS);
    let keys = "app = \"app.py:pids\"\nreplicas = { min = 0, max = 2 }\nidle = \"1s\"";
    let file = format!(
        "[[stage]]\nname = \"pids\"\nkind = \"python\"\n{keys}\n\n[[route]]\npath = \"/pids\"\nstages = [\"pids\"]\n"
    );
    fs::write(app.with_file_name("callboard.toml"), file).unwrap();
    let server = serve(&python, app.parent().unwrap().to_str().unwrap());
    let (first, fork_server) = pids(&server);
    until_gone(first);
    let (second, parent) = pids(&server);
    assert_eq!(parent, fork_server);
    assert_ne!(second, first);
    until_gone(second);
}

#[test]
fn a_service_that_cannot_be_forked_is_started_anew_and_the_log_says_why() {
    let Some(python) = python() else { return };
    let thread =
        format!("{PIDS}\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n");
    let app_with_thread = app(&thread);
    let checked = command(&python, &["check", app_with_thread.to_str().unwrap()]).output().unwrap();
    let printed = String::from_utf8(checked.stderr).unwrap();
    let reason = "by itself: a fork would lose threads that its import has started (Thread-1";
    assert_eq!(printed.matches(reason).count(), 1, "{printed}");
    let server = serve(&python, app_with_thread.to_str().unwrap());
    let (worker, node) = pids(&server);
    kill(worker);
    until_gone(worker);
    assert_eq!(pids(&server).1, node);

    let cold = PIDS.replace("@cb.function", "@cb.function(warm=False)");
    let server = serve(&python, app(&cold).to_str().unwrap());
    let file = directory();
    fs::write(file.join("app.py"), PIDS).unwrap();
    let text = "[[stage]]\nname = \"pids\"\nkind = \"python\"\napp = \"app.py:pids\"\nwarm = false\n\
                [[route]]\npath = \"/pids\"\nstages = \"pids\"\n";
    fs::write(file.join("callboard.toml"), text).unwrap();
    for server in [server, serve(&python, file.to_str().unwrap())] {
        let parent = pids(&server).1;
        let name = fs::read_to_string(format!("/proc/{parent}/comm")).unwrap();
        assert_eq!(name.trim(), "callboard", "the node is the parent");
    }
}

#[test]
fn a_changed_file_is_served_at_once_and_a_broken_one_is_not() {
    let Some(python) = python() else { return };
    let code = |word: &str| {
        format!(
            "import callboard as cb\nfrom helper import twice\n\n@cb.function\ndef say(x: int) -> str:\n    return '{word}' + str(twice(x))\n"
        )
    };
    let app = app(&code("one "));
    let helper = app.with_file_name("helper.py");
    fs::write(&helper, "def twice(x):\n    return 2 * x\n").unwrap();
    let args = ["serve", "--reload", app.to_str().unwrap(), "--http", "127.0.0.1:0"];
    let mut server = Server::start(command(&python, &args));
    let said = |server: &Server, path: &str| answer(server, path, &json!(3)).1;
    assert_eq!(said(&server, "/say"), json!("one 6"));

    fs::write(&app, code("another ")).unwrap();
    server.wait_for("the routes are built again");
    assert_eq!(said(&server, "/say"), json!("another 6"));

    fs::write(&helper, "def twice(x):\n    return 2 * x + 100\n").unwrap();
    server.wait_for("the routes are built again");
    assert_eq!(said(&server, "/say"), json!("another 106"));

    fs::write(&app, "import not_there\n").unwrap();
    let line = server.wait_for("the earlier routes serve on");
    assert!(line.contains("app.py, line 1: ModuleNotFoundError"), "{line}");
    assert_eq!(said(&server, "/say"), json!("another 106"));

    let renamed = code("third ").replace("def say(x: int)", "def tell(x: int, y: int = 0)");
    fs::write(&app, renamed).unwrap();
    server.wait_for("the routes are built again");
    assert_eq!(answer(&server, "/tell", &json!({ "x": 1 })), (200, json!("third 102")));
    assert_eq!(answer(&server, "/say", &json!(3)).0, 404);
}

/// The next revision raises at every call, and answers half of them until it is taken back.
#[test]
fn a_changed_service_that_fails_is_rolled_back() {
    let Some(python) = python() else { return };
    let code = |body: &str| format!("import callboard as cb\n\n@cb.function\ndef say(x: int) -> int:\n    {body}\n");
    let app = app(&code("return x"));
    let file = "[[stage]]\nname = \"say\"\nkind = \"python\"\napp = \"app.py:say\"\n\n[[route]]\npath = \"/say\"\n\
                stages = [\"say\"]\nrollout = { canary = \"50%\" }\n";
    fs::write(app.with_file_name("callboard.toml"), file).unwrap();
    let args = ["serve", "--reload", app.parent().unwrap().to_str().unwrap(), "--http", "127.0.0.1:0"];
    let mut server = Server::start(command(&python, &args));
    assert_eq!(answer(&server, "/say", &json!(3)), (200, json!(3)));

    fs::write(&app, code("raise ValueError('broken')")).unwrap();
    server.wait_for("the routes are built again");
    let mut failed = 0;
    let start = Instant::now();
    while !server.prints_within("rolled back", Duration::ZERO) {
        assert!(start.elapsed() < TEST_TIMEOUT, "{failed} calls failed");
        failed += usize::from(answer(&server, "/say", &json!(3)).0 == 500);
    }
    assert!(failed > 0);
    for _ in 0..20 {
        assert_eq!(answer(&server, "/say", &json!(3)), (200, json!(3)));
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
    assert!(
        no_package.contains("lacks the package `callboard`; install it from the source of Callboard: "),
        "{no_package}"
    );
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
    assert!(printed.trim_end().ends_with("app.py:Bad`: RuntimeError: no weights"), "{printed}");
}

#[test]
fn the_worker_in_javascript_conforms_and_its_example_runs() {
    let Some(python) = python() else { return };
    if !NODE.is_required_as("node") {
        return;
    }
    let mut suite = Command::new(python.program("python"));
    suite.args(["-u", "-m", "callboard.conformance", "node", "worker.js"]).current_dir("examples/worker-js");
    suite.env("PYTHONPATH", package().join("src"));
    let printed = process::run(&mut suite).unwrap_or_else(|error| panic!("{error}"));
    assert!(printed.lines().filter(|line| line.starts_with("ok ")).count() > 20, "{printed}");

    let server = Server::start(callboard(["serve", "examples/worker-js", "--http", "127.0.0.1:0"]));
    assert_eq!(answer(&server, "/shout", &json!("hello")), (200, json!("HELLO")));
}

/// NumPy 1.26 has wheels for Python 3.9 to 3.12.
#[test]
fn the_package_passes_the_tests_of_its_arrays_with_numpy_1() {
    let newest = "import sys; sys.exit(sys.version_info >= (3, 13))";
    if process::run(Command::new("python3").args(["-c", newest])).is_err() {
        eprintln!("skipped the tests with NumPy 1: `python3` is newer than its wheels");
        return;
    }
    let Some(python) = Python::with("numpy-1") else { return };
    let mut command = Command::new(python.program("python"));
    command.args(["-u", "-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    let of_arrays = ["envelope", "signature", "shared_memory", "hints", "frames", "media", "client_calls"];
    command.args(of_arrays.map(|name| format!("tests/test_{name}.py")));
    command.current_dir(package()).env("PYTHONPATH", package().join("src"));
    process::run(&mut command).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_package_passes_its_own_tests() {
    let Some(python) = python() else { return };
    let run = |args: &[&str]| {
        let mut command = Command::new(python.program("python"));
        command.args(["-u", "-m"]).args(args).current_dir(package()).env("PYTHONPATH", package().join("src"));
        process::run(&mut command).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    };
    run(&["pytest", "-q", "-p", "no:cacheprovider"]);
    run(&["ruff", "check", "--no-cache", "."]);
    run(&["ruff", "format", "--check", "--no-cache", "."]);
    run(&["mypy", "--no-incremental", "src"]);
}
