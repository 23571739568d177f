//! What is asked of Arrow data before arrow-ipc touches it: which types may travel, and that every length a message
//! announces is true and affordable.
//!
//! arrow-ipc validates the contents of arrays (offsets, UTF-8, indices of dictionaries); what it takes on trust are sizes:
//! the advertised size of a compressed buffer, the number of rows of columns that take no bytes, buffers that overlap.

use arrow_ipc::{BodyCompressionMethod, CompressionType, RecordBatch};
use arrow_schema::{DataType, Schema};

use crate::error::DecodeError;
use crate::limits::Budget;

/// The first type among the columns that may not travel, with its column.
pub(super) fn unsupported(schema: &Schema) -> Option<(&str, &DataType)> {
    schema.fields().iter().find_map(|field| unsupported_type(field.data_type()).map(|bad| (field.name().as_str(), bad)))
}

/// Unions, run ends and list views are refused: no data frame library writes them, and their readers check the least.
fn unsupported_type(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::Union(..) | DataType::RunEndEncoded(..) | DataType::ListView(_) | DataType::LargeListView(_) => {
            Some(data_type)
        }
        DataType::List(field) | DataType::LargeList(field) | DataType::Map(field, _) => {
            unsupported_type(field.data_type())
        }
        DataType::FixedSizeList(field, size) if *size >= 0 => unsupported_type(field.data_type()),
        DataType::FixedSizeList(..) => Some(data_type),
        DataType::FixedSizeBinary(size) => (*size < 0).then_some(data_type),
        DataType::Struct(fields) => fields.iter().find_map(|field| unsupported_type(field.data_type())),
        DataType::Dictionary(keys, values) if keys.is_integer() => unsupported_type(values),
        DataType::Dictionary(..) => Some(data_type),
        _ => None,
    }
}

/// Memory that one column of one batch takes beside its data: field, array, buffers and their counts. Measured at 350 to 700
/// bytes; the nested ones are counted by themselves.
pub(super) const COLUMN_BYTES: usize = 1024;

/// Rows that no byte stands behind cost nothing to claim and something to visit.
const MAX_EMPTY_ROWS: usize = 1 << 20;

/// Allows one record or dictionary batch whose body is `body`.
pub(super) fn admit(batch: &RecordBatch<'_>, body: &[u8], budget: &mut Budget<'_>) -> Result<(), DecodeError> {
    let unpacked = buffers(batch, body, budget)?;
    let max_rows = unpacked.saturating_mul(8).saturating_add(MAX_EMPTY_ROWS);
    let rows = |rows: i64, what: &str| match usize::try_from(rows) {
        Ok(rows) if rows <= max_rows => Ok(rows),
        _ => Err(DecodeError::malformed(format!("{what} of {rows}, which the body cannot hold"))),
    };
    rows(batch.length(), "a number of rows")?;
    let nodes = batch.nodes().unwrap_or_default();
    budget.take_memory(nodes.len().saturating_mul(COLUMN_BYTES))?;
    for node in nodes {
        let length = rows(node.length(), "a column length")?;
        if rows(node.null_count(), "a number of nulls")? > length {
            return Err(DecodeError::malformed("a column of more nulls than rows"));
        }
    }
    Ok(())
}

/// Checks the buffers and says how many bytes they hold, unpacked.
fn buffers(batch: &RecordBatch<'_>, body: &[u8], budget: &mut Budget<'_>) -> Result<usize, DecodeError> {
    let compressed = match batch.compression() {
        None => false,
        Some(how) if how.method() != BodyCompressionMethod::BUFFER => {
            return Err(DecodeError::unsupported("a compression that is not by buffer"));
        }
        Some(how) if [CompressionType::LZ4_FRAME, CompressionType::ZSTD].contains(&how.codec()) => true,
        Some(how) => return Err(DecodeError::unsupported(format!("compression {:?}", how.codec()))),
    };
    let (mut total, mut unpacked) = (0_usize, 0_usize);
    for buffer in batch.buffers().unwrap_or_default() {
        let part = span(buffer.offset(), buffer.length(), body)
            .ok_or_else(|| DecodeError::malformed("a buffer that lies outside its message"))?;
        total = total.saturating_add(part.len());
        unpacked = unpacked.saturating_add(match compressed && !part.is_empty() {
            false => part.len(),
            true => advertised(part, budget)?,
        });
    }
    match total <= body.len() {
        true => Ok(unpacked),
        false => Err(DecodeError::malformed("buffers that overlap")),
    }
}

/// The size that a compressed buffer says it unpacks to; -1 says that it is not compressed after all.
fn advertised(part: &[u8], budget: &mut Budget<'_>) -> Result<usize, DecodeError> {
    let prefix = part.first_chunk().ok_or_else(|| DecodeError::malformed("a compressed buffer without its size"))?;
    let size = match i64::from_le_bytes(*prefix) {
        -1 => return Ok(part.len() - prefix.len()),
        size => usize::try_from(size).map_err(|_| DecodeError::malformed("a compressed buffer of negative size"))?,
    };
    budget.take_decompressed(size).map(|()| size)
}

fn span(offset: i64, length: i64, body: &[u8]) -> Option<&[u8]> {
    let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
    body.get(offset..offset.checked_add(length)?)
}

/// Nodes of a schema, on all levels.
pub(super) fn fields(schema: &Schema) -> usize {
    fn below(data_type: &DataType) -> usize {
        1 + match data_type {
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::FixedSizeList(field, _)
            | DataType::Map(field, _) => below(field.data_type()),
            DataType::Struct(fields) => fields.iter().map(|field| below(field.data_type())).sum(),
            DataType::Dictionary(_, values) => below(values),
            _ => 0,
        }
    }
    schema.fields().iter().map(|field| below(field.data_type())).sum()
}
