//! Broken, half-written and hostile models, settings and uploads: each costs nothing but itself.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
#[cfg(target_os = "linux")]
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::Models;
use crate::adder::{adder, adder_from, allocator, crasher, looper};
#[cfg(target_os = "linux")]
use crate::support::{Server, without_settings};
use crate::support::{TEST_TIMEOUT, callboard, directory, failure, run};

#[test]
fn names_that_cannot_be_served_are_listed_with_their_reasons() {
    let models = Models::new();
    models.add("good", 1, 1.0);
    models.write("good/v2/model.onnx", &adder(2.0));
    models.write("good/03/model.onnx", &adder(3.0));
    fs::create_dir_all(models.path.join("good/4/model.onnx")).unwrap();
    models.add("bad name", 1, 1.0);
    models.add("metrics", 1, 1.0);
    let huge = models.path.join("good/5/model.onnx");
    fs::create_dir_all(huge.parent().unwrap()).unwrap();
    fs::File::create(huge).unwrap().set_len(3 << 30).unwrap();
    #[cfg(unix)]
    {
        let outside = directory();
        fs::write(outside.join("secret.onnx"), adder(6.0)).unwrap();
        fs::create_dir_all(models.path.join("good/6")).unwrap();
        std::os::unix::fs::symlink(outside.join("secret.onnx"), models.path.join("good/6/model.onnx")).unwrap();
    }
    let node = models.serve(&[]);
    let listed = node.listed();
    for (row, reason) in [
        ("good v2", "not `v2`"),
        ("good 03", "without leading zeros"),
        ("good 4", "it is a directory, not a file; move the model and its weights up"),
        ("good 5", "has 3221225472 bytes, more than the 2147483648"),
        ("bad name", "cannot be a route"),
        ("metrics", "the http edge keeps that path"),
    ] {
        assert!(!listed[row].0 && listed[row].1.contains(reason), "{row}: {listed:?}");
    }
    #[cfg(unix)]
    assert!(listed["good 6"].1.contains("outside of the directory"), "{listed:?}");
    assert_eq!(node.adds("/good"), Ok(1.0));

    let answer = node.server.request("POST /v2/repository/index HTTP/1.1", b"");
    let index: Vec<Value> = serde_json::from_str(&answer.body).unwrap();
    let row =
        |version: &str| index.iter().find(|row| row["name"] == "good" && row["version"] == version).unwrap().clone();
    assert_eq!(row("1"), json!({ "name": "good", "version": "1", "state": "READY", "reason": "" }));
    assert_eq!(row("v2")["state"], "UNAVAILABLE");
    assert!(row("4")["reason"].as_str().unwrap().contains("directory"), "{index:?}");
}

#[test]
fn a_half_written_file_is_taken_when_it_is_whole() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&["--watch", "100ms"]);
    let whole = adder(2.0);
    let (first, rest) = whole.split_at(whole.len() / 2);
    fs::create_dir_all(models.path.join("a/2")).unwrap();
    let mut file = fs::File::create(models.path.join("a/2/model.onnx")).unwrap();
    file.write_all(first).unwrap();
    node.wait_for_reason("a 2", "cannot use model");
    assert_eq!(node.adds("/a"), Ok(1.0));
    file.write_all(rest).unwrap();
    node.wait_until_adds("/a", Ok(2.0));
}

#[cfg(unix)]
#[test]
fn an_isolated_model_that_crashes_at_its_warm_up_costs_nothing_else() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("crash/1/model.onnx", &crasher());
    models.write("crash/model.toml", b"isolate = true\n");
    let node = models.serve(&[]);
    assert_eq!((node.adds("/a"), node.adds("/crash")), (Ok(1.0), Err(404)));
    let (served, reason) = node.listed()["crash 1"].clone();
    assert!(!served && !reason.is_empty(), "{reason}");
    // The same while it serves.
    models.write("a/model.toml", b"isolate = true\n");
    models.write("a/2/model.onnx", &crasher());
    let (code, text) = node.models(&["load", "a"]);
    assert!(code == Some(1) && text.contains("version 2: "), "{text}");
    assert_eq!(node.adds("/a"), Ok(1.0));
}

