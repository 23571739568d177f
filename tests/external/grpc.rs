//! Other people's clients of gRPC: Triton's, and grpcio's for health, against models of every kind.

use std::fs;

use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::python::Python;
use crate::support::{Server, callboard, directory};
use crate::triton;

#[test]
fn tritonclient_calls_everything_over_grpc() {
    let Some(output) = triton::run_with("grpc", "grpc_triton.py") else { return };
    let parts = ["models", "datatypes", "calls", "mistakes", "cancelled", "large", "streams", "pings"];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts);
}

#[test]
fn health_is_watched_across_a_drain_and_aio_streams() {
    let Some(python) = Python::with("grpc") else { return };
    let server = Server::start(callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]));
    let output = python.run("grpc_services.py", &[&server.address, &server.id().to_string()]);
    assert_eq!(output.lines().collect::<Vec<_>>(), ["health", "reflection", "aio", "drain"]);
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
