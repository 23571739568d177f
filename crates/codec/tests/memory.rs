//! What decoding takes: bytes are copied at most once, and the heap stays in proportion to the input.
//!
//! One allocator counts for the whole binary, so the tests take turns.

#[path = "common/heap.rs"]
mod heap;

use bytes::Bytes;
use callboard_codec::{DType, DecodeLimits, EnvelopeDecoder, Format, Map, StrTensor, Tensor, Value};
use heap::{measured, turn};

const MIB: usize = 1 << 20;
const SLACK: usize = 64 * 1024;

fn limits() -> DecodeLimits {
    DecodeLimits { max_bytes: 2048 * MIB, max_segment_bytes: 2048 * MIB, ..DecodeLimits::default() }
}

fn tensor(bytes: usize) -> Value {
    let tensor = Tensor::from_vec(&[bytes / 8], vec![0.5_f64; bytes / 8]).expect("as many as the shape says");
    Map::from_iter([("x", Value::from(tensor))]).into()
}

#[test]
fn writing_copies_no_segment() {
    let _turn = turn();
    let value = tensor(64 * MIB);
    let (envelope, _, total) = measured(|| value.to_envelope().unwrap());
    assert!(total < 4096, "{total} bytes allocated to write {}", envelope.len());
}

#[test]
fn one_aligned_buffer_is_read_without_a_copy() {
    let _turn = turn();
    let value = tensor(64 * MIB);
    let bytes = value.encode(Format::Envelope).unwrap();
    let (back, _, total) = measured(|| Value::decode(Format::Envelope, &bytes, &limits()).unwrap());
    assert!(total < 4096, "{total} bytes allocated to read {}", bytes.len());
    let data = back.get("x").and_then(Value::as_tensor).unwrap().data();
    assert!(bytes.as_ptr_range().contains(&data.as_ptr()));
    assert_eq!(back, value);
}

#[test]
fn chunks_are_copied_once() {
    let _turn = turn();
    let value = tensor(64 * MIB);
    let bytes = value.encode(Format::Envelope).unwrap();
    // Chunks as quinn gives them, none aligned; each a slice, so that keeping one costs no copy.
    let (back, _, total) = measured(|| {
        let mut decoder = EnvelopeDecoder::new(&limits());
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            decoder.push(rest.split_to(rest.len().min(1301))).unwrap();
        }
        decoder.finish().unwrap()
    });
    // One buffer, and the list of the chunks of its first half (32 bytes for 1,301, and what the list grew out of).
    let allowed = bytes.len() + bytes.len() / 2 / 1301 * 32 * 4 + SLACK;
    assert!(total < allowed, "{total} bytes allocated to read {}", bytes.len());
    assert_eq!(back, value);
}

/// The whole promise, at its full size. Takes 3 GiB: `cargo test -p callboard-codec --release --test memory -- --ignored`.
#[test]
#[ignore = "takes 3 GiB"]
fn a_gibibyte_is_copied_once_out_of_chunks_and_never_out_of_one_buffer() {
    let _turn = turn();
    let value = tensor(1024 * MIB);
    let bytes = value.encode(Format::Envelope).unwrap();
    drop(value);
    let (_, _, total) = measured(|| Value::decode(Format::Envelope, &bytes, &limits()).unwrap());
    assert!(total < 4096, "{total}");
    let (_, peak, total) = measured(|| {
        let mut decoder = EnvelopeDecoder::new(&limits());
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            decoder.push(rest.split_to(rest.len().min(65_537))).unwrap();
        }
        decoder.finish().unwrap()
    });
    assert!(peak.max(total) < bytes.len() + 8 * MIB, "{peak} {total}");
}

/// Decodes and holds the peak against the promise.
fn bounded(format: Format, input: &Bytes, limits: &DecodeLimits, more: usize) {
    let (made, peak, _) = measured(|| Value::decode(format, input, limits));
    let allowed = 2 * input.len() + SLACK + more;
    assert!(peak <= allowed, "{format}: {peak} bytes for an input of {}, {:?}", input.len(), made.err());
}

/// The same in chunks, which come one at a time and are dropped by the caller.
fn bounded_in_chunks(input: &Bytes, size: usize, limits: &DecodeLimits, more: usize) {
    let (_, peak, _) = measured(|| {
        let mut decoder = EnvelopeDecoder::new(limits);
        let chunks = input.chunks(size).map(|chunk| input.slice_ref(chunk));
        if chunks.map(|chunk| decoder.push(chunk)).all(|pushed| pushed.is_ok()) {
            let _outcome = decoder.finish();
        }
    });
    let allowed = 2 * input.len() + SLACK + more;
    assert!(peak <= allowed, "{peak} bytes for {} in chunks of {size}", input.len());
}

