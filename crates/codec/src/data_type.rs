//! The type of a route's input or output: a name, a JSON Schema, and the function that makes a payload of bytes.
//!
//! A typed description reads bytes straight into the Rust type; the dynamic one reads any [`Value`]. The route decides
//! that when it is built, which costs a call through a function pointer per request.

use std::any::{TypeId, type_name};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};

use crate::encoded::Encoded;
use crate::envelope::{self, EnvelopeDecoder};
use crate::error::DecodeError;
use crate::format::Format;
use crate::json::{self, Decimals};
use crate::limits::DecodeLimits;
use crate::payload::Payload;
use crate::tensor_fields::TensorFields;
use crate::typed::{self, Data};
use crate::value::Value;
use crate::value::tensor::{StrTensor, Tensor};

/// The type of a route's input or output, for its edges. Cloning shares.
///
/// ```
/// use callboard_codec::{DataType, DecodeLimits, Format};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, JsonSchema)]
/// struct Greet { name: String, times: u32 }
///
/// let greet = DataType::for_type::<Greet>();
/// assert_eq!(greet.name(), "Greet");
/// assert_eq!(greet.schema()["properties"]["name"]["type"], "string");
///
/// let limits = DecodeLimits::default();
/// let payload = greet.decode(Format::Json, &r#"{"name": "Ada", "times": 2}"#.into(), &limits)?;
/// assert_eq!(payload.downcast_ref::<Greet>().unwrap().times, 2);
///
/// let error = greet.decode(Format::Json, &r#"{"name": "Ada", "times": -2}"#.into(), &limits).unwrap_err();
/// assert_eq!(error.path(), "$.times");
/// # Ok::<(), callboard_codec::DecodeError>(())
/// ```
#[derive(Clone)]
pub struct DataType(Arc<Description>);

#[derive(Clone)]
struct Description {
    name: String,
    rust_type: (TypeId, &'static str),
    schema: serde_json::Value,
    raw_body: Option<RawBody>,
    parameters: Option<Parameters>,
    formats: fn() -> Vec<Format>,
    tensors: Option<TensorFields>,
    decode: fn(&Self, Format, &Bytes, &DecodeLimits) -> Result<Payload, DecodeError>,
    /// The numbers of a dynamic value in JSON that keep their digits.
    decimals: Option<Decimals>,
    finish: fn(EnvelopeDecoder) -> Result<Payload, DecodeError>,
    from_value: fn(Value) -> Result<Payload, DecodeError>,
}

/// A body of certain media types becomes one field, unparsed: `curl --data-binary @seven.png`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawBody {
    /// The field of the input that becomes the body, as [`Value::Bytes`].
    pub field: String,
    /// The bodies: media types such as `application/octet-stream`, or ranges such as `image/*`.
    pub media_types: Vec<String>,
}

/// The parameters of a function whose arguments make up the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Their names, in the order of positional arguments.
    pub names: Vec<String>,
    /// Whether the input is the value of the only one, and not a map of all by name.
    pub is_value: bool,
}

impl DataType {
    /// The type `T` as its `JsonSchema` and serde implementations describe it.
    #[must_use]
    pub fn for_type<T: Data + JsonSchema>() -> Self {
        Self(Arc::new(Description {
            name: T::schema_name().into_owned(),
            rust_type: (TypeId::of::<T>(), type_name::<T>()),
            schema: schema_of::<T>(),
            raw_body: None,
            parameters: None,
            formats: formats_of::<T>,
            tensors: None,
            decode: |_, format, bytes, limits| decode::<T>(format, bytes, limits),
            decimals: None,
            finish: |decoder| decoder.finish_as::<T>().map(Payload::new),
            from_value: |value| typed::from_value::<T>(value).map(Payload::new),
        }))
    }

    /// Whether its values are a `T` in Rust.
    #[must_use]
    pub fn is<T: Data>(&self) -> bool {
        self.0.rust_type.0 == TypeId::of::<T>()
    }

