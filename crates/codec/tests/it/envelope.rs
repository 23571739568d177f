//! The envelope: values round-trip through any chunks, the bytes are those of docs/wire.md, and false lengths are
//! refused.

use bytes::Bytes;
use callboard_codec::{
    DType, DataType, DecodeError, DecodeErrorKind, DecodeLimits, EncodeError, Encoded, Envelope, EnvelopeDecoder,
    Format, Map, Payload, Scalar, StrTensor, Tensor, Value,
};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common;

/// A value with leaves on both sides of the limit between tree and segment.
fn mixed() -> Value {
    let large = |len: usize| Bytes::from((0..len).map(|at| at as u8).collect::<Vec<_>>());
    let tensor = Tensor::try_new(DType::F64, &[2, 100], large(1600)).expect("fits");
    let complex = Tensor::try_new(DType::C128, &[101], large(1616)).expect("fits");
    let texts = StrTensor::from_texts(&[200], (0..200).map(|n| n.to_string())).expect("fits");
    Value::from(Map::from_iter([
        ("small", Value::Bytes(large(10))),
        ("bytes", Value::Bytes(large(1025))),
        ("tensor", tensor.into()),
        ("pair", Value::Tuple(vec![complex.into(), Scalar::F32(0.1).into()])),
        ("texts", texts.into()),
        ("tail", Value::List(vec![1.into(), Value::Null])),
    ]))
}

fn push_all(bytes: &Bytes, cuts: &[usize]) -> Result<Value, DecodeError> {
    let mut decoder = EnvelopeDecoder::new(&DecodeLimits::default());
    push_into(&mut decoder, bytes, cuts)?;
    decoder.finish()
}

fn push_into(decoder: &mut EnvelopeDecoder, bytes: &Bytes, cuts: &[usize]) -> Result<(), DecodeError> {
    let mut rest = bytes.clone();
    for cut in cuts {
        let piece = rest.split_to((*cut).min(rest.len()));
        decoder.push(Bytes::copy_from_slice(&piece))?;
    }
    decoder.push(rest)
}

fn envelope_of(value: &Value) -> Bytes {
    value.encode(Format::Envelope).expect("every value has a form")
}

#[test]
fn round_trips_through_one_buffer_and_chunks_of_any_size() {
    let value = mixed();
    let bytes = envelope_of(&value);
    assert_eq!(Value::decode(Format::Envelope, &bytes, &DecodeLimits::default()).unwrap(), value);
    for size in [1, 7, 64, 511, 1000, 4096] {
        let cuts = vec![size; bytes.len() / size];
        assert_eq!(push_all(&bytes, &cuts).unwrap(), value, "chunks of {size}");
    }
}

#[test]
fn large_segments_round_trip_through_small_and_large_chunks() {
    let data: Vec<u32> = (0..100_000).collect();
    let value = Value::from(Tensor::from_vec(&[100, 1000], data).unwrap());
    let bytes = envelope_of(&value);
    for cuts in [vec![100; 5000], vec![600; 900], vec![100, 100_000, 3, 3, 50_000], vec![bytes.len() - 1]] {
        assert_eq!(push_all(&bytes, &cuts).unwrap(), value);
    }
}

#[test]
fn golden_bytes_change_only_with_the_version() {
    let golden = include_bytes!("../golden/envelope-v1.bin");
    let value = mixed();
    assert_eq!(&envelope_of(&value)[..], golden, "the format has changed: that takes a new version");
    let bytes = Bytes::from_static(golden);
    assert_eq!(Value::decode(Format::Envelope, &bytes, &DecodeLimits::default()).unwrap(), value);
    assert_eq!(golden[..8], [0x89, b'C', b'B', b'E', 1, 0, 0, 0]);
    // Without segments an envelope is 24 bytes and the tree.
    let small = Value::from(vec![Value::from(1), "a".into()]);
    assert_eq!(&envelope_of(&small)[..], b"\x89CBE\x01\0\0\0\x04\0\0\0\0\0\0\0\x1c\0\0\0\0\0\0\0\x92\x01\xa1a");
}