#[test]
fn segments_and_tensors_take_no_more_than_twice_the_input() {
    let _turn = turn();
    let limits = DecodeLimits::default();
    for len in [2048, 100_000, 5 * MIB] {
        let tensor = Tensor::try_new(DType::U8, &[len], vec![1; len].into()).unwrap();
        let texts = StrTensor::from_texts(&[len / 10], (0..len / 10).map(|_| "é")).unwrap();
        let value = Value::from(vec![tensor.into(), texts.into(), Value::Bytes(vec![7; len].into())]);
        for format in [Format::Envelope, Format::Msgpack] {
            let input = value.encode(format).unwrap();
            bounded(format, &input, &limits, 0);
            let askew = Bytes::from([&[0][..], &input].concat()).slice(1..);
            bounded(format, &askew, &limits, 0);
        }
        let input = value.encode(Format::Envelope).unwrap();
        for size in [10, 600, 100_000] {
            bounded_in_chunks(&input, size, &limits, 0);
        }
    }
}

#[test]
fn announced_lengths_cost_nothing_before_they_arrive() {
    let _turn = turn();
    let value = tensor(32 * MIB);
    let start = value.encode(Format::Envelope).unwrap().slice(..MIB);
    bounded(Format::Envelope, &start, &DecodeLimits::default(), 0);
    for size in [1, 100, 1000, 65_536] {
        bounded_in_chunks(&start, size, &DecodeLimits::default(), 0);
    }
    for marker in [0xdd_u8, 0xdf, 0xdb, 0xc6, 0xc9] {
        let nested = [marker, 0, 0x0f, 0xff, 0xff].repeat(120);
        bounded(Format::Msgpack, &nested.into(), &DecodeLimits { max_tree_bytes: MIB, ..DecodeLimits::default() }, MIB);
    }
}

#[test]
fn trees_take_no_more_than_max_tree_bytes_on_top() {
    let _turn = turn();
    let many = |item: &str, separator: &str, open: &str, close: &str| {
        format!("{open}{}{close}", vec![item; 200_000].join(separator))
    };
    let keys = (0..100_000).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(",");
    let json = [
        many("0", ",", "[", "]"),
        many("[]", ",", "[", "]"),
        many("[0]", ",", "[", "]"),
        many("{\"\":0}", ",", "[", "]"),
        many("\"\"", ",", "[", "]"),
        many("\"abcdefgh\"", ",", "[", "]"),
        format!("{{{keys}}}"),
        format!("\"{}\"", "\\n".repeat(500_000)),
        format!("\"{}\"", "ab\\u00e9".repeat(200_000)),
    ];
    let ten = |leaf: &[u8]| [b"\xdd\0\x03\x0d\x40".to_vec(), leaf.repeat(200_000)].concat();
    let scalar_tensor = b"\xc7\x09\x03\x01\0\0\0\0\0\0\0\x01";
    let msgpack = [
        ten(b"\0"),
        ten(b"\x90"),
        ten(b"\x91\0"),
        ten(b"\x81\xa0\0"),
        ten(b"\xa1a"),
        ten(b"\xc4\x01a"),
        ten(scalar_tensor),
    ];
    for max_tree_bytes in [256 * 1024, 16 * MIB, 512 * MIB] {
        let limits = DecodeLimits { max_tree_bytes, ..DecodeLimits::default() };
        for input in &json {
            bounded(Format::Json, &input.clone().into(), &limits, max_tree_bytes);
        }
        for input in &msgpack {
            bounded(Format::Msgpack, &input.clone().into(), &limits, max_tree_bytes);
        }
    }
}

#[test]
fn the_default_limits_take_a_list_of_the_most_elements() {
    let _turn = turn();
    let limits = DecodeLimits::default();
    let input = format!("[{}]", vec!["0"; limits.max_elements].join(","));
    let (made, peak, _) = measured(|| Value::decode(Format::Json, &input.clone().into(), &limits));
    assert!(made.is_ok());
    assert!(peak <= 2 * input.len() + SLACK + limits.max_tree_bytes, "{peak}");
}
