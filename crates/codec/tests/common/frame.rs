//! Strategies that make frames and series of every family of column types, in any batches, nulls included.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int8Array, Int64Array, LargeStringArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
    TimestampMicrosecondArray, UInt64Array,
};
use arrow_schema::{Field, Schema};
use callboard_codec::{DataFrame, Series};
use proptest::prelude::*;

type Cells = Vec<Option<i64>>;

/// One column of each family, made of numbers and nulls.
const MAKERS: [fn(&Cells) -> ArrayRef; 14] = [
    |cells| Arc::new(cells.iter().copied().collect::<Int64Array>()),
    |cells| Arc::new(cells.iter().map(|cell| cell.map(|n| n as i8)).collect::<Int8Array>()),
    |cells| Arc::new(cells.iter().map(|cell| cell.map(i64::cast_unsigned)).collect::<UInt64Array>()),
    |cells| Arc::new(cells.iter().map(|cell| cell.map(|n| n as f32)).collect::<Float32Array>()),
    |cells| Arc::new(cells.iter().map(|cell| cell.map(|n| n as f64 / 7.0)).collect::<Float64Array>()),
    |cells| Arc::new(cells.iter().map(|cell| cell.map(|n| n % 2 == 0)).collect::<BooleanArray>()),
    |cells| Arc::new(texts(cells).collect::<StringArray>()),
    |cells| Arc::new(texts(cells).collect::<LargeStringArray>()),
    |cells| Arc::new(cells.iter().map(|cell| cell.map(i64::to_le_bytes)).collect::<BinaryArray>()),
    |cells| {
        let times: TimestampMicrosecondArray = cells.iter().copied().collect();
        Arc::new(times.with_timezone("Europe/Berlin"))
    },
    |cells| Arc::new(cells.iter().map(|cell| cell.map(|n| n as i32)).collect::<Date32Array>()),
    |cells| {
        let numbers: Decimal128Array = cells.iter().map(|cell| cell.map(i128::from)).collect();
        Arc::new(numbers.with_precision_and_scale(30, 2).expect("fits"))
    },
    |cells| {
        let words: Vec<Option<String>> = texts(cells).collect();
        Arc::new(words.iter().map(Option::as_deref).collect::<DictionaryArray<Int32Type>>())
    },
    |cells| {
        let mut lists = ListBuilder::new(Int64Builder::new());
        for cell in cells {
            match cell {
                Some(n) => lists.append_value((0..n.rem_euclid(4)).map(Some)),
                None => lists.append_null(),
            }
        }
        Arc::new(lists.finish())
    },
];

fn texts(cells: &Cells) -> impl Iterator<Item = Option<String>> {
    cells.iter().map(|cell| cell.map(|n| format!("ß {}", n % 5)))
}

fn column(maker: usize, cells: &Cells) -> ArrayRef {
    MAKERS[maker](cells)
}

/// A few columns, the last inside a struct, with few or no rows, in one to three batches.
pub(crate) fn frame() -> impl Strategy<Value = DataFrame> {
    let makers = proptest::collection::vec(0..MAKERS.len(), 0..4);
    let batch = proptest::collection::vec(proptest::option::of(any::<i64>()), 0..6);
    (makers, proptest::collection::vec(batch, 1..4)).prop_map(|(makers, batches)| {
        let batches: Vec<RecordBatch> = batches.iter().map(|cells| batch_of(&makers, cells)).collect();
        let schema = batches[0].schema();
        DataFrame::try_new(schema, batches).expect("the same makers make the same columns")
    })
}

pub(crate) fn series() -> impl Strategy<Value = Series> {
    let chunks = proptest::collection::vec(proptest::collection::vec(proptest::option::of(any::<i64>()), 0..6), 1..4);
    (0..MAKERS.len(), chunks, ".{0,5}").prop_map(|(maker, chunks, name)| {
        let chunks = chunks.iter().map(|cells| column(maker, cells)).collect();
        Series::try_new(&name, chunks).expect("the same maker makes the same type")
    })
}

fn batch_of(makers: &[usize], cells: &Cells) -> RecordBatch {
    let mut columns: Vec<(Field, ArrayRef)> = Vec::new();
    for (index, maker) in makers.iter().enumerate() {
        let array = column(*maker, cells);
        columns.push((Field::new(format!("c{index}"), array.data_type().clone(), true), array));
    }
    if let Some((field, array)) = columns.pop() {
        let inside: ArrayRef = Arc::new(StructArray::from(vec![(Arc::new(field), array)]));
        columns.push((Field::new("struct", inside.data_type().clone(), true), inside));
    }
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
    let options = RecordBatchOptions::new().with_row_count(Some(cells.len()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options).expect("equally long")
}