    /// The name of its Rust type, for messages.
    #[must_use]
    pub fn rust_name(&self) -> &'static str {
        self.0.rust_type.1
    }

    /// Any [`Value`] at all, under the name `Value` and with a schema that allows everything.
    #[must_use]
    pub fn value() -> Self {
        Self::for_type::<Value>()
    }

    /// Replaces the schema by a better one, such as a model's signature, and removes the arrays by name. For a
    /// schema with `"format": "decimal"`, a dynamic value has the digits of a number of JSON as text.
    ///
    /// ```
    /// use callboard_codec::{DataType, DecodeLimits, Format, Value};
    ///
    /// let amount = DataType::value().with_schema(serde_json::json!({ "type": "string", "format": "decimal" }));
    /// let payload = amount.decode(Format::Json, &"1.10".into(), &DecodeLimits::default())?;
    /// assert_eq!(payload.downcast_ref::<Value>(), Some(&Value::Str("1.10".to_owned())));
    /// # Ok::<(), callboard_codec::DecodeError>(())
    /// ```
    #[must_use]
    pub fn with_schema(mut self, schema: serde_json::Value) -> Self {
        let description = Arc::make_mut(&mut self.0);
        description.decimals =
            Decimals::of_schema(&schema).filter(|_| description.rust_type.0 == TypeId::of::<Value>());
        if description.decimals.is_some() {
            description.decode = decode_digits;
        }
        description.schema = schema;
        description.tensors = None;
        self
    }

    /// Adds a description as arrays by name.
    #[must_use]
    pub fn with_tensors(mut self, tensors: TensorFields) -> Self {
        Arc::make_mut(&mut self.0).tensors = Some(tensors);
        self
    }

    /// Replaces the name under which the schema stands in documents.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        name.clone_into(&mut Arc::make_mut(&mut self.0).name);
        self
    }

    /// Sets the bodies that are taken unparsed.
    #[must_use]
    pub fn with_raw_body(mut self, raw_body: RawBody) -> Self {
        Arc::make_mut(&mut self.0).raw_body = Some(raw_body);
        self
    }

    /// Makes payloads of a dynamic value [`Encoded`]: for an input that goes on to another process. An envelope is kept
    /// as it is; JSON and MessagePack become one without a [`Value`] in between, but for large arrays and byte strings.
    #[must_use]
    pub fn kept_encoded(mut self) -> Self {
        if self.is::<Value>() {
            let description = Arc::make_mut(&mut self.0);
            description.decode = decode_encoded;
            description.finish = |decoder| decoder.finish_encoded().map(Payload::new);
        }
        self
    }

    /// Names the parameters of the function that takes this input.
    #[must_use]
    pub fn with_parameters(mut self, parameters: Parameters) -> Self {
        Arc::make_mut(&mut self.0).parameters = Some(parameters);
        self
    }

    /// The parameters of the function that takes this input, if they are known.
    #[must_use]
    pub fn parameters(&self) -> Option<&Parameters> {
        self.0.parameters.as_ref()
    }

    /// Whether numbers of JSON keep their digits somewhere in its values.
    #[must_use]
    pub fn has_decimals(&self) -> bool {
        self.0.decimals.is_some()
    }

    /// The name under which the schema stands in documents.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The JSON Schema (2020-12), with its definitions under `$defs`.
    #[must_use]
    pub fn schema(&self) -> &serde_json::Value {
        &self.0.schema
    }

    /// The formats of this type, the most general first. Any type can be JSON, MessagePack and an envelope; only arrays
    /// can be `.npy`, only tables Arrow. A dynamic value can be any of them, except `.npy` if its schema is an object,
    /// and `.npz` and Arrow if it is an array.
    ///
    /// ```
    /// use callboard_codec::{DataType, Format, Tensor};
    ///
    /// assert!(DataType::for_type::<Tensor>().formats().contains(&Format::Npy));
    /// assert!(!DataType::for_type::<String>().formats().contains(&Format::Npy));
    /// assert_eq!(DataType::value().formats(), Format::all().collect::<Vec<_>>());
    /// let list = DataType::value().with_schema(serde_json::json!({ "type": "array" }));
    /// assert!(list.formats().contains(&Format::Npy) && !list.formats().contains(&Format::Npz));
    /// ```
    #[must_use]
    pub fn formats(&self) -> Vec<Format> {
        let (mut formats, kind) = ((self.0.formats)(), &self.0.schema["type"]);
        formats.retain(|format| match format {
            Format::Npy => kind != "object",
            format => kind != "array" || !(format.is_table() || *format == Format::Npz),
        });
        formats
    }

    /// The bodies that are taken unparsed, if any.
    #[must_use]
    pub fn raw_body(&self) -> Option<&RawBody> {
        self.0.raw_body.as_ref()
    }

    /// The description as arrays by name, if there is one.
    #[must_use]
    pub fn tensors(&self) -> Option<&TensorFields> {
        self.0.tensors.as_ref()
    }

    /// Reads bytes into a payload of this type.
    ///
    /// # Errors
    ///
    /// Malformed input, a mismatch with the type, or a limit that was reached, each with path and, where it is known,
    /// byte.
    pub fn decode(&self, format: Format, bytes: &Bytes, limits: &DecodeLimits) -> Result<Payload, DecodeError> {
        (self.0.decode)(&self.0, format, bytes, limits)
    }

    /// Reads an envelope that was received in chunks into a payload of this type.
    ///
    /// # Errors
    ///
    /// As [`decode`](Self::decode), and an incomplete envelope.
    pub fn finish(&self, decoder: EnvelopeDecoder) -> Result<Payload, DecodeError> {
        (self.0.finish)(decoder)
    }

    /// Makes a payload of this type from a value, for inputs that were no single document (form fields, a raw body).
    ///
    /// # Errors
    ///
    /// A mismatch with the type, with its path.
    pub fn from_value(&self, value: Value) -> Result<Payload, DecodeError> {
        (self.0.from_value)(value)
    }
}

