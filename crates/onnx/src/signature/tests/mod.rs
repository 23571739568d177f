//! Signatures of models that the tests build field by field.

mod limits;
mod paddings;
mod schemas;

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::proto::{
    DimensionProto, DimensionValue, ElementOfProto, ElementType, GraphProto, MapTypeProto, ModelProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto,
};

/// An axis for the builders below: a number or a name; "" is an axis without either.
#[derive(Clone, Copy, Debug)]
enum Dim {
    Fixed(i64),
    Named(&'static str),
}
use Dim::{Fixed, Named};

fn value(name: &str, elements: ElementType, dims: &[Dim]) -> ValueInfoProto {
    let axis = |dim: &Dim| match dim {
        Fixed(length) => Some(DimensionValue::Value(*length)),
        Named("") => None,
        Named(name) => Some(DimensionValue::Param((*name).to_owned())),
    };
    let dim = dims.iter().map(|dim| DimensionProto { value: axis(dim) }).collect();
    let tensor_type = TensorTypeProto { elem_type: Some(elements as i32), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto { tensor_type: Some(tensor_type), ..TypeProto::default() }),
    }
}

fn model(input: Vec<ValueInfoProto>, output: Vec<ValueInfoProto>) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        producer_name: None,
        graph: Some(GraphProto { input, output, ..GraphProto::default() }),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
    }
}

fn read_model(model: &ModelProto) -> Result<Signature, SignatureError> {
    Signature::try_from_onnx(&model.encode_to_vec())
}

fn signature(input: &[Dim], output: &[Dim]) -> Signature {
    let model = model(vec![value("x", ElementType::Float, input)], vec![value("y", ElementType::Float, output)]);
    read_model(&model).unwrap()
}

#[test]
fn a_signature_has_names_dtypes_and_symbolic_axes() {
    let model = model(
        vec![
            value("ids", ElementType::Int64, &[Named("batch"), Named("sequence")]),
            value("mask", ElementType::Bool, &[Named("batch"), Named("sequence")]),
        ],
        vec![value("scores", ElementType::Float16, &[Named("batch"), Fixed(3)])],
    );
    let signature = read_model(&model).unwrap();
    assert_eq!(
        signature.to_string(),
        "ids: i64 [batch, sequence], mask: bool [batch, sequence] → scores: f16 [batch, 3]"
    );
    assert_eq!(signature.opset(), Some(17));
    assert_eq!(signature.batch_axis(), BatchAxis::Stacked);
    assert_eq!(signature.describe_item(&signature.inputs()[0]), "i64 [sequence]");
}

#[test]
fn a_free_first_axis_is_the_batch_axis() {
    assert_eq!(signature(&[Named("N"), Fixed(4)], &[Named("N")]).batch_axis(), BatchAxis::Stacked);
    assert_eq!(
        signature(&[Named(""), Fixed(4)], &[Named("invented_by_the_exporter")]).batch_axis(),
        BatchAxis::Stacked
    );
    assert_eq!(signature(&[Fixed(-1), Fixed(4)], &[Named("")]).batch_axis(), BatchAxis::Stacked);
}

#[test]
fn other_axes_are_not_a_batch_axis() {
    assert_eq!(signature(&[Fixed(1), Fixed(4)], &[Fixed(1), Fixed(2)]).batch_axis(), BatchAxis::One);
    assert_eq!(signature(&[Fixed(8), Fixed(4)], &[Fixed(8)]).batch_axis(), BatchAxis::Absent);
    assert_eq!(signature(&[Named("N")], &[Fixed(1)]).batch_axis(), BatchAxis::Absent);
    assert_eq!(signature(&[], &[]).batch_axis(), BatchAxis::Absent);
    let overruled = signature(&[Named("length")], &[Named("length")]).without_batch_axis();
    assert_eq!(overruled.batch_axis(), BatchAxis::Absent);
}

#[test]
fn inputs_with_different_first_axes_have_no_batch_axis() {
    let inputs = vec![
        value("query", ElementType::Float, &[Named("q"), Fixed(4)]),
        value("keys", ElementType::Float, &[Named("k"), Fixed(4)]),
    ];
    let outputs = vec![value("scores", ElementType::Float, &[Named("q"), Named("k")])];
    assert_eq!(read_model(&model(inputs, outputs)).unwrap().batch_axis(), BatchAxis::Absent);
}

