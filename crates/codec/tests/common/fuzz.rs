//! The properties of every decoder, for any bytes. The fuzz targets check generated inputs, `corpus.rs` checks every
//! stored input.
//!
//! Besides "no panic": a decoded value is encoded and decoded to the same value, a body that goes on encoded is that
//! value, an envelope decodes the same from any chunks, and the heap stays within the promise of `DecodeLimits`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use callboard_codec::wire::{
    Call, Credit, Done, Fail, FrameHead, FrameKind, FrameLimits, FramePart, FrameReader, Goaway, Hello, Item, Join,
    Offer, Unreachable, Welcome, WireError, frame_head,
};
use callboard_codec::{
    DType, DataFrame, DataType, DecodeError, DecodeErrorKind, DecodeLimits, Encoded, EnvelopeDecoder, Format,
    MediaType, Payload, Scalar, Series, StrTensor, Tensor, Value,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{heap, ledger};

/// A decoder under the name of its fuzz target and its directory of seeds.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All decoders.
pub(crate) const TARGETS: [Target; 12] = [
    ("json", |input| value(Format::Json, input)),
    ("msgpack", |input| value(Format::Msgpack, input)),
    ("envelope", |input| value(Format::Envelope, input)),
    ("envelope_chunks", envelope_chunks),
    ("npy", |input| value(Format::Npy, input)),
    ("npz", |input| value(Format::Npz, input)),
    ("arrow_stream", |input| value(Format::ArrowStream, input)),
    ("arrow_file", |input| value(Format::ArrowFile, input)),
    ("typed", typed),
    ("forms", forms),
    ("frames", frames),
    ("budget", budget),
];

const MIB: usize = 1 << 20;

/// Small enough that an input of a few bytes can reach them.
fn limits() -> DecodeLimits {
    DecodeLimits { max_tree_bytes: MIB, max_decompressed_bytes: MIB, ..DecodeLimits::default() }
}

/// The upper bound of structure per input byte: an empty JSON list is one byte and makes room for four.
const STRUCTURE_PER_BYTE: usize = 160;

/// Decodes, and compares the peak of the heap with the charge and the limits.
fn within_bounds<T>(format: Format, input: &Bytes, decode: impl FnOnce() -> T) -> T {
    let ((made, charged), peak, _) = heap::measured(|| ledger::charged(usize::MAX, decode));
    let paid = charged.peak + 2 * input.len() + SLACK;
    assert!(peak <= paid, "{format}: {peak} bytes of heap, {} charged, for {} of input", charged.peak, input.len());
    let unpacked = match format {
        Format::Npz | Format::ArrowStream | Format::ArrowFile => limits().max_decompressed_bytes,
        Format::Msgpack | Format::Envelope => limits().max_decompressed_bytes, // A frame may be inside.
        _ => 0,
    };
    let structure = limits().max_tree_bytes.min(input.len().saturating_mul(STRUCTURE_PER_BYTE));
    let allowed = 2 * input.len() + SLACK + structure + unpacked;
    assert!(peak <= allowed, "{format}: {peak} bytes of heap for {} of input", input.len());
    made
}

const SLACK: usize = 64 * 1024;

fn decode(format: Format, input: &Bytes) -> Result<Value, DecodeError> {
    Value::decode(format, input, &limits())
}

/// Each error fits on one line.
fn refused(error: &DecodeError) {
    let message = error.to_string();
    assert!(message.len() < 2048, "{} bytes of message", message.len());
    assert_eq!(error.limit().is_some(), error.kind() == DecodeErrorKind::LimitExceeded, "{error}");
}

/// An error from bytes also names the position.
fn refused_at(error: &DecodeError, input: &[u8]) {
    refused(error);
    let offset = error.offset().unwrap_or_else(|| panic!("no byte is named: {error}"));
    assert!(offset <= input.len(), "a byte beyond the {} of the input: {error}", input.len());
}

fn value(format: Format, input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    match within_bounds(format, &input, || decode(format, &input)) {
        Ok(value) => comes_back(format, &value),
        Err(error) => refused_at(&error, &input),
    }
    if matches!(format, Format::Json | Format::Msgpack) {
        stays_encoded(format, &input);
    }
    if format == Format::Json && decode(format, &input).is_ok() {
        serde_json::from_slice::<serde_json::Value>(&input).expect("other decoders accept the same JSON");
    }
}

static ENCODED: LazyLock<DataType> = LazyLock::new(|| DataType::value().kept_encoded());

/// A body that goes on encoded is refused as its value is, or is the envelope of that value.
fn stays_encoded(format: Format, input: &Bytes) {
    let encoded = within_bounds(format, input, || ENCODED.decode(format, input, &limits()));
    match (decode(format, input), encoded) {
        (Ok(value), Ok(payload)) => {
            let envelope = payload.encode(Format::Envelope).expect("it has one");
            if format == Format::Json {
                assert_eq!(envelope, value.encode(Format::Envelope).expect("it has one"));
            }
            let limits = DecodeLimits { max_bytes: usize::MAX, ..limits() };
            let read = Value::decode(Format::Envelope, &envelope, &limits).expect("it was checked");
            assert!(same(&value, &read), "{value:?} goes on as {read:?}");
        }
        (Err(refused), Err(encoded)) => assert_eq!(refused.to_string(), encoded.to_string()),
        (value, encoded) => panic!("{value:?} goes on as {encoded:?}"),
    }
}

fn comes_back(format: Format, value: &Value) {
    let written = value.encode(format).unwrap_or_else(|error| panic!("{format}: {error}"));
    // A value from compressed input may exceed the limit for uncompressed input.
    let limits = DecodeLimits { max_tree_bytes: 64 * MIB, ..limits() };
    let again = Value::decode(format, &written, &limits).unwrap_or_else(|error| panic!("{format}: {error}"));
    assert!(same(value, &again), "{format}: {value:?} came back as {again:?}");
}

/// Equality in which NaN equals itself.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits(),
        (Value::Scalar(a), Value::Scalar(b)) => same_scalar(*a, *b),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((key, a), (other, b))| key == other && same(a, b))
        }
        _ => a == b,
    }
}

