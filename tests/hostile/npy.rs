//! Arrays with shapes that cost more than their elements, and false headers.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;
use crate::payloads::msgpack::{argument, tensor, texts};
use crate::payloads::npy::{announcing_header, array, empty_axes, with_header};

pub(crate) const NPY: &str = "application/x-npy";
const MSGPACK: &str = "application/msgpack";
const JSON: &str = "application/json";

/// The code of bytes in the header of an array.
const U8: u8 = 5;

#[test]
fn a_million_brackets_for_no_element() {
    let request = Request::post("/keep", NPY, array("|u1", false, &empty_axes(), &[])).gzip().accept(JSON);
    assert!(request.body.len() < 200, "{}", request.body.len());
    Attack::new("npy: shape 2^20, 1 × 29, 0, answered as JSON").run(|target| target.repeat(&request, 8));
}

#[test]
fn a_million_brackets_for_no_element_from_messagepack() {
    let body = argument(&tensor(U8, &empty_axes(), &[]));
    let request = Request::post("/v1/call/keep", MSGPACK, body).accept(JSON);
    Attack::new("msgpack: tensor of shape 2^20, 1 × 29, 0, as an argument").run(|target| target.repeat(&request, 8));
}

#[test]
fn every_text_padded_to_the_longest() {
    let lengths: Vec<usize> = std::iter::once(5000).chain(std::iter::repeat_n(0, 20_000)).collect();
    let request = Request::post("/keep", MSGPACK, texts(&lengths)).gzip().accept(NPY);
    assert!(request.body.len() < 2000, "{}", request.body.len());
    Attack::new("msgpack: one text of 5 kB, 20,000 empty ones, answered as npy")
        .run(|target| target.repeat(&request, 4));
}

#[test]
fn one_text_wider_than_all_memory() {
    let lengths: Vec<usize> = std::iter::once(4 * MIB).chain(std::iter::repeat_n(0, 100_000)).collect();
    let request = Request::post("/keep", MSGPACK, texts(&lengths)).gzip().accept(NPY);
    Attack::new("msgpack: one text of 4 MiB, 100,000 empty ones, answered as npy")
        .run(|target| target.repeat(&request, 2));
}

#[test]
fn fortran_order_with_the_most_axes() {
    let shape: Vec<u64> = (0..32).map(|axis| if axis < 23 { 2 } else { 1 }).collect();
    let request = Request::post("/keep", NPY, array("|S1", true, &shape, &vec![0; 8 * MIB])).gzip().accept(NPY);
    assert!(request.body.len() < 12_000, "{}", request.body.len());
    Attack::new("npy: S1 in Fortran order, 32 axes, 8 MiB of zeros").run(|target| target.repeat(&request, 4));
}

#[test]
fn big_endian_numbers_with_many_axes() {
    let shape: Vec<u64> = (0..32).map(|axis| if axis < 22 { 2 } else { 1 }).collect();
    let request = Request::post("/keep", NPY, array(">f8", true, &shape, &vec![0; 32 * MIB])).gzip().accept(NPY);
    Attack::new("npy: big-endian f8 in Fortran order, 32 axes, 32 MiB of zeros")
        .run(|target| target.repeat(&request, 2));
}

#[test]
fn headers_inside_headers() {
    let header = format!("{{'descr': {}, 'shape': (1,)}}", "(".repeat(60_000));
    let nested = Request::post("/keep", NPY, with_header(&header, &[]));
    let announced = Request::post("/keep", NPY, announcing_header(u32::MAX));
    Attack::new("npy: a header of 60,000 brackets, and one that announces 4 GiB").run(|target| {
        target.run_clients(2, |index| {
            while target.is_running() {
                target.exchange([&nested, &announced][index]);
            }
        });
    });
}

#[test]
fn a_shape_larger_than_numbers() {
    let shape = vec![u64::MAX / 2; 32];
    let request = Request::post("/keep", NPY, array("|u1", false, &shape, &[0; 64]));
    Attack::new("npy: 32 axes of 2^63").run(|target| target.repeat(&request, 4));
}
