//! A frame from a dynamic value: a map of columns, as in JSON.
//!
//! Decides the type of a column from all its cells: bool, i64 (u64 when one needs it), f64, text, bytes; null cells fit
//! into each. Other types need Arrow's own form.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, NullArray, RecordBatch, StringArray, UInt64Array,
};
use arrow_array::{PrimitiveArray, RecordBatchOptions, types};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::{Field, Schema};

use crate::account::{TemporaryCharge, charge};
use crate::error::DecodeError;
use crate::value::data_frame::{DataFrame, Series};
use crate::value::tensor::{DType, Tensor};
use crate::value::{Map, Value};

pub(super) fn frame(value: &Value) -> Result<DataFrame, DecodeError> {
    match value {
        Value::DataFrame(frame) => Ok(frame.clone()),
        Value::Series(series) => Ok(series.as_frame().clone()),
        Value::Map(columns) => from_columns(columns),
        other => Err(DecodeError::mismatch(format!("{} is not a data frame: send a map of columns", other.kind()))),
    }
}

/// A series out of a list of cells, or a series.
pub(super) fn series(value: &Value) -> Result<Series, DecodeError> {
    match value {
        Value::Series(series) => Ok(series.clone()),
        other => Series::try_new("", vec![column(other)?]).map_err(|error| DecodeError::mismatch(error.to_string())),
    }
}

fn from_columns(columns: &Map) -> Result<DataFrame, DecodeError> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::<ArrayRef>::new());
    for (name, cells) in columns {
        let array = column(cells).map_err(|error| error.in_key(name))?;
        if let Some(first) = arrays.first()
            && first.len() != array.len()
        {
            let message = format!("a column of {} cells where others have {}", array.len(), first.len());
            return Err(DecodeError::mismatch(message).in_key(name));
        }
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(arrays.first().map_or(0, |array| array.len())));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
        .map(DataFrame::from)
        .map_err(|error| DecodeError::mismatch(error.to_string()))
}

fn column(cells: &Value) -> Result<ArrayRef, DecodeError> {
    match cells {
        Value::List(cells) | Value::Tuple(cells) => from_cells(cells),
        Value::Tensor(tensor) if tensor.shape().len() == 1 => from_tensor(tensor),
        Value::StrTensor(texts) if texts.shape().len() == 1 => {
            charge_array(texts.len().saturating_mul(size_of::<u64>()), texts.data().len())?;
            Ok(Arc::new(StringArray::from_iter_values(texts.iter())))
        }
        Value::Series(series) => {
            let batch = series.as_frame().to_batch().map_err(|error| DecodeError::mismatch(error.to_string()))?;
            Ok(Arc::clone(batch.column(0)))
        }
        other => Err(DecodeError::mismatch(format!("{} is not a column", other.kind()))),
    }
}

/// The element types of a column, each before the types that can also hold its values.
#[derive(Clone, Copy, PartialEq)]
enum ColumnKind {
    Null,
    Bool,
    Int,
    UInt,
    Float,
    Text,
    Bytes,
}

fn from_cells(cells: &[Value]) -> Result<ArrayRef, DecodeError> {
    let mut kind = ColumnKind::Null;
    for (index, cell) in cells.iter().enumerate() {
        kind = join(kind, kind_of(cell)).ok_or_else(|| {
            DecodeError::mismatch(format!("{} does not fit the cells before", cell.kind())).in_index(index)
        })?;
    }
    charge_cells(kind, cells)?;
    Ok(match kind {
        ColumnKind::Null => Arc::new(NullArray::new(cells.len())),
        ColumnKind::Bool => Arc::new(cells.iter().map(Value::as_bool).collect::<BooleanArray>()),
        ColumnKind::Int => Arc::new(cells.iter().map(Value::as_i64).collect::<Int64Array>()),
        ColumnKind::UInt => {
            if let Some(index) = cells.iter().position(|cell| cell.as_i64().is_some_and(i64::is_negative)) {
                return Err(DecodeError::mismatch("a negative number beside one beyond i64").in_index(index));
            }
            Arc::new(cells.iter().map(Value::as_u64).collect::<UInt64Array>())
        }
        ColumnKind::Float => Arc::new(cells.iter().map(Value::as_f64).collect::<Float64Array>()),
        ColumnKind::Text => Arc::new(cells.iter().map(Value::as_str).collect::<StringArray>()),
        ColumnKind::Bytes => Arc::new(cells.iter().map(Value::as_bytes).collect::<BinaryArray>()),
    })
}

