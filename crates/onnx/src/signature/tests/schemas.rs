//! The schemas and the fields of items.

use serde_json::{Value as Json, json};

use super::*;

#[test]
fn the_schema_of_a_number_has_its_type_and_its_bounds() {
    let integer = |format: &str, min: i64, max: u64| json!({ "type": "integer", "format": format, "minimum": min, "maximum": max });
    let float = |format: &str| json!({ "type": "number", "format": format });
    for (elements, expected) in [
        (ElementType::Bool, json!({ "type": "boolean" })),
        (ElementType::String, json!({ "type": "string" })),
        (ElementType::Int8, integer("int8", -128, 127)),
        (ElementType::Int16, integer("int16", -32_768, 32_767)),
        (ElementType::Int32, integer("int32", i32::MIN.into(), 2_147_483_647)),
        (ElementType::Int64, integer("int64", i64::MIN, 9_223_372_036_854_775_807)),
        (ElementType::Uint8, integer("uint8", 0, 255)),
        (ElementType::Uint16, integer("uint16", 0, 65_535)),
        (ElementType::Uint32, integer("uint32", 0, 4_294_967_295)),
        (ElementType::Uint64, integer("uint64", 0, u64::MAX)),
        (ElementType::Float16, float("float16")),
        (ElementType::Bfloat16, float("bfloat16")),
        (ElementType::Float, float("float")),
        (ElementType::Double, float("double")),
    ] {
        let model = model(vec![value("x", elements, &[Named("N")])], vec![value("y", elements, &[Named("N")])]);
        let mut schema = read_model(&model).unwrap().output_type().schema().clone();
        schema.as_object_mut().unwrap().remove("description");
        assert_eq!(schema, expected);
    }
}

fn output_of(kind: Kind, input: &[Dim]) -> Json {
    let mut signature = signature(input, &input[..1]);
    signature.outputs[0] = TensorSpec { name: "y".to_owned(), kind, shape: None };
    signature.output_type().schema().clone()
}

#[test]
fn an_item_of_a_list_of_maps_is_a_map_where_items_are_batched() {
    let maps = || Kind::Sequence(Box::new(Kind::Map(Box::new(Kind::Numbers(DType::F64)))));
    let map = json!({ "type": "object", "additionalProperties": { "type": "number", "format": "double" } });
    for batched in [Named("N"), Fixed(1)] {
        let schema = output_of(maps(), &[batched, Fixed(4)]);
        assert_eq!((&schema["type"], &schema["additionalProperties"]), (&map["type"], &map["additionalProperties"]));
        assert_eq!(schema["description"], "`y`: list of map to f64");
    }
    let whole = output_of(maps(), &[Fixed(3), Fixed(4)]);
    assert_eq!((&whole["type"], &whole["items"]), (&json!("array"), &map));
}

#[test]
fn a_tensor_of_any_shape_has_no_schema_but_its_words() {
    let number = || Kind::Numbers(DType::F32);
    assert_eq!(output_of(number(), &[Named("N")]), json!({ "description": "`y`: f32 of any shape" }));
    let list = output_of(Kind::Sequence(Box::new(number())), &[Fixed(3)]);
    assert_eq!((&list["type"], &list["items"]), (&json!("array"), &json!({})));
}

#[test]
fn the_fields_of_an_item_are_those_of_a_model_of_tensors_only() {
    let fields = |input: &[Dim]| signature(input, &[Named("N"), Fixed(2)]).input_type().tensors().cloned();
    let expected = |shape: &[Option<usize>], stackable| {
        let (name, dtype, shape) = ("x".to_owned(), Some(DType::F32), Some(shape.to_vec()));
        Some(TensorFields { fields: vec![TensorField { name, dtype, shape, is_required: true }], stackable })
    };
    assert_eq!(fields(&[Named("N"), Fixed(4), Named("w"), Named("")]), expected(&[Some(4), None, None], true));
    assert_eq!(fields(&[Fixed(3), Fixed(4)]), expected(&[Some(3), Some(4)], false));
    let mut signature = signature(&[Named("N")], &[Named("N")]);
    assert!(signature.output_type().tensors().is_some());
    signature.outputs[0].kind = Kind::Sequence(Box::new(Kind::Texts));
    assert!(signature.output_type().tensors().is_none());
    signature.outputs[0].kind = Kind::Texts;
    assert!(signature.output_type().tensors().is_some_and(|tensors| tensors.fields[0].dtype.is_none()));
}

#[test]
fn items_vary_where_an_axis_is_free_and_stack_where_the_first_one_is() {
    let both = |input: &[Dim]| {
        let signature = signature(input, &[Named("N")]);
        (signature.items_vary(), signature.default_max_batch_size())
    };
    assert_eq!(both(&[Named("N"), Fixed(4)]), (false, 32));
    assert_eq!(both(&[Named("N"), Named("length")]), (true, 32));
    assert_eq!(both(&[Fixed(4), Named("")]), (true, 1));
    let whole = signature(&[Named("N"), Fixed(4)], &[Named("N")]).without_batch_axis();
    assert_eq!((whole.items_vary(), whole.default_max_batch_size()), (true, 1), "the axis of the batch is its own");
    let mut open = signature(&[Named("N"), Fixed(4)], &[Named("N")]);
    open.inputs[0].shape = None;
    assert!(open.items_vary());
}
