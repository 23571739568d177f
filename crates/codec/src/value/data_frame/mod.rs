//! Tables: named columns of equal length, as Arrow record batches.
//!
//! Decides which column types may travel ([`check`]) and that all batches of a frame have one schema. Arrow holds the
//! columns; this module wraps them so that a frame is shared, compared, joined and cut like a tensor. Joining and
//! cutting copy nothing: a frame is a list of batches, and a part of one is a slice.

mod cells;
mod check;
mod columns;
mod ipc;
mod library;
mod views;

use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use bytes::Bytes;

use crate::error::{DecodeError, EncodeError};
use crate::matching::{JoinedItems, Matching};
use crate::value::Value;

pub(crate) use check::COLUMN_BYTES;
pub(crate) use ipc::{from_file, from_stream, series_from_stream};

/// Named columns of equal length: a polars or pandas data frame, an Arrow table. Cloning shares.
///
/// ```
/// use arrow_array::record_batch;
/// use callboard_codec::DataFrame;
///
/// let batch = record_batch!(("id", Int64, [1, 2, 3]), ("name", Utf8, ["a", "b", "c"]))?;
/// let frame = DataFrame::from(batch.clone()); // no copy
/// assert_eq!((frame.num_rows(), frame.num_columns()), (3, 2));
///
/// let parts = frame.split_rows(&[1, 2])?; // slices
/// assert_eq!(DataFrame::concat(&[&parts[0], &parts[1]])?, frame);
/// assert_eq!(frame.to_batch()?, batch);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DataFrame(Arc<FrameParts>);

struct FrameParts {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

/// One named column, in one or more chunks: a polars or pandas series. Cloning shares.
#[derive(Clone, PartialEq)]
pub struct Series(DataFrame);

/// The reason why batches do not make the requested frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataFrameError {
    /// One of the parts has another schema than the others (the first of them, or most of them). They are not at fault.
    #[error("item {index} has the columns {actual}, others have {expected}")]
    Mismatch {
        /// The index of that part.
        index: usize,
        /// Names and types of the others.
        expected: String,
        /// Names and types of this part.
        actual: String,
    },
    /// Nothing to join: the schema of the result would be unknown.
    #[error("no frames to join")]
    NothingToJoin,
    /// The requested parts do not add up to the rows.
    #[error("parts of {requested} rows together, from a frame of {actual} rows")]
    WrongParts {
        /// Sum of the requested lengths.
        requested: usize,
        /// Rows of the frame.
        actual: usize,
    },
    /// A series is one column.
    #[error("a series has one column, not {columns}")]
    NotOneColumn {
        /// The number of columns.
        columns: usize,
    },
    /// An error of Arrow.
    #[error("{0}")]
    Arrow(#[from] ArrowError),
}

impl DataFrame {
    /// Makes a frame of batches that have the given schema. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`DataFrameError::Mismatch`] names the first batch whose columns differ in name or type.
    pub fn try_new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self, DataFrameError> {
        let bad = batches.iter().position(|batch| !same_columns(&batch.schema(), &schema));
        match bad {
            None => Ok(Self(Arc::new(FrameParts { schema, batches }))),
            Some(index) => Err(mismatch(index, &schema, &batches[index].schema())),
        }
    }

    /// Makes a frame from a value: a frame, a series, or a map of equally long columns. A column is a list, a tensor of
    /// one axis or a series.
    ///
    /// # Errors
    ///
    /// A mismatch that names the column at fault.
    pub fn from_value(value: &Value) -> Result<Self, DecodeError> {
        columns::frame(value)
    }

    /// The names and types of the columns.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    /// The rows, in batches.
    #[must_use]
    pub fn batches(&self) -> &[RecordBatch] {
        &self.0.batches
    }

    /// The number of rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.batches().iter().map(RecordBatch::num_rows).sum()
    }

    /// The number of columns.
    #[must_use]
    pub fn num_columns(&self) -> usize {
        self.schema().fields().len()
    }

    /// All rows as one batch. A single batch is shared; several are copied once.
    ///
    /// # Errors
    ///
    /// When the columns together exceed what Arrow can address (2 GiB of `Utf8` in one array).
    pub fn to_batch(&self) -> Result<RecordBatch, DataFrameError> {
        match self.batches() {
            [only] => Ok(only.clone()),
            batches => Ok(arrow_select::concat::concat_batches(self.schema(), batches)?),
        }
    }

