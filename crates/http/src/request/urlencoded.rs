//! `application/x-www-form-urlencoded` as a map: one entry per field name, in the order of the fields.
//!
//! This is the form that a page sends without files, and the default of curl's `-d`. A value is a text, or bytes if it
//! is no UTF-8; a name that comes more than once becomes a list; fields are converted as those of any form
//! ([`form_fields`](super::form_fields)). The decoder follows <https://url.spec.whatwg.org/#urlencoded-parsing>, but
//! for two kinds of bodies that are refused (415), because their sender has forgotten the header: those that begin as
//! JSON does, and those without a `=`.
//!
//! The body is charged as it arrives. Charged besides it: its length once more, because texts are copied, and
//! [`FIELD_BYTES`] for each field.

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Map, Value};
use indexmap::IndexMap;
use indexmap::map::Entry;
use percent_encoding::percent_decode;

use super::multipart::FormFields;
use crate::error::ApiError;

/// Enough for any form. Each field costs more memory than its bytes.
const MAX_FIELDS: usize = 1024;

/// The longest name of a field, when it is decoded.
const MAX_NAME_BYTES: usize = 1024;

/// The memory of a field besides its text: its entries in the maps, and its place in a list.
const FIELD_BYTES: usize = 512;

/// A form that is not decoded.
#[derive(Debug)]
pub(crate) struct UrlEncodedForm {
    bytes: Bytes,
    /// The most fields that it may have.
    fields: usize,
}

impl UrlEncodedForm {
    /// # Errors
    ///
    /// 415 for a body that is no form.
    pub(crate) fn try_new(bytes: Bytes) -> Result<Self, ApiError> {
        let is_json = matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'[' | b'"'));
        if is_json || !(bytes.is_empty() || bytes.contains(&b'=')) {
            return Err(ApiError::no_form());
        }
        let separators = bytes.iter().filter(|byte| **byte == b'&').count();
        Ok(Self { bytes, fields: (separators + 1).min(MAX_FIELDS) })
    }

    /// The bytes that are decoded.
    pub(crate) fn read_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The memory of all names and values.
    pub(crate) fn value_bytes(&self) -> usize {
        self.bytes.len() + self.fields * FIELD_BYTES
    }

    /// Decodes all fields.
    ///
    /// # Errors
    ///
    /// 400 for too many fields, and for a name that is empty, too long or no UTF-8.
    pub(crate) fn decode(&self, limits: &DecodeLimits) -> Result<FormFields, ApiError> {
        let mut remaining_limits = limits.clone();
        // Clients choose names, so the map is keyed by a random hash.
        let mut fields: IndexMap<String, Value> = IndexMap::with_capacity(self.fields);
        for (index, pair) in pairs(&self.bytes).enumerate() {
            if index == MAX_FIELDS {
                return Err(ApiError::bad_form(format!("the form has more than {MAX_FIELDS} fields")));
            }
            let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let name = name_of(index, &pair[..end])?;
            let value = value_of(pair.get(end + 1..).unwrap_or_default());
            remaining_limits = remaining_limits.left_after(&value);
            match fields.entry(name) {
                Entry::Vacant(entry) => _ = entry.insert(value),
                Entry::Occupied(mut entry) => push(entry.get_mut(), value),
            }
        }
        let mut values = Map::with_capacity(fields.len());
        fields.into_iter().for_each(|(name, value)| _ = values.insert(name, value));
        Ok(FormFields { values, remaining_limits })
    }
}

/// The fields of a body, which are not decoded. Nothing between two `&` is no field.
fn pairs(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty())
}

/// Adds a value to the earlier ones of its name. No single value of a form is a list.
fn push(earlier: &mut Value, value: Value) {
    match earlier {
        Value::List(values) => values.push(value),
        single => *single = Value::List(vec![std::mem::replace(single, Value::Null), value]),
    }
}

fn name_of(index: usize, encoded: &[u8]) -> Result<String, ApiError> {
    // A byte is written with three characters at most.
    let name = (encoded.len() <= 3 * MAX_NAME_BYTES).then(|| decoded(encoded));
    match name.filter(|name| name.len() <= MAX_NAME_BYTES).map(String::from_utf8) {
        Some(Ok(name)) if !name.is_empty() => Ok(name),
        Some(Ok(_)) => Err(ApiError::bad_form(format!("field {index} has no name"))),
        Some(Err(_)) => Err(ApiError::bad_form(format!("the name of field {index} is not UTF-8"))),
        None => {
            let message = format!("the name of field {index} has more than {MAX_NAME_BYTES} bytes");
            Err(ApiError::bad_form(message))
        }
    }
}

