//! Forms with too many parts, with long similar names, and with bombs as parts.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::arrow::{STREAM, null_rows};
use crate::payloads::npy::{array, empty_axes};
use crate::payloads::{MIB, nested};

const FORM: &str = "multipart/form-data; boundary=b";

/// A form of these parts: names, extra headers, contents.
fn form<'a>(parts: impl IntoIterator<Item = (String, &'a str, &'a [u8])>) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, headers, content) in parts {
        body.extend(format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n{headers}\r\n").into_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b--\r\n");
    body
}

#[test]
fn a_hundred_thousand_parts() {
    let body = form((0..100_000).map(|index| (format!("n{index}"), "", &b"x"[..])));
    let request = Request::post("/digits", FORM, body);
    Attack::new("form: 100,000 parts").run(|target| target.repeat(&request, 4));
}

#[test]
fn a_million_fields_of_texts() {
    let media_type = "application/x-www-form-urlencoded";
    let bodies = [
        "n=1&".repeat(MIB).into_bytes(),
        "&".repeat(4 * MIB).into_bytes(),
        [b"n=", "%41".repeat(MIB).as_bytes()].concat(),
        [b"n=", "+".repeat(4 * MIB).as_bytes()].concat(),
        (0..1024).map(|index| format!("{}{index:04}=&", "n".repeat(1_020))).collect::<String>().into_bytes(),
    ];
    let requests = bodies.map(|body| Request::post("/digits", media_type, body));
    Attack::new("form: a million fields, escapes and spaces").run(|target| {
        target.run_clients(requests.len(), |index| {
            target.repeat(&requests[index], 1);
            target.repeat(&requests[index].clone().gzip(), 1);
        });
    });
}

#[test]
fn long_similar_names() {
    // The difference is at the end, so that every comparison reads the whole name.
    let name = |index: usize| format!("{}{index:05}", "n".repeat(15_000));
    let request = Request::post("/digits", FORM, form((0..1024).map(|index| (name(index), "", &b""[..]))));
    let packed = request.clone().gzip();
    Attack::new("form: 1,024 parts with names of 15 kB").run(|target| {
        target.run_clients(4, |index| target.repeat([&request, &packed][index % 2], 1));
    });
}

#[test]
fn frames_of_null_rows_in_parts() {
    let frame = null_rows(1000);
    let headers = format!("content-type: {STREAM}\r\n");
    let body = form((0..64).map(|index| (format!("n{index}"), headers.as_str(), frame.as_slice())));
    let request = Request::post("/digits", FORM, body).gzip();
    Attack::new("form: 64 parts of 1,000 batches of 2^20 nulls").run(|target| target.repeat(&request, 2));
}

#[test]
fn frames_of_null_rows_as_fields_of_a_call() {
    let frame = null_rows(1000);
    let headers = format!("content-type: {STREAM}\r\n");
    let request =
        Request::post("/v1/call/digits", FORM, form([("image".to_owned(), headers.as_str(), frame.as_slice())]));
    Attack::new("form: a field of 1,000 batches of 2^20 nulls, function call").run(|target| target.repeat(&request, 2));
}

#[test]
fn arrays_with_empty_axes_in_parts() {
    let empty = array("|u1", false, &empty_axes(), &[]);
    let body =
        form((0..256).map(|index| (format!("n{index}"), "content-type: application/x-npy\r\n", empty.as_slice())));
    let request = Request::post("/keep", FORM, body).accept("application/json");
    Attack::new("form: 256 parts of shape 2^20, 1 × 29, 0").run(|target| target.repeat(&request, 2));
}

#[test]
fn parts_of_deep_or_large_json() {
    let zeros = [b"[0".as_slice(), &b",0".repeat(MIB / 2), b"]"].concat();
    let deep = nested("[", MIB, "", "");
    let json = "content-type: application/json\r\n";
    let body =
        form([("a".to_owned(), json, zeros.as_slice()), ("b".to_owned(), json, &zeros), ("c".to_owned(), json, &deep)]);
    let request = Request::post("/keep", FORM, body).gzip();
    Attack::new("form: 16 × parts of large and deep JSON, gzip").run(|target| target.repeat(&request, 16));
}

#[test]
fn one_name_for_all_parts() {
    let body = form((0..1024).map(|_| ("n".to_owned(), "", &b"x"[..])));
    let request = Request::post("/keep", FORM, body);
    Attack::new("form: 1,024 parts of one name").run(|target| target.repeat(&request, 8));
}

#[test]
fn endless_heads() {
    let endless = Request::post("/keep", FORM, [b"--b\r\nx: ".as_slice(), &vec![b'a'; 32 * MIB]].concat());
    let nearly = Request::post("/keep", FORM, b"\r\n--".repeat(8 * MIB));
    Attack::new("form: a head of 32 MiB, and 8 million beginnings of a boundary").run(|target| {
        target.run_clients(4, |index| target.repeat([&endless, &nearly][index % 2], 1));
    });
}
