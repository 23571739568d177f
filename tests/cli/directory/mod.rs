//! A directory of models: `serve`, `models list`, `load` and `unload`, `--watch` and uploads. What may be wrong with it
//! is in `hostile`, and how a version is tried with some of the calls in `rollouts`.

mod hostile;
mod rollouts;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::adder::{adder, mixer};
use crate::support::{Answer, Server, TEST_TIMEOUT, callboard, directory, failure, run};

/// A directory of models, and the node that serves it.
struct Models {
    path: PathBuf,
}

struct Node {
    server: Server,
    admin: String,
}

impl Models {
    fn new() -> Self {
        Self { path: directory() }
    }

    /// Writes as a careful program does: beside it, then in its place.
    fn write(&self, path: &str, content: &[u8]) {
        let path = self.path.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let beside = path.with_extension("tmp");
        fs::write(&beside, content).unwrap();
        fs::rename(beside, path).unwrap();
    }

    fn add(&self, name: &str, version: u64, addend: f32) {
        self.write(&format!("{name}/{version}/model.onnx"), &adder(addend));
    }

    fn serve(&self, args: &[&str]) -> Node {
        let start = ["serve", self.path.to_str().unwrap(), "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut server = Server::start(callboard(start.iter().chain(args)));
        let admin = server.wait_for("admin on ");
        Node { server, admin }
    }
}

impl Node {
    fn adds(&self, route: &str) -> Result<f64, u16> {
        adds(&self.server.address, route)
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.server.request(&format!("GET {path} HTTP/1.1"), b"");
        (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
    }

    /// `callboard models …`: its exit code and what it prints.
    fn models(&self, args: &[&str]) -> (Option<i32>, String) {
        let args: Vec<&str> = ["models"].into_iter().chain(args.iter().copied()).chain([self.admin.as_str()]).collect();
        let output = run(&args);
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    }

    /// The versions in the list, each with its reason if it is not served or something is wrong.
    fn listed(&self) -> BTreeMap<String, (bool, String)> {
        let (code, text) = self.models(&["list", "--json"]);
        assert_eq!(code, Some(0), "{text}");
        let list: Value = serde_json::from_str(&text).unwrap();
        let mut rows = BTreeMap::new();
        for model in list["models"].as_array().unwrap() {
            let name = model["name"].as_str().unwrap();
            if let Some(reason) = model["reason"].as_str() {
                rows.insert(name.to_owned(), (model["served"] == true, reason.to_owned()));
            }
            for version in model["versions"].as_array().unwrap() {
                let reason = version["reason"].as_str().unwrap_or_default().to_owned();
                let key = format!("{name} {}", version["version"].as_str().unwrap());
                rows.insert(key, (version["served"] == true, reason));
            }
        }
        rows
    }

    /// Waits until a route adds this.
    fn wait_until_adds(&self, route: &str, expected: Result<f64, u16>) {
        let end = Instant::now() + TEST_TIMEOUT;
        while self.adds(route) != expected {
            assert!(
                Instant::now() < end,
                "{route}: {:?} instead of {expected:?}: {:?}",
                self.adds(route),
                self.listed()
            );
        }
    }

    /// Waits until the reason of a row has this text.
    fn wait_for_reason(&self, row: &str, text: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.listed().get(row).is_some_and(|(_, reason)| reason.contains(text)) {
            assert!(Instant::now() < end, "{row} never said {text:?}: {:?}", self.listed());
        }
    }
}

/// What a route of the server at this address adds to 0; its status if that is not 200.
fn adds(address: &str, route: &str) -> Result<f64, u16> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let body = "{\"x\":[0]}";
    let head = format!("POST {route} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nconnection: close");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let answer = Answer::read(stream);
    if answer.status != 200 {
        return Err(answer.status);
    }
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    Ok(body[0].as_f64().unwrap())
}

#[test]
fn the_layout_of_triton_and_flat_files_are_served_by_name_and_version() {
    let models = Models::new();
    models.add("add", 1, 1.0);
    models.add("add", 2, 2.0);
    models.add("add", 10, 10.0);
    models.write("add/model.toml", b"versions = 2\nreplicas = 2\n");
    models.write("flat.onnx", &adder(7.0));
    models.write("README.md", b"not a model");
    let node = models.serve(&[]);
    assert_eq!(
        (node.adds("/add"), node.adds("/add/versions/10"), node.adds("/add/versions/2")),
        (Ok(10.0), Ok(10.0), Ok(2.0))
    );
    assert_eq!(node.adds("/add/versions/1"), Err(404));
    assert_eq!((node.adds("/flat"), node.adds("/flat/versions/1")), (Ok(7.0), Ok(7.0)));

    let (_, metadata) = node.get("/v2/models/add");
    assert_eq!((&metadata["name"], &metadata["versions"]), (&json!("add"), &json!(["2", "10"])));
    assert_eq!(node.get("/v2/models/add/versions/2/ready").0, 200);
    assert_eq!(node.get("/v2/models/add/versions/1").0, 404);
    let input = json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5] }] }).to_string();
    let infer = |path: &str| {
        let answer = node.server.request(&format!("POST /v2/models/{path}/infer HTTP/1.1"), input.as_bytes());
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        (body["model_name"].clone(), body["model_version"].clone(), body["outputs"][0]["data"].clone())
    };
    assert_eq!(infer("add/versions/2"), (json!("add"), json!("2"), json!([2.5])));
    assert_eq!(infer("add"), (json!("add"), json!("10"), json!([10.5])));

    // Both routes of a version share its stage.
    let (_, config) = node.get("/v2/models/add/config");
    assert_eq!(config["instance_group"][0]["count"], json!(2), "{config}");
    let (code, table) = node.models(&["list"]);
    assert_eq!(code, Some(0));
    let rows: Vec<String> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        rows,
        [
            "model version state reason",
            "add 1 not served not among the `versions` of its settings",
            "add 2 served -",
            "add 10 served, default -",
            "flat 1 served, default -",
        ]
    );
}