/// A small item asks for 4 GiB, more than its process may have. The node and other calls do not notice.
#[cfg(target_os = "linux")]
#[test]
fn an_isolated_model_that_exceeds_its_memory_limit_fails_that_call_alone() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("hungry/1/model.onnx", &allocator());
    models.write("hungry/model.toml", b"isolate = true\nthreads = 1\nmemory_limit = \"2GiB\"\n");
    let node = models.serve(&[]);
    let ask = |floats: u64| {
        let head = "POST /hungry HTTP/1.1\r\ncontent-type: application/json";
        node.server.request(head, format!("{{\"x\":[{floats}]}}").as_bytes())
    };
    assert_eq!(ask(1 << 10).status, 200);
    let refused = ask(1 << 30);
    assert_eq!(refused.status, 500, "{}", refused.body);
    assert!(refused.body.contains("worker_failed") && refused.body.contains("memory limit"), "{}", refused.body);
    assert_eq!((ask(1 << 10).status, node.adds("/a")), (200, Ok(1.0)));
}

#[test]
fn a_memory_limit_without_a_process_of_its_own_or_of_no_size_is_refused() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("b/1/model.onnx", &adder(2.0));
    models.write("b/model.toml", b"memory_limit = \"2GiB\"\n");
    models.add("c", 1, 1.0);
    models.write("c/model.toml", b"isolate = true\nmemory_limit = \"2GB\"\n");
    let node = models.serve(&[]);
    assert_eq!((node.adds("/a"), node.adds("/b"), node.adds("/c")), (Ok(1.0), Err(404), Err(404)));
    let wrong = "expected a size such as \"2GiB\", or \"none\", got `2GB`";
    for (model, expected) in [("b 1", "set `isolate = true`"), ("c 1", wrong)] {
        let (_, reason) = node.listed()[model].clone();
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn hostile_uploads_and_settings_cost_nothing_else() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("garbage/model.toml", &[0xff, 0, 0x1b, b'[']);
    models.add("garbage", 1, 1.0);
    models.write("versions/model.toml", b"versions = [0]\n");
    models.add("versions", 1, 1.0);
    let node = models.serve(&["--model-uploads", "4KiB"]);
    let listed = node.listed();
    for name in ["garbage", "versions"] {
        assert!(!listed[name].0 && listed[name].1.contains("model.toml"), "{listed:?}");
    }
    // A body that ends before its announced length, then a whole one.
    let mut cut = TcpStream::connect(node.admin.trim_start_matches("http://")).unwrap();
    let head = "PUT /v1/models/cut/versions/1 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n";
    cut.write_all(&[head.as_bytes(), b"half"].concat()).unwrap();
    drop(cut);
    let file = directory().join("upload");
    fs::write(&file, adder(5.0)).unwrap();
    let put =
        || run(&["call", &node.admin, "/v1/models/up/versions/1", "--method", "PUT", "--file", file.to_str().unwrap()]);
    let end = Instant::now() + TEST_TIMEOUT;
    while !put().status.success() {
        assert!(Instant::now() < end, "{:?}", put());
    }
    // Two at once of one version: each is whole, or refused as another one arrives.
    let both = std::thread::scope(|scope| [scope.spawn(put), scope.spawn(put)].map(|put| put.join().unwrap()));
    assert!(both.iter().any(|output| output.status.success()), "{both:?}");
    assert_eq!((node.adds("/up"), node.adds("/a"), node.adds("/cut")), (Ok(5.0), Ok(1.0), Err(404)));
    let hidden = fs::read_dir(&models.path)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn a_broken_version_never_goes_live_and_says_why() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    models.write("a/model.toml", b"versions = \"all\"\n");
    models.write("broken/1/model.onnx", b"not a model");
    models.write("settings/model.toml", b"replica = 2\n");
    models.add("settings", 1, 1.0);
    let mut node = models.serve(&[]);
    assert_eq!((node.adds("/a"), node.adds("/broken"), node.adds("/settings")), (Ok(1.0), Err(404), Err(404)));
    assert_eq!(node.get("/readyz").0, 200, "the others are served");
    let listed = node.listed();
    assert!(!listed["broken 1"].0 && listed["broken 1"].1.contains("broken/1/model.onnx"), "{listed:?}");
    assert!(listed["settings"].1.contains("model.toml:1: unknown key `replica`; did you mean"), "{listed:?}");

    let whole = adder(2.0);
    for (content, reason) in [(&whole[..whole.len() / 2], "cannot use model"), (&[], "the file is empty")] {
        models.write("a/2/model.onnx", content);
        let (code, text) = node.models(&["load", "a"]);
        assert_eq!(code, Some(if content.is_empty() { 0 } else { 1 }), "{text}");
        assert_eq!((node.adds("/a"), node.adds("/a/versions/2")), (Ok(1.0), Err(404)), "version 1 stays");
        let (served, why) = node.listed()["a 2"].clone();
        assert!(!served && why.contains(reason), "{why}");
    }
    // A served version whose new file is broken is served from its earlier file.
    models.write("a/1/model.onnx", b"cut");
    let (code, text) = node.models(&["load", "a"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("failed to load `a`: version 1: "), "{text}");
    assert_eq!((node.adds("/a"), node.adds("/a/versions/1")), (Ok(1.0), Ok(1.0)));
    assert!(node.listed()["a 1"].1.starts_with("the earlier file is served; the new one: "));

    models.add("a", 2, 2.0);
    models.add("a", 1, 1.5);
    assert_eq!(node.models(&["load", "a"]).0, Some(0));
    assert_eq!((node.adds("/a"), node.adds("/a/versions/1")), (Ok(2.0), Ok(1.5)));
    node.server.signal("TERM");
    node.server.wait();
    let said = node.server.stderr_lines.iter().filter(|line| line.contains("broken") && line.contains("not served"));
    assert_eq!(said.count(), 1, "{:#?}", node.server.stderr_lines);
}

#[test]
fn a_directory_without_a_model_to_serve_does_not_start() {
    let models = Models::new();
    let serve = || callboard(["serve", models.path.to_str().unwrap(), "--http", "127.0.0.1:0", "--admin", "none"]);
    let (error, code) = failure(serve());
    assert!(code == 2 && error.contains("NAME/1/model.onnx or NAME.onnx"), "{error}");
    models.write("a/v1/model.onnx", &adder(1.0));
    let (error, code) = failure(serve());
    assert!(code == 2 && error.contains("a version v1: a version is a whole number"), "{error}");
}

/// The settings of the node lie in `callboard.toml`; a model `callboard` has its own as a directory.
#[test]
fn a_model_called_callboard_does_not_take_the_settings_of_the_node() {
    let models = Models::new();
    models.write("callboard.onnx", &adder(1.0));
    models.write("callboard.toml", b"[http]\nmax_body_bytes = \"100B\"\n");
    let node = models.serve(&[]);
    assert_eq!(node.adds("/callboard"), Ok(1.0), "{:?}", node.listed());
}

#[cfg(unix)]
#[test]
fn a_file_that_ends_its_process_is_found_out_by_a_child() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&["--model-uploads", "4KiB", "--watch", "100ms"]);
    let file = directory().join("upload");
    fs::write(&file, crasher()).unwrap();
    let path = "/v1/models/up/versions/1";
    let refused = run(&["call", &node.admin, path, "--method", "PUT", "--file", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("failed to upload `up`: version 1: "), "{text}");
    assert!(!models.path.join("up").exists());
    // A file that somebody puts into the directory.
    models.write("watched/1/model.onnx", &crasher());
    node.wait_for_reason("watched 1", "did not start");
    models.write("a/2/model.onnx", &crasher());
    let (code, text) = node.models(&["load", "a"]);
    assert!(code == Some(1) && text.contains("version 2: "), "{text}");
    assert_eq!((node.adds("/a"), node.adds("/watched"), node.adds("/up")), (Ok(1.0), Err(404), Err(404)));
}