#[test]
fn weights_listed_as_inputs_are_not_inputs_of_a_call() {
    let x = value("x", ElementType::Float, &[Named("N"), Fixed(4)]);
    let w = value("w", ElementType::Float, &[Fixed(4), Fixed(2)]);
    let mut model = model(vec![x, w], vec![value("y", ElementType::Float, &[Named("N"), Fixed(2)])]);
    let weight = TensorProto { name: Some("w".to_owned()), data_location: None, ..TensorProto::default() };
    model.graph.as_mut().unwrap().initializer.push(weight);
    assert_eq!(read_model(&model).unwrap().inputs().len(), 1);
}

#[test]
fn weights_in_other_files_are_detected() {
    let mut model = model(Vec::new(), vec![value("y", ElementType::Float, &[])]);
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let mut weight = TensorProto {
        external_data: vec![entry("offset", "0"), entry("location", "w.data")],
        ..TensorProto::default()
    };
    model.graph.as_mut().unwrap().initializer.push(weight.clone());
    assert!(read(&model.encode_to_vec()).unwrap().external_files.is_empty(), "its data is in the model");
    weight.data_location = Some(1);
    model.graph.as_mut().unwrap().initializer.push(weight);
    assert!(read(&model.encode_to_vec()).unwrap().external_files.iter().eq(["w.data"]));
}

#[test]
fn a_file_that_is_not_onnx_is_refused() {
    for bytes in [&b"\x89PNG\r\n\x1a\n"[..], b"not a model", &[0xff; 64], b"\x3a\x00\x3a\x00"] {
        let error = Signature::try_from_onnx(bytes).unwrap_err();
        assert!(matches!(error, SignatureError::NotOnnx { .. }), "{error}");
    }
    let error = Signature::try_from_onnx(b"version https://git-lfs.github.com/spec/v1\n").unwrap_err();
    assert!(matches!(error, SignatureError::Foreign { .. }), "{error}");
}

/// A model whose graph has this field many times, each time empty.
fn many(field: u8, count: usize) -> Vec<u8> {
    let graph = [field << 3 | 2, 0].repeat(count);
    let mut file = vec![0x3a];
    prost::encoding::encode_varint(graph.len() as u64, &mut file);
    file.extend(graph);
    file
}

#[test]
fn empty_messages_are_counted_and_not_kept() {
    let read = |field| Signature::try_from_onnx(&many(field, 200_000)).unwrap_err().to_string();
    assert_eq!(read(11), "200000 inputs are more than 1024");
    assert_eq!(read(12), "200000 outputs are more than 1024");
    // Nodes, weights and declared values are none of a signature's business.
    for field in [1, 5, 13, 14, 15] {
        assert_eq!(read(field), SignatureError::NoOutputs.to_string());
    }
}

#[test]
fn more_fields_than_any_model_has_are_refused() {
    let read = |file: &[u8]| Signature::try_from_onnx(file).unwrap_err();
    let most = 1 << 22;
    for field in [1, 5, 11] {
        assert_eq!(read(&many(field, most)), SignatureError::TooManyFields);
    }
    // The graph is a field as well.
    assert_eq!(read(&many(5, most - 1)), SignatureError::NoOutputs);
    let weight = [0x42, 0].repeat(most);
    let mut file = Vec::new();
    for number in [5_u8, 7] {
        let inner = if number == 5 { weight.clone() } else { std::mem::take(&mut file) };
        file.push(number << 3 | 2);
        prost::encoding::encode_varint(inner.len() as u64, &mut file);
        file.extend(inner);
    }
    assert_eq!(read(&file), SignatureError::TooManyFields);
}

#[test]
fn weights_in_more_files_than_any_model_has_are_refused() {
    let weight = |number: usize| TensorProto {
        external_data: vec![StringStringEntryProto { key: Some("location".into()), value: Some(number.to_string()) }],
        data_location: Some(1),
        ..TensorProto::default()
    };
    let mut model = model(Vec::new(), vec![value("y", ElementType::Float, &[])]);
    model.graph.as_mut().unwrap().initializer = (0..=1 << 14).map(weight).collect();
    assert_eq!(read_model(&model).unwrap_err(), SignatureError::TooManyFiles);
    model.graph.as_mut().unwrap().initializer.pop();
    assert!(read_model(&model).is_ok());
}

