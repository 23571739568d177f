//! Other people's clients of gRPC: Triton's, and grpcio's for health, against models of every kind.

use crate::python::Python;
use crate::support::{Server, callboard};
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