/// Charges the array of these cells: the values, a validity bit for each, and texts in a buffer that doubles.
fn charge_cells(kind: ColumnKind, cells: &[Value]) -> Result<(), DecodeError> {
    let values = cells.len().saturating_mul(size_of::<u64>() + 1);
    let texts = match kind {
        ColumnKind::Text | ColumnKind::Bytes => {
            cells.iter().map(|cell| cell.as_str().map_or(0, str::len).max(len_of(cell))).sum()
        }
        _ => 0,
    };
    charge_array(values, texts)
}

fn len_of(cell: &Value) -> usize {
    cell.as_bytes().map_or(0, |bytes| bytes.len())
}

fn charge_array(values: usize, texts: usize) -> Result<(), DecodeError> {
    let mut growing = TemporaryCharge::new();
    growing.grow(texts)?;
    Ok(charge(ARRAY_BYTES.saturating_add(values).saturating_add(texts.saturating_mul(2)))?)
}

/// The least that a buffer takes.
const ARRAY_BYTES: usize = 2048;

fn kind_of(cell: &Value) -> Option<ColumnKind> {
    match cell {
        Value::Null => Some(ColumnKind::Null),
        Value::Bool(_) => Some(ColumnKind::Bool),
        Value::Int(_) => Some(ColumnKind::Int),
        Value::UInt(_) => Some(ColumnKind::UInt),
        Value::Float(_) => Some(ColumnKind::Float),
        Value::Str(_) => Some(ColumnKind::Text),
        Value::Bytes(_) => Some(ColumnKind::Bytes),
        Value::Scalar(scalar) => match scalar.plain() {
            Value::Tuple(_) => None,
            plain => kind_of(&plain),
        },
        _ => None,
    }
}

fn join(a: ColumnKind, b: Option<ColumnKind>) -> Option<ColumnKind> {
    match (a, b?) {
        (a, b) if a == b => Some(a),
        (a, ColumnKind::Null) => Some(a),
        (ColumnKind::Null, b) => Some(b),
        (ColumnKind::Int, ColumnKind::UInt) | (ColumnKind::UInt, ColumnKind::Int) => Some(ColumnKind::UInt),
        (
            ColumnKind::Int | ColumnKind::UInt | ColumnKind::Float,
            ColumnKind::Int | ColumnKind::UInt | ColumnKind::Float,
        ) => Some(ColumnKind::Float),
        _ => None,
    }
}

/// The column shares the tensor's memory.
fn from_tensor(tensor: &Tensor) -> Result<ArrayRef, DecodeError> {
    macro_rules! primitive {
        ($t:ty) => {{
            let values = ScalarBuffer::new(Buffer::from(tensor.data().clone()), 0, tensor.len());
            Arc::new(PrimitiveArray::<$t>::new(values, None))
        }};
    }
    if tensor.is_empty() {
        return Ok(Arc::new(Float64Array::from(Vec::<f64>::new()))); // Its buffer may lie anywhere.
    }
    Ok(match tensor.dtype() {
        DType::Bool => {
            let bools = tensor.as_slice::<bool>().expect("asked for the tensor's own dtype");
            Arc::new(BooleanArray::from(bools.to_vec()))
        }
        DType::I8 => primitive!(types::Int8Type),
        DType::I16 => primitive!(types::Int16Type),
        DType::I32 => primitive!(types::Int32Type),
        DType::I64 => primitive!(types::Int64Type),
        DType::U8 => primitive!(types::UInt8Type),
        DType::U16 => primitive!(types::UInt16Type),
        DType::U32 => primitive!(types::UInt32Type),
        DType::U64 => primitive!(types::UInt64Type),
        DType::F16 => primitive!(types::Float16Type),
        DType::F32 => primitive!(types::Float32Type),
        DType::F64 => primitive!(types::Float64Type),
        other => return Err(DecodeError::mismatch(format!("{other} is not a column type"))),
    })
}
