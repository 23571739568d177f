//! The main example, called by Python's most common HTTP client.

use crate::python::Python;
use crate::support::Server;

#[test]
fn requests_uploads_pictures_and_reads_problems() {
    let Some(python) = Python::with("requests") else { return };
    let server = Server::digits(&[]);
    python.run("upload.py", &[&server.address]);
}
