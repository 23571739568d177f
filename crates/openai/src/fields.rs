//! The fields of a request that becomes one of chat: how they are taken and made. Pure.

use callboard_codec::{Map, Value};

/// Takes a field that is there and not null.
pub(crate) fn sent(fields: &mut Map, name: &str) -> Option<Value> {
    fields.remove(name).filter(|value| !matches!(value, Value::Null))
}

/// A map of these fields.
pub(crate) fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let mut map = Map::new();
    for (name, value) in fields {
        map.insert(name, value);
    }
    Value::Map(map)
}

/// A text.
pub(crate) fn word(text: &str) -> Value {
    Value::Str(text.to_owned())
}
