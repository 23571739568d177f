//! Frames built here: through bytes and back, in parts, and refused.

use std::sync::Arc;

use ::serde::{Deserialize as De, Serialize as Ser};
use arrow_array::builder::StringViewBuilder;
use arrow_array::types::Int32Type;
use arrow_array::{DictionaryArray, Int64Array, RecordBatch, StringArray, record_batch};

use super::*;
use crate::{DecodeErrorKind, DecodeLimits, Format, Tensor, Value};

fn frame() -> DataFrame {
    let batch = record_batch!(
        ("id", Int64, [1, 2, 3]),
        ("name", Utf8, [Some("a"), None, Some("ß")]),
        ("x", Float32, [0.1, -0.0, 1e30])
    );
    batch.unwrap().into()
}

#[test]
fn joins_and_cuts_without_a_copy() {
    let frame = frame();
    let joined = DataFrame::concat(&[&frame, &frame]).unwrap();
    assert_eq!((joined.num_rows(), joined.batches().len()), (6, 2));
    let parts = joined.split_rows(&[2, 0, 4]).unwrap();
    assert_eq!(parts.iter().map(DataFrame::num_rows).collect::<Vec<_>>(), [2, 0, 4]);
    assert_eq!(DataFrame::concat(&parts.iter().collect::<Vec<_>>()).unwrap(), joined);
    let address = |frame: &DataFrame| {
        let column = frame.batches()[0].column(0).to_data();
        column.buffers()[0].as_ptr()
    };
    assert_eq!(address(&parts[0]), address(&frame));
    assert!(matches!(joined.split_rows(&[usize::MAX, 7]), Err(DataFrameError::WrongParts { actual: 6, .. })));
}

#[test]
fn joining_names_the_frame_that_does_not_fit() {
    let other = DataFrame::from(record_batch!(("id", Int32, [1])).unwrap());
    let error = DataFrame::concat(&[&other, &other, &frame()]).unwrap_err();
    assert!(matches!(error, DataFrameError::Mismatch { index: 2, .. }));
    assert_eq!(
        error.to_string(),
        "item 2 has the columns [id: Int64, name: Utf8, x: Float32], others have [id: Int32]"
    );
    assert!(matches!(DataFrame::concat(&[]), Err(DataFrameError::NothingToJoin)));
    let joined = DataFrame::concat_matching(&[&other, &frame(), &frame()]).unwrap();
    assert_eq!(joined.whole.num_rows(), 6);
    let [Err(DataFrameError::Mismatch { index: 0, .. }), Ok(0), Ok(1)] = &joined.items[..] else {
        panic!("{:?}", joined.items)
    };
    assert!(matches!(DataFrame::concat_matching(&[]), Err(DataFrameError::NothingToJoin)));
}

#[test]
fn equal_rows_are_equal_in_any_batches() {
    let frame = frame();
    assert_eq!(DataFrame::concat(&[&frame.slice(0, 1), &frame.slice(1, 2)]).unwrap(), frame);
    assert_ne!(frame.slice(0, 2), frame.slice(1, 2));
}

