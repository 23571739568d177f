//! The main job, asked by the HTTP client that most of Python uses.

use crate::python::Python;
use crate::support::Server;

#[test]
fn requests_uploads_pictures_and_reads_problems() {
    let Some(python) = Python::with("requests") else { return };
    let server = Server::digits(&[]);
    python.run("upload.py", &[&server.address]);
}