#[test]
fn load_and_unload_change_one_model_and_keep_version_numbers() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.add("b", 1, 5.0);
    let node = models.serve(&[]);
    models.add("a", 2, 2.0);
    assert_eq!(node.adds("/a"), Ok(1.0), "nothing changes by itself");
    let (code, text) = node.models(&["load", "a"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!((node.adds("/a"), node.adds("/a/versions/2")), (Ok(2.0), Ok(2.0)));
    assert_eq!(node.adds("/a/versions/1"), Err(404), "the policy is the latest");

    // A model that is new in the directory.
    models.write("c.onnx", &adder(9.0));
    assert_eq!(node.models(&["load", "c"]).0, Some(0));
    assert_eq!(node.adds("/c"), Ok(9.0));
    for _ in 0..3 {
        assert_eq!(node.models(&["unload", "a"]).0, Some(0));
        assert_eq!((node.adds("/a"), node.adds("/a/versions/2"), node.adds("/b")), (Err(404), Err(404), Ok(5.0)));
        assert_eq!(node.listed()["a 2"], (false, "unloaded".to_owned()));
        assert_eq!(node.models(&["load", "a"]).0, Some(0));
        assert_eq!(node.get("/v2/models/a/versions/2/ready").0, 200);
    }
    let (code, text) = node.models(&["load", "d"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("there is no model `d`"), "{text}");
}

#[test]
fn watched_versions_go_live_change_and_go_while_calls_are_answered() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("a/model.toml", b"versions = \"all\"\n");
    let node = models.serve(&["--watch", "100ms"]);
    models.add("a", 2, 2.0);
    node.wait_until_adds("/a", Ok(2.0));
    models.write("a/2/model.onnx", b"broken");
    node.wait_for_reason("a 2", "the earlier file is served");
    assert_eq!(node.adds("/a"), Ok(2.0));
    models.add("a", 2, 2.5);
    node.wait_until_adds("/a/versions/2", Ok(2.5));
    assert_eq!(node.adds("/a"), Ok(2.5));
    models.write("a/model.toml", b"versions = \"all\"\ndefault = 1\n");
    node.wait_until_adds("/a", Ok(1.0));
    assert_eq!(node.adds("/a/versions/2"), Ok(2.5));
    fs::remove_dir_all(models.path.join("a/2")).unwrap();
    node.wait_until_adds("/a/versions/2", Err(404));
    models.write("new.onnx", &adder(8.0));
    node.wait_until_adds("/new", Ok(8.0));
    fs::remove_file(models.path.join("new.onnx")).unwrap();
    node.wait_until_adds("/new", Err(404));
    assert_eq!(node.adds("/a"), Ok(1.0));
}

#[test]
fn two_nodes_watch_one_directory() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let nodes = [models.serve(&["--watch", "100ms"]), models.serve(&["--watch", "100ms"])];
    models.add("a", 2, 2.0);
    nodes.iter().for_each(|node| node.wait_until_adds("/a", Ok(2.0)));
    assert_eq!(nodes[0].models(&["unload", "a"]).0, Some(0));
    models.add("a", 3, 3.0);
    nodes[1].wait_until_adds("/a", Ok(3.0));
    assert_eq!(nodes[0].adds("/a"), Err(404), "unloaded until somebody loads it");
}

