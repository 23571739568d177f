//! A frame or series inside a user's type: columns of cells to people, an Arrow IPC stream to programs.

use std::borrow::Cow;

use ::serde::ser::{Error as _, SerializeMap, SerializeSeq};
use ::serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::msgpack::ext;
use crate::out;
use crate::serde_impls::exact;
use crate::value::Value;
use crate::value::data_frame::{DataFrame, Series};

impl Serialize for DataFrame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let forms = exact::Forms {
            plain: &ColumnMap(self),
            code: ext::DATA_FRAME,
            payload: || Ok(out::concat(&self.to_stream_parts()?)?),
            shared: || Value::DataFrame(self.clone()),
            bytes: usize::MAX, // Always in a segment: an Arrow stream is read in place only where it lies aligned.
        };
        exact::serialize(serializer, forms)
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let forms = exact::Forms {
            plain: &ColumnCells { frame: self.as_frame(), column: 0 },
            code: ext::SERIES,
            payload: || Ok(out::concat(&self.to_stream_parts()?)?),
            shared: || Value::Series(self.clone()),
            bytes: usize::MAX,
        };
        exact::serialize(serializer, forms)
    }
}

/// The columns of a frame as a map, for people.
struct ColumnMap<'a>(&'a DataFrame);

impl Serialize for ColumnMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.check_names().map_err(S::Error::custom)?;
        let mut columns = serializer.serialize_map(Some(self.0.num_columns()))?;
        for (column, field) in self.0.schema().fields().iter().enumerate() {
            columns.serialize_entry(field.name(), &ColumnCells { frame: self.0, column })?;
        }
        columns.end()
    }
}

/// The cells of a column as a list, made in slices.
struct ColumnCells<'a> {
    frame: &'a DataFrame,
    column: usize,
}

impl Serialize for ColumnCells<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut cells = serializer.serialize_seq(Some(self.frame.num_rows()))?;
        for slice in self.frame.slices(self.column) {
            let slice = slice.map_err(S::Error::custom)?;
            slice.iter().try_for_each(|cell| cells.serialize_element(cell))?;
        }
        cells.end()
    }
}

impl<'de> Deserialize<'de> for DataFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        Self::from_value(&value).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        Self::from_value(&value).map_err(de::Error::custom)
    }
}

impl JsonSchema for DataFrame {
    fn schema_name() -> Cow<'static, str> {
        "DataFrame".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a table: equally long columns, each a list of cells under its name",
            "type": "object",
            "additionalProperties": { "type": "array" }
        })
    }
}

impl JsonSchema for Series {
    fn schema_name() -> Cow<'static, str> {
        "Series".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "a column: a list of cells", "type": "array" })
    }
}
