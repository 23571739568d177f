//! The largest signature that is read, and the smallest that is not.

use super::*;

fn with_output(output: ValueInfoProto) -> Result<Signature, SignatureError> {
    read_model(&model(Vec::new(), vec![output]))
}

#[test]
fn as_many_tensors_as_the_limit_are_read() {
    let y = || value("y", ElementType::Float, &[]);
    let inputs =
        |count: usize| (0..count).map(|number| value(&format!("x{number}"), ElementType::Float, &[])).collect();
    assert_eq!(read_model(&model(inputs(1024), vec![y()])).unwrap().inputs().len(), 1024);
    let error = read_model(&model(inputs(1025), vec![y()])).unwrap_err();
    assert_eq!(error, SignatureError::TooManyTensors { role: "input", count: 1025 });
    assert_eq!(read_model(&model(Vec::new(), vec![y(); 1024])).unwrap().outputs().len(), 1024);
}

/// Inputs beyond as many as are kept count as well. Old files list weights among them.
#[test]
fn weights_among_the_inputs_do_not_count_up_to_their_own_limit() {
    let (most, names) = (1 << 14, |count: usize| (0..count).map(|number| format!("w{number}")));
    let read = |inputs: usize| {
        let inputs = names(inputs).map(|name| value(&name, ElementType::Float, &[])).collect();
        let mut model = model(inputs, vec![value("y", ElementType::Float, &[])]);
        let weight = |name: String| TensorProto { name: Some(name), ..TensorProto::default() };
        model.graph.as_mut().unwrap().initializer = names(most + 2_000).map(weight).collect();
        read_model(&model)
    };
    assert_eq!(read(most).unwrap().inputs().len(), 0);
    assert_eq!(read(most + 1_024).unwrap().inputs().len(), 0, "the others are not looked at");
    let error = read(most + 1_025).unwrap_err();
    assert_eq!(error, SignatureError::TooManyTensors { role: "input", count: 1_025 });
}

#[test]
fn names_and_axes_have_a_length() {
    let long = |bytes: usize| "n".repeat(bytes);
    assert_eq!(with_output(value(&long(512), ElementType::Float, &[])).unwrap().outputs()[0].name().len(), 512);
    for name in [String::new(), long(513)] {
        let error = with_output(value(&name, ElementType::Float, &[])).unwrap_err();
        assert_eq!(error, SignatureError::BadName { role: "output" });
    }
    let deepest = with_output(value("y", ElementType::Float, &[Fixed(1); 32])).unwrap();
    assert_eq!(deepest.outputs()[0].shape().unwrap().len(), 32);
    let axis = |bytes: usize| {
        let read = with_output(value("y", ElementType::Float, &[Named(long(bytes).leak())])).unwrap();
        read.outputs()[0].shape().unwrap()[0].clone()
    };
    assert_eq!((axis(512), axis(513)), (Axis::Named(long(512)), Axis::Any));
}

#[test]
fn lists_in_lists_are_read_to_their_depth() {
    let list = |inner: TypeProto| TypeProto {
        sequence_type: Some(Box::new(ElementOfProto { elem_type: Some(Box::new(inner)) })),
        ..TypeProto::default()
    };
    let nested = |depth: usize| {
        let element = *tensor_of(ElementType::Float).unwrap();
        with_output(typed("y", (0..depth).fold(element, |inner, _| list(inner))))
    };
    assert_eq!(nested(3).unwrap().to_string(), " → y: list of list of list of f32");
    let error = nested(4).unwrap_err();
    assert_eq!(error, SignatureError::NotATensor { role: "output", name: "y".to_owned() });
}

#[test]
fn a_type_without_its_element_is_no_value() {
    let sequence =
        |elem_type| TypeProto { sequence_type: Some(Box::new(ElementOfProto { elem_type })), ..TypeProto::default() };
    let map = |value_type| TypeProto {
        map_type: Some(Box::new(MapTypeProto { key_type: Some(ElementType::Int64 as i32), value_type })),
        ..TypeProto::default()
    };
    let optional =
        |elem_type| TypeProto { optional_type: Some(Box::new(ElementOfProto { elem_type })), ..TypeProto::default() };
    let number = || tensor_of(ElementType::Float);
    for empty in [sequence(None), map(None), optional(None), optional(Some(Box::new(optional(number()))))] {
        assert!(matches!(with_output(typed("y", empty)), Err(SignatureError::NotATensor { .. })));
    }
    let shown = |declared| with_output(typed("y", declared)).unwrap().to_string();
    assert_eq!(shown(map(number())), " → y: map to f32");
    assert_eq!(shown(sequence(Some(Box::new(optional(number()))))), " → y: list of f32");
    assert_eq!(shown(optional(Some(Box::new(sequence(number()))))), " → y: list of f32");
}

#[test]
fn the_operators_of_other_domains_have_versions_of_their_own() {
    let opset = |sets: &[(Option<&str>, i64)]| {
        let mut model = model(Vec::new(), vec![value("y", ElementType::Float, &[])]);
        let set = |(domain, version): &(Option<&str>, i64)| OperatorSetIdProto {
            domain: domain.map(str::to_owned),
            version: Some(*version),
        };
        model.opset_import = sets.iter().map(set).collect();
        read_model(&model).unwrap().opset()
    };
    assert_eq!(opset(&[(Some("com.microsoft"), 1), (Some("ai.onnx"), 12), (None, 13)]), Some(12));
    assert_eq!([opset(&[(Some(""), 9)]), opset(&[(Some("ai.onnx.ml"), 3)]), opset(&[])], [Some(9), None, None]);
}
