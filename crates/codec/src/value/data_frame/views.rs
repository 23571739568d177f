//! Counts the bytes that the views of a text column refer to.
//!
//! Views may refer to the same bytes, and arrow-ipc checks the text of each view: 16 bytes of input may cost a pass
//! over megabytes. So their lengths are summed first. For that, arrow-ipc unpacks compressed views as fixed-size binary
//! cells; they are unpacked again when the column is read.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_buffer::Buffer;
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::{BodyCompressionBuilder, CompressionType, FieldNode, MetadataVersion, RecordBatch, RecordBatchBuilder};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use flatbuffers::FlatBufferBuilder;

use crate::account::TemporaryCharge;
use crate::error::DecodeError;

/// A view: length, and either the text itself or where it lies.
pub(super) const VIEW_BYTES: usize = 16;
/// Texts up to this length stand in the view.
const MAX_INLINE_BYTES: u32 = 12;

/// Bytes that the views in a buffer refer to.
pub(super) fn referred(views: &[u8]) -> usize {
    let lengths = views.as_chunks::<VIEW_BYTES>().0.iter().map(|[a, b, c, d, ..]| u32::from_le_bytes([*a, *b, *c, *d]));
    lengths.filter(|len| *len > MAX_INLINE_BYTES).fold(0, |sum: usize, len| sum.saturating_add(len as usize))
}

/// The same for a compressed buffer that claims to unpack to `size` bytes. Unpacking takes `working` more bytes.
pub(super) fn referred_in_packed(
    part: &[u8],
    compression: CompressionType,
    size: usize,
    working: usize,
) -> Result<usize, DecodeError> {
    let mut temporary = TemporaryCharge::new();
    temporary.grow(part.len().saturating_add(size).saturating_add(working))?;
    let views = unpack(part, compression, size / VIEW_BYTES);
    views.map_err(|error| DecodeError::malformed(error.to_string()))
}

fn unpack(part: &[u8], compression: CompressionType, rows: usize) -> Result<usize, ArrowError> {
    let too_many = |_| ArrowError::IpcError("more views than memory has".to_owned());
    let rows = i64::try_from(rows).map_err(too_many)?;
    let mut message = FlatBufferBuilder::new();
    let nodes = message.create_vector(&[FieldNode::new(rows, 0)]);
    let len = i64::try_from(part.len()).map_err(too_many)?;
    let buffers = message.create_vector(&[arrow_ipc::Buffer::new(0, 0), arrow_ipc::Buffer::new(0, len)]);
    let mut how = BodyCompressionBuilder::new(&mut message);
    how.add_codec(compression);
    let how = how.finish();
    let mut batch = RecordBatchBuilder::new(&mut message);
    batch.add_length(rows);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    batch.add_compression(how);
    let batch = batch.finish();
    message.finish_minimal(batch);
    let batch = flatbuffers::root::<RecordBatch<'_>>(message.finished_data())
        .map_err(|error| ArrowError::IpcError(error.to_string()))?;
    let schema = Schema::new(vec![Field::new("", DataType::FixedSizeBinary(VIEW_BYTES as i32), true)]);
    let body = Buffer::from(part);
    let read = RecordBatchDecoder::try_new(&body, batch, Arc::new(schema), &HashMap::new(), &MetadataVersion::V5)?
        .read_record_batch()?;
    Ok(referred(read.column(0).as_fixed_size_binary().to_data().buffers()[0].as_slice()))
}