#[test]
fn no_call_fails_while_versions_change() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&[]);
    let (address, is_over) = (node.server.address.as_str(), AtomicBool::new(false));
    let answers = std::thread::scope(|scope| {
        let calls = || {
            let mut answers = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                answers.push(adds(address, "/a"));
            }
            answers
        };
        let callers = [scope.spawn(calls), scope.spawn(calls)];
        for version in 2..=6 {
            models.add("a", version, version as f32);
            assert_eq!(node.models(&["load", "a"]).0, Some(0));
            // Another file under the same number.
            models.add("a", version, version as f32 + 0.5);
            assert_eq!(node.models(&["load", "a"]).0, Some(0));
        }
        is_over.store(true, Ordering::Relaxed);
        callers.map(|caller| caller.join().unwrap()).concat()
    });
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(answers.len() > 10 && answers.windows(2).any(|pair| pair[0] != pair[1]), "{} answers", answers.len());
    assert_eq!(node.adds("/a"), Ok(6.5));
}

#[test]
fn a_model_is_uploaded_checked_served_and_removed() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&["--model-uploads", "4KiB"]);
    let file = directory().join("upload");
    let send = |path: &str, content: &[u8]| {
        fs::write(&file, content).unwrap();
        let path = format!("/v1/models/{path}");
        let output = run(&["call", &node.admin, &path, "--method", "PUT", "--file", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, text) = send("up/versions/3", &adder(3.0));
    assert_eq!(code, Some(0), "{text}");
    assert_eq!((node.adds("/up"), node.adds("/up/versions/3")), (Ok(3.0), Ok(3.0)));
    assert_eq!(send("up/versions/3", &adder(3.5)).0, Some(0));
    assert_eq!(node.adds("/up"), Ok(3.5));
    assert_eq!(send("a/versions/2", &adder(2.0)).0, Some(0));
    assert_eq!(node.adds("/a"), Ok(2.0));

    for (path, content, expected) in [
        ("up/versions/4", vec![0; 5000], "exceeds the limit of 4096 bytes"),
        ("up/versions/4", b"no model".to_vec(), "version 4: "),
        ("up/versions/v4", adder(4.0), "a version is a whole number"),
        ("up/versions/0", adder(4.0), "a version is a whole number"),
        ("..%2Fup/versions/4", adder(4.0), "no name of a model"),
        ("%2Eup/versions/4", adder(4.0), "no name of a model"),
        ("metrics/versions/4", adder(4.0), "keeps that path"),
        ("x%20y/versions/4", adder(4.0), "cannot be a route"),
    ] {
        let (code, text) = send(path, &content);
        assert!(code == Some(4) && text.contains(expected), "{path}: {code:?} {text}");
    }
    let names = |path: &str| {
        let entries = fs::read_dir(models.path.join(path)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!((names(""), names("up")), (vec!["a".to_owned(), "up".to_owned()], vec!["3".to_owned()]));

    let delete = |path: &str| run(&["call", &node.admin, &format!("/v1/models/{path}"), "--method", "DELETE"]);
    assert_eq!(delete("a/versions/2").status.code(), Some(0));
    assert_eq!((node.adds("/a"), node.adds("/a/versions/2")), (Ok(1.0), Err(404)), "the latest of the others");
    assert_eq!(delete("a/versions/2").status.code(), Some(4));
    assert_eq!(names("a"), ["1"]);

    let closed = models.serve(&[]);
    let output = run(&["call", &closed.admin, "/v1/models/a/versions/9", "--method", "DELETE"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("models.uploads"), "{output:?}");
}

/// An engine that tells of each load does so once for the check, and once at the file's place.
#[test]
fn an_uploaded_model_is_loaded_by_a_child_and_then_by_the_node() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("lazy/model.toml", b"replicas = { min = 0, max = 1 }\n");
    models.add("lazy", 1, 1.0);
    let mut node = models.serve(&["--model-uploads", "4KiB", "--log", "info"]);
    let file = directory().join("upload");
    for (name, addend) in [("up", 3.0), ("lazy", 4.0)] {
        fs::write(&file, adder(addend)).unwrap();
        let path = format!("/v1/models/{name}/versions/3");
        let output = run(&["call", &node.admin, &path, "--method", "PUT", "--file", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        // A model that its first call opens has its file by then.
        assert_eq!(node.adds(&format!("/{name}")), Ok(addend.into()));
    }
    node.server.signal("TERM");
    node.server.wait();
    let loads = |place: &str| {
        let lines = node.server.stderr_lines.iter();
        lines.filter(|line| line.contains("rten runs this model") && line.contains(place)).count()
    };
    // ONNX Runtime says nothing of a load.
    if loads("a/1/model.onnx") == 1 {
        assert_eq!((loads(".upload-"), loads("up/3/model.onnx")), (2, 1), "{:#?}", node.server.stderr_lines);
    }
}

#[test]
fn broken_models_are_told_in_the_order_of_their_names_and_cost_no_other() {
    let models = Models::new();
    for name in ["a", "c", "e", "g", "i"] {
        models.add(name, 1, 1.0);
        models.write(&format!("{name}x/1/model.onnx"), b"no model");
    }
    models.write("d/model.toml", b"replica = 2\n");
    models.add("d", 1, 1.0);
    let mut node = models.serve(&[]);
    for name in ["a", "c", "e", "g", "i"] {
        assert_eq!(node.adds(&format!("/{name}")), Ok(1.0));
    }
    node.server.signal("TERM");
    node.server.wait();
    let told = node.server.stderr_lines.iter().filter(|line| line.contains("not served"));
    let names: Vec<&str> = told.map(|line| line.split("model=").nth(1).unwrap().split(' ').next().unwrap()).collect();
    assert_eq!(names, ["ax", "cx", "d", "ex", "gx", "ix"].map(|name| format!("{name:?}")));
}

#[test]
fn a_version_is_scaled_by_its_model() {
    let models = Models::new();
    models.add("add", 1, 1.0);
    models.add("add", 2, 2.0);
    models.write("add/model.toml", b"versions = \"all\"\nreplicas = { min = 1, max = 3 }\n");
    let node = models.serve(&[]);
    for (args, stage) in [(["scale", "add", "2"], "add:2"), (["scale", "add:1", "3"], "add:1")] {
        let (code, text) = node.models(&args);
        assert_eq!((code, text.trim()), (Some(0), format!("stage {stage}: {} replicas", args[2]).as_str()));
        let status: Value = serde_json::from_slice(&run(&["status", &node.admin, "--json"]).stdout).unwrap();
        let stages = status["node"]["stages"].as_array().unwrap();
        let found = stages.iter().find(|found| found["name"] == stage && found["part"] == "serving").unwrap();
        assert_eq!(found["scaling"]["target"].to_string(), args[2]);
    }
    for (args, expected) in [
        (["scale", "other", "2"], "there is no model `other`"),
        (["scale", "add:9", "2"], "version 9 is not served"),
        (["scale", "add", "4"], "stage `add:2` scales by itself, from 1 to 3 replicas"),
        (["scale", "add", "1..3"], "expected a whole number; the bounds"),
    ] {
        let (code, text) = node.models(&args);
        assert!(code != Some(0) && text.contains(expected), "{args:?}: {text}");
    }
    for (version, body, status) in [(9, "{\"replicas\": 2}", 404), (9, "no json", 400), (2, "{\"replicas\": 2}", 200)] {
        let mut stream = TcpStream::connect(node.admin.trim_start_matches("http://")).unwrap();
        let head =
            format!("POST /v1/models/add/scale?version={version} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
        let length = body.len();
        write!(stream, "{head}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        let answer = Answer::read(stream);
        assert_eq!(answer.status, status, "{version} {body}: {}", answer.body);
    }
}

#[test]
fn the_admin_listener_pages_its_models_and_documents_itself() {
    let models = Models::new();
    for name in ["a", "b", "c"] {
        models.write(&format!("{name}.onnx"), &adder(1.0));
    }
    let node = models.serve(&[]);
    let get =
        |path: &str| -> Value { serde_json::from_slice(&run(&["call", &node.admin, path]).stdout).unwrap_or_default() };
    let page = |query: &str| {
        let page = get(&format!("/v1/models{query}"));
        let names: Vec<_> = page["models"].as_array().unwrap().iter().map(|model| model["name"].to_string()).collect();
        (names.join(""), page["next"].clone())
    };
    assert_eq!(page("?limit=2"), ("\"a\"\"b\"".to_owned(), json!("b")));
    assert_eq!(page("?limit=2&after=b"), ("\"c\"".to_owned(), Value::Null));
    let refused = run(&["call", &node.admin, "/v1/models?limit=0"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("from 1 to 1000"), "{refused:?}");
    assert_eq!(get("/v1/models/b")["default_version"], json!(1));

    let document = get("/openapi.json");
    let mut paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    paths.sort();
    assert_eq!(
        paths,
        [
            "/v1/actors",
            "/v1/actors/{kind}",
            "/v1/actors/{kind}/ask",
            "/v1/actors/{kind}/forget",
            "/v1/actors/{kind}/passivate",
            "/v1/actors/{kind}/release",
            "/v1/cluster",
            "/v1/drain",
            "/v1/live",
            "/v1/models",
            "/v1/models/{name}",
            "/v1/models/{name}/canary",
            "/v1/models/{name}/load",
            "/v1/models/{name}/promote",
            "/v1/models/{name}/rollback",
            "/v1/models/{name}/scale",
            "/v1/models/{name}/shadow",
            "/v1/models/{name}/unload",
            "/v1/models/{name}/versions/{version}",
            "/v1/routes/{route}",
            "/v1/routes/{route}/promote",
            "/v1/routes/{route}/rollback",
            "/v1/stages/{stage}/replicas",
            "/v1/status",
        ]
    );
    let metrics = node.server.request("GET /metrics HTTP/1.1", b"").body;
    for line in [
        "callboard_model_versions{model=\"a\",state=\"served\"} 1",
        "callboard_model_loads_total{model=\"c\",outcome=\"ok\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn a_file_beside_the_models_has_the_settings_of_the_node() {
    let models = Models::new();
    models.add("add", 1, 1.0);
    models.write("add/model.toml", b"contract = \"pure\"\ncache = \"1MiB\"\n");
    let file = "[http]\nmax_body_bytes = \"100B\"\n[models]\nwatch = \"100ms\"\n[models.defaults]\nreplicas = 2\n";
    models.write("callboard.toml", file.as_bytes());
    let node = models.serve(&[]);
    assert_eq!(node.get("/v2/models/add/config").1["instance_group"][0]["count"], json!(2));
    models.add("add", 2, 2.0);
    node.wait_until_adds("/add", Ok(2.0));
    let input = json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [7] }] }).to_string();
    for expected in ["callboard; fwd=miss", "callboard; hit"] {
        let answer = node.server.request("POST /v2/models/add/infer HTTP/1.1", input.as_bytes());
        assert!(answer.head.to_lowercase().contains(&format!("cache-status: {expected}")), "{answer:?}");
    }
    let long = "x".repeat(101);
    assert_eq!(node.server.request("POST /v2/models/add/infer HTTP/1.1", long.as_bytes()).status, 413);

    models.write("callboard.toml", b"[limit]\n");
    let serve = || callboard(["serve", models.path.to_str().unwrap(), "--http", "127.0.0.1:0", "--admin", "none"]);
    let (error, code) = failure(serve());
    assert!(code == 2 && error.contains("callboard.toml:1: unknown key `limit`"), "{error}");
    models.write("callboard.toml", b"[[route]]\n");
    let (error, _) = failure(serve());
    assert!(error.contains("at least one [[stage]]"), "{error}");
}

/// Only a load shows it, which is that of a child, or of the first call.
#[cfg(unix)]
#[test]
fn the_status_says_why_a_model_runs_items_one_by_one_also_where_a_child_or_a_call_loads_it() {
    let models = Models::new();
    for (name, settings) in
        [("here", ""), ("child", "isolate = true\n"), ("later", "replicas = { min = 0, max = 1 }\n")]
    {
        models.write(&format!("{name}/1/model.onnx"), &mixer());
        models.write(&format!("{name}/model.toml"), settings.as_bytes());
    }
    let node = models.serve(&[]);
    assert_eq!(node.adds("/later"), Ok(0.0));
    let output = run(&["status", &node.admin, "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["here", "child", "later"] {
        let stages = status["node"]["stages"].as_array().unwrap();
        let stage = stages.iter().find(|stage| stage["name"] == format!("{name}:1")).unwrap();
        let note = stage["note"].as_str().unwrap_or_default();
        assert!(note.starts_with("its output `y` for one item is another beside another item"), "{stage}");
    }
}