/// Compares the bytes.
fn same_scalar(a: Scalar, b: Scalar) -> bool {
    a.dtype() == b.dtype() && a.to_tensor() == b.to_tensor()
}

/// Decoding from chunks gives the same result as from one buffer, and so does the check of what stays encoded. The
/// input determines the sizes of the chunks.
fn envelope_chunks(input: &[u8]) {
    let whole = Bytes::copy_from_slice(input);
    let expected = decode(Format::Envelope, &whole);
    let checked = within_bounds(Format::Envelope, &whole, || Encoded::read(&whole, &limits()));
    match (&expected, checked) {
        (Ok(value), Ok(checked)) => assert!(same(value, checked.value().expect("it was checked"))),
        (Err(refused), Err(checked)) => assert_eq!(refused.kind(), checked.kind(), "{refused} / {checked}"),
        (decoded, checked) => panic!("{decoded:?} is checked as {checked:?}"),
    }
    let seed = input.iter().fold(7_u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let chunked = within_bounds(Format::Envelope, &whole, || in_chunks(&whole, seed));
    match (expected, chunked) {
        (Ok(whole), Ok(chunked)) => assert!(same(&whole, &chunked), "{whole:?} in chunks is {chunked:?}"),
        (Err(whole), Err(chunked)) => assert_eq!(whole.kind(), chunked.kind(), "{whole} / {chunked}"),
        (whole, chunked) => panic!("{whole:?} in chunks is {chunked:?}"),
    }
}

fn in_chunks(whole: &Bytes, mut seed: u32) -> Result<Value, DecodeError> {
    let mut decoder = EnvelopeDecoder::new(&limits());
    let mut rest = whole.clone();
    while !rest.is_empty() {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Mostly small chunks, sometimes empty ones, sometimes the whole input.
        let size = [0, 1, 7, 24, 64, 600, 5000, usize::MAX][(seed >> 29) as usize];
        decoder.push(rest.split_to(rest.len().min(size)))?;
    }
    decoder.finish()
}

/// A type with a field of every kind that a route supports.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Typed {
    name: String,
    #[serde(default)]
    numbers: Vec<u16>,
    #[serde(default)]
    choice: Option<Choice>,
    #[serde(default)]
    table: BTreeMap<String, (i64, bool)>,
    #[serde(default)]
    tensor: Option<Tensor>,
    #[serde(default)]
    extra: Value,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Choice {
    Plain,
    Number(u8),
    Pair { left: String, right: char },
}

static TYPED: LazyLock<DataType> = LazyLock::new(DataType::for_type::<Typed>);

/// The first byte selects the format; the rest is decoded into a Rust type and into a value.
fn typed(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let format = TYPED_FORMATS[usize::from(*first) % 3];
    let rest = Bytes::copy_from_slice(rest);
    let kind = &*TYPED;
    // A Rust type allocates by itself, so no tree limit applies; the structure per byte is still bounded.
    let (decoded, peak, _) = heap::measured(|| kind.decode(format, &rest, &limits()));
    let allowed = rest.len().saturating_mul(2 + STRUCTURE_PER_BYTE) + SLACK;
    assert!(peak <= allowed, "{format}: {peak} bytes of heap for {} of input", rest.len());
    match decoded {
        Ok(payload) => {
            let written = payload.encode(format).unwrap_or_else(|error| panic!("{format}: {error}"));
            let again = kind.decode(format, &written, &limits()).unwrap_or_else(|error| panic!("{format}: {error}"));
            assert_eq!(again.encode(format).expect("it was encoded before"), written, "{format}");
            through_a_value(&payload);
        }
        Err(error) => refused(&error),
    }
}

fn through_a_value(payload: &Payload) {
    let value = payload.to_value().expect("every field has a form");
    let again = TYPED.from_value(value).expect("is of the type");
    assert_eq!(
        again.encode(Format::Msgpack).expect("has a form"),
        payload.encode(Format::Msgpack).expect("has a form"),
    );
}

/// The first byte selects the format. The rest is decoded into a value and a Rust type, and the value is encoded, all
/// on an account. The heap stays below the charge, also with half of that account.
fn budget(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let formats: Vec<Format> = Format::all().collect();
    let format = formats[usize::from(*first) % formats.len()];
    let rest = Bytes::copy_from_slice(rest);
    let decoded = on_an_account(format, 2 * rest.len(), || decode(format, &rest));
    on_an_account(format, 2 * rest.len(), || ENCODED.decode(format, &rest, &limits()));
    if TYPED_FORMATS.contains(&format) {
        on_an_account(format, 2 * rest.len(), || TYPED.decode(format, &rest, &limits()));
    }
    let Some(value) = decoded else { return };
    for format in [Format::Json, Format::Msgpack, Format::Npy, Format::Npz, Format::Envelope] {
        // Heads of Arrow messages have the same size as in the input.
        on_an_account(format, 2 * rest.len(), || value.encode(format));
    }
}

const TYPED_FORMATS: [Format; 3] = [Format::Json, Format::Msgpack, Format::Envelope];

/// Runs `work` on an unlimited account, then on half of what it charged. Each time the heap stays below the charge plus
/// `overhead`.
fn on_an_account<T, E>(format: Format, overhead: usize, work: impl Fn() -> Result<T, E>) -> Option<T> {
    let run = |max: usize| {
        let ((made, charged), peak, _) = heap::measured(|| ledger::charged(max, &work));
        assert!(charged.peak <= max);
        let paid = charged.peak + overhead + SLACK;
        assert!(peak <= paid, "{format}: {peak} bytes of heap, {} charged, {overhead} beside", charged.peak);
        (made, charged.peak)
    };
    let (made, took) = run(usize::MAX);
    if took > 0 {
        let _half = run(took / 2);
    }
    made.ok()
}

/// Values in the forms of JSON, without bytes: tensors, texts, frames and series; and media types.
fn forms(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        media_types(text);
    }
    let Ok(value) = decode(Format::Json, &Bytes::copy_from_slice(input)) else { return };
    for dtype in std::iter::once(None).chain(DType::all().map(Some)) {
        match Tensor::from_value(&value, dtype) {
            Ok(tensor) => tensor_comes_back(&tensor),
            Err(error) => refused(&error),
        }
    }
    match StrTensor::from_value(&value) {
        Ok(texts) => comes_back(Format::Msgpack, &texts.into()),
        Err(error) => refused(&error),
    }
    match DataFrame::from_value(&value) {
        Ok(frame) => comes_back(Format::ArrowStream, &frame.into()),
        Err(error) => refused(&error),
    }
    if let Ok(series) = value.deserialize::<Series>() {
        comes_back(Format::Msgpack, &series.into());
    }
}

