//! Arrays beyond the default limit of a body, where the settings allow them.

use std::fs;
use std::io::{Read as _, Write as _};

use crate::python_apps::{command, python};
use crate::support::{Server, directory};

/// More than `max_body_bytes` is by default.
const BYTES: usize = 70 << 20;

/// The parts of a route: by shared memory, which is the default, and through the socket.
const STAGES: &str = r#"
[[stage]]
name = "shared"
kind = "python"
app = "app.py:add_one"
[[stage]]
name = "sent"
kind = "python"
app = "app.py:add_one"
shared_memory = false
[[route]]
path = "/shared"
stages = "shared"
[[route]]
path = "/sent"
stages = "sent"
"#;

/// Answers with an array as large as its input, and tells by its first number whether a file of memory has the input.
const APP: &str = r#"
import numpy as np
from numpy.typing import NDArray

import callboard as cb


def is_shared(array: NDArray[np.uint8]) -> bool:
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return "memfd:" in line
    return False


@cb.function
def add_one(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    answer = array + 1
    answer[0] = is_shared(array)
    return answer
"#;

/// An array of NumPy's format with one axis of bytes.
fn npy(bytes: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", bytes.len());
    // With the newline at its end, the data begins at a multiple of 64.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let header = format!("{header:<width$}\n", width = length - 1);
    [b"\x93NUMPY\x01\x00", &(length as u16).to_le_bytes()[..], header.as_bytes(), bytes].concat()
}

#[test]
fn an_array_larger_than_bodies_are_by_default_passes_a_python_function_where_the_settings_allow_it() {
    let Some(python) = python() else { return };
    let directory = directory();
    fs::write(directory.join("callboard.toml"), STAGES).unwrap();
    fs::write(directory.join("app.py"), APP).unwrap();
    let body = npy(&vec![7; BYTES]);
    let mut serve = command(&python, &["serve", directory.to_str().unwrap(), "--http", "127.0.0.1:0"]);
    serve.args(["--max-body-bytes", "400MiB", "--max-in-flight-bytes", "1GiB"]);
    let server = Server::start(serve);
    for (route, is_shared) in [("/shared", cfg!(target_os = "linux")), ("/sent", false)] {
        let mut connection = server.connect();
        write!(
            connection,
            "POST {route} HTTP/1.1\r\nhost: test\r\ncontent-type: application/x-npy\r\naccept: application/x-npy\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )
        .unwrap();
        connection.write_all(&body).unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).unwrap();
        let head = String::from_utf8_lossy(&answer[..answer.len().min(1000)]).into_owned();
        assert!(head.starts_with("HTTP/1.1 200 "), "{route}: {head}");
        let (first, rest) = answer[answer.len() - BYTES..].split_first().unwrap();
        assert_eq!(*first == 1, is_shared, "{route}: whether it came by shared memory");
        assert!(rest.iter().all(|byte| *byte == 8), "{route}");
    }
}
