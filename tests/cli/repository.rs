//! Models that are loaded and unloaded on a running server.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::adder::looper;
use crate::support::{Server, TEST_TIMEOUT, callboard, directory_with, run};

const ONE: &str = "[[stage]]\nname = \"one\"\nkind = \"labels\"\nnames = [\"a\", \"b\"]\n\
                   [[route]]\npath = \"/one\"\nstages = \"one\"\n";
const TWO: &str = "[[stage]]\nname = \"two\"\nkind = \"labels\"\nnames = [\"c\", \"d\"]\n\
                   [[route]]\npath = \"/two\"\nstages = \"two\"\n";

fn serve(directory: &Path, args: &[&str]) -> Server {
    let start = ["serve", directory.to_str().unwrap(), "--http", "127.0.0.1:0"];
    Server::start(callboard(start.iter().chain(args)))
}

fn call_post(url: &str, path: &str) -> (bool, String) {
    let output = run(&["call", url, path, "--method", "POST"]);
    (output.status.success(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
}

/// Names, versions and states.
fn index(url: &str) -> Vec<(String, Option<String>, String)> {
    let (_, listed) = call_post(url, "/v2/repository/index");
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap_or_else(|error| panic!("{error}: {listed}"));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let row = |model: &Value| (text(&model["name"]).unwrap(), text(&model["version"]), text(&model["state"]).unwrap());
    listed.iter().map(row).collect()
}

#[test]
fn the_admin_listener_loads_models_from_the_current_file() {
    let directory = directory_with(ONE);
    let mut server = serve(&directory, &["--admin", "127.0.0.1:0"]);
    let admin = server.wait_for("admin on ");
    let row = |name: &str, version: Option<&str>, state: &str| {
        (name.to_owned(), version.map(str::to_owned), state.to_owned())
    };
    assert_eq!(index(&admin), [row("one", Some("1"), "READY")]);

    // A model that was added later.
    fs::write(directory.join("callboard.toml"), [ONE, TWO].concat()).unwrap();
    let (is_ok, message) = call_post(&admin, "/v2/repository/models/two/load");
    assert!(is_ok, "{message}");
    assert_eq!(index(&admin), [row("one", Some("1"), "READY"), row("two", Some("1"), "READY")]);
    assert_eq!(server.request("GET /v2/models/two/ready HTTP/1.1", b"").status, 200);

    let (is_ok, message) = call_post(&admin, "/v2/repository/models/one/unload");
    assert!(is_ok, "{message}");
    assert_eq!(server.request("POST /one HTTP/1.1", b"[]").status, 404);
    // The edge lists the same models.
    let edge = format!("http://{}", server.address);
    assert_eq!(index(&edge), [row("two", Some("1"), "READY"), row("one", None, "UNAVAILABLE")]);

    // A model that cannot be loaded changes nothing.
    fs::write(directory.join("callboard.toml"), ONE.replace("names = [", "names = {")).unwrap();
    let (is_ok, message) = call_post(&admin, "/v2/repository/models/one/load");
    assert!(!is_ok && message.contains("failed to load 'one'") && message.contains("callboard.toml"), "{message}");
    assert_eq!(server.request("GET /v2/models/two/ready HTTP/1.1", b"").status, 200);
}

#[test]
fn a_route_that_is_being_loaded_is_listed_and_in_the_status() {
    let directory = directory_with(ONE);
    let mut server = serve(&directory, &["--admin", "127.0.0.1:0"]);
    let admin = server.wait_for("admin on ");
    let loops = "[[stage]]\nname = \"loops\"\nkind = \"onnx\"\nmodel = \"loops.onnx\"\n\
                 [[route]]\npath = \"/loops\"\nstages = \"loops\"\n";
    fs::write(directory.join("loops.onnx"), looper()).unwrap();
    fs::write(directory.join("callboard.toml"), [ONE, loops].concat()).unwrap();
    let status = || String::from_utf8(run(&["status", &admin]).stdout).unwrap();
    thread::scope(|scope| {
        let load = scope.spawn(|| call_post(&admin, "/v2/repository/models/loops/load"));
        let (end, row) = (Instant::now() + TEST_TIMEOUT, ("loops".to_owned(), None, "LOADING".to_owned()));
        while !index(&admin).contains(&row) {
            assert!(Instant::now() < end && !load.is_finished(), "{:?}", index(&admin));
        }
        assert!(status().contains("\nloading: loops (for "), "{}", status());
        call_post(&admin, "/v2/repository/models/loops/unload");
        let (is_ok, message) = load.join().unwrap();
        assert!(!is_ok && message.contains("unloaded or removed while it was loaded"), "{message}");
    });
    assert!(!status().contains("loading:"), "{}", status());
}

/// A client that requests version 1 finds it after every reload, until the owner changes the version.
#[test]
fn a_version_is_set_by_the_owner_and_survives_a_reload() {
    let directory = directory_with(ONE);
    let server = serve(&directory, &["--model-control=true"]);
    let post = |path: &str| server.request(&format!("POST /v2/repository/models/one/{path} HTTP/1.1"), b"").status;
    let version = |version: u32| server.request(&format!("GET /v2/models/one/versions/{version} HTTP/1.1"), b"").status;
    for _ in 0..3 {
        assert_eq!((version(1), version(2)), (200, 404));
        assert_eq!((post("unload"), post("load"), post("load")), (200, 200, 200));
    }
    fs::write(directory.join("callboard.toml"), ONE.replace("kind =", "revision = 7\nkind =")).unwrap();
    assert_eq!(post("load"), 200);
    assert_eq!((version(1), version(7)), (404, 200));
}

#[test]
fn clients_control_models_only_if_allowed() {
    let directory = directory_with(ONE);
    let (server, open) = (serve(&directory, &[]), serve(&directory, &["--model-control"]));
    let unload = "POST /v2/repository/models/one/unload HTTP/1.1";
    let refused = server.request(unload, b"");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("model control is not enabled"), "{refused:?}");
    assert_eq!(open.request(unload, b"").status, 200);
    assert_eq!(open.request("GET /v2/models/one/ready HTTP/1.1", b"").status, 404);
    assert_eq!(open.request("POST /v2/repository/models/one/load HTTP/1.1", b"{}").status, 200);
    assert_eq!(open.request("GET /v2/models/one/ready HTTP/1.1", b"").status, 200);
}
