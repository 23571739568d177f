//! Which items share a run, what is made for them, and what they cost.

use callboard_codec::{Map, StrTensor, Tensor};

use super::*;
use crate::config::{PadAxis, PadConfig};

fn config() -> PadConfig {
    PadConfig::new(PadAxis::Name("length".to_owned()))
}

fn padded(
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    config: &PadConfig,
) -> Result<Signature, PadError> {
    read_model(&model(inputs, outputs)).unwrap().with_padding(config)
}

/// `ids` of any length, with two numbers each, and `more` without axes that are declared.
fn two_inputs(config: &PadConfig) -> Signature {
    let ids = value("ids", ElementType::Int64, &[Named("N"), Named("length"), Named("width")]);
    let more = value("more", ElementType::Int64, &[Named("N"), Named("other")]);
    let outputs = ["each", "all"].map(|name| {
        let axes = if name == "each" { &[Named("N"), Named("length")][..] } else { &[Named("N"), Fixed(3)] };
        value(name, ElementType::Float, axes)
    });
    padded(vec![ids, more], outputs.to_vec(), config).unwrap()
}

fn zeros(shape: &[usize]) -> Value {
    Value::Tensor(Tensor::from_vec(shape, vec![0_i64; shape.iter().product()]).unwrap())
}

#[test]
fn items_share_a_run_if_they_differ_in_the_padded_axis_only() {
    let signature = two_inputs(&config());
    let padding = signature.padding().unwrap();
    let share = |first: [&[usize]; 2], second: [&[usize]; 2]| {
        let [a, b] = [first, second].map(|shapes| shapes.map(zeros));
        assert_eq!(padding.share_run(&a, &b), padding.share_run(&b, &a));
        padding.share_run(&a, &b)
    };
    assert!(share([&[5, 2], &[4]], [&[5, 2], &[4]]));
    assert!(share([&[5, 2], &[4]], [&[7, 2], &[4]]));
    assert!(!share([&[5, 2], &[4]], [&[5, 3], &[4]]));
    assert!(!share([&[5, 2], &[4]], [&[5, 2], &[5]]), "another input");
    assert!(!share([&[5, 2], &[4]], [&[5, 2], &[4, 1]]), "of another number of axes");
    let beside = |more: Value| [zeros(&[5, 2]), more];
    let list = || Value::List(vec![zeros(&[1])]);
    assert!(padding.share_run(&beside(list()), &beside(list())), "what has no axes is as long as the like");
    assert!(!padding.share_run(&beside(list()), &beside(zeros(&[4]))));
    let texts = |count: usize| Value::StrTensor(StrTensor::from_texts(&[count], vec!["a"; count]).unwrap());
    assert!(padding.share_run(&beside(texts(2)), &beside(texts(2))));
    assert!(!padding.share_run(&beside(texts(2)), &beside(texts(3))));
}

#[test]
fn items_of_one_bucket_share_a_run() {
    let buckets = PadConfig { buckets: vec![4, 8], ..config() };
    let signature = two_inputs(&buckets);
    let padding = signature.padding().unwrap();
    let share = |a: usize, b: usize| padding.share_run(&[zeros(&[a, 2]), zeros(&[1])], &[zeros(&[b, 2]), zeros(&[1])]);
    assert!(share(1, 4) && share(5, 8) && !share(4, 5));
    assert_eq!(
        [padding.bucket(4), padding.bucket(5), padding.bucket(8), padding.bucket(9)],
        [Some(4), Some(8), Some(8), None]
    );
    assert_eq!((padding.max_length(), two_inputs(&config()).padding().unwrap().max_length()), (Some(8), None));
}

#[test]
fn outputs_with_the_axis_are_cropped_and_others_are_not() {
    let signature = two_inputs(&config());
    let padding = signature.padding().unwrap();
    assert!(padding.crops(0) && !padding.crops(1));
    let cropped = padding.crop(0, zeros(&[7]), 5, 7).unwrap();
    assert_eq!(shape_of(&cropped), Some(&[5][..]));
    assert!(padding.crop(0, zeros(&[6]), 5, 7).is_err());
}

