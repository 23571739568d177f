//! The cells of a column as values: for JSON, and for types that do not know frames.
//!
//! Times become ISO 8601 text, decimals their digits, binary cells bytes, dictionary cells the value they stand for, null
//! cells null; an f32 stays one, so that 0.1 is written as `0.1`.

use arrow_array::cast::AsArray;
use arrow_array::temporal_conversions::{as_datetime, as_time};
use arrow_array::types::{self, ArrowPrimitiveType};
use arrow_array::{Array, PrimitiveArray};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;

use crate::data_frame::DataFrame;
use crate::error::EncodeError;
use crate::value::{Map, Scalar, Value};

/// All columns, each a list under its name.
pub(super) fn columns(frame: &DataFrame) -> Result<Value, EncodeError> {
    let mut columns = Map::with_capacity(frame.num_columns());
    for (index, field) in frame.schema().fields().iter().enumerate() {
        let cells = column(frame, index).map_err(|error| error.in_key(field.name()))?;
        if columns.insert(field.name(), cells).is_some() {
            return Err(EncodeError::new("data_frame", format!("two columns of the name {:?}", field.name())));
        }
    }
    Ok(Value::Map(columns))
}

/// One column, over all batches.
pub(super) fn column(frame: &DataFrame, index: usize) -> Result<Value, EncodeError> {
    let mut cells = Vec::with_capacity(frame.num_rows());
    frame.batches().iter().try_for_each(|batch| append(batch.column(index).as_ref(), &mut cells))?;
    Ok(Value::List(cells))
}

fn list(array: &dyn Array) -> Result<Value, EncodeError> {
    let mut cells = Vec::with_capacity(array.len());
    append(array, &mut cells)?;
    Ok(Value::List(cells))
}

