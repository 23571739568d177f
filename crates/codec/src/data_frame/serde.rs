//! A frame or series inside a user's type: columns of cells to people, an Arrow IPC stream to programs.

use std::borrow::Cow;

use ::serde::ser::Error as _;
use ::serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::data_frame::{DataFrame, Series, columns};
use crate::error::EncodeError;
use crate::msgpack::ext;
use crate::value::{Value, exact};

impl Serialize for DataFrame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let forms = exact::Forms {
            plain: &Cells(|| self.to_columns()),
            code: ext::DATA_FRAME,
            payload: || self.to_stream_parts().map(|parts| parts.concat()),
            shared: || Value::DataFrame(self.clone()),
            bytes: usize::MAX, // Always in a segment: an Arrow stream is read in place only where it lies aligned.
        };
        exact::serialize(serializer, forms)
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let forms = exact::Forms {
            plain: &Cells(|| self.to_list()),
            code: ext::SERIES,
            payload: || self.to_stream_parts().map(|parts| parts.concat()),
            shared: || Value::Series(self.clone()),
            bytes: usize::MAX,
        };
        exact::serialize(serializer, forms)
    }
}

/// Cells that are made only when a serializer for people asks for them.
struct Cells<F>(F);

impl<F: Fn() -> Result<Value, EncodeError>> Serialize for Cells<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0)().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DataFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        columns::frame(&value).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <Value as Deserialize>::deserialize(deserializer)?;
        columns::series(&value).map_err(de::Error::custom)
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
