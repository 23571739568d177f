//! The cells of a column as values: for JSON, and for types that do not know frames.
//!
//! Times become ISO 8601 text, decimals their digits, binary cells bytes, dictionary cells the value they stand for,
//! null cells null; an f32 stays one, so that 0.1 is written as `0.1`.
//!
//! A cell takes 40 bytes where the column may have one bit, and a text that is shared in the column (in a dictionary or
//! a view) is copied for each row. So everything is charged before it is made: [`columns`] and [`column`] for good,
//! [`slices`] for as long as a slice of rows lives.

use std::iter::repeat_n;
use std::ops::Deref;

use arrow_array::cast::AsArray;
use arrow_array::temporal_conversions::{as_datetime, as_time};
use arrow_array::types::{self, ArrowPrimitiveType};
use arrow_array::{Array, ArrayAccessor, ArrayRef, PrimitiveArray};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;

use crate::account::{self, ChargeError, TemporaryCharge};
use crate::error::EncodeError;
use crate::value::data_frame::{DataFrame, check};
use crate::value::{Map, Scalar, Value};

/// Takes bytes before they are allocated.
type Charge<'a> = dyn FnMut(usize) -> Result<(), ChargeError> + 'a;

/// All columns, each a list under its name.
pub(super) fn columns(frame: &DataFrame) -> Result<Value, EncodeError> {
    check_names(frame)?;
    let names = frame.schema().fields().iter().map(|field| text_bytes(field.name().len())).sum::<usize>();
    account::charge(names.saturating_add(Map::room_bytes(frame.num_columns())))?;
    let mut columns = Map::with_capacity(frame.num_columns());
    for (index, field) in frame.schema().fields().iter().enumerate() {
        let cells = column(frame, index).map_err(|error| error.in_key(field.name()))?;
        columns.insert(field.name(), cells);
    }
    Ok(Value::Map(columns))
}

/// Refuses two columns of one name, which a map cannot hold.
pub(super) fn check_names(frame: &DataFrame) -> Result<(), EncodeError> {
    let mut working = TemporaryCharge::new();
    working.grow(frame.num_columns().saturating_mul(NAME_BYTES))?;
    let mut names = std::collections::HashSet::with_capacity(frame.num_columns());
    match frame.schema().fields().iter().find(|field| !names.insert(field.name())) {
        None => Ok(()),
        Some(field) => Err(EncodeError::new("data_frame", format!("two columns of the name {:?}", field.name()))),
    }
}

/// A reference in a set that is at worst half full.
const NAME_BYTES: usize = 24;

/// One column, over all batches.
pub(super) fn column(frame: &DataFrame, index: usize) -> Result<Value, EncodeError> {
    let charge: &mut Charge<'_> = &mut account::charge;
    let mut cells = room(frame.num_rows(), charge)?;
    frame.batches().iter().try_for_each(|batch| append(batch.column(index).as_ref(), &mut cells, charge))?;
    Ok(Value::List(cells))
}

/// The cells of some rows, charged until they are dropped.
#[derive(Debug)]
pub(crate) struct CellSlice {
    cells: Vec<Value>,
    /// Dropped after the cells.
    _charged: TemporaryCharge,
}

impl Deref for CellSlice {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.cells
    }
}

/// The cells of a column in slices of [`SLICE_CELLS`], for a writer that does not need all of them at once.
pub(super) fn slices(frame: &DataFrame, index: usize) -> impl Iterator<Item = Result<CellSlice, EncodeError>> {
    let nested = check::nodes(frame.schema().field(index).data_type());
    let rows = (SLICE_CELLS / nested).max(LEAST_SLICE_ROWS);
    frame.batches().iter().flat_map(move |batch| {
        let column = batch.column(index);
        let starts = (0..column.len()).step_by(rows);
        starts.map(move |start| slice(&column.slice(start, rows.min(column.len() - start))))
    })
}

/// The cells that are made at once. Cells of a struct count separately.
const SLICE_CELLS: usize = 1024;
const LEAST_SLICE_ROWS: usize = 16;