/// Appends the cells of an array. Recurses as deep as its type is nested, which the readers bound.
fn append(array: &dyn Array, cells: &mut Vec<Value>) -> Result<(), EncodeError> {
    macro_rules! numbers {
        ($t:ty, $make:expr) => {
            numbers(array.as_primitive::<$t>(), cells, $make)
        };
    }
    macro_rules! texts {
        ($array:expr) => {
            cells.extend($array.iter().map(|cell| cell.map_or(Value::Null, Value::from)))
        };
    }
    macro_rules! binaries {
        ($array:expr) => {
            cells.extend(
                $array.iter().map(|cell| cell.map_or(Value::Null, |cell| Value::Bytes(Bytes::copy_from_slice(cell)))),
            )
        };
    }
    macro_rules! lists {
        ($array:expr) => {
            for item in $array.iter() {
                cells.push(item.map_or(Ok(Value::Null), |item| list(&item))?);
            }
        };
    }
    match array.data_type() {
        DataType::Null => cells.extend(std::iter::repeat_n(Value::Null, array.len())),
        DataType::Boolean => texts!(array.as_boolean()),
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
        DataType::Date32 => datetimes(array.as_primitive::<types::Date32Type>(), cells, "%Y-%m-%d")?,
        DataType::Date64 => datetimes(array.as_primitive::<types::Date64Type>(), cells, "%Y-%m-%d")?,
        DataType::Timestamp(unit, zone) => {
            let format = if zone.is_some() { "%Y-%m-%dT%H:%M:%S%.fZ" } else { "%Y-%m-%dT%H:%M:%S%.f" };
            match unit {
                TimeUnit::Second => datetimes(array.as_primitive::<types::TimestampSecondType>(), cells, format)?,
                TimeUnit::Millisecond => {
                    datetimes(array.as_primitive::<types::TimestampMillisecondType>(), cells, format)?;
                }
                TimeUnit::Microsecond => {
                    datetimes(array.as_primitive::<types::TimestampMicrosecondType>(), cells, format)?;
                }
                TimeUnit::Nanosecond => {
                    datetimes(array.as_primitive::<types::TimestampNanosecondType>(), cells, format)?;
                }
            }
        }
        DataType::Time32(TimeUnit::Second) => times(array.as_primitive::<types::Time32SecondType>(), cells)?,
        DataType::Time32(_) => times(array.as_primitive::<types::Time32MillisecondType>(), cells)?,
        DataType::Time64(TimeUnit::Microsecond) => times(array.as_primitive::<types::Time64MicrosecondType>(), cells)?,
        DataType::Time64(_) => times(array.as_primitive::<types::Time64NanosecondType>(), cells)?,
        DataType::Duration(TimeUnit::Second) => numbers!(types::DurationSecondType, Value::from),
        DataType::Duration(TimeUnit::Millisecond) => numbers!(types::DurationMillisecondType, Value::from),
        DataType::Duration(TimeUnit::Microsecond) => numbers!(types::DurationMicrosecondType, Value::from),
        DataType::Duration(TimeUnit::Nanosecond) => numbers!(types::DurationNanosecondType, Value::from),
        DataType::Decimal32(..) => digits(array.as_primitive::<types::Decimal32Type>(), cells),
        DataType::Decimal64(..) => digits(array.as_primitive::<types::Decimal64Type>(), cells),
        DataType::Decimal128(..) => digits(array.as_primitive::<types::Decimal128Type>(), cells),
        DataType::Decimal256(..) => digits(array.as_primitive::<types::Decimal256Type>(), cells),
        DataType::Dictionary(..) => {
            let array = array.as_any_dictionary();
            let Value::List(values) = list(array.values().as_ref())? else { unreachable!("a list was made") };
            let keys = if values.is_empty() { vec![0; array.len()] } else { array.normalized_keys() };
            let value = |(row, key): (usize, usize)| match array.is_null(row) {
                true => Value::Null,
                false => values.get(key).cloned().unwrap_or_default(),
            };
            cells.extend(keys.into_iter().enumerate().map(value));
        }
        DataType::List(_) => lists!(array.as_list::<i32>()),
        DataType::LargeList(_) => lists!(array.as_list::<i64>()),
        DataType::FixedSizeList(..) => lists!(array.as_fixed_size_list()),
        DataType::Map(..) => lists!(array.as_map()),
        DataType::Struct(_) => structs(array, cells)?,
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

fn digits<T: types::DecimalType>(array: &PrimitiveArray<T>, cells: &mut Vec<Value>) {
    cells.extend((0..array.len()).map(|row| match array.is_null(row) {
        true => Value::Null,
        false => array.value_as_string(row).into(),
    }));
}

fn datetimes<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    cells: &mut Vec<Value>,
    format: &str,
) -> Result<(), EncodeError>
where
    i64: From<T::Native>,
{
    for cell in array.iter() {
        cells.push(match cell.map(i64::from) {
            None => Value::Null,
            Some(cell) => as_datetime::<T>(cell).ok_or_else(out_of_range)?.format(format).to_string().into(),
        });
    }
    Ok(())
}

fn times<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, cells: &mut Vec<Value>) -> Result<(), EncodeError>
where
    i64: From<T::Native>,
{
    for cell in array.iter() {
        cells.push(match cell.map(i64::from) {
            None => Value::Null,
            Some(cell) => as_time::<T>(cell).ok_or_else(out_of_range)?.format("%H:%M:%S%.f").to_string().into(),
        });
    }
    Ok(())
}

fn out_of_range() -> EncodeError {
    EncodeError::new("timestamp", "a time beyond the calendar")
}

fn structs(array: &dyn Array, cells: &mut Vec<Value>) -> Result<(), EncodeError> {
    let array = array.as_struct();
    let mut columns = Vec::with_capacity(array.num_columns());
    for (field, column) in array.fields().iter().zip(array.columns()) {
        let mut values = Vec::with_capacity(column.len());
        append(column.as_ref(), &mut values).map_err(|error| error.in_key(field.name()))?;
        columns.push((field.name(), values.into_iter()));
    }
    for row in 0..array.len() {
        let entries = columns.iter_mut().map(|(name, values)| (name.as_str(), values.next().unwrap_or_default()));
        let entries: Map = entries.collect();
        cells.push(if array.is_null(row) { Value::Null } else { entries.into() });
    }
    Ok(())
}
