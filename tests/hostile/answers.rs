//! Answers far larger than their requests, and readers that do not read them.

use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;
use crate::npy::NPY;
use crate::payloads::MIB;
use crate::payloads::arrow::{STREAM, zstd_zeros};
use crate::payloads::msgpack::texts;
use crate::payloads::npy::{array, empty_axes};
use crate::payloads::zip::{Member, archive};

const MSGPACK: &str = "application/msgpack";
const JSON: &str = "application/json";

/// A request for field `x` of a body with megabytes of zeros.
fn zeros(mib: usize) -> Request {
    let bytes = mib * MIB;
    Request::post("/keep", NPY, array("|u1", false, &[bytes as u64], &vec![0; bytes])).gzip()
}

#[test]
fn unread_brackets() {
    needs_binary!();
    let request = Request::post("/keep", NPY, array("|u1", false, &empty_axes(), &[])).gzip().accept(JSON);
    Attack::new("answers: 30 × 64 MB of JSON, unread").run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_padded_texts() {
    needs_binary!();
    let lengths: Vec<usize> = std::iter::once(5000).chain(std::iter::repeat_n(0, 20_000)).collect();
    let request = Request::post("/keep", MSGPACK, texts(&lengths)).gzip().accept(NPY);
    Attack::new("answers: 30 × 400 MB of npy, unread")
        .lasting(Duration::from_secs(2))
        .run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_arrays() {
    needs_binary!();
    let request = zeros(60).accept(NPY);
    Attack::new("answers: 30 × 60 MiB of npy, unread")
        .lasting(Duration::from_secs(2))
        .run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_numbers() {
    needs_binary!();
    let request = zeros(8).accept(JSON);
    Attack::new("answers: 30 × 8 MiB of numbers as JSON, unread").run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_messagepack() {
    needs_binary!();
    let request = zeros(60).accept(MSGPACK);
    Attack::new("answers: 30 × 60 MiB of MessagePack, unread")
        .lasting(Duration::from_secs(2))
        .run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_envelopes() {
    needs_binary!();
    let request = zeros(60).accept("application/vnd.callboard.envelope");
    Attack::new("answers: 30 × 60 MiB envelopes, unread")
        .lasting(Duration::from_secs(2))
        .run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_tables() {
    needs_binary!();
    let request = Request::post("/keep", STREAM, zstd_zeros(1, 60)).accept(STREAM);
    Attack::new("answers: 30 × 60 MiB tables, unread")
        .lasting(Duration::from_secs(2))
        .run(|target| target.read_nothing(&request, 30));
}

#[test]
fn unread_archives() {
    needs_binary!();
    let bytes = 50 * MIB;
    let member = Member::deflated("x.npy".to_owned(), &array("|u1", false, &[bytes as u64], &vec![0; bytes]));
    let request = Request::post("/keep", "application/x-npz", archive(&[member])).gzip().accept("application/x-npz");
    Attack::new("answers: 30 × 50 MiB archives, unread")
        .lasting(Duration::from_secs(2))
        .run(|target| target.read_nothing(&request, 30));
}

#[test]
fn answers_compressed_on_demand() {
    needs_binary!();
    let request = zeros(8).accept(JSON).header("accept-encoding", "zstd, gzip;q=0.5");
    Attack::new("answers: 8 MiB of numbers as JSON, packed").run(|target| target.repeat(&request, 8));
}

/// Documents that cost the node more than the request costs the client.
#[test]
fn repeated_documents() {
    needs_binary!();
    let paths = ["/openapi.json", "/metrics", "/", "/v2/models/stats", "/docs/"];
    let requests = paths.map(|path| Request::get(path).header("accept-encoding", "gzip"));
    Attack::new("answers: documents and metrics by 10 clients").run(|target| {
        target.run_clients(10, |index| target.repeat(&requests[index % paths.len()], 1));
    });
}

#[test]
fn unread_documents() {
    needs_binary!();
    let request = Request::get("/metrics");
    Attack::new("answers: 500 × /metrics, unread").run(|target| target.read_nothing(&request, 500));
}