fn slice(array: &ArrayRef) -> Result<CellSlice, EncodeError> {
    let mut charged = TemporaryCharge::new();
    let charge: &mut Charge<'_> = &mut |bytes| charged.grow(bytes);
    let mut cells = room(array.len(), charge)?;
    append(array.as_ref(), &mut cells, charge)?;
    Ok(CellSlice { cells, _charged: charged })
}

fn list(array: &dyn Array, charge: &mut Charge<'_>) -> Result<Value, EncodeError> {
    let mut cells = room(array.len(), charge)?;
    append(array, &mut cells, charge)?;
    Ok(Value::List(cells))
}

fn room(cells: usize, charge: &mut Charge<'_>) -> Result<Vec<Value>, ChargeError> {
    charge(cells.saturating_mul(size_of::<Value>()))?;
    Ok(Vec::with_capacity(cells))
}

/// Memory of a text or byte string. Allocators give no smaller block than 24 bytes.
fn text_bytes(len: usize) -> usize {
    if len == 0 { 0 } else { len.max(24) }
}

/// Appends the cells of an array, for which there is room. Recurses as deep as its type is nested, which the readers
/// bound.
fn append(array: &dyn Array, cells: &mut Vec<Value>, charge: &mut Charge<'_>) -> Result<(), EncodeError> {
    macro_rules! numbers {
        ($t:ty, $make:expr) => {
            numbers(array.as_primitive::<$t>(), cells, $make)
        };
    }
    macro_rules! texts {
        ($array:expr) => {
            texts($array, 0..array.len(), cells, charge)?
        };
    }
    macro_rules! binaries {
        ($array:expr) => {
            for cell in $array.iter() {
                charge(text_bytes(cell.map_or(0, <[u8]>::len)))?;
                cells.push(cell.map_or(Value::Null, |cell| Value::Bytes(Bytes::copy_from_slice(cell))));
            }
        };
    }
    macro_rules! lists {
        ($array:expr) => {
            for item in $array.iter() {
                cells.push(item.map_or(Ok(Value::Null), |item| list(&item, charge))?);
            }
        };
    }
    match array.data_type() {
        DataType::Null => cells.extend(repeat_n(Value::Null, array.len())),
        DataType::Boolean => cells.extend(array.as_boolean().iter().map(|cell| cell.map_or(Value::Null, Value::from))),
        DataType::Int8 => numbers!(types::Int8Type, Value::from),
        DataType::Int16 => numbers!(types::Int16Type, Value::from),
        DataType::Int32 => numbers!(types::Int32Type, Value::from),
        DataType::Int64 => numbers!(types::Int64Type, Value::from),
        DataType::UInt8 => numbers!(types::UInt8Type, Value::from),
        DataType::UInt16 => numbers!(types::UInt16Type, Value::from),
        DataType::UInt32 => numbers!(types::UInt32Type, Value::from),
        DataType::UInt64 => numbers!(types::UInt64Type, Value::from),
        DataType::Float16 => numbers!(types::Float16Type, |x| Scalar::F16(x).into()),
        DataType::Float32 => numbers!(types::Float32Type, |x| Scalar::F32(x).into()),
        DataType::Float64 => numbers!(types::Float64Type, Value::from),
        DataType::Utf8 => texts!(array.as_string::<i32>()),
        DataType::LargeUtf8 => texts!(array.as_string::<i64>()),
        DataType::Utf8View => texts!(array.as_string_view()),
        DataType::Binary => binaries!(array.as_binary::<i32>()),
        DataType::LargeBinary => binaries!(array.as_binary::<i64>()),
        DataType::BinaryView => binaries!(array.as_binary_view()),
        DataType::FixedSizeBinary(_) => binaries!(array.as_fixed_size_binary()),
        DataType::Date32 => datetimes(array.as_primitive::<types::Date32Type>(), cells, "%Y-%m-%d", charge)?,
        DataType::Date64 => datetimes(array.as_primitive::<types::Date64Type>(), cells, "%Y-%m-%d", charge)?,
        DataType::Timestamp(unit, zone) => {
            let format = if zone.is_some() { "%Y-%m-%dT%H:%M:%S%.fZ" } else { "%Y-%m-%dT%H:%M:%S%.f" };
            match unit {
                TimeUnit::Second => {
                    datetimes(array.as_primitive::<types::TimestampSecondType>(), cells, format, charge)?
                }
                TimeUnit::Millisecond => {
                    datetimes(array.as_primitive::<types::TimestampMillisecondType>(), cells, format, charge)?;
                }
                TimeUnit::Microsecond => {
                    datetimes(array.as_primitive::<types::TimestampMicrosecondType>(), cells, format, charge)?;
                }
                TimeUnit::Nanosecond => {
                    datetimes(array.as_primitive::<types::TimestampNanosecondType>(), cells, format, charge)?;
                }
            }
        }
        DataType::Time32(TimeUnit::Second) => times(array.as_primitive::<types::Time32SecondType>(), cells, charge)?,
        DataType::Time32(_) => times(array.as_primitive::<types::Time32MillisecondType>(), cells, charge)?,
        DataType::Time64(TimeUnit::Microsecond) => {
            times(array.as_primitive::<types::Time64MicrosecondType>(), cells, charge)?
        }
        DataType::Time64(_) => times(array.as_primitive::<types::Time64NanosecondType>(), cells, charge)?,
        DataType::Duration(TimeUnit::Second) => numbers!(types::DurationSecondType, Value::from),
        DataType::Duration(TimeUnit::Millisecond) => numbers!(types::DurationMillisecondType, Value::from),
        DataType::Duration(TimeUnit::Microsecond) => numbers!(types::DurationMicrosecondType, Value::from),
        DataType::Duration(TimeUnit::Nanosecond) => numbers!(types::DurationNanosecondType, Value::from),
        DataType::Decimal32(..) => digits(array.as_primitive::<types::Decimal32Type>(), cells, charge)?,
        DataType::Decimal64(..) => digits(array.as_primitive::<types::Decimal64Type>(), cells, charge)?,
        DataType::Decimal128(..) => digits(array.as_primitive::<types::Decimal128Type>(), cells, charge)?,
        DataType::Decimal256(..) => digits(array.as_primitive::<types::Decimal256Type>(), cells, charge)?,
        DataType::Dictionary(..) => dictionary(array, cells, charge)?,
        DataType::List(_) => lists!(array.as_list::<i32>()),
        DataType::LargeList(_) => lists!(array.as_list::<i64>()),
        DataType::FixedSizeList(..) => lists!(array.as_fixed_size_list()),
        DataType::Map(..) => lists!(array.as_map()),
        DataType::Struct(_) => structs(array, cells, charge)?,
        other => return Err(EncodeError::new(other.to_string(), "a column type without a plain form")),
    }
    Ok(())
}

