//! The memory of decoding: bytes are copied at most once, and the heap stays in proportion to the input.

use bytes::Bytes;
use callboard_codec::{DType, DataType, DecodeLimits, EnvelopeDecoder, Format, Map, StrTensor, Tensor, Value};

use crate::heap::{measured, turn};

const MIB: usize = 1 << 20;
const SLACK: usize = 64 * 1024;

fn limits() -> DecodeLimits {
    DecodeLimits { max_bytes: 2048 * MIB, ..DecodeLimits::default() }
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
    // Chunks as quinn delivers them, unaligned; each is a slice, so that keeping it costs no copy.
    let (back, _, total) = measured(|| {
        let mut decoder = EnvelopeDecoder::new(&limits());
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            decoder.push(rest.split_to(rest.len().min(1301))).unwrap();
        }
        decoder.finish().unwrap()
    });
    // One buffer, and the list of the chunks of its first half (32 bytes for 1,301, and its smaller predecessors).
    let allowed = bytes.len() + bytes.len() / 2 / 1301 * 32 * 4 + SLACK;
    assert!(total < allowed, "{total} bytes allocated to read {}", bytes.len());
    assert_eq!(back, value);
}

/// Floats are longer than their digits, which shows only as they come.
#[test]
fn json_that_goes_on_encoded_takes_no_more_than_its_value_may() {
    let _turn = turn();
    let kind = DataType::value().kept_encoded();
    let limits = DecodeLimits { max_tree_bytes: 4 * MIB, ..limits() };
    for floats in [1, 4, 100, 20_000] {
        let body = Bytes::from(format!(r#"["{}"{}]"#, "x".repeat(16 * MIB), ",-0".repeat(floats)));
        let (read, peak, _) = measured(|| kind.decode(Format::Json, &body, &limits));
        assert!(read.is_ok());
        let allowed = 2 * body.len() + SLACK + limits.max_tree_bytes;
        assert!(peak < allowed, "{peak} bytes for {} of input with {floats} floats", body.len());
    }
}

/// The whole promise at full size. Untouched zeroed memory costs nothing, so only the copy takes a gigabyte.
#[test]
fn a_gibibyte_is_copied_once_out_of_chunks_and_never_out_of_one_buffer_or_into_an_envelope() {
    let _turn = turn();
    const GIB: usize = 1024 * MIB;
    let tensor = Tensor::try_new(DType::U8, &[GIB], vec![0; GIB].into()).unwrap();
    let (envelope, _, total) = measured(|| Value::from(tensor.clone()).to_envelope().unwrap());
    assert!(total < 4096, "{total} bytes allocated to write a gigabyte");
    assert!(envelope.parts().iter().any(|part| part.as_ptr() == tensor.data().as_ptr()));

    // Head and padding, then one half megabyte repeatedly: chunks with shared memory cost nothing here.
    let head = envelope.parts()[0].clone();
    let chunk = Bytes::from(vec![7_u8; MIB / 2]);
    let (value, peak, total) = measured(|| {
        let mut decoder = EnvelopeDecoder::new(&limits());
        decoder.push(head.clone()).unwrap();
        (0..GIB / chunk.len()).for_each(|_| decoder.push(chunk.clone()).unwrap());
        decoder.finish().unwrap()
    });
    let received = value.as_tensor().unwrap().data();
    assert!(received.len() == GIB && received.as_ptr().addr().is_multiple_of(16));
    assert!(received.chunks(chunk.len()).all(|part| part == &chunk[..]));
    assert!(peak.max(total) < GIB + MIB, "{peak} bytes at one time, {total} altogether");
    drop(value);

    let mut whole = vec![0_u8; head.len() + GIB];
    whole[..head.len()].copy_from_slice(&head);
    let whole = Bytes::from(whole);
    let (value, _, total) = measured(|| Value::decode(Format::Envelope, &whole, &limits()).unwrap());
    assert!(total < 4096, "{total} bytes allocated to read a gigabyte");
    assert_eq!(value.as_tensor().unwrap().data().as_ptr(), whole[head.len()..].as_ptr());
}

/// Decodes, and compares the peak with the promise.
fn bounded(format: Format, input: &Bytes, limits: &DecodeLimits, more: usize) {
    let (made, peak, _) = measured(|| Value::decode(format, input, limits));
    let allowed = 2 * input.len() + SLACK + more;
    assert!(peak <= allowed, "{format}: {peak} bytes for an input of {}, {:?}", input.len(), made.err());
}

/// The same in chunks, which arrive one at a time and are dropped by the caller.
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
fn announced_lengths_cost_nothing_before_their_bytes_arrive() {
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
fn trees_take_at_most_max_tree_bytes_besides_the_input() {
    let _turn = turn();
    let many = |item: &str, separator: &str, open: &str, close: &str| {
        format!("{open}{}{close}", vec![item; 50_000].join(separator))
    };
    let keys = (0..25_000).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(",");
    let json = [
        many("0", ",", "[", "]"),
        many("[]", ",", "[", "]"),
        many("[0]", ",", "[", "]"),
        many("{\"\":0}", ",", "[", "]"),
        many("\"\"", ",", "[", "]"),
        many("\"abcdefgh\"", ",", "[", "]"),
        format!("{{{keys}}}"),
        format!("\"{}\"", "\\n".repeat(125_000)),
        format!("\"{}\"", "ab\\u00e9".repeat(50_000)),
    ];
    let ten = |leaf: &[u8]| [b"\xdd\0\0\xc3\x50".to_vec(), leaf.repeat(50_000)].concat();
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
    // A limit that is reached early, a limit that most inputs reach late, and a limit that is never reached.
    for max_tree_bytes in [64 * 1024, 4 * MIB, 512 * MIB] {
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
fn the_default_limits_accept_a_list_of_max_elements() {
    let _turn = turn();
    let limits = DecodeLimits::default();
    let input = format!("[{}]", vec!["0"; limits.max_elements].join(","));
    let (made, peak, _) = measured(|| Value::decode(Format::Json, &input.clone().into(), &limits));
    assert!(made.is_ok());
    assert!(peak <= 2 * input.len() + SLACK + limits.max_tree_bytes, "{peak}");
}

/// Small inputs cannot reach much of the limit: the structure per byte is bounded too.
#[test]
fn a_byte_of_input_becomes_at_most_160_bytes_of_structure() {
    let _turn = turn();
    let limits = DecodeLimits { max_tree_bytes: usize::MAX, max_elements: usize::MAX, ..DecodeLimits::default() };
    for item in ["0", "[]", "[[]]", "{\"\":0}", "\"\"", "null"] {
        let input = Bytes::from(format!("[{}]", vec![item; 30_000].join(",")));
        bounded(Format::Json, &input, &limits, 160 * input.len());
    }
    for item in [&b"\xc0"[..], b"\x90", b"\x91\xc0", b"\x80", b"\x81\xa0\xc0", b"\xa0", b"\xc4\0"] {
        let input = Bytes::from([b"\xdd\0\0\x75\x30".to_vec(), item.repeat(30_000)].concat());
        bounded(Format::Msgpack, &input, &limits, 160 * input.len());
    }
}

#[test]
fn arrays_and_frames_take_no_more_than_twice_the_input() {
    let _turn = turn();
    let limits = DecodeLimits::default();
    let tensor = Tensor::from_vec(&[1000, 100], vec![0.5_f64; 100_000]).unwrap();
    let npy = Value::from(tensor.clone()).encode(Format::Npy).unwrap();
    let npz = Value::from(Map::from_iter([("a", tensor.clone()), ("b", tensor)])).encode(Format::Npz).unwrap();
    let askew = |bytes: &Bytes| Bytes::from([&[0][..], bytes].concat()).slice(1..);
    let mut fortran = npy.to_vec();
    let at = fortran.windows(5).position(|window| window == b"False").unwrap();
    fortran[at..at + 5].copy_from_slice(b"True ");
    for input in [npy.clone(), askew(&npy), fortran.into()] {
        bounded(Format::Npy, &input, &limits, 0);
    }
    for input in [npz.clone(), askew(&npz)] {
        bounded(Format::Npz, &input, &limits, 0);
    }
    #[cfg(feature = "arrow")]
    for name in ["all-types.arrows", "two-batches.arrows", "lz4.arrows", "zstd.arrows", "polars.arrow", "lz4.arrow"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/arrow").join(name);
        let input = Bytes::from(std::fs::read(path).unwrap());
        let format = if name.ends_with('s') { Format::ArrowStream } else { Format::ArrowFile };
        // 34 columns of at most one KiB each, in schema and batches; compressed input may also unpack.
        let structure = if name.starts_with("all") || name.starts_with("two") { 128 * 1024 } else { 16 * 1024 };
        let unpacked = if name.contains("lz4") || name.contains("zstd") { 256 * 1024 } else { 0 };
        for input in [askew(&input), input] {
            bounded(format, &input, &limits, structure + unpacked);
        }
    }
}
