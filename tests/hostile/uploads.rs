//! Uploads of models that end, fill or hold up the process that reads them, with nothing isolated.

use std::time::Duration;

use crate::adder::{crasher, looper};
use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;

/// An attack by uploads, beside an honest caller of a model of the same directory.
fn attack(name: &'static str) -> Attack {
    let rows = format!("[[{}]]", ["[0,0,0,0,0,0,0,0]"; 8].join(","));
    let honest = Request::post("/digits", "application/json", rows);
    Attack::new(name).on_models().honest_at(honest).lasting(Duration::from_secs(3))
}

fn upload(model: Vec<u8>) -> Request {
    Request::put("/v1/models/hostile/versions/1", "application/octet-stream", model)
}

/// A graph of this many mebibytes of empty fields: two bytes each in the file.
fn empty_fields(number: u8, mib: usize) -> Vec<u8> {
    let graph = [number << 3 | 2, 0].repeat(mib * MIB / 2);
    let mut length = Vec::new();
    let mut rest = graph.len();
    while rest >= 0x80 {
        length.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    length.push(rest as u8);
    [&[8, 8, 0x3a], &length[..], &graph].concat()
}

#[test]
fn a_model_that_ends_its_process() {
    let request = upload(crasher());
    attack("upload: 128 TiB of constants").run(|target| target.on_admin().repeat(&request, 1));
}

#[test]
fn a_model_that_never_ends() {
    let request = upload(looper());
    attack("upload: a loop of 2^62 rounds").run(|target| target.on_admin().repeat(&request, 1));
}

#[test]
fn headers_of_empty_fields() {
    for (name, number) in [("upload: 60 MiB of empty weights", 5), ("upload: 60 MiB of empty inputs", 11)] {
        let request = upload(empty_fields(number, 60));
        // Whole uploads: the check of one goes on when its client has left.
        attack(name).lasting(Duration::from_secs(60)).run(|target| {
            let target = target.on_admin();
            (0..2).for_each(|_| target.exchange(&request));
        });
    }
}
