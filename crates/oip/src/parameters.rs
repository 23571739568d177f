//! The parameters of a request, its inputs and its requested outputs. Known parameters are kept; others are skipped
//! without a copy, so that a million of them cost nothing.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::edge::Admission;
use callboard_core::{CallOptions, Deadline, Priority};
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::{Refusal, shown};

#[derive(Clone, Debug, PartialEq)]
enum ParameterValue<'a> {
    Bool(bool),
    Whole(i128),
    Text(Cow<'a, str>),
    /// A fraction, null, a list or a map: no parameter here has such a value.
    Other,
}

/// The known parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// Outputs are binary unless they say otherwise.
    pub(crate) binary_data_output: Option<bool>,
    pub(crate) binary_data_size: Option<usize>,
    pub(crate) binary_data: Option<bool>,
    pub(crate) classification: Option<usize>,
    /// Whether a stream ends with an empty response, if the last output has left before its end is known.
    pub(crate) wants_final_response: bool,
    /// Elements of `BYTES` in JSON are base64, as MLServer's clients say by `content_type`.
    pub(crate) is_base64: bool,
    priority: Option<Priority>,
    timeout: Option<Duration>,
    session: Option<String>,
    /// The first invalid parameter; reported where its owner is known.
    refusal: Option<Refusal>,
}

/// The longest text of `sequence_id`.
const MAX_SEQUENCE_ID_BYTES: usize = 128;

impl Parameters {
    /// The parameters, or the first invalid one.
    ///
    /// # Errors
    ///
    /// That of the first invalid one.
    pub fn checked(self) -> Result<Self, Refusal> {
        match self.refusal {
            Some(refusal) => Err(refusal),
            None => Ok(self),
        }
    }

    /// Whether a stream ends with an empty response, if the last output has left before its end is known.
    #[must_use]
    pub fn wants_final_response(&self) -> bool {
        self.wants_final_response
    }

    /// Adds priority, session and deadline to the options of a call. The earliest deadline and the lowest priority win:
    /// a caller may have a highest one.
    #[must_use]
    pub fn apply(&self, options: CallOptions, admission: &Admission) -> CallOptions {
        let options = self.priority.into_iter().fold(options, CallOptions::with_priority_at_most);
        let deadline = self.timeout.map(|timeout| Deadline::after(admission.admitted_at(), timeout));
        let options = deadline.into_iter().fold(options, CallOptions::with_deadline);
        self.session.iter().fold(options, |options, session| options.with_session_key(session.as_str()))
    }

    /// Takes one parameter from a value. An invalid one is reported when the request is complete.
    pub fn take(&mut self, key: &str, value: &Value) {
        let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
        let scalar = match value {
            Value::Bool(value) => ParameterValue::Bool(*value),
            Value::Str(text) => ParameterValue::Text(text.into()),
            _ => whole.map_or(ParameterValue::Other, ParameterValue::Whole),
        };
        self.set(key, &scalar);
    }

    fn set(&mut self, key: &str, value: &ParameterValue<'_>) {
        if let Err(refusal) = self.try_set(key, value) {
            self.refusal.get_or_insert(refusal);
        }
    }

    fn try_set(&mut self, key: &str, value: &ParameterValue<'_>) -> Result<(), Refusal> {
        match key {
            "binary_data_output" => self.binary_data_output = Some(flag(key, value)?),
            "binary_data" => self.binary_data = Some(flag(key, value)?),
            "binary_data_size" => self.binary_data_size = Some(size(key, value)?),
            "classification" => {
                self.classification = Some(size(key, value)?).filter(|classes| *classes > 0);
                self.classification.ok_or_else(|| wrong(key, "a whole number above 0"))?;
            }
            "priority" => self.priority = priority(size(key, value)?),
            "timeout" => {
                let micros = size(key, value)? as u64;
                self.timeout = (micros > 0).then(|| Duration::from_micros(micros));
            }
            "sequence_id" => self.session = session(key, value)?,
            // A session begins with its first call and ends with its replica.
            "sequence_start" | "sequence_end" => _ = flag(key, value)?,
            "shared_memory_region" | "shared_memory_offset" | "shared_memory_byte_size" => {
                return Err(Refusal::unsupported("shared memory is not supported; send the data"));
            }
            "content_type" => self.is_base64 = matches!(value, ParameterValue::Text(kind) if kind == "base64"),
            "triton_enable_empty_final_response" => self.wants_final_response = flag(key, value)?,
            reserved if reserved.starts_with("triton_") => {
                let message = format!("parameter '{}': names that begin with 'triton_' are reserved", shown(reserved));
                return Err(Refusal::new(message));
            }
            _ => {}
        }
        Ok(())
    }
}

fn wrong(key: &str, allowed: &str) -> Refusal {
    Refusal::new(format!("parameter '{key}' must be {allowed}"))
}