fn tensor_comes_back(tensor: &Tensor) {
    comes_back(Format::Msgpack, &tensor.clone().into());
    // NaN and infinity (possible in base64) have no JSON form, and lengths of axes after an empty axis are lost.
    let Ok(written) = Value::from(tensor.clone()).encode(Format::Json) else { return };
    let nested = decode(Format::Json, &written).expect("encoded data can be decoded");
    if !tensor.is_empty() {
        assert_eq!(&Tensor::from_value(&nested, Some(tensor.dtype())).expect("is of its own dtype"), tensor);
    }
}

fn media_types(text: &str) {
    let offers: Vec<Format> = Format::all().collect();
    if let Some(format) = MediaType::choose(text, &offers) {
        let quality = text.split(',').filter_map(MediaType::parse).map(|range| range.quality()).fold(0.0, f32::max);
        let empty = text.trim().is_empty();
        assert!(empty || quality > 0.0 || text.contains('"'), "{format} out of {text:?}");
    }
    if let Some(range) = MediaType::parse(text) {
        let again = MediaType::parse(range.essence()).expect("an essence is a media type");
        assert_eq!(again.essence(), range.essence());
        assert!((0.0..=1.0).contains(&range.quality()));
        assert!(range.essence().contains('*') || range.includes(range.essence()));
    }
    let _format = Format::from_media_type(text);
}

