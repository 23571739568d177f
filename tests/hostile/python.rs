//! Bodies that are small for the node and large for a service in Python. They need an environment of Python:
//! `CALLBOARD_HOSTILE_PYTHON`.

use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;
use crate::node::python_environment;
use crate::payloads::msgpack::texts;
use crate::payloads::{MIB, zlib};

const JSON: &str = "application/json";

/// An attack beside an honest caller of the same route; `None` after a line with the reason.
fn attack(name: &'static str, path: &str, honest: &str) -> Option<Attack> {
    python_environment()?;
    let honest = Request::post(path, JSON, honest);
    Some(Attack::new(name).on_python().honest_at(honest).lasting(Duration::from_secs(3)))
}

#[test]
fn an_item_that_ends_its_service() {
    let Some(attack) = attack("python: ended by items", "/word", "\"honest\"") else { return };
    let request = Request::post("/word", JSON, "\"exit\"");
    attack.run(|target| target.repeat(&request, 1));
}

#[test]
fn one_long_text_beside_empty_ones() {
    let Some(attack) = attack("python: 25 MB and 15 empty texts", "/number", "1") else { return };
    let lengths: Vec<usize> = std::iter::once(24 * MIB).chain(std::iter::repeat_n(0, 15)).collect();
    let request = Request::post("/number", "application/msgpack", texts(&lengths));
    attack.must_be_answered_with(422).run(|target| target.repeat(&request, 1));
}

#[test]
fn a_data_url_of_semicolons() {
    let Some(attack) = attack("python: a data URL of 8 MB of semicolons", "/number", "1") else { return };
    let request = Request::post("/width", JSON, format!("\"data:{}\"", ";".repeat(8 * MIB)));
    attack.must_be_answered_with(422).run(|target| target.repeat(&request, 1));
}

#[test]
fn pictures_that_unpack_to_hundreds_of_megabytes() {
    let Some(attack) = attack("python: a picture of 9,000 × 9,000", "/number", "1") else { return };
    let request = Request::post("/width", "image/png", black_png(9_000));
    attack.must_be_answered_with(422).run(|target| target.repeat(&request, 1));
}

#[test]
fn pictures_in_a_language_for_printers() {
    let Some(attack) = attack("python: a program in PostScript as a picture", "/number", "1") else { return };
    let program = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n";
    let request = Request::post("/width", "application/octet-stream", program);
    attack.must_be_answered_with(422).run(|target| target.repeat(&request, 1));
}

/// A square of black pixels, eight bits for each of four bands.
fn black_png(side: u32) -> Vec<u8> {
    let chunk = |name: &[u8; 4], content: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(name);
        crc.update(content);
        [&(content.len() as u32).to_be_bytes(), &name[..], content, &crc.sum().to_be_bytes()].concat()
    };
    let header = [&side.to_be_bytes()[..], &side.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
    let rows = zlib((1 + 4 * side as usize) * side as usize);
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &header), chunk(b"IDAT", &rows), chunk(b"IEND", b"")].concat()
}
