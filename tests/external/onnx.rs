//! Models of other tools, served by the binary, against ONNX Runtime without us and against the tools themselves.

use crate::python::Python;

/// One of so many node tests of the `onnx` package: all of them take minutes, and are run by hand.
const STEP: &str = "12";

#[test]
fn the_networks_of_the_onnx_package_agree_with_bare_onnx_runtime() {
    run("onnx_light.py", &[]);
}

#[test]
fn exports_of_scikit_learn_and_lightgbm_predict_as_their_tools() {
    run("onnx_exports.py", &[]);
}

#[test]
fn node_tests_of_the_onnx_package_agree_with_bare_onnx_runtime() {
    run("onnx_nodes.py", &["onnxruntime", STEP]);
}

fn run(script: &str, args: &[&str]) {
    let Some(python) = Python::with("onnx") else { return };
    python.run(script, &[&[env!("CARGO_BIN_EXE_callboard")], args].concat());
}