/// Each start finds the file where somebody has put it.
#[cfg(unix)]
#[test]
fn a_file_that_a_watch_has_refused_does_not_end_the_next_start() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&["--watch", "100ms"]);
    models.write("watched/1/model.onnx", &crasher());
    node.wait_for_reason("watched 1", "did not start");
    drop(node);
    let node = models.serve(&["--watch", "100ms"]);
    assert_eq!((node.adds("/a"), node.adds("/watched")), (Ok(1.0), Err(404)));
    let (is_served, reason) = node.listed()["watched 1"].clone();
    assert!(!is_served && reason.contains("did not start"), "{reason}");
}

#[cfg(unix)]
#[test]
fn a_model_that_loops_holds_up_no_other_and_an_unload_ends_its_load() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&["--model-uploads", "4KiB", "--watch", "100ms"]);
    models.write("loops/1/model.onnx", &looper());
    let end = Instant::now() + TEST_TIMEOUT;
    while !node.models(&["list"]).1.contains("loading for") {
        assert!(Instant::now() < end, "{:?}", node.models(&["list"]));
    }
    // Wherever an operator or a client looks.
    let status = run(&["status", &node.admin]);
    let status = String::from_utf8_lossy(&status.stdout);
    assert!(status.contains("\nloading: loops (for "), "{status}");
    let listed = run(&["call", &node.admin, "/v1/models/loops", "--method", "GET"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(listed["loading_seconds"].is_number() && listed["served"] == false, "{listed}");
    let index = node.server.request("POST /v2/repository/index HTTP/1.1", b"");
    let index: Vec<Value> = serde_json::from_str(&index.body).unwrap();
    let row = index.iter().find(|row| row["name"] == "loops").unwrap();
    assert_eq!((&row["state"], &row["reason"]), (&json!("LOADING"), &json!("it is being loaded")), "{row}");
    models.add("b", 1, 2.0);
    node.wait_until_adds("/b", Ok(2.0));
    models.add("a", 2, 3.0);
    assert_eq!(node.models(&["load", "a"]).0, Some(0));
    assert_eq!(node.models(&["unload", "b"]).0, Some(0));
    assert_eq!((node.adds("/a"), node.adds("/b")), (Ok(3.0), Err(404)));
    assert!(node.models(&["list"]).1.contains("loading for"), "it still loops");
    assert_eq!(node.models(&["unload", "loops"]).0, Some(0));
    assert!(!node.models(&["list"]).1.contains("loading for"));
    let status = run(&["status", &node.admin]);
    assert!(!String::from_utf8_lossy(&status.stdout).contains("loading:"), "it was unloaded");

    // Each run of a warm-up has the time of the stage, in the child and in the node.
    models.write("loops/model.toml", b"timeout = \"300ms\"\n");
    let (code, text) = node.models(&["load", "loops"]);
    assert!(code == Some(1) && text.contains("took longer than timeout = 300ms"), "{text}");
    // And the whole start its own.
    models.write("loops/model.toml", b"start_timeout = \"1s\"\nisolate = true\n");
    let (code, text) = node.models(&["load", "loops"]);
    assert!(code == Some(1) && text.contains("not ready within 1s"), "{text}");
    models.write("loops/model.toml", b"start_timeout = \"soon\"\n");
    let (code, text) = node.models(&["load", "loops"]);
    assert!(code == Some(1) && text.contains("start_timeout: expected a duration"), "{text}");
}

#[test]
fn slow_uploads_keep_out_no_other_before_their_limit() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    let node = models.serve(&["--model-uploads", "4KiB"]);
    let slow = |number: usize| {
        let mut stream = TcpStream::connect(node.admin.trim_start_matches("http://")).unwrap();
        let head = format!("PUT /v1/models/slow/versions/{number} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000");
        write!(stream, "{head}\r\n\r\nx").unwrap();
        let hidden = || fs::read_dir(&models.path).unwrap().count() - 1;
        let end = Instant::now() + TEST_TIMEOUT;
        while hidden() < number {
            assert!(Instant::now() < end, "{} uploads have begun", hidden());
        }
        stream
    };
    let file = directory().join("upload");
    fs::write(&file, adder(2.0)).unwrap();
    let put = |path: &str| run(&["call", &node.admin, path, "--method", "PUT", "--file", file.to_str().unwrap()]);
    let mut uploads: Vec<TcpStream> = (1..=3).map(slow).collect();
    assert!(put("/v1/models/a/versions/2").status.success());
    assert_eq!(node.adds("/a"), Ok(2.0));
    uploads.push(slow(4));
    let refused = put("/v1/models/a/versions/3");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("4 other models are being uploaded"), "{text}");
    drop(uploads);
}