impl fmt::Debug for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataType")
            .field("name", &self.0.name)
            .field("raw_body", &self.0.raw_body)
            .finish_non_exhaustive()
    }
}

fn formats_of<T: 'static>() -> Vec<Format> {
    let is = |other: TypeId| TypeId::of::<T>() == other;
    let is_array = is(TypeId::of::<Tensor>()) || is(TypeId::of::<StrTensor>());
    #[cfg(feature = "arrow")]
    let is_table =
        is(TypeId::of::<crate::value::data_frame::DataFrame>()) || is(TypeId::of::<crate::value::data_frame::Series>());
    let can_be = |format: &Format| match format {
        _ if is(TypeId::of::<Value>()) => true,
        Format::Json | Format::Msgpack | Format::Envelope => true,
        Format::Npy => is_array,
        Format::Npz => false,
        #[cfg(feature = "arrow")]
        Format::ArrowStream | Format::ArrowFile => is_table,
    };
    Format::all().filter(can_be).collect()
}

fn schema_of<T: JsonSchema>() -> serde_json::Value {
    // The enclosing document names the JSON Schema version.
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.meta_schema = None);
    SchemaGenerator::from(settings).into_root_schema_for::<T>().into()
}

fn decode_digits(
    description: &Description,
    format: Format,
    bytes: &Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, DecodeError> {
    match &description.decimals {
        Some(decimals) if format == Format::Json => json::decode_digits(bytes, limits, decimals).map(Payload::new),
        _ => Value::decode(format, bytes, limits).map(Payload::new),
    }
}

fn decode_encoded(
    description: &Description,
    format: Format,
    bytes: &Bytes,
    limits: &DecodeLimits,
) -> Result<Payload, DecodeError> {
    match Encoded::of_body(format, bytes, limits, description.decimals.as_ref())? {
        Some(encoded) => Ok(Payload::new(encoded)),
        None => Value::decode(format, bytes, limits).map(Payload::new),
    }
}

fn decode<T: Data>(format: Format, bytes: &Bytes, limits: &DecodeLimits) -> Result<Payload, DecodeError> {
    if TypeId::of::<T>() == TypeId::of::<Value>() {
        return Value::decode(format, bytes, limits).map(Payload::new);
    }
    let value = match format {
        Format::Json => typed::json::from_bytes::<T>(bytes, limits),
        Format::Msgpack => typed::msgpack::from_bytes::<T>(bytes, limits),
        Format::Envelope => envelope::decode_typed::<T>(bytes, limits),
        // The other formats know values only.
        other => Value::decode(other, bytes, limits)?.deserialize(),
    };
    value.map(Payload::new)
}
