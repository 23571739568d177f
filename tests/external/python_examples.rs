//! The examples in Python, a new project, and what `callboard` does with an app besides serving it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::python::Python;
use crate::python_apps::{answer, command, package, post, python, serve};
use crate::support::{Server, directory};

/// A command whose cache is below `home`.
fn with_home(python: &Python, args: &[&str], home: &Path) -> Command {
    let mut command = command(python, args);
    command.env("XDG_CACHE_HOME", home);
    command
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The media type and bytes of an answer that is a file.
fn file(server: &Server, path: &str, headers: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = server.connect();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}\n{}", String::from_utf8_lossy(&answer[end..]));
    let media_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
    (media_type.to_owned(), answer[end + 4..].to_vec())
}

#[test]
fn a_picture_is_uploaded_and_answered_as_a_file() {
    let Some(python) = python() else { return };
    let server = serve(&python, "examples/python/thumbnail.py");
    let png = fs::read("examples/digits/seven.png").unwrap();

    let mut form = b"--x\r\ncontent-disposition: form-data; name=\"size\"\r\n\r\n4\r\n--x\r\n\
                     content-disposition: form-data; name=\"image\"; filename=\"seven.png\"\r\n\
                     content-type: image/png\r\n\r\n"
        .to_vec();
    form.extend(&png);
    form.extend(b"\r\n--x--\r\n");
    let headers = "content-type: multipart/form-data; boundary=x\r\naccept: image/*";
    let (media_type, jpeg) = file(&server, "/thumbnail", headers, &form);
    assert_eq!((media_type.as_str(), &jpeg[..3]), ("image/jpeg", &b"\xff\xd8\xff"[..]));

    let (media_type, whole) = file(&server, "/thumbnail", "content-type: image/png\r\naccept: image/jpeg", &png);
    assert_eq!(media_type, "image/jpeg");
    let (media_type, text) = file(&server, "/thumbnail", "content-type: image/png", &png);
    assert_eq!((media_type.as_str(), &text[..5]), ("application/json", &b"\"/9j/"[..]), "base64 without `accept`");
    assert!(text.len() > whole.len());

    let (status, problem) = answer(&server, "/colour", &json!({ "image": "bm8gcGljdHVyZQ==" }));
    let message = "a picture of 10 bytes (application/octet-stream): it cannot be decoded";
    assert_eq!((status, problem["message"].as_str()), (422, Some(message)));
    let (status, problem) = answer(&server, "/colour", &json!({ "image": "https://example.org/a.png" }));
    assert_eq!(status, 422);
    assert!(problem["message"].as_str().unwrap().contains("this server fetches none"), "{problem}");

    let document = server.request("GET /openapi.json?forms HTTP/1.1", b"");
    let document: Value = serde_json::from_str(&document.body).unwrap();
    let operation = &document["paths"]["/thumbnail"]["post"];
    let form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["$ref"].as_str().unwrap();
    let form = document.pointer(form.trim_start_matches('#')).unwrap();
    assert_eq!(form["properties"]["image"], json!({ "type": "string", "format": "binary" }), "a button for the file");
    assert_eq!(form["properties"]["size"]["default"], 128);
    assert_eq!(operation["responses"]["200"]["content"]["image/jpeg"]["schema"]["format"], "binary");
}