#[test]
fn json_has_a_list_for_each_column() {
    let text = Value::from(frame()).encode(Format::Json).unwrap();
    assert_eq!(text, r#"{"id":[1,2,3],"name":["a",null,"ß"],"x":[0.1,-0.0,1e+30]}"#);
    let back = Value::decode(Format::Json, &text, &DecodeLimits::default()).unwrap();
    let back = DataFrame::from_value(&back).unwrap();
    assert_eq!((back.num_rows(), shown(back.schema())), (3, "[id: Int64, name: Utf8, x: Float64]".to_owned()));
}

#[test]
fn a_type_may_contain_frames_and_series() {
    #[derive(Debug, PartialEq, Ser, De)]
    struct Input {
        table: DataFrame,
        column: Series,
    }
    let column = Series::try_new("s", vec![Arc::new(Int64Array::from(vec![1, 2]))]).unwrap();
    let input = Input { table: frame(), column };
    let value = Value::from_serialize(&input).unwrap();
    assert_eq!(value.get("table").and_then(Value::as_data_frame), Some(&input.table));
    assert_eq!(value.deserialize::<Input>().unwrap(), input);
    let bytes = rmp_serde::to_vec_named(&input).unwrap();
    assert_eq!(rmp_serde::from_slice::<Input>(&bytes).unwrap(), input);
    let json: Input =
        serde_json::from_str(r#"{"table": {"a": [1, null], "b": ["x", "y"]}, "column": [true]}"#).unwrap();
    assert_eq!((json.table.num_rows(), json.column.len()), (2, 1));
}

#[test]
fn a_type_without_frames_reads_columns() {
    #[derive(De)]
    struct Columns {
        id: Vec<i64>,
        name: Vec<Option<String>>,
    }
    let columns: Columns = Value::from(frame()).deserialize().unwrap();
    assert_eq!((columns.id, columns.name[1].as_deref()), (vec![1, 2, 3], None));
}

#[test]
fn tensors_are_columns_without_a_copy() {
    let tensor = Tensor::from_array(ndarray::array![1.0_f64, 2.0]);
    let map = crate::Map::from_iter([("x", Value::from(tensor.clone()))]);
    let frame = DataFrame::from_value(&map.into()).unwrap();
    assert_eq!(frame.batches()[0].column(0).to_data().buffers()[0].as_ptr(), tensor.data().as_ptr());
}

#[test]
fn columns_that_do_not_fit_are_named() {
    let error = |json: &'static str| {
        let value = Value::decode(Format::Json, &json.into(), &DecodeLimits::default()).unwrap();
        let error = DataFrame::from_value(&value).unwrap_err();
        assert_eq!(error.kind(), DecodeErrorKind::Mismatch);
        error.to_string()
    };
    assert_eq!(error(r#"{"a": [1, "x"]}"#), "str does not fit the cells before at $.a[1]");
    assert_eq!(error(r#"{"a": [1], "b": [1, 2]}"#), "a column of 2 cells where others have 1 at $.b");
    assert_eq!(error("[1]"), "list is not a data frame: send a map of columns");
}

#[test]
fn dictionaries_and_batches_round_trip_through_a_stream_and_a_file() {
    let words: DictionaryArray<Int32Type> = ["x", "y", "x"].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)]).unwrap();
    let other: DictionaryArray<Int32Type> = ["z", "z"].into_iter().collect();
    let other = RecordBatch::try_new(batch.schema(), vec![Arc::new(other)]).unwrap();
    let frame = DataFrame::try_new(batch.schema(), vec![batch.clone(), other]).unwrap();
    let bytes = Value::from(frame.clone()).encode(Format::ArrowStream).unwrap();
    let back = Value::decode(Format::ArrowStream, &bytes, &DecodeLimits::default()).unwrap();
    let back = back.as_data_frame().unwrap();
    assert_eq!(back.batches().len(), 2);
    let cells = |frame: &DataFrame| frame.to_columns().unwrap();
    assert_eq!(cells(back), cells(&frame));
    let single = DataFrame::from(batch);
    let bytes = Value::from(single.clone()).encode(Format::ArrowFile).unwrap();
    assert_eq!(Value::decode(Format::ArrowFile, &bytes, &DecodeLimits::default()).unwrap(), single.into());
}

#[test]
fn columns_after_views_have_their_own_buffers() {
    let views = |blocks: u32| {
        let mut views = StringViewBuilder::new();
        for _ in 0..blocks {
            let block = views.append_block(b"thirteen byte".into());
            views.try_append_view(block, 0, 13).unwrap();
        }
        (blocks..3).for_each(|_| views.append_value("short"));
        Arc::new(views.finish()) as ArrayRef
    };
    let numbers = || Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef;
    let columns = [("a", views(1)), ("b", numbers()), ("c", views(3)), ("d", numbers())];
    let frame = Value::from(DataFrame::from(RecordBatch::try_from_iter(columns).unwrap()));
    let bytes = frame.encode(Format::ArrowStream).unwrap();
    assert_eq!(Value::decode(Format::ArrowStream, &bytes, &DecodeLimits::default()).unwrap(), frame);
}

#[test]
fn unions_are_refused_when_encoded() {
    let fields =
        arrow_schema::UnionFields::try_new([0], [Field::new("i", arrow_schema::DataType::Int32, true)]).unwrap();
    let union = arrow_schema::DataType::Union(fields, arrow_schema::UnionMode::Sparse);
    let schema = Arc::new(Schema::new(vec![Field::new("u", union, true)]));
    let error = Value::from(DataFrame::try_new(schema, vec![]).unwrap()).encode(Format::ArrowStream).unwrap_err();
    assert_eq!(error.path(), "$.u");
}

#[test]
fn a_series_keeps_its_name_and_chunks() {
    let chunk = |texts: &[&str]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let series = Series::try_new("s", vec![chunk(&["a"]), chunk(&[]), chunk(&["b", "c"])]).unwrap();
    let bytes = Value::from(series.clone()).encode(Format::Msgpack).unwrap();
    let back = Value::decode(Format::Msgpack, &bytes, &DecodeLimits::default()).unwrap();
    assert_eq!(back.as_series().map(Series::name), Some("s"));
    assert_eq!(back, series.into());
}