fn numbers<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    cells: &mut Vec<Value>,
    make: impl Fn(T::Native) -> Value,
) {
    cells.extend(array.iter().map(|cell| cell.map_or(Value::Null, &make)));
}

fn texts<'a>(
    array: impl ArrayAccessor<Item = &'a str>,
    rows: impl Iterator<Item = usize>,
    cells: &mut Vec<Value>,
    charge: &mut Charge<'_>,
) -> Result<(), ChargeError> {
    for row in rows {
        cells.push(if array.is_null(row) {
            Value::Null
        } else {
            text(array.value(row).len(), || array.value(row).to_owned(), charge)?
        });
    }
    Ok(())
}

fn text(len: usize, make: impl FnOnce() -> String, charge: &mut Charge<'_>) -> Result<Value, ChargeError> {
    charge(text_bytes(len))?;
    Ok(Value::Str(make()))
}

/// Only the values that a row points to are made, each for its row.
fn dictionary(array: &dyn Array, cells: &mut Vec<Value>, charge: &mut Charge<'_>) -> Result<(), EncodeError> {
    let array = array.as_any_dictionary();
    let values = array.values();
    if values.is_empty() {
        cells.extend(repeat_n(Value::Null, array.len()));
        return Ok(());
    }
    let mut working = TemporaryCharge::new();
    working.grow(array.len().saturating_mul(size_of::<usize>()))?;
    for (row, key) in array.normalized_keys().into_iter().enumerate() {
        let key = key..key + 1;
        match values.data_type() {
            _ if array.is_null(row) => cells.push(Value::Null),
            DataType::Utf8 => texts(values.as_string::<i32>(), key, cells, charge)?,
            DataType::LargeUtf8 => texts(values.as_string::<i64>(), key, cells, charge)?,
            DataType::Utf8View => texts(values.as_string_view(), key, cells, charge)?,
            _ => append(values.slice(key.start, 1).as_ref(), cells, charge)?,
        }
    }
    Ok(())
}