fn value_of(encoded: &[u8]) -> Value {
    match String::from_utf8(decoded(encoded)) {
        Ok(text) => Value::Str(text),
        Err(error) => Value::Bytes(error.into_bytes().into()),
    }
}

/// A `+` is a space. A `%` that begins no byte stays as it is.
fn decoded(encoded: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded.len());
    for (index, piece) in encoded.split(|byte| *byte == b'+').enumerate() {
        if index > 0 {
            bytes.push(b' ');
        }
        bytes.extend(percent_decode(piece));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
    use proptest::prelude::*;

    use super::*;

    fn read(body: &[u8]) -> Result<Map, ApiError> {
        let form = UrlEncodedForm::try_new(Bytes::copy_from_slice(body))?;
        Ok(form.decode(&DecodeLimits::default())?.values)
    }

    fn map<const N: usize>(fields: [(&str, Value); N]) -> Map {
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn reads_what_a_page_sends() {
        let form =
            read(b"name=Ada+Lovelace&mail=a%2Bb%40c.example&city=K%C3%B6ln&tag=a&tag=b&tag=&empty=&bare").unwrap();
        let tags = Value::List(["a", "b", ""].map(Value::from).to_vec());
        let expected = [
            ("name", "Ada Lovelace".into()),
            ("mail", "a+b@c.example".into()),
            ("city", "Köln".into()),
            ("tag", tags),
            ("empty", "".into()),
            ("bare", "".into()),
        ];
        assert_eq!(form, map(expected));
        assert_eq!(read(b"").unwrap(), map([]));
    }

    #[test]
    fn what_is_malformed_stays_as_it_is() {
        let form = read(b"&&a=b=c&p=100%&q=%zz&r=%4&s=%ff&&").unwrap();
        let expected = [
            ("a", "b=c".into()),
            ("p", "100%".into()),
            ("q", "%zz".into()),
            ("r", "%4".into()),
            ("s", Value::Bytes(vec![0xff].into())),
        ];
        assert_eq!(form, map(expected));
    }

    #[test]
    fn a_body_that_is_no_form_is_refused() {
        for body in [r#"{"a": "b=c"}"#, " [1]", r#""a=b""#, "5", "hello", "a&b"] {
            let refused = read(body.as_bytes()).unwrap_err();
            assert_eq!(refused.status().as_u16(), 415, "{body}");
        }
        let many = vec!["a=1"; MAX_FIELDS + 1].join("&");
        assert!(read(&many.as_bytes()[4..]).is_ok());
        for body in
            [many.as_str(), "=1", "%ff=1", &format!("{}=1", "n".repeat(1025)), &format!("{}=1", "n".repeat(4000))]
        {
            assert_eq!(read(body.as_bytes()).unwrap_err().status().as_u16(), 400, "{body:.40}");
        }
        assert!(read(format!("{}=1", "%61".repeat(1024)).as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_none_cost_more_than_is_charged(
            body in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..400),
                "[a-c=&%+]{0,400}".prop_map(String::into_bytes),
            ],
        ) {
            let Ok(form) = UrlEncodedForm::try_new(Bytes::from(body)) else { return Ok(()) };
            if let Ok(fields) = form.decode(&DecodeLimits::default()) {
                prop_assert!(Value::Map(fields.values).resident_bytes() <= form.value_bytes());
            }
        }

        #[test]
        fn fields_come_back_as_they_were_written(
            fields in prop::collection::btree_map(".{1,8}", prop::collection::vec(".{0,12}", 1..4), 1..6),
        ) {
            let encoded =
                |text: &str| percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string().replace("%20", "+");
            let pairs = fields.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
            let body: Vec<_> = pairs.map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
            let expected = fields.into_iter().map(|(name, mut values)| match values.len() {
                1 => (name, Value::Str(values.remove(0))),
                _ => (name, Value::List(values.into_iter().map(Value::Str).collect())),
            });
            prop_assert_eq!(read(body.join("&").as_bytes()).unwrap(), expected.collect::<Map>());
        }
    }
}