/// A value of the type that is given.
fn typed(name: &str, r#type: TypeProto) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type) }
}

fn tensor_of(elements: ElementType) -> Option<Box<TypeProto>> {
    value("", elements, &[]).r#type.map(Box::new)
}

#[test]
fn the_outputs_of_a_classifier_are_texts_and_a_list_of_maps() {
    let map = MapTypeProto { key_type: Some(ElementType::Int64 as i32), value_type: tensor_of(ElementType::Float) };
    let map = TypeProto { map_type: Some(Box::new(map)), ..TypeProto::default() };
    let list = TypeProto {
        sequence_type: Some(Box::new(ElementOfProto { elem_type: Some(Box::new(map)) })),
        ..TypeProto::default()
    };
    let optional = TypeProto {
        optional_type: Some(Box::new(ElementOfProto { elem_type: tensor_of(ElementType::Float) })),
        ..TypeProto::default()
    };
    let input = value("x", ElementType::String, &[Named("N"), Fixed(2)]);
    let label = value("label", ElementType::String, &[Named("N")]);
    let model = model(vec![input], vec![label, typed("scores", list), typed("more", optional)]);
    let signature = read_model(&model).unwrap();
    assert_eq!(signature.to_string(), "x: text [N, 2] → label: text [N], scores: list of map to f32, more: f32 []");
}

#[test]
fn a_list_of_maps_may_have_a_part_per_item_and_a_list_of_tensors_has_not() {
    let classifier = |element: Kind| {
        let spec = |name: &str, kind, shape| TensorSpec { name: name.to_owned(), kind, shape };
        let x = spec("x", Kind::Numbers(DType::F32), Some(vec![Axis::Any, Axis::Fixed(4)]));
        BatchAxis::infer(&[x], &[spec("y", Kind::Sequence(Box::new(element)), None)])
    };
    let number = Kind::Numbers(DType::F32);
    assert_eq!(classifier(Kind::Map(Box::new(number.clone()))), BatchAxis::Stacked);
    assert_eq!(classifier(number), BatchAxis::Absent);
}

#[test]
fn a_type_nested_deeper_than_any_model_needs_is_refused() {
    let list = |element| TypeProto {
        sequence_type: Some(Box::new(ElementOfProto { elem_type: Some(Box::new(element)) })),
        ..TypeProto::default()
    };
    for depth in [4, 50, 200, 500] {
        let deep = (0..depth).fold(TypeProto::default(), |inner, _| list(inner));
        let file = std::thread::Builder::new().stack_size(64 << 20);
        let deep =
            file.spawn(move || model(Vec::new(), vec![typed("y", deep)]).encode_to_vec()).unwrap().join().unwrap();
        Signature::try_from_onnx(&deep).unwrap_err();
    }
}

#[test]
fn an_input_or_output_that_no_client_can_send_or_read_is_refused_by_name() {
    let sparse = typed("sparse", TypeProto::default());
    let error = read_model(&model(Vec::new(), vec![sparse])).unwrap_err();
    assert_eq!(error.to_string(), "output `sparse` is no tensor, sequence or map");

    let mut complex = value("x", ElementType::Float, &[Named("N")]);
    let tensor = complex.r#type.as_mut().and_then(|declared| declared.tensor_type.as_mut()).unwrap();
    tensor.elem_type = Some(14);
    let error = read_model(&model(vec![complex], vec![value("y", ElementType::Float, &[])])).unwrap_err();
    assert_eq!(error.to_string(), "input `x` has elements of an unsupported type (ONNX code 14)");

    let error = read_model(&model(Vec::new(), Vec::new())).unwrap_err();
    assert_eq!(error, SignatureError::NoOutputs);
}

