//! MessagePack that recurses, announces more than it sends, and grows far beyond its size.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;
use crate::payloads::msgpack::{FRAME, Pack, TENSOR, TEXTS, argument, envelope, ext, tensor, variants};

const MSGPACK: &str = "application/msgpack";
const ENVELOPE: &str = "application/vnd.callboard.envelope";

/// The last level of a type that recurses a hundred thousand times.
const LEVELS: usize = 100_000;

#[test]
fn a_recursive_enum() {
    let request = Request::post("/tree", MSGPACK, variants("N", LEVELS, "Leaf"));
    Attack::new("msgpack: 100,000 levels of a recursive enum").on_types().run(|target| target.repeat(&request, 2));
}

#[test]
fn a_recursive_enum_in_an_envelope() {
    let request = Request::post("/tree", ENVELOPE, envelope(&variants("N", LEVELS, "Leaf")));
    Attack::new("envelope: 100,000 levels of a recursive enum").on_types().run(|target| target.repeat(&request, 2));
}

#[test]
fn newtypes_and_options_inside_variants() {
    let request = Request::post("/chain", MSGPACK, variants("Next", LEVELS, "End"));
    Attack::new("msgpack: 100,000 levels of enum, newtype and option")
        .on_types()
        .run(|target| target.repeat(&request, 2));
}

#[test]
fn structs_with_an_option_of_themselves() {
    // As a map by name, and as a list by position.
    let level = [&[0x81, 0xa4][..], b"next"].concat();
    let named = [level.repeat(LEVELS), vec![0xc0]].concat();
    let listed = [vec![0x91; LEVELS], vec![0xc0]].concat();
    let requests = [named, listed].map(|body| Request::post("/nodes", MSGPACK, body));
    Attack::new("msgpack: 100,000 structs inside structs").on_types().run(|target| {
        target.run_clients(2, |index| target.repeat(&requests[index], 1));
    });
}

#[test]
fn lists_and_maps_inside_each_other() {
    let body = [0x91_u8, 0x81, 0xa1, b'k'].repeat(LEVELS);
    let request = Request::post("/keep", MSGPACK, body);
    Attack::new("msgpack: 200,000 lists and maps inside each other").run(|target| target.repeat(&request, 4));
}

#[test]
fn a_million_empty_maps_in_each_megabyte() {
    let body = Pack::default().list(MIB as u32 - 8).raw(&vec![0x80; MIB - 8]).0;
    let request = Request::post("/keep", MSGPACK, body);
    Attack::new("msgpack: 16 × a million empty maps").run(|target| target.repeat(&request, 16));
}

#[test]
fn a_million_compressed_empty_maps() {
    let body = Pack::default().list(MIB as u32 - 8).raw(&vec![0x80; MIB - 8]).0;
    let request = Request::post("/pick", MSGPACK, argument(&body)).gzip();
    Attack::new("msgpack: 32 × a million empty maps, gzip").run(|target| target.repeat(&request, 32));
}

#[test]
fn a_million_empty_maps_for_a_typed_route() {
    let body = Pack::default().list(MIB as u32 - 8).raw(&vec![0x80; MIB - 8]).0;
    let request = Request::post("/echo", MSGPACK, body);
    Attack::new("msgpack: 16 × a million empty maps, typed value").on_types().run(|target| target.repeat(&request, 16));
}

#[test]
fn long_lists_of_empty_texts() {
    let body = Pack::default().list(16 * MIB as u32).raw(&vec![0xa0; 16 * MIB]).0;
    let request = Request::post("/texts", MSGPACK, body).gzip();
    Attack::new("msgpack: 8 × 16 Mi empty texts into a Vec<String>")
        .on_types()
        .run(|target| target.repeat(&request, 8));
}

#[test]
fn lists_that_announce_more_than_they_contain() {
    let lists = Pack::default().list(u32::MAX).raw(&[0xa0; 64]).0;
    let maps = Pack::default().map(u32::MAX).raw(&[0xa0; 64]).0;
    let requests = [("/texts", lists.clone()), ("/words", maps.clone()), ("/numbers", maps), ("/echo", lists)];
    let requests = requests.map(|(path, body)| Request::post(path, MSGPACK, body));
    Attack::new("msgpack: lists and maps that announce 2^32 items").on_types().run(|target| {
        target.run_clients(4, |index| target.repeat(&requests[index], 1));
    });
}

#[test]
fn extensions_that_announce_more_than_they_contain() {
    let false_lengths =
        [TENSOR, TEXTS, FRAME].map(|code| [&[0xc9, 0xff, 0xff, 0xff, 0xff, code][..], &[0; 64]].concat());
    let shapes = [tensor(13, &[u64::MAX; 255], &[0; 64]), tensor(13, &[1 << 61, 8], &[0; 64])];
    let requests: Vec<Request> =
        false_lengths.into_iter().chain(shapes).map(|body| Request::post("/keep", MSGPACK, body)).collect();
    Attack::new("msgpack: extensions and shapes of 2^32 bytes and more").run(|target| {
        target.run_clients(requests.len(), |index| target.repeat(&requests[index], 1));
    });
}

#[test]
fn arguments_that_are_not_a_map() {
    let list = Pack::default().list(MIB as u32 - 8).raw(&vec![0x80; MIB - 8]).0;
    let request = Request::post("/v1/call/digits", MSGPACK, list).gzip();
    Attack::new("msgpack: arguments that are a million maps, gzip").run(|target| target.repeat(&request, 16));
}

#[test]
fn a_million_keywords() {
    let mut keywords = Pack::default().map(1).text("kwargs").map(1_000_000);
    for index in 0..1_000_000_u32 {
        keywords = keywords.raw(&[0xa4]).raw(&format!("{index:04x}").as_bytes()[..4]).raw(&[1]);
    }
    let request = Request::post("/v1/call/digits", MSGPACK, keywords.0);
    Attack::new("msgpack: a million keyword arguments").run(|target| target.repeat(&request, 4));
}

#[test]
fn equal_keys() {
    let numbers = Pack::default().map(4 * MIB as u32).raw(&[7, 7].repeat(4 * MIB)).0;
    let texts = Pack::default().map(MIB as u32).raw(&[0xa1, b'k', 7].repeat(MIB)).0;
    let requests = [("/numbers", numbers), ("/words", texts.clone()), ("/echo", texts)];
    let requests = requests.map(|(path, body)| Request::post(path, MSGPACK, body));
    Attack::new("msgpack: maps of millions of equal keys").on_types().run(|target| {
        target.run_clients(3, |index| target.repeat(&requests[index], 2));
    });
}

#[test]
fn many_small_frames_in_one_body() {
    let frame = ext(FRAME, &crate::payloads::arrow::null_rows(1));
    let count = 20_000;
    let body = Pack::default().list(count).raw(&frame.repeat(count as usize)).0;
    let request = Request::post("/keep", MSGPACK, body).gzip();
    Attack::new("msgpack: 20,000 frames of 2^20 nulls in one list").run(|target| target.repeat(&request, 2));
}
