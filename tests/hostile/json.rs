//! JSON that nests, repeats, and grows far beyond its size.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::{MIB, nested};

const JSON: &str = "application/json";

/// `[0,0,…]` with `items` items.
fn zeros(items: usize) -> Vec<u8> {
    let mut body = b"[0".to_vec();
    body.extend(b",0".repeat(items - 1));
    body.push(b']');
    body
}

/// `{"000000":0,…}` with `count` keys.
fn keys(count: usize) -> Vec<u8> {
    let entries: Vec<String> = (0..count).map(|index| format!("\"{index:06x}\":0")).collect();
    format!("{{{}}}", entries.join(",")).into_bytes()
}

#[test]
fn endless_brackets() {
    needs_binary!();
    let bodies = ["/keep", "/v1/call/digits"].map(|path| Request::post(path, JSON, vec![b'['; 10 * MIB]));
    Attack::new("json: 10 MiB of opening brackets, dynamic").run(|target| {
        target.run_clients(4, |index| target.repeat(&bodies[index % 2], 1));
    });
}

#[test]
fn endless_brackets_for_rust_types() {
    needs_binary!();
    let tree = nested("{\"N\":", 100_000, "\"Leaf\"", "}");
    let nodes = nested("{\"next\":", 100_000, "null", "}");
    let requests =
        [("/tree", tree), ("/nodes", nodes), ("/texts", vec![b'['; 10 * MIB]), ("/tensor", vec![b'['; 10 * MIB])];
    let requests = requests.map(|(path, body)| Request::post(path, JSON, body));
    Attack::new("json: 100,000 levels of recursive types").on_types().run(|target| {
        target.run_clients(4, |index| target.repeat(&requests[index], 1));
    });
}

#[test]
fn a_million_keys() {
    needs_binary!();
    let request = Request::post("/keep", JSON, keys(1_000_000));
    Attack::new("json: 8 × a million keys, dynamic").run(|target| target.repeat(&request, 8));
}

#[test]
fn a_million_keys_for_a_typed_map() {
    needs_binary!();
    let request = Request::post("/words", JSON, keys(4_000_000)).gzip();
    Attack::new("json: 4 × four million keys, typed map, gzip").on_types().run(|target| target.repeat(&request, 4));
}

#[test]
fn a_million_equal_keys() {
    needs_binary!();
    let body = format!("{{{}\"k\":0}}", "\"k\":0,".repeat(MIB));
    let requests = ["/keep", "/v1/call/digits"].map(|path| Request::post(path, JSON, body.clone()));
    Attack::new("json: a million equal keys")
        .run(|target| target.run_clients(4, |index| target.repeat(&requests[index % 2], 1)));
}

#[test]
fn trees_of_a_million_numbers() {
    needs_binary!();
    let request = Request::post("/keep", JSON, zeros(MIB));
    Attack::new("json: 32 × a list of 2^20 numbers").run(|target| target.repeat(&request, 32));
}

#[test]
fn compressed_trees_of_a_million_numbers() {
    needs_binary!();
    let request = Request::post("/pick", JSON, zeros(MIB)).gzip();
    assert!(request.body.len() < 8000, "{}", request.body.len());
    Attack::new("json: 32 × the same, gzip").run(|target| target.repeat(&request, 32));
}

#[test]
fn compressed_spaces() {
    needs_binary!();
    let mut body = vec![b' '; 63 * MIB];
    body.push(b'1');
    let request = Request::post("/keep", JSON, body).gzip();
    Attack::new("json: 16 × 63 MiB of spaces, gzip").run(|target| target.repeat(&request, 16));
}

/// The error must not hold a message for each item.
#[test]
fn half_a_million_items_of_the_wrong_type() {
    needs_binary!();
    let request = Request::post("/texts", JSON, zeros(500_000));
    Attack::new("json: 500,000 numbers for texts").on_types().run(|target| target.repeat(&request, 4));
}

#[test]
fn one_number_of_ten_million_digits() {
    needs_binary!();
    let digits = vec![b'1'; 10 * MIB];
    let fraction = [b"0.", digits.as_slice()].concat();
    let requests = [("/keep", digits.clone()), ("/keep", fraction.clone()), ("/honest", digits), ("/honest", fraction)];
    let requests = requests.map(|(path, body)| Request::post(path, JSON, body));
    Attack::new("json: numbers of ten million digits").run(|target| {
        target.run_clients(4, |index| target.repeat(&requests[index], 1));
    });
}

#[test]
fn texts_of_only_escapes() {
    needs_binary!();
    let body = format!("\"{}\"", "\\u0001".repeat(2 * MIB));
    let request = Request::post("/keep", JSON, body);
    Attack::new("json: 8 × texts of two million escapes").run(|target| target.repeat(&request, 8));
}

/// Lists at the maximum depth, repeated.
#[test]
fn lists_of_lists_at_the_deepest_level() {
    needs_binary!();
    let deep = String::from_utf8(nested("[", 120, "", "]")).expect("brackets");
    let request = Request::post("/keep", JSON, format!("[{}0]", format!("{deep},").repeat(8000)));
    Attack::new("json: 16 × 8,000 lists, 120 deep").run(|target| target.repeat(&request, 16));
}