#[test]
fn excessive_counts_are_refused() {
    let y = || value("y", ElementType::Float, &[]);
    let deep = value("deep", ElementType::Float, &[Fixed(1); 33]);
    let error = read_model(&model(vec![deep], vec![y()])).unwrap_err();
    assert_eq!(error.to_string(), "input `deep` has 33 axes, more than 32");

    let error = read_model(&model(Vec::new(), vec![y(); 1025])).unwrap_err();
    assert_eq!(error.to_string(), "1025 outputs are more than 1024");

    let long_name = value(&"n".repeat(513), ElementType::Float, &[]);
    let error = read_model(&model(vec![long_name], vec![y()])).unwrap_err();
    assert_eq!(error.to_string(), "an input has no usable name");
}

#[test]
fn the_schema_of_one_input_accepts_it_bare_or_named() {
    let schema =
        signature(&[Named("N"), Fixed(2), Named("width")], &[Named("N"), Fixed(3)]).input_type().schema().clone();
    let value_schema = &schema["anyOf"][0];
    assert_eq!(value_schema["description"], "`x`: f32 [2, width]");
    assert_eq!((&value_schema["minItems"], &value_schema["maxItems"]), (&2.into(), &2.into()));
    assert_eq!(value_schema["items"]["items"]["type"], "number");
    assert!(value_schema["items"].get("maxItems").is_none());
    let map_schema = &schema["anyOf"][1];
    assert_eq!(map_schema["required"][0], "x");
    assert_eq!(&map_schema["properties"]["x"], value_schema);
}

#[test]
fn the_schema_of_several_outputs_is_an_object() {
    let outputs =
        vec![value("label", ElementType::Int64, &[Named("N")]), value("is_sure", ElementType::Bool, &[Named("N")])];
    let model = model(vec![value("x", ElementType::Uint8, &[Named("N"), Fixed(4)])], outputs);
    let signature = read_model(&model).unwrap();
    let output = signature.output_type().schema().clone();
    assert_eq!(output["properties"]["label"]["type"], "integer");
    assert_eq!(output["properties"]["is_sure"]["type"], "boolean");
    assert_eq!(signature.input_type().schema()["anyOf"][0]["items"]["maximum"], 255);
}

proptest! {
    /// The reader that skips and the decoder of the same messages agree.
    #[test]
    fn a_signature_is_that_of_the_decoded_messages(
        names in prop::collection::vec("[a-c]{1,2}", 0..5),
        axes in prop::collection::vec(prop_oneof![(-2_i64..9).prop_map(Fixed), Just(Named("N")), Just(Named(""))], 0..4),
        weights in prop::collection::vec("[a-c]{1,2}", 0..5),
    ) {
        let inputs: Vec<_> = names.iter().map(|name| value(name, ElementType::Int64, &axes)).collect();
        let mut model = model(inputs, vec![value("y", ElementType::Bool, &axes)]);
        let weight = |name: &String| TensorProto { name: Some(name.clone()), dims: vec![3], ..TensorProto::default() };
        model.graph.as_mut().unwrap().initializer = weights.iter().map(weight).collect();
        let signature = read_model(&model).unwrap();
        let read: Vec<&str> = signature.inputs().iter().map(TensorSpec::name).collect();
        let expected: Vec<&String> = names.iter().filter(|name| !weights.contains(name)).collect();
        prop_assert_eq!(read, expected);
        let axis = |dim: &Dim| match dim {
            Fixed(length) => usize::try_from(*length).map_or(Axis::Any, Axis::Fixed),
            Named("") => Axis::Any,
            Named(name) => Axis::Named((*name).to_owned()),
        };
        let expected: Vec<Axis> = axes.iter().map(axis).collect();
        prop_assert!(signature.inputs().iter().chain(signature.outputs()).all(|spec| spec.shape() == Some(&expected)));
    }

    #[test]
    fn arbitrary_bytes_give_a_signature_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = Signature::try_from_onnx(&bytes);
    }

    #[test]
    fn a_damaged_file_gives_a_signature_or_an_error(
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        is_truncated in any::<bool>(),
    ) {
        let inputs = vec![value("ids", ElementType::Int64, &[Named("batch"), Fixed(8)])];
        let mut bytes = model(inputs, vec![value("y", ElementType::Float, &[Named("batch")])]).encode_to_vec();
        let position = position.index(bytes.len());
        bytes[position] = byte;
        if is_truncated {
            bytes.truncate(position);
        }
        let _ = Signature::try_from_onnx(&bytes);
    }
}