#[test]
fn a_classifier_is_trained_once_and_answers() {
    let Some(python) = python() else { return };
    let (home, app) = (directory(), "examples/python/classifier.py");
    let run = |args: &[&str]| with_home(&python, args, &home).output().unwrap();
    let needed = run(&["prepare", "--check", app]);
    assert_eq!(needed.status.code(), Some(1), "{needed:?}");
    assert!(printed(&needed).contains("classifier.py: not prepared; callboard prepare examples/"), "{needed:?}");
    let prepared = run(&["prepare", app]);
    assert_eq!(prepared.status.code(), Some(0), "{prepared:?}");
    assert!(printed(&prepared).starts_with("Iris: prepared in "), "{prepared:?}");
    assert_eq!(run(&["prepare", "--check", app]).status.code(), Some(0));

    let checked = run(&["check", app]);
    assert!(printed(&checked).contains("/iris example 1: ok in "), "{checked:?}");
    let server = Server::start(with_home(&python, &["serve", app, "--http", "127.0.0.1:0"], &home));
    let flower = json!({ "sepal_length": 6.3, "sepal_width": 3.3, "petal_length": 6.0, "petal_width": 2.5 });
    let (status, species) = answer(&server, "/iris", &flower);
    assert_eq!((status, species["name"].as_str()), (200, Some("virginica")), "{species}");
    let (status, _) = answer(&server, "/iris", &json!({ "sepal_length": -1 }));
    assert_eq!(status, 422);
    let document = server.request("GET /openapi.json HTTP/1.1", b"");
    let document: Value = serde_json::from_str(&document.body).unwrap();
    let body = &document["paths"]["/iris"]["post"]["requestBody"]["content"]["application/json"];
    assert_eq!(body["example"]["petal_width"], 0.2, "the example of the code");
}

#[test]
fn tokens_are_streamed() {
    let Some(python) = python() else { return };
    let server = serve(&python, "examples/python/tokens.py");
    let tokens = post(&server, "/chat", &json!({ "prompt": "a good" }));
    for event in ["data: \"day\"", "data: \"is\"", "event: end"] {
        assert!(tokens.body.contains(event), "{}", tokens.body);
    }
    let head = "POST /chat HTTP/1.1\r\ncontent-type: application/json\r\naccept: application/x-ndjson";
    let lines = server.request(head, br#"{"prompt": "a good", "most": 2}"#);
    // Each token is a chunk of its own.
    assert!(lines.body.contains("\"day\"\n") && lines.body.contains("\"is\"\n"), "{}", lines.body);
}

#[test]
fn a_failing_example_fails_the_check_and_not_the_server() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let code = "import callboard as cb\n\n@cb.function(examples=[1, 0], replicas=3)\ndef inverse(x: int) -> float:\n    \
                return 1 / x\n";
    fs::write(&app, code).unwrap();
    let output = command(&python, &["check", app.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = printed(&output);
    assert!(printed.contains("/inverse example 1: ok in ") && printed.contains("ZeroDivisionError"), "{printed}");
    assert!(printed.trim_end().ends_with("app.py: 1 example failed"), "{printed}");
    let server = serve(&python, app.to_str().unwrap());
    assert_eq!(answer(&server, "/inverse", &json!(2)), (200, json!(0.5)));
}

/// The batch is answered, and the next call waits for the next replica.
#[test]
fn a_replica_that_is_not_well_is_replaced_without_a_failed_call() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let code = "import os\nimport callboard as cb\n\n@cb.service\nclass Pid:\n    def predict(self) -> int:\n        \
                return os.getpid()\n\n    def health(self) -> bool:\n        return False\n";
    fs::write(&app, code).unwrap();
    let server = serve(&python, app.to_str().unwrap());
    let mut pids: Vec<Value> = Vec::new();
    for _ in 0..3 {
        let (status, pid) = answer(&server, "/pid", &json!({}));
        assert!(status == 200 && !pids.contains(&pid), "{status} {pid} {pids:?}");
        pids.push(pid);
    }
}

#[test]
fn a_new_project_serves_and_tests_itself() {
    let Some(python) = python() else { return };
    let project = directory().join("my-service");
    let project = project.to_str().unwrap();
    let output = command(&python, &["init", project]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(fs::read_to_string(format!("{project}/README.md")).unwrap().starts_with("# my-service\n"));
    let again = command(&python, &["init", project]).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(printed(&again).contains("the directory is not empty"), "{again:?}");

    let app = format!("{project}/app.py");
    let output = command(&python, &["check", &app]).output().unwrap();
    assert!(printed(&output).contains("/sentiment example 1: ok in "), "{output:?}");
    let mut tests = Command::new(python.program("python"));
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).current_dir(project);
    let tests = tests.env("PYTHONPATH", package().join("src")).output().unwrap();
    assert!(tests.status.success(), "{}", printed(&tests));
    for tool in [&["check", "--no-cache", "."][..], &["format", "--check", "--no-cache", "--line-length", "120", "."]] {
        let style = Command::new(python.program("ruff")).args(tool).current_dir(project).output().unwrap();
        assert!(style.status.success(), "{}", printed(&style));
    }
}

#[test]
fn the_doctor_says_what_is_missing_with_its_cure() {
    let Some(python) = python() else { return };
    let app = directory().join("app.py");
    let app = app.to_str().unwrap();
    let good = "import callboard as cb\n\n@cb.function\ndef one() -> int:\n    return 1\n";
    let doctor = |code: &str, prepare: &dyn Fn(&mut Command)| {
        fs::write(app, code).unwrap();
        let mut command = command(&python, &["doctor", app, "--http", "127.0.0.1:0"]);
        prepare(&mut command);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), printed(&output))
    };
    let (code, lines) = doctor(good, &|_| {});
    assert_eq!(code, 0, "{lines}");
    for found in ["ok: the interpreter is ", "finds its 1 module", "is 1 route on 1 stage", "127.0.0.1:0 is free"] {
        assert!(lines.contains(found), "{found}: {lines}");
    }
    let (code, lines) = doctor("import not_there\nimport yaml_not\n", &|_| {});
    assert_eq!(code, 1, "{lines}");
    assert!(lines.contains("lacks the modules not_there, yaml_not; ") && lines.contains("-m pip install not_there"));
    assert!(lines.trim_end().ends_with("app.py: 2 problems"), "{lines}");
    let (_, lines) = doctor(good, &|command| _ = command.env_remove("PYTHONPATH"));
    assert!(lines.contains("problem: `") && lines.contains("lacks the package `callboard`, or has another"), "{lines}");
    let (_, lines) = doctor(good, &|command| _ = command.env_remove("VIRTUAL_ENV").env("PATH", "/nowhere"));
    assert!(lines.contains("the interpreter `python3` cannot be run"), "{lines}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, lines) = doctor(good, &|command| _ = command.args(["--http", &address]));
    assert!(code == 1 && lines.contains(&format!("problem: {address} cannot be listened on")), "{lines}");
}

