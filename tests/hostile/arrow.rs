//! Data frames: rows without bytes, cells with shared bytes, nested columns, and endless dictionaries.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::arrow::{
    STREAM, dictionaries_and_columns, endless_run, lists_of_nulls, maps_of_equal_keys, nested_lists, nested_structs,
    null_rows, null_structs, one_text_many_rows, views_of_one_text, zstd_bytes, zstd_zeros,
};
use crate::payloads::msgpack::{FRAME, envelope, ext};

const MSGPACK: &str = "application/msgpack";

/// A MessagePack function call with a frame in place of its arguments.
fn call_with(frame: &[u8]) -> Request {
    Request::post("/v1/call/digits", MSGPACK, ext(FRAME, frame))
}

/// A frame as the body of a route that returns its input.
fn keep(frame: Vec<u8>) -> Request {
    Request::post("/keep", STREAM, frame)
}

#[test]
fn billions_of_null_rows_in_place_of_arguments() {
    needs_binary!();
    let request = call_with(&null_rows(5000)).gzip();
    assert!(request.body.len() < 20_000, "{}", request.body.len());
    Attack::new("arrow: 5,000 batches of 2^20 nulls, in place of arguments, gzip")
        .run(|target| target.repeat(&request, 2));
}

#[test]
fn billions_of_null_rows_for_a_typed_frame() {
    needs_binary!();
    let request = Request::post("/frame", MSGPACK, ext(FRAME, &null_rows(5000))).gzip();
    Attack::new("arrow: 5,000 batches of 2^20 nulls, typed frame").on_types().run(|target| target.repeat(&request, 2));
}

#[test]
fn billions_of_null_rows_in_an_envelope_for_a_typed_route() {
    needs_binary!();
    let body = envelope(&ext(FRAME, &null_rows(5000)));
    let request = Request::post("/words", "application/vnd.callboard.envelope", body).gzip();
    Attack::new("arrow: 5,000 batches of 2^20 nulls, envelope, typed map")
        .on_types()
        .run(|target| target.repeat(&request, 2));
}

#[test]
fn billions_of_null_rows_answered_as_json() {
    needs_binary!();
    let request = keep(null_rows(5000)).gzip().accept("application/json");
    Attack::new("arrow: 5,000 batches of 2^20 nulls, answered as JSON").run(|target| target.repeat(&request, 2));
}

#[test]
fn structs_of_nulls() {
    needs_binary!();
    let request = call_with(&null_structs(2000)).gzip();
    Attack::new("arrow: 2,000 batches of 2^20 structs of a null").run(|target| target.repeat(&request, 2));
}

#[test]
fn lists_of_millions_of_nulls() {
    needs_binary!();
    let request = keep(lists_of_nulls(2000)).gzip().accept("application/json");
    Attack::new("arrow: 2,000 lists of 2^20 nulls, answered as JSON").run(|target| target.repeat(&request, 2));
}

#[test]
fn zstd_zeros_in_place_of_arguments() {
    needs_binary!();
    let request = call_with(&zstd_zeros(4, 60));
    assert!(request.body.len() < 30_000, "{}", request.body.len());
    Attack::new("arrow: four zstd columns of 60 MiB zeros, in place of arguments")
        .run(|target| target.repeat(&request, 4));
}

#[test]
fn zstd_bytes_answered_as_json() {
    needs_binary!();
    let request = keep(zstd_bytes(4, 60)).accept("application/json");
    Attack::new("arrow: four zstd columns of 60 Mi byte cells, answered as JSON")
        .run(|target| target.repeat(&request, 4));
}

#[test]
fn one_long_text_for_many_rows() {
    needs_binary!();
    let request = call_with(&one_text_many_rows(60_000)).gzip();
    Attack::new("arrow: a dictionary of one text of 1 MiB, 60,000 rows").run(|target| target.repeat(&request, 2));
}

#[test]
fn one_long_text_for_many_rows_answered_as_json() {
    needs_binary!();
    let request = keep(one_text_many_rows(60_000)).gzip().accept("application/json");
    Attack::new("arrow: the same dictionary, answered as JSON").run(|target| target.repeat(&request, 2));
}

#[test]
fn views_that_share_one_long_text() {
    needs_binary!();
    let request = call_with(&views_of_one_text(60_000)).gzip();
    Attack::new("arrow: 60,000 views of one text of 1 MiB").run(|target| target.repeat(&request, 2));
}

#[test]
fn repeated_dictionaries_with_many_columns() {
    needs_binary!();
    let request = keep(dictionaries_and_columns(2000, 20_000)).gzip();
    Attack::new("arrow: 20,000 columns, 2,000 dictionary messages").run(|target| target.repeat(&request, 2));
}

#[test]
fn lists_inside_lists() {
    needs_binary!();
    let request = keep(nested_lists(2000)).gzip();
    Attack::new("arrow: a column of lists inside lists, 2,000 deep").run(|target| target.repeat(&request, 2));
}

#[test]
fn structs_inside_structs() {
    needs_binary!();
    let request = call_with(&nested_structs(2000)).gzip();
    Attack::new("arrow: a column of structs inside structs, 2,000 deep").run(|target| target.repeat(&request, 2));
}

#[test]
fn an_endless_run() {
    needs_binary!();
    let request = keep(endless_run());
    Attack::new("arrow: one run of 2^62 rows").run(|target| target.repeat(&request, 2));
}

#[test]
fn maps_with_equal_keys() {
    needs_binary!();
    let request = keep(maps_of_equal_keys(64, 16_000)).gzip().accept("application/json");
    Attack::new("arrow: 64 maps of 16,000 equal keys").run(|target| target.repeat(&request, 2));
}