#[test]
fn texts_have_no_number_to_be_padded_with() {
    let ids = || vec![value("ids", ElementType::Int64, &[Named("N"), Named("length")])];
    let refused = |inputs, output| match padded(inputs, vec![output], &config()) {
        Err(PadError::Texts { tensor }) => Some(tensor),
        Ok(_) => None,
        Err(error) => panic!("{error}"),
    };
    let texts = |name: &str, axis| value(name, ElementType::String, &[Named("N"), axis]);
    assert_eq!(refused(ids(), texts("words", Named("length"))).as_deref(), Some("words"));
    assert_eq!(refused(ids(), texts("words", Fixed(2))), None);
    let number = value("y", ElementType::Float, &[Named("N")]);
    assert_eq!(refused(vec![texts("words", Named("length"))], number).as_deref(), Some("words"));
}

#[test]
fn a_mask_is_as_long_as_its_item_and_has_the_other_axes_of_the_model() {
    let inputs = |axes: &[Dim]| {
        vec![value("ids", ElementType::Int64, &[Named("N"), Named("length")]), value("mask", ElementType::Bool, axes)]
    };
    let output = || vec![value("y", ElementType::Float, &[Named("N")])];
    let masked = PadConfig { mask: Some("mask".to_owned()), ..config() };
    let signature = padded(inputs(&[Named("N"), Fixed(2), Named("length")]), output(), &masked).unwrap();
    let padding = signature.padding().unwrap();
    assert_eq!(padding.mask(), Some(1));
    assert_eq!(padding.make_mask(3), Some(Tensor::from_vec(&[2, 3], vec![true; 6]).unwrap()));
    assert_eq!(padding.make_mask(0).unwrap().shape(), [2, 0]);
    let (false_, true_) =
        (Tensor::from_vec(&[1, 1], vec![false]).unwrap(), Tensor::from_vec(&[1, 1], vec![true]).unwrap());
    let stacked = padding.stack(1, &[&true_, &false_], 2).unwrap().unwrap();
    assert_eq!(stacked.as_slice::<bool>().unwrap(), [true, false, false, false], "the mask of padding is false");
    let error = padded(inputs(&[Named("N"), Named("other"), Named("length")]), output(), &masked).unwrap_err();
    assert_eq!(error, PadError::MaskAxes { mask: "mask".to_owned(), axis: config().axis });
}

/// Before it is read: nested lists, or a tensor as a map, alone or by name.
#[test]
fn an_item_costs_its_length_in_whatever_form_it_comes() {
    let ids = vec![value("ids", ElementType::Int64, &[Named("N"), Named("length"), Fixed(2)])];
    let output = vec![value("y", ElementType::Float, &[Named("N")])];
    let signature = padded(ids, output, &config()).unwrap();
    let cost = |item: Value| signature.padding().unwrap().cost(&signature, &item);
    let list = |lengths: &[usize]| {
        let rows = |length: &usize, inner: Value| Value::List(vec![inner; *length]);
        lengths.iter().rev().fold(Value::from(1), |inner, length| rows(length, inner))
    };
    let by_name = |value: Value| Value::Map(Map::from_iter([("ids".to_owned(), value)]));
    assert_eq!([cost(zeros(&[5, 2])), cost(by_name(zeros(&[5, 2])))], [5, 5]);
    assert_eq!([cost(list(&[5, 2])), cost(by_name(list(&[5, 2])))], [5, 5]);
    assert_eq!([cost(zeros(&[1, 5, 2])), cost(list(&[1, 5, 2]))], [5, 5], "with a batch axis");
    assert_eq!([cost(zeros(&[2, 5, 2])), cost(zeros(&[1, 2]))], [2, 1], "with another axis that is not one");
    let shape = Value::List(vec![Value::from(6), Value::from(2)]);
    let as_map = Map::from_iter([("data".to_owned(), Value::Null), ("shape".to_owned(), shape)]);
    assert_eq!([cost(Value::Map(as_map.clone())), cost(by_name(Value::Map(as_map)))], [6, 6]);
    assert_eq!([cost(Value::Null), cost(zeros(&[]))], [1, 1]);

    let signature = two_inputs(&config());
    let cost = |item: Value| signature.padding().unwrap().cost(&signature, &item);
    let both = Map::from_iter([("more".to_owned(), zeros(&[9])), ("ids".to_owned(), zeros(&[5, 2]))]);
    assert_eq!((cost(Value::Map(both)), cost(zeros(&[5, 2]))), (5, 1), "of several inputs by name only");
    assert_eq!(cost(Value::Map(Map::from_iter([("more".to_owned(), zeros(&[9]))]))), 1);
}