#[test]
fn a_cart_has_its_content_after_a_restart() {
    let Some(python) = python() else { return };
    let place = directory();
    let app = place.join("cart.py");
    fs::copy("examples/python/cart.py", &app).unwrap();
    let show = |server: &Server| {
        let answer = server.request("GET /cart/ann HTTP/1.1", b"");
        (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap())
    };
    let server = serve(&python, app.to_str().unwrap());
    for (count, expected) in [(2, 2), (1, 3)] {
        assert_eq!(answer(&server, "/cart/ann/add", &json!({ "item": "tea", "count": count })), (200, json!(expected)));
    }
    assert_eq!(answer(&server, "/cart/ann/add", &json!({ "item": "tea", "count": 0 })).0, 422);
    let (status, problem) = answer(&server, "/cart/bob/order", &json!({}));
    assert_eq!((status, problem["message"].as_str()), (409, Some("the cart is empty")));
    assert_eq!(show(&server), (200, json!({ "items": { "tea": 3 }, "ordered": 0 })));
    drop(server);

    let server = serve(&python, app.to_str().unwrap());
    assert_eq!(answer(&server, "/cart/ann/order", &json!({})), (200, json!("ann-1")));
    assert_eq!(show(&server), (200, json!({ "items": {}, "ordered": 1 })));

    let exported = command(&python, &["export", app.to_str().unwrap()]).output().unwrap();
    let exported = String::from_utf8(exported.stdout).unwrap();
    assert!(exported.contains("path = \"@keyed/cart-:key-add\"\nstages = \"cart-:key-add\"\n"), "{exported}");
}