    /// Some of the rows. Nothing is copied.
    ///
    /// # Panics
    ///
    /// If the range exceeds the rows.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.num_rows()), "rows beyond the frame");
        let (mut skip, mut left, mut batches) = (offset, len, Vec::new());
        for batch in self.batches() {
            let here = (batch.num_rows() - skip.min(batch.num_rows())).min(left);
            if here > 0 {
                batches.push(batch.slice(skip, here));
            }
            (skip, left) = (skip.saturating_sub(batch.num_rows()), left - here);
        }
        Self(Arc::new(FrameParts { schema: Arc::clone(self.schema()), batches }))
    }

    /// Joins frames with the same columns, in order. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`DataFrameError::Mismatch`] names the first item whose columns differ; [`DataFrameError::NothingToJoin`] when
    /// there are none.
    pub fn concat(items: &[&Self]) -> Result<Self, DataFrameError> {
        let first = *items.first().ok_or(DataFrameError::NothingToJoin)?;
        if let Some(index) = items.iter().position(|item| !same_columns(item.schema(), first.schema())) {
            return Err(mismatch(index, first.schema(), items[index].schema()));
        }
        let batches = items.iter().flat_map(|item| item.batches().iter().cloned()).collect();
        Ok(Self(Arc::new(FrameParts { schema: Arc::clone(first.schema()), batches })))
    }

    /// As [`concat`](Self::concat), for the frames whose columns most frames have. Each other frame is refused by
    /// itself.
    ///
    /// # Errors
    ///
    /// [`DataFrameError::NothingToJoin`] when there are no frames.
    pub fn concat_matching(items: &[&Self]) -> Result<JoinedItems<Self, DataFrameError>, DataFrameError> {
        let same = |a: &Self, b: &Self| same_columns(a.schema(), b.schema());
        let matching = Matching::new(items, same).ok_or(DataFrameError::NothingToJoin)?;
        let outcomes = matching.outcomes(|index| mismatch(index, matching.model.schema(), items[index].schema()));
        Ok(JoinedItems { whole: Self::concat(&matching.chosen)?, items: outcomes })
    }

    /// Cuts the rows into parts of the given lengths. The inverse of [`concat`](Self::concat).
    ///
    /// # Errors
    ///
    /// [`DataFrameError::WrongParts`] when the lengths do not add up to the rows.
    pub fn split_rows(&self, rows: &[usize]) -> Result<Vec<Self>, DataFrameError> {
        let requested = rows.iter().fold(0_usize, |sum, rows| sum.saturating_add(*rows));
        let actual = self.num_rows();
        if requested != actual {
            return Err(DataFrameError::WrongParts { requested, actual });
        }
        let mut start = 0;
        let part = |rows: &usize| {
            start += rows;
            self.slice(start - rows, *rows)
        };
        Ok(rows.iter().map(part).collect())
    }

    /// The bytes that the columns keep alive.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.batches().iter().map(RecordBatch::get_array_memory_size).sum()
    }

    /// The Arrow IPC stream, in pieces that share the columns' memory.
    pub(crate) fn to_stream_parts(&self) -> Result<Vec<Bytes>, EncodeError> {
        ipc::to_stream_parts(self)
    }

    /// The Arrow IPC file.
    pub(crate) fn to_file(&self) -> Result<Bytes, EncodeError> {
        ipc::to_file(self)
    }

    /// Refuses two columns of one name.
    pub(crate) fn check_names(&self) -> Result<(), EncodeError> {
        cells::check_names(self)
    }

    /// The cells of a column in slices of its rows, in order. Each is charged as long as it lives.
    pub(crate) fn slices(&self, column: usize) -> impl Iterator<Item = Result<cells::CellSlice, EncodeError>> {
        cells::slices(self, column)
    }

    /// A map of columns, each a list of its cells, charged for good.
    pub(crate) fn to_columns(&self) -> Result<Value, EncodeError> {
        cells::columns(self)
    }
}

impl From<RecordBatch> for DataFrame {
    fn from(batch: RecordBatch) -> Self {
        Self(Arc::new(FrameParts { schema: batch.schema(), batches: vec![batch] }))
    }
}

/// Frames are equal if their columns and rows are equal. The cut into batches does not matter.
impl PartialEq for DataFrame {
    fn eq(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return true;
        }
        if self.schema() != other.schema() || self.num_rows() != other.num_rows() {
            return false;
        }
        self.batches() == other.batches()
            || matches!((self.to_batch(), other.to_batch()), (Ok(ours), Ok(theirs)) if ours == theirs)
    }
}

