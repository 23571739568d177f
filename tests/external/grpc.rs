//! Other people's clients of gRPC: Triton's, KServe's, MLServer's, grpc-js, and grpcio's for health, against models of
//! every kind.

use std::fs;
use std::path::Path;

use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::node::Node;
use crate::python::Python;
use crate::python_apps::package;
use crate::support::{Server, callboard, directory};
use crate::triton;

#[test]
fn tritonclient_calls_everything_over_grpc() {
    let Some(output) = triton::run_with("grpc", "grpc_triton.py") else { return };
    let parts = ["models", "datatypes", "calls", "mistakes", "cancelled", "large", "streams", "pings"];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts);
}

/// KServe's client repeats UNAVAILABLE by itself, and speaks version 1 over REST.
#[test]
fn the_client_of_kserve_calls_over_grpc_and_rest() {
    let Some(output) = triton::run_with("kserve", "kserve_clients.py") else { return };
    let parts = ["infer", "statuses", "cancelled", "repository", "v2", "v1"];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts);
}

/// Their messages are typed, and they number the index of models in their own way.
#[test]
fn the_stubs_of_mlserver_call() {
    let Some(output) = triton::run_with("mlserver", "mlserver_stubs.py") else { return };
    assert_eq!(output.lines().collect::<Vec<_>>(), ["described", "inferred", "listed"]);
}

/// Triton's own load generator.
#[test]
fn perf_analyzer_measures_models_of_every_kind() {
    let Some(output) = triton::run_with("perf-analyzer", "perf_analyzer.py") else { return };
    assert_eq!(output.lines().collect::<Vec<_>>(), ["http", "grpc", "gzip", "plain stream", "decoupled"]);
}

#[test]
fn grpc_js_calls_streams_and_cancels() {
    let Some(node) = Node::with("grpc") else { return };
    let directory = node.scratch("clients");
    let (script, root) = ("grpc_node.mjs", Path::new(env!("CARGO_MANIFEST_DIR")));
    fs::copy(root.join("tests/external/scripts").join(script), directory.join(script)).unwrap();
    let protos = root.join("crates/grpc/proto");
    let output = triton::served(|address| node.script(script, &[address, protos.to_str().unwrap()], &directory));
    assert_eq!(output.lines().collect::<Vec<_>>(), ["unary", "streams", "cancelled", "statuses"]);
}

#[test]
fn health_is_watched_across_a_drain_and_aio_streams() {
    let Some(python) = Python::with("grpc") else { return };
    let server = Server::start(callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]));
    let output = python.run("grpc_services.py", &[&server.address, &server.id().to_string()]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["health", "reflection", "aio", "drain"]);
}

/// A client and a server as Kaggle's are, by grpcio; their gateway calls a node, and ours their participant.
#[test]
fn the_relay_speaks_its_own_wire_on_both_sides() {
    let Some(python) = Python::with("relay") else { return };
    let environment = [
        ("VIRTUAL_ENV", python.environment().into_os_string()),
        ("PYTHONPATH", package().join("src").into_os_string()),
    ];
    let output = python.run_with("relay_grpc.py", &[env!("CARGO_BIN_EXE_callboard")], &environment);
    let parts = [
        "late start",
        "values",
        "models",
        "blame",
        "ours to ours",
        "first call",
        "drained",
        "their participants",
        "late and lost",
        "listeners",
    ];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts);
}

#[test]
fn tritonclient_calls_over_tls() {
    let Some(python) = Python::with("grpc") else { return };
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let directory = directory();
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    fs::write(&certificate, cert.pem()).unwrap();
    fs::write(&key, signing_key.serialize_pem()).unwrap();
    let mut command = callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]);
    command.arg("--tls-certificate").arg(&certificate).arg("--tls-key").arg(&key);
    let server = Server::start_and_wait_for(command, "listening on https://");
    python.run("grpc_tls.py", &[&server.address, certificate.to_str().unwrap()]);
}
