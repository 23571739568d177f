//! A Rust type has one form on every way: within a process as a [`Value`], and as an envelope or MessagePack.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;

use callboard_codec::{DecodeLimits, EncodeError, EnvelopeDecoder, Format, Payload, Tensor, Value};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Word {
    One,
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Nothing;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Wrapped(Option<Option<char>>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Form {
    Unit,
    Newtype(Box<Self>),
    Tuple(u8, String),
    Struct { single: f32, double: f64 },
    Map(BTreeMap<i64, Self>),
    Words(BTreeMap<Word, Nothing>),
    Chars(BTreeMap<char, Wrapped>),
    Bools(BTreeMap<bool, [i16; 2]>),
    Pairs(BTreeMap<(u8, u8), u8>),
    Options(BTreeMap<Option<String>, u8>),
    Wide(i128),
    Wider(u128),
    Bytes(RawBytes),
    Address(IpAddr),
    Array(Tensor),
    List(Vec<Self>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RawBytes(#[serde(with = "serde_bytes")] Vec<u8>);

fn wide() -> impl Strategy<Value = i128> {
    let edges =
        [i64::MIN.into(), i64::MAX.into(), u64::MAX.into(), i128::from(u64::MAX) + 1, i128::MIN, i128::MAX, 0, -1];
    prop_oneof![any::<i128>(), prop::sample::select(edges.to_vec()), any::<i64>().prop_map(i128::from)]
}

fn float() -> impl Strategy<Value = f64> {
    let edges = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.1, 1e300, 16_777_217.0];
    prop_oneof![any::<f64>(), prop::sample::select(edges)]
}

fn form() -> impl Strategy<Value = Form> {
    let leaf = prop_oneof![
        Just(Form::Unit),
        (any::<u8>(), "[a-zä]{0,4}").prop_map(|(number, text)| Form::Tuple(number, text)),
        (float(), float()).prop_map(|(single, double)| Form::Struct { single: single as f32, double }),
        prop::collection::btree_map(prop::sample::select(vec![Word::One, Word::Two]), Just(Nothing), 0..3)
            .prop_map(Form::Words),
        prop::collection::btree_map(
            any::<char>(),
            prop::option::of(prop::option::of(any::<char>())).prop_map(Wrapped),
            0..3
        )
        .prop_map(Form::Chars),
        prop::collection::btree_map(any::<bool>(), any::<[i16; 2]>(), 0..3).prop_map(Form::Bools),
        prop::collection::btree_map(any::<(u8, u8)>(), any::<u8>(), 0..2).prop_map(Form::Pairs),
        prop::collection::btree_map(prop::option::of("[a-z]{1,3}"), any::<u8>(), 0..2).prop_map(Form::Options),
        wide().prop_map(Form::Wide),
        wide().prop_map(|wide| Form::Wider(wide.unsigned_abs())),
        prop::collection::vec(any::<u8>(), 0..5).prop_map(|bytes| Form::Bytes(RawBytes(bytes))),
        any::<IpAddr>().prop_map(Form::Address),
        // From 1 KiB on, an array is a segment of its envelope, and the whole type takes another way.
        prop::sample::select(vec![3_usize, 200])
            .prop_map(|len| Form::Array(Tensor::from_vec(&[len], vec![1_i64; len]).unwrap())),
    ];
    leaf.prop_recursive(4, 20, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| Form::Newtype(Box::new(inner))),
            prop::collection::btree_map(any::<i64>(), inner.clone(), 0..3).prop_map(Form::Map),
            prop::collection::vec(inner, 0..3).prop_map(Form::List),
        ]
    })
}

/// The value that a dynamic receiver gets, or the sender's own error.
fn arrivals<T: Serialize + for<'de> Deserialize<'de> + Clone + Send + Sync + 'static>(
    sent: &T,
) -> [Result<String, String>; 3] {
    let payload = Payload::new(sent.clone());
    let limits = DecodeLimits::default();
    // Compares texts: a NaN is not equal to itself.
    let shown = |value: Value| format!("{value:?}");
    let refused = |error: EncodeError| error.to_string();
    let here = payload.to_value().map(shown).map_err(refused);
    let envelope = payload.to_envelope().map_err(refused).map(|envelope| {
        let mut decoder = EnvelopeDecoder::new(&limits);
        envelope.into_parts().into_iter().for_each(|part| decoder.push(part).unwrap());
        shown(decoder.finish().expect("sent data can be decoded"))
    });
    let msgpack = payload.encode(Format::Msgpack).map_err(refused);
    let msgpack = msgpack.map(|bytes| shown(Value::decode(Format::Msgpack, &bytes, &limits).expect("can be read")));
    [here, envelope, msgpack]
}