fn flag(key: &str, value: &ParameterValue<'_>) -> Result<bool, Refusal> {
    match value {
        ParameterValue::Bool(flag) => Ok(*flag),
        _ => Err(wrong(key, "true or false")),
    }
}

fn size(key: &str, value: &ParameterValue<'_>) -> Result<usize, Refusal> {
    match value {
        ParameterValue::Whole(size) => usize::try_from(*size).map_err(|_| wrong(key, "a whole number, 0 or more")),
        _ => Err(wrong(key, "a whole number, 0 or more")),
    }
}

/// Levels begin with the highest, 1; 0 means the default.
fn priority(level: usize) -> Option<Priority> {
    match level {
        0 => None,
        1 => Some(Priority::High),
        2 => Some(Priority::Normal),
        _ => Some(Priority::Low),
    }
}

/// A number or a text; 0 and the empty text mean none.
fn session(key: &str, value: &ParameterValue<'_>) -> Result<Option<String>, Refusal> {
    match value {
        ParameterValue::Whole(0) => Ok(None),
        ParameterValue::Whole(id) if u64::try_from(*id).is_ok() => Ok(Some(id.to_string())),
        ParameterValue::Text(id) if id.len() <= MAX_SEQUENCE_ID_BYTES => {
            Ok((!id.is_empty()).then(|| id.as_ref().to_owned()))
        }
        _ => Err(wrong(key, "a whole number, 0 or more, or a text of at most 128 bytes")),
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParametersVisitor;

        impl<'de> Visitor<'de> for ParametersVisitor {
            type Value = Parameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of parameters")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Parameters, E> {
                Ok(Parameters::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
                let mut parameters = Parameters::default();
                while let Some(JsonText(key)) = map.next_key()? {
                    parameters.set(&key, &map.next_value()?);
                }
                Ok(parameters)
            }
        }

        deserializer.deserialize_any(ParametersVisitor)
    }
}

/// Borrowed unless it has escapes.
#[derive(serde::Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for ParameterValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = ParameterValue<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(ParameterValue::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(ParameterValue::Whole(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(ParameterValue::Whole(value.into()))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(ParameterValue::Other)
            }

            fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
                Ok(ParameterValue::Text(value.to_owned().into()))
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
                Ok(ParameterValue::Text(value.into()))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(ParameterValue::Other)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(ParameterValue::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(ParameterValue::Other)
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Parameters, String> {
        let parameters: Parameters = serde_json::from_str(json).map_err(|error| error.to_string())?;
        parameters.checked().map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn the_highest_priority_is_1_and_0_is_the_models_own() {
        let of = |level: u8| read(&format!(r#"{{"priority":{level}}}"#)).unwrap().priority;
        assert_eq!(
            [0, 1, 2, 3, 9].map(of),
            [None, Some(Priority::High), Some(Priority::Normal), Some(Priority::Low), Some(Priority::Low)]
        );
    }

    #[test]
    fn a_timeout_is_in_microseconds_and_0_is_none() {
        assert_eq!(read(r#"{"timeout":1500}"#).unwrap().timeout, Some(Duration::from_micros(1500)));
        assert_eq!(read(r#"{"timeout":0}"#).unwrap().timeout, None);
        assert!(read(r#"{"timeout":-1}"#).unwrap_err().contains("'timeout'"));
    }

    #[test]
    fn a_sequence_is_a_number_or_a_text() {
        let of = |json| read(json).map(|parameters| parameters.session);
        assert_eq!(of(r#"{"sequence_id":18446744073709551615}"#).unwrap().unwrap(), "18446744073709551615");
        assert_eq!(of(r#"{"sequence_id":"talk","sequence_start":true}"#).unwrap().unwrap(), "talk");
        assert_eq!(of(r#"{"sequence_id":0}"#), Ok(None));
        assert_eq!(of(r#"{"sequence_id":""}"#), Ok(None));
        for wrong in [r#"{"sequence_id":-1}"#, r#"{"sequence_id":1.5}"#, r#"{"sequence_id":[]}"#] {
            assert!(of(wrong).unwrap_err().contains("sequence_id"), "{wrong}");
        }
        assert!(of(r#"{"sequence_start":1}"#).is_err());
    }

    #[test]
    fn unknown_parameters_are_skipped_and_reserved_ones_refused() {
        assert_eq!(read(r#"{"mine":[1,{"a":null}],"yours":"x","headers":{}}"#), Ok(Parameters::default()));
        assert!(read(r#"{"triton_mine":1}"#).unwrap_err().contains("reserved"));
        assert!(read(r#"{"shared_memory_region":"r"}"#).unwrap_err().contains("shared memory"));
        assert!(read(r#"{"classification":0}"#).unwrap_err().contains("classification"));
        assert!(read(r#"{"binary_data_size":1e99}"#).is_err());
    }
}
