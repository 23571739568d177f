//! A scalar inside a user's type: a number to people, an extension to programs.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::msgpack::ext;
use crate::out;
use crate::serde_impls::exact;
use crate::value::{Scalar, Value};

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        exact::serialize(
            serializer,
            exact::Forms {
                plain: &PlainScalar(*self),
                code: ext::SCALAR,
                payload: || Ok(out::concat(&[ext::scalar_payload(*self)])?),
                shared: || Value::Scalar(*self),
                bytes: 0,
            },
        )
    }
}

/// A scalar as people see it. An f32 is written as one, so that 0.1 stays `0.1` and does not show its f64 digits.
pub(crate) struct PlainScalar(pub(crate) Scalar);

impl Serialize for PlainScalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Scalar::F32(x) => serializer.serialize_f32(x),
            Scalar::F16(x) => serializer.serialize_f32(x.to_f32()),
            Scalar::BF16(x) => serializer.serialize_f32(x.to_f32()),
            Scalar::C64(x) => (x.re, x.im).serialize(serializer),
            Scalar::C128(x) => (x.re, x.im).serialize(serializer),
            other => other.plain().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match <Value as Deserialize>::deserialize(deserializer)? {
            Value::Scalar(scalar) => Ok(scalar),
            Value::Bool(x) => Ok(x.into()),
            Value::Int(x) => Ok(x.into()),
            Value::UInt(x) => Ok(x.into()),
            Value::Float(x) => Ok(x.into()),
            other => Err(de::Error::custom(format_args!("{} is not a number", other.kind()))),
        }
    }
}
