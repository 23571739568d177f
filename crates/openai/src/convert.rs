//! A request of another API as the fields of a task, at the expense of the request.
//!
//! The fields that were sent and what is made of them exist at the same time: texts of several parts become one, bytes
//! of a picture become an address, the use of a tool becomes JSON. So the account pays for the largest result before it
//! is made, and gets back what is left of that.

use callboard_codec::{Account, Map, Value};
use callboard_http::protocol::ApiError;

/// Makes the fields of a task of those of a request.
pub(crate) type Convert = fn(Map) -> Result<Map, ApiError>;

/// The most memory of an entry of a list or an object beside its texts: small objects have room for twice as many
/// entries as they have.
const ENTRY_BYTES: usize = 2 * (size_of::<String>() + size_of::<Value>());

/// Converts fields that were decoded from a body of this length, within what the account has room for.
///
/// # Errors
///
/// Those of `convert`, and no room for the result.
pub(crate) fn convert_within(
    fields: Map,
    length: usize,
    account: &dyn Account,
    convert: Convert,
) -> Result<Map, ApiError> {
    // What the decoder has charged for them at least.
    let sent = sum(&fields, Value::resident_bytes);
    // Arguments of tools become JSON, which is no longer than it was in the body.
    let most = sum(&fields, weight).max(length);
    account.charge(most)?;
    let made = convert(fields)?;
    account.refund(most.saturating_sub(sum(&made, weight).saturating_sub(sent)));
    Ok(made)
}

/// The most memory of what a conversion makes of a value: its texts again, and each of its entries.
fn weight(value: &Value) -> usize {
    let below = match value {
        Value::List(items) | Value::Tuple(items) => items.iter().map(weight).fold(0, usize::saturating_add),
        Value::Map(map) => sum(map, weight),
        Value::Str(text) => text.len(),
        _ => 0,
    };
    below.saturating_add(ENTRY_BYTES)
}

/// The bytes of the names and the values of a map.
fn sum(map: &Map, bytes_of: impl Fn(&Value) -> usize) -> usize {
    let entries = map.iter().map(|(name, value)| name.len().saturating_add(bytes_of(value)));
    entries.fold(0, usize::saturating_add)
}
