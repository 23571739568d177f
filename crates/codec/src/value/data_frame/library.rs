//! The mark of the library that a frame is of, by which a reader in Python makes one of the same library.
//!
//! `docs/wire.md` specifies it: the key `callboard` in the metadata of the schema. A frame may also stand for a value
//! that only that library reads, such as a Parquet file: then it has one cell with the bytes, and their `form`.

use std::sync::Arc;

use arrow_array::{Array, LargeBinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use serde_json::{Value as Json, json};

use super::ipc::ArrowBytes;
use super::{DataFrame, FrameParts};

/// The key of the mark.
const KEY: &str = "callboard";

impl DataFrame {
    /// The same frame, as one of this library of Python: `polars` or `pandas`. The rows are shared.
    #[must_use]
    pub fn marked(&self, library: &str) -> Self {
        let mut metadata = self.schema().metadata().clone();
        metadata.insert(KEY.to_owned(), json!({ "library": library }).to_string());
        let schema = Arc::new(Schema::new_with_metadata(self.schema().fields().clone(), metadata));
        Self(Arc::new(FrameParts { schema, batches: self.batches().to_vec() }))
    }

    /// A frame of one cell: bytes in a form that this library of Python reads. The bytes are shared.
    #[must_use]
    pub fn packed(library: &str, form: &str, bytes: Bytes) -> Self {
        let mark = json!({ "library": library, "form": form }).to_string();
        let field = Field::new("bytes", DataType::LargeBinary, false);
        let schema = Schema::new_with_metadata(vec![field], [(KEY.to_owned(), mark)]);
        let offsets = OffsetBuffer::<i64>::from_lengths([bytes.len()]);
        let cell = LargeBinaryArray::new(offsets, Buffer::from(bytes), None);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(cell)]);
        batch.expect("the column has the type of its field").into()
    }

    /// Library, form and bytes of a frame that stands for them.
    #[must_use]
    pub fn as_packed(&self) -> Option<(String, String, Bytes)> {
        let mark: Json = serde_json::from_str(self.schema().metadata().get(KEY)?).ok()?;
        let text = |name: &str| Some(mark.get(name)?.as_str()?.to_owned());
        let (library, form) = (text("library")?, text("form")?);
        let [batch] = self.batches() else { return None };
        let [column] = batch.columns() else { return None };
        let cells = column.as_any().downcast_ref::<LargeBinaryArray>()?;
        if cells.len() != 1 || cells.is_null(0) {
            return None;
        }
        let (start, length) = (usize::try_from(cells.value_offsets()[0]).ok()?, cells.value(0).len());
        let cell = cells.values().slice_with_length(start, length);
        Some((library, form, Bytes::from_owner(ArrowBytes(cell))))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::record_batch;

    use super::*;
    use crate::{DecodeLimits, Format, Value};

    #[test]
    fn a_mark_changes_neither_rows_nor_other_metadata() {
        let frame = DataFrame::from(record_batch!(("id", Int64, [1, 2])).unwrap());
        let marked = frame.marked("polars");
        assert_eq!(marked.schema().metadata()["callboard"], r#"{"library":"polars"}"#);
        assert_eq!((marked.batches()[0].columns(), marked.num_rows()), (frame.batches()[0].columns(), 2));
        assert!(marked.as_packed().is_none());
    }

    #[test]
    fn packed_bytes_are_there_again_after_an_envelope() {
        let packed = DataFrame::packed("pandas", "parquet", Bytes::from_static(b"PAR1"));
        let sent = Value::DataFrame(packed).encode(Format::Envelope).unwrap();
        let read = Value::decode(Format::Envelope, &sent, &DecodeLimits::default()).unwrap();
        let frame = read.as_data_frame().unwrap();
        let expected = ("pandas".to_owned(), "parquet".to_owned(), Bytes::from_static(b"PAR1"));
        assert_eq!(frame.as_packed(), Some(expected));
        assert!(frame.slice(0, 0).as_packed().is_none(), "a part of it is no such frame");
    }
}