/// Prints the shape and the columns; the rows may be millions.
impl fmt::Debug for DataFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataFrame({} × {})", self.num_rows(), shown(self.schema()))
    }
}

impl Series {
    /// Makes a series of chunks of one type. Nothing is copied. Without a chunk there is no type: use
    /// [`from_frame`](Self::from_frame) for an empty series.
    ///
    /// # Errors
    ///
    /// [`DataFrameError::Mismatch`] names the first chunk of another type; [`DataFrameError::NothingToJoin`] when there
    /// is none.
    pub fn try_new(name: &str, chunks: Vec<ArrayRef>) -> Result<Self, DataFrameError> {
        let first = chunks.first().ok_or(DataFrameError::NothingToJoin)?;
        let schema = Arc::new(Schema::new(vec![Field::new(name, first.data_type().clone(), true)]));
        let batch = |(index, chunk): (usize, ArrayRef)| {
            if chunk.data_type() != schema.field(0).data_type() {
                let actual = Schema::new(vec![Field::new(name, chunk.data_type().clone(), true)]);
                return Err(mismatch(index, &schema, &actual));
            }
            let options = RecordBatchOptions::new().with_row_count(Some(chunk.len()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&schema), vec![chunk], &options)?)
        };
        let batches = chunks.into_iter().enumerate().map(batch).collect::<Result<_, _>>()?;
        Ok(Self(DataFrame(Arc::new(FrameParts { schema: Arc::clone(&schema), batches }))))
    }

    /// Takes the only column of a frame.
    ///
    /// # Errors
    ///
    /// [`DataFrameError::NotOneColumn`] when it has another number of columns.
    pub fn from_frame(frame: DataFrame) -> Result<Self, DataFrameError> {
        match frame.num_columns() {
            1 => Ok(Self(frame)),
            columns => Err(DataFrameError::NotOneColumn { columns }),
        }
    }

    /// A series out of a series or a list of cells.
    pub(crate) fn from_value(value: &Value) -> Result<Self, DecodeError> {
        columns::series(value)
    }

    /// The name of the column.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.schema().field(0).name()
    }

    /// The column, in chunks.
    #[must_use]
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &ArrayRef> {
        self.0.batches().iter().map(|batch| batch.column(0))
    }

    /// The number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.num_rows()
    }

    /// Whether there is no cell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The series as a frame of one column.
    #[must_use]
    pub fn as_frame(&self) -> &DataFrame {
        &self.0
    }

    /// The bytes that the column keeps alive.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        self.0.resident_bytes()
    }

    pub(crate) fn to_stream_parts(&self) -> Result<Vec<Bytes>, EncodeError> {
        self.0.to_stream_parts()
    }

    /// The cells as a list, charged for good.
    pub(crate) fn to_list(&self) -> Result<Value, EncodeError> {
        cells::column(&self.0, 0)
    }
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Series({} × {})", self.len(), shown(self.0.schema()))
    }
}

/// The frame in a value, for formats that hold only frames.
pub(crate) fn frame_from(value: &Value) -> Result<DataFrame, EncodeError> {
    DataFrame::from_value(value).map_err(|error| EncodeError::new(value.kind(), error.to_string()))
}

/// Whether names and types agree. Nullability and metadata of a column may differ.
fn same_columns(a: &Schema, b: &Schema) -> bool {
    let column = |(a, b): (&Arc<Field>, &Arc<Field>)| a.name() == b.name() && a.data_type() == b.data_type();
    // Batches of one stream share their schema, whose names may be long.
    std::ptr::eq(a, b) || a.fields().len() == b.fields().len() && a.fields().iter().zip(b.fields()).all(column)
}

fn mismatch(index: usize, expected: &Schema, actual: &Schema) -> DataFrameError {
    DataFrameError::Mismatch { index, expected: shown(expected), actual: shown(actual) }
}

/// At most this many columns are named in a message.
const MAX_SHOWN: usize = 8;

fn shown(schema: &Schema) -> String {
    let columns = schema.fields().iter().take(MAX_SHOWN);
    let columns: Vec<String> = columns.map(|field| format!("{}: {}", field.name(), field.data_type())).collect();
    let more = if schema.fields().len() > MAX_SHOWN { ", …" } else { "" };
    format!("[{}{more}]", columns.join(", "))
}

#[cfg(test)]
mod tests;
