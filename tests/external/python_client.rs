//! The clients of the Python package: every value, every call and every trouble against real nodes.

use std::fs;

use crate::python::Python;
use crate::python_apps::package;
use crate::support::directory;

#[test]
fn the_python_client_calls_real_nodes() {
    let Some(python) = Python::with("client") else { return };
    let app = directory().join("client_app.py");
    fs::copy("tests/external/scripts/client_app.py", &app).unwrap();
    let package = package().join("src");
    let args = [env!("CARGO_BIN_EXE_callboard"), app.to_str().unwrap(), package.to_str().unwrap()];
    let output = python.run("client.py", &args);
    let parts =
        ["functions", "values", "failures", "streams", "cancellation", "soak", "ends_and_starts", "keys_and_tls"];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts);
}