#[test]
fn pieces_share_the_memory_of_the_value() {
    let value = mixed();
    let envelope = value.to_envelope().unwrap();
    let tensor = value.get("tensor").and_then(Value::as_tensor).unwrap();
    assert!(envelope.parts().iter().any(|part| part.as_ptr() == tensor.data().as_ptr()));
    assert_eq!(envelope.len(), envelope.parts().iter().map(Bytes::len).sum::<usize>());
    assert_eq!(envelope.into_bytes(), envelope_of(&value));
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Request {
    name: String,
    image: Option<Tensor>,
    extra: Value,
}

#[test]
fn only_large_parts_of_a_type_become_segments() {
    let small = Request { name: "a".to_owned(), image: None, extra: Value::Null };
    let image = Tensor::from_vec(&[1000], vec![1.5_f32; 1000]).unwrap();
    let large = Request { name: "b".to_owned(), image: Some(image.clone()), extra: mixed() };
    let (kind, limits) = (DataType::for_type::<Request>(), DecodeLimits::default());
    for (request, pieces) in [(small, 1), (large.clone(), 2)] {
        let envelope = Payload::new(request.clone()).to_envelope().unwrap();
        assert!(envelope.parts().len() >= pieces);
        let mut decoder = EnvelopeDecoder::new(&limits);
        envelope.parts().iter().for_each(|part| decoder.push(part.clone()).unwrap());
        assert_eq!(kind.finish(decoder).unwrap().downcast_ref::<Request>(), Some(&request));
        let back = kind.decode(Format::Envelope, &envelope.into_bytes(), &limits).unwrap();
        assert_eq!(back.downcast_ref::<Request>(), Some(&request));
    }
    // The image is encoded and decoded as the same bytes.
    let mut decoder = EnvelopeDecoder::new(&limits);
    Payload::new(large).to_envelope().unwrap().into_parts().into_iter().for_each(|part| decoder.push(part).unwrap());
    let back: Request = decoder.finish_as().unwrap();
    assert_eq!(back.image.unwrap().data().as_ptr(), image.data().as_ptr());
}

#[test]
fn false_lengths_are_refused_at_their_byte() {
    let good = envelope_of(&mixed()).to_vec();
    let wrong = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let bytes = Bytes::from(bytes);
        let whole = Value::decode(Format::Envelope, &bytes, &DecodeLimits::default()).expect_err("is refused");
        let chunked = push_all(&bytes, &vec![13; bytes.len() / 13]).expect_err("is refused in chunks");
        assert_eq!(whole.kind(), chunked.kind(), "{whole} / {chunked}");
        (whole.kind(), whole.offset(), whole.to_string())
    };
    use DecodeErrorKind::{LimitExceeded, Malformed, Unsupported};
    let set = |at: usize, byte: u8| move |bytes: &mut Vec<u8>| bytes[at] = byte;
    assert_eq!(wrong(&set(0, 0)).0, Malformed);
    assert_eq!(
        wrong(&set(4, 2)),
        (Unsupported, Some(4), "envelope version 2: this reader knows 1 (byte 4)".to_owned())
    );
    assert_eq!(wrong(&set(5, 1)).0, Unsupported);
    assert_eq!(wrong(&set(11, 0xff)).1, Some(8)); // a tree of gigabytes
    assert_eq!(wrong(&set(15, 0xff)).1, Some(8)); // a billion segments
    assert_eq!(wrong(&set(23, 1)).0, LimitExceeded); // an envelope of 2⁵⁶ bytes
    assert_eq!(
        wrong(&set(24 + 4, 1)),
        (Malformed, Some(24), "segment 0 ends beyond the envelope (byte 24)".to_owned())
    ); // 4 GiB
    assert_eq!(wrong(&set(24, 0)).1, Some(16)); // a segment that is shorter than the envelope needs
    assert_eq!(
        wrong(&|bytes| bytes.push(0)),
        (Malformed, Some(good.len()), format!("more input after the envelope (byte {})", good.len()))
    );
    assert_eq!(wrong(&|bytes| bytes.truncate(bytes.len() - 1)).0, Malformed);
    assert_eq!(wrong(&|bytes| bytes.truncate(20)).0, Malformed);
    let tree_end = 24 + 4 * 8 + u32::from_le_bytes(good[8..12].try_into().unwrap()) as usize;
    assert_eq!(wrong(&set(tree_end, 1)).1, Some(tree_end)); // padding
    assert_eq!(wrong(&set(tree_end + 1, 1)).1, Some(tree_end + 1));
    // A reference that skips a segment.
    let reference = good.windows(8).position(|window| window == [0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(wrong(&set(reference + 4, 1)).2, format!("segment 1 where 0 comes next at $.bytes (byte {reference})"));
}

#[test]
fn a_reference_outside_an_envelope_is_malformed() {
    let error =
        Value::decode(Format::Msgpack, &Bytes::from_static(b"\xd7\x07\0\0\0\0\0\0\0\0"), &DecodeLimits::default());
    assert_eq!(error.unwrap_err().kind(), DecodeErrorKind::Malformed);
}

#[test]
fn a_decoder_that_refused_a_chunk_refuses_the_rest() {
    let mut decoder = EnvelopeDecoder::new(&DecodeLimits::default());
    assert!(decoder.push(Bytes::from_static(&[1; 24])).is_err());
    assert!(decoder.push(Bytes::new()).is_err());
    assert!(!decoder.is_complete());
    assert!(decoder.finish().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn round_trips_every_value(
        value in common::tree(common::leaf(), true), cuts in proptest::collection::vec(0_usize..300, 0..20),
    ) {
        let bytes = envelope_of(&value);
        prop_assert_eq!(&Value::decode(Format::Envelope, &bytes, &DecodeLimits::default()).unwrap(), &value);
        prop_assert_eq!(push_all(&bytes, &cuts).unwrap(), value);
    }

    #[test]
    fn a_changed_byte_never_panics_and_decodes_the_same_in_chunks(
        at: proptest::sample::Index, byte: u8, size in 1_usize..200,
    ) {
        let mut bytes = envelope_of(&mixed()).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let bytes = Bytes::from(bytes);
        let whole = Value::decode(Format::Envelope, &bytes, &DecodeLimits::default()).ok();
        let chunked = push_all(&bytes, &vec![size; bytes.len() / size]).ok();
        prop_assert_eq!(format!("{whole:?}"), format!("{chunked:?}"));
    }

    #[test]
    fn the_check_of_an_encoded_value_refuses_what_a_decoder_refuses(
        value in common::tree(common::leaf(), true),
        changes in proptest::collection::vec((proptest::sample::Index::arbitrary(), 0_u8..), 0..3),
        (depth, elements, string, tree) in (0_usize..8, 0_usize..40, 0_usize..40, 0_usize..4000),
    ) {
        let mut bytes = envelope_of(&value).to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bytes = Bytes::from(bytes);
        let narrow = DecodeLimits {
            max_depth: depth, max_elements: elements, max_string_bytes: string, max_tree_bytes: tree,
            ..DecodeLimits::default()
        };
        for limits in [DecodeLimits::default(), narrow] {
            let read = Value::decode(Format::Envelope, &bytes, &limits);
            let checked = Encoded::read(&bytes, &limits);
            let words = |error: DecodeError| error.to_string();
            let value = checked.map(|encoded| Value::clone(encoded.value().unwrap()));
            prop_assert_eq!(format!("{:?}", value.map_err(words)), format!("{:?}", read.map_err(words)));
        }
    }

    #[test]
    fn an_encoded_value_is_the_bytes_that_arrived_and_reads_as_the_value(
        value in common::tree(common::leaf(), true), cuts in proptest::collection::vec(0_usize..300, 0..20),
    ) {
        let bytes = envelope_of(&value);
        let mut decoder = EnvelopeDecoder::new(&DecodeLimits::default());
        push_into(&mut decoder, &bytes, &cuts).unwrap();
        let whole = Encoded::read(&bytes, &DecodeLimits::default()).unwrap();
        let written = Payload::new(value.clone()).into_inner::<Encoded>().unwrap();
        for encoded in [whole, decoder.finish_encoded().unwrap(), written] {
            prop_assert_eq!(encoded.envelope().clone().into_bytes(), bytes.clone());
            let payload = Payload::new(encoded);
            prop_assert_eq!(payload.encode(Format::Envelope).unwrap(), bytes.clone());
            let words = |error: EncodeError| error.to_string();
            let json = payload.encode(Format::Json).map_err(words);
            prop_assert_eq!(json, value.encode(Format::Json).map_err(words));
            prop_assert_eq!(payload.value().unwrap(), Some(&value));
            prop_assert_eq!(&payload.to_value().unwrap(), &value);
            prop_assert_eq!(payload.into_inner::<Value>().unwrap(), value.clone());
        }
    }
}

#[test]
fn an_encoded_value_with_a_key_twice_is_refused_however_many_keys_there_are() {
    // A value of the second that is malformed itself changes nothing.
    for (count, value) in [2_u32, 16, 17, 200].into_iter().flat_map(|count| [(count, 0xc0), (count, 0xc1)]) {
        let mut tree = vec![0xde];
        tree.extend_from_slice(&u16::try_from(count).unwrap().to_be_bytes());
        for key in (0..count - 1).chain([0]) {
            tree.extend_from_slice(&[0xa4]);
            tree.extend_from_slice(format!("{key:04}").as_bytes());
            tree.push(0xc0);
        }
        *tree.last_mut().unwrap() = value;
        let mut bytes = envelope_of(&Value::Null)[..24].to_vec();
        bytes[8..12].copy_from_slice(&u32::try_from(tree.len()).unwrap().to_le_bytes());
        bytes[16..24].copy_from_slice(&(24 + tree.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&tree);
        let error = Encoded::read(&bytes.into(), &DecodeLimits::default()).unwrap_err();
        assert!(error.to_string().starts_with("the same key twice"), "{count}: {error}");
    }
}

#[test]
fn an_unread_envelope_is_its_chunks_within_the_limit() {
    let envelope = Value::from("text").to_envelope().unwrap();
    let bytes = envelope.into_bytes();
    let limits = DecodeLimits { max_bytes: bytes.len(), ..DecodeLimits::default() };
    let mut decoder = EnvelopeDecoder::unread(&limits);
    decoder.push(bytes.slice(..3)).unwrap();
    decoder.push(bytes.slice(3..)).unwrap();
    assert_eq!(decoder.total_bytes(), Some(bytes.len()));
    let error = decoder.push(bytes.slice(..1)).unwrap_err();
    assert_eq!(error.kind(), DecodeErrorKind::LimitExceeded);

    let mut decoder = EnvelopeDecoder::unread(&limits);
    decoder.push(bytes.slice(..3)).unwrap();
    decoder.push(bytes.slice(3..)).unwrap();
    assert_eq!(decoder.into_chunks().concat(), bytes);
    assert_eq!(Envelope::from_bytes(bytes.clone()).len(), bytes.len());
}