/// Beyond a limit of the system the node gets a signal, which must not end it.
#[cfg(target_os = "linux")]
#[test]
fn an_upload_that_cannot_be_written_leaves_nothing_and_the_node_lives() {
    let models = Models::new();
    models.add("a", 1, 1.0);
    // 8 blocks of 512 or 1024 bytes.
    let limited = "ulimit -f 8; exec \"$0\" serve \"$1\" --http 127.0.0.1:0 --admin 127.0.0.1:0 --model-uploads 1MiB";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited, env!("CARGO_BIN_EXE_callboard"), models.path.to_str().unwrap()]);
    let mut server = Server::start(without_settings(shell));
    let admin = server.wait_for("admin on ");
    let file = directory().join("upload");
    fs::write(&file, vec![0; 100_000]).unwrap();
    let put = |path: &str| run(&["call", &admin, path, "--method", "PUT", "--file", file.to_str().unwrap()]);
    let refused = put("/v1/models/up/versions/1");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("failed to write version 1 of `up`"), "{text}");
    let left: Vec<_> = fs::read_dir(&models.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a"], "half a file is left");
    assert_eq!((super::adds(&server.address, "/up"), super::adds(&server.address, "/a")), (Err(404), Ok(1.0)));
    // A file within the limit is taken as before.
    fs::write(&file, adder(2.0)).unwrap();
    assert!(put("/v1/models/up/versions/1").status.success());
    assert_eq!(super::adds(&server.address, "/up"), Ok(2.0));
}

/// What is beside an upload while it is checked is not beside it later.
#[test]
fn an_upload_does_not_get_its_weights_from_another_model() {
    let models = Models::new();
    models.add("b", 1, 1.0);
    models.write("b/1/w.data", &2_f32.to_le_bytes());
    models.write("w.data", &2_f32.to_le_bytes());
    models.write("c/1/model.onnx", &adder_from("w.data"));
    models.write("c/1/w.data", &2_f32.to_le_bytes());
    let node = models.serve(&["--model-uploads", "4KiB"]);
    assert_eq!(node.adds("/c"), Ok(2.0), "the file is one that can be weights: {:?}", node.listed());
    let file = directory().join("upload");
    for weights in ["b/1/w.data", "w.data"] {
        fs::write(&file, adder_from(weights)).unwrap();
        let path = "/v1/models/up/versions/1";
        let refused = run(&["call", &node.admin, path, "--method", "PUT", "--file", file.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && text.contains("failed to upload `up`: version 1: "), "{text}");
        assert_eq!(node.adds("/up"), Err(404));
    }
    let mut left: Vec<_> = fs::read_dir(&models.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["b", "c", "w.data"]);
}