fn digits<T: types::DecimalType>(
    array: &PrimitiveArray<T>,
    cells: &mut Vec<Value>,
    charge: &mut Charge<'_>,
) -> Result<(), ChargeError> {
    for row in 0..array.len() {
        cells.push(if array.is_null(row) {
            Value::Null
        } else {
            text(SHORT_TEXT_BYTES, || array.value_as_string(row), charge)?
        });
    }
    Ok(())
}

/// Memory of the text of a time or a decimal, with its spare capacity.
const SHORT_TEXT_BYTES: usize = 96;

fn datetimes<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    cells: &mut Vec<Value>,
    format: &str,
    charge: &mut Charge<'_>,
) -> Result<(), EncodeError>
where
    i64: From<T::Native>,
{
    time_texts(array, cells, charge, |cell| Some(as_datetime::<T>(cell)?.format(format).to_string()))
}

fn times<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    cells: &mut Vec<Value>,
    charge: &mut Charge<'_>,
) -> Result<(), EncodeError>
where
    i64: From<T::Native>,
{
    time_texts(array, cells, charge, |cell| Some(as_time::<T>(cell)?.format("%H:%M:%S%.f").to_string()))
}

fn time_texts<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    cells: &mut Vec<Value>,
    charge: &mut Charge<'_>,
    print: impl Fn(i64) -> Option<String>,
) -> Result<(), EncodeError>
where
    i64: From<T::Native>,
{
    for cell in array.iter() {
        cells.push(match cell {
            None => Value::Null,
            Some(cell) => {
                charge(text_bytes(SHORT_TEXT_BYTES))?;
                Value::Str(print(cell.into()).ok_or_else(out_of_range)?)
            }
        });
    }
    Ok(())
}

fn out_of_range() -> EncodeError {
    EncodeError::new("timestamp", "a time beyond the calendar")
}

fn structs(array: &dyn Array, cells: &mut Vec<Value>, charge: &mut Charge<'_>) -> Result<(), EncodeError> {
    let array = array.as_struct();
    let rows = array.len();
    let mut working = TemporaryCharge::new();
    working.grow(array.num_columns().saturating_mul(rows * size_of::<Value>() + COLUMN_BYTES))?;
    let mut columns = Vec::with_capacity(array.num_columns());
    for (field, column) in array.fields().iter().zip(array.columns()) {
        let mut values = Vec::with_capacity(rows);
        append(column.as_ref(), &mut values, charge).map_err(|error| error.in_key(field.name()))?;
        columns.push((field.name(), values.into_iter()));
    }
    let names = array.fields().iter().map(|field| text_bytes(field.name().len())).sum::<usize>();
    charge(rows.saturating_mul(names.saturating_add(Map::room_bytes(array.num_columns()))))?;
    for row in 0..rows {
        let mut entries = Map::with_capacity(columns.len());
        for (name, values) in &mut columns {
            entries.insert(name.as_str(), values.next().unwrap_or_default());
        }
        cells.push(if array.is_null(row) { Value::Null } else { entries.into() });
    }
    Ok(())
}

/// A column of a struct while its cells are made.
const COLUMN_BYTES: usize = 64;