/// A stream of frames, whole and in chunks: the same heads and errors, and every header round-trips in the layout of
/// its kind. Offers of nodes are in bodies.
fn frames(input: &[u8]) {
    let whole = Bytes::copy_from_slice(input);
    let limits = FrameLimits { max_body_bytes: MIB, ..FrameLimits::default() };
    let ((frames, error), peak, _) = heap::measured(|| read_frames(std::iter::once(whole.clone()), &limits));
    assert!(peak <= 2 * input.len() + SLACK, "frames: {peak} bytes of heap for {} of input", input.len());
    let mut rest = whole;
    let chunks = std::iter::from_fn(|| (!rest.is_empty()).then(|| rest.split_to(rest.len().min(1 + rest.len() % 37))));
    let (chunked, chunked_error) = read_frames(chunks, &limits);
    assert_eq!(frames.len(), chunked.len());
    assert_eq!(error.map(|error| error.to_string()), chunked_error.map(|error| error.to_string()));
    for ((head, body), (_, chunked_body)) in frames.iter().zip(&chunked) {
        assert_eq!(body, chunked_body);
        match head.kind {
            FrameKind::Hello => header_comes_back::<Hello>(head, input.len()),
            FrameKind::Call => header_comes_back::<Call>(head, input.len()),
            FrameKind::Item => header_comes_back::<Item>(head, input.len()),
            FrameKind::Done => header_comes_back::<Done>(head, input.len()),
            FrameKind::Fail => header_comes_back::<Fail>(head, input.len()),
            FrameKind::Credit => header_comes_back::<Credit>(head, input.len()),
            FrameKind::Goaway => header_comes_back::<Goaway>(head, input.len()),
            FrameKind::Join => header_comes_back::<Join>(head, input.len()),
            FrameKind::Unreachable => header_comes_back::<Unreachable>(head, input.len()),
            FrameKind::Welcome => {
                header_comes_back::<Welcome>(head, input.len());
                offers(body);
            }
            FrameKind::Offers => offers(body),
            // These kinds have only a body: a request, certificates or gossip; or nothing.
            FrameKind::Cancel
            | FrameKind::Renew
            | FrameKind::Certificate
            | FrameKind::Gossip
            | FrameKind::Status
            | FrameKind::Drain => {}
            kind => panic!("the header of {kind} has no check"),
        }
    }
}

/// The offers of a node, as its peers read them.
fn offers(body: &Bytes) {
    let read = |body: &Bytes| decode(Format::Envelope, body).ok()?.deserialize::<Vec<Offer>>().ok();
    let Some(offers) = within_bounds(Format::Envelope, body, || read(body)) else { return };
    let written = Payload::new(offers.clone()).to_envelope().expect("offers have one").into_bytes();
    // The written form may exceed a limit; otherwise it reads back equal.
    assert!(read(&written).is_none_or(|again| again == offers));
}

type Frames = Vec<(FrameHead, Bytes)>;

fn read_frames(chunks: impl Iterator<Item = Bytes>, limits: &FrameLimits) -> (Frames, Option<WireError>) {
    let (mut reader, mut frames) = (FrameReader::new(limits.clone()), Frames::new());
    // The test joins the pieces of a body; the reader does not.
    let mut body = BytesMut::new();
    for chunk in chunks {
        reader.push(chunk);
        loop {
            match reader.next_part() {
                Ok(Some(FramePart::Head(head))) => frames.push((head, Bytes::new())),
                Ok(Some(FramePart::Body { bytes, last: true })) if body.is_empty() => {
                    frames.last_mut().expect("a head precedes it").1 = bytes;
                }
                Ok(Some(FramePart::Body { bytes, last })) => {
                    body.extend_from_slice(&bytes);
                    if last {
                        frames.last_mut().expect("a head precedes it").1 = body.split().freeze();
                    }
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, reader.finish().err())
}

fn header_comes_back<H>(head: &FrameHead, input: usize)
where
    H: serde::de::DeserializeOwned + Serialize + Default + PartialEq + std::fmt::Debug,
{
    let (header, peak, _) = heap::measured(|| head.header::<H>());
    assert!(peak <= 2 * input + SLACK, "a header of {}: {peak} bytes of heap for {input} of input", head.kind);
    match header {
        Ok(header) => {
            let written = frame_head(head.kind, head.entry, &header, 0).expect("it is not longer than before");
            let (again, error) = read_frames(std::iter::once(written), &FrameLimits::default());
            assert!(error.is_none(), "{error:?}");
            assert_eq!(again[0].0.header::<H>().expect("encoded data can be decoded"), header);
        }
        Err(error) => assert!(error.to_string().len() < 2048),
    }
}