proptest! {
    #[test]
    fn a_type_has_one_form_or_one_error_on_every_way(form in form()) {
        let [here, envelope, msgpack] = arrivals(&form);
        prop_assert_eq!(&here, &envelope);
        prop_assert_eq!(&here, &msgpack);
    }

    #[test]
    fn a_type_decodes_to_the_same_value_on_every_way(form in form()) {
        let payload = Payload::new(form);
        if let (Ok(value), Ok(envelope)) = (payload.to_value(), payload.to_envelope()) {
            let mut decoder = EnvelopeDecoder::new(&DecodeLimits::default());
            envelope.into_parts().into_iter().for_each(|part| decoder.push(part).unwrap());
            let (here, there) = (value.deserialize::<Form>().unwrap(), decoder.finish_as::<Form>().unwrap());
            prop_assert_eq!(format!("{here:?}"), format!("{there:?}"));
        }
    }
}

fn error_everywhere<T>(sent: &T) -> String
where
    T: Serialize + for<'de> Deserialize<'de> + Clone + Debug + Send + Sync + 'static,
{
    let [here, envelope, msgpack] = arrivals(sent);
    assert_eq!((&here, &here), (&envelope, &msgpack), "{sent:?}");
    here.unwrap_err()
}

#[test]
fn a_type_without_a_form_is_refused_by_the_sender_with_type_and_place() {
    let pairs = Form::List(vec![Form::Unit, Form::Pairs(BTreeMap::from([((1, 2), 3)]))]);
    assert_eq!(
        error_everywhere(&pairs),
        "cannot encode (u8, u8): a map key must be text, a number or a bool at $.List[1].Pairs"
    );
    assert_eq!(
        error_everywhere(&vec![1_u128, u128::MAX]),
        "cannot encode u128: 340282366920938463463374607431768211455 does not fit 64 bits at $[1]"
    );
    let deep = (0..600).fold(Form::Unit, |inner, _| Form::Newtype(Box::new(inner)));
    assert!(error_everywhere(&deep).contains("nested deeper than 512 levels"));
}

#[test]
fn an_integer_key_is_its_text_for_every_receiver() {
    let sent = BTreeMap::from([(-1_i64, 0.5_f64), (7, 1.5)]);
    let [here, envelope, msgpack] = arrivals(&sent);
    assert_eq!((&here, &here), (&envelope, &msgpack));
    let bytes = Payload::new(sent.clone()).encode(Format::Msgpack).unwrap();
    let value = Value::decode(Format::Msgpack, &bytes, &DecodeLimits::default()).unwrap();
    assert_eq!(value.get("-1"), Some(&Value::Float(0.5)));
    assert_eq!(value.deserialize::<BTreeMap<i64, f64>>().unwrap(), sent);
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    mean: f32,
    rows: Vec<BTreeMap<String, Option<f64>>>,
}

#[test]
fn json_refuses_a_non_finite_float_at_any_position() {
    let json = |value: Payload| value.encode(Format::Json).map_err(|error| error.to_string());
    let figures = |mean, cell| Figures { mean, rows: vec![BTreeMap::from([("x".to_owned(), Some(cell))])] };
    assert_eq!(json(Payload::new(figures(0.5, 1.5))).unwrap(), r#"{"mean":0.5,"rows":[{"x":1.5}]}"#);
    for (value, place) in [
        (Payload::new(f64::NAN), ""),
        (Payload::new(vec![0.5_f32, f32::INFINITY]), " at $[1]"),
        (Payload::new(figures(f32::NAN, 1.5)), " at $.mean"),
        (Payload::new(figures(0.5, f64::NEG_INFINITY)), " at $.rows[0].x"),
        (
            Payload::new(Form::Newtype(Box::new(Form::Struct { single: 0.0, double: f64::NAN }))),
            " at $.Newtype.Struct.double",
        ),
        (Payload::new(Some(Some(f64::NAN))), ""),
    ] {
        let error = json(value).unwrap_err();
        assert!(error.contains("JSON") && error.ends_with(place), "{error:?}, not {place:?}");
    }
    // Other formats can express them.
    let bytes = Payload::new(f64::NAN).encode(Format::Msgpack).unwrap();
    let read = Value::decode(Format::Msgpack, &bytes, &DecodeLimits::default()).unwrap();
    assert!(matches!(read, Value::Float(number) if number.is_nan()), "{read:?}");
}
