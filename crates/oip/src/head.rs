//! The JSON of an inference request, before it is compared with the model.
//!
//! `data` is kept as text and parsed when its type is known, wherever it stands. Unknown keys are skipped. Lists of
//! inputs, outputs and axes are bounded, so that a body of empty objects does not become a hundred times its size.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use callboard_codec::MAX_RANK;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::Refusal;
use super::parameters::Parameters;

/// The most inputs, and requested outputs, of one request: more than any model has.
pub const MAX_TENSORS: usize = 1024;

/// The JSON of `POST …/infer`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct InferHead<'a> {
    #[serde(borrow, default)]
    pub(crate) id: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(crate) parameters: Parameters,
    #[serde(borrow)]
    pub(crate) inputs: BoundedList<InputJson<'a>, MAX_TENSORS>,
    #[serde(borrow, default)]
    pub(crate) outputs: Option<BoundedList<RequestedOutputJson<'a>, MAX_TENSORS>>,
}

/// One array in the request.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct InputJson<'a> {
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    pub(crate) shape: BoundedList<Axis, MAX_RANK>,
    #[serde(borrow)]
    pub(crate) datatype: Cow<'a, str>,
    #[serde(default)]
    pub(crate) parameters: Parameters,
    #[serde(borrow, default)]
    pub(crate) data: Option<&'a RawValue>,
}

/// One requested array.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct RequestedOutputJson<'a> {
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    #[serde(default)]
    pub(crate) parameters: Parameters,
}

impl<'a> InferHead<'a> {
    pub(crate) fn parse(json: &'a [u8]) -> Result<Self, Refusal> {
        serde_json::from_slice(json)
            .map_err(|error| Refusal::new(format!("failed to parse the request JSON buffer: {error}")))
    }
}

/// A list of at most `MOST` items.
#[derive(Debug)]
pub(crate) struct BoundedList<T, const MOST: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for BoundedList<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MOST: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for ListVisitor<T, MOST> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MOST {
                        return Err(de::Error::invalid_length(MOST + 1, &self));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }

        deserializer.deserialize_seq(ListVisitor::<T, MOST>(PhantomData)).map(Self)
    }
}

/// The length of an axis in the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis(pub(crate) usize);

impl<'de> Deserialize<'de> for Axis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let length = i64::deserialize(deserializer)?;
        usize::try_from(length)
            .map(Self)
            .map_err(|_| de::Error::invalid_value(de::Unexpected::Signed(length), &"the length of an axis, 0 or more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        InferHead::parse(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn keys_come_in_any_order_and_unknown_ones_are_skipped() {
        let json = r#"{"model_name":"m","outputs":[{"name":"y","parameters":{"binary_data":true}}],
            "inputs":[{"data":[[1,2]],"parameters":null,"datatype":"INT8","more":{},"shape":[1,2],"name":"a\"b"}],
            "id":"7"}"#;
        let head = InferHead::parse(json.as_bytes()).unwrap();
        let input = &head.inputs.0[0];
        assert_eq!((&*input.name, &*input.datatype, input.data.unwrap().get()), ("a\"b", "INT8", "[[1,2]]"));
        assert_eq!(input.shape.0.iter().map(|axis| axis.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(head.outputs.unwrap().0[0].parameters.binary_data, Some(true));
        assert_eq!(head.id.as_deref(), Some("7"));
    }

    #[test]
    fn invalid_heads_are_refused_with_their_place() {
        let input = |rest: &str| format!(r#"{{"inputs":[{{"name":"x","datatype":"INT8",{rest}}}]}}"#);
        assert!(refused("{}").contains("inputs"));
        assert!(refused(&input(r#""shape":[-1]"#)).contains("axis"));
        assert!(refused(&input(r#""shape":[1.5]"#)).contains("column"));
        assert!(refused(&input(r#""shape":[99999999999999999999]"#)).contains("column"));
        let axes = vec!["1"; MAX_RANK + 1].join(",");
        assert!(refused(&input(&format!(r#""shape":[{axes}]"#))).contains("at most 32"));
        assert!(refused(r#"{"inputs":[],"inputs":[]}"#).contains("duplicate"));
        assert!(refused(r#"{"inputs":[]} more"#).contains("trailing"));
        let deep = format!(r#"{{"inputs":[],"x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(InferHead::parse(deep.as_bytes()).is_ok(), "skipping needs no stack");
    }
}
