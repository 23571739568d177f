//! Refuses an item that is well-formed but not of the stage's type.

use callboard_codec::{Map, Value};
use callboard_core::Failure;

/// The HTTP status of an item that does not fit its schema. Broken content, such as a picture that is cut short, stays
/// 400.
const SCHEMA_MISMATCH: u16 = 422;

/// Adds that status to the failure, and the path of the wrong field for programs.
pub(crate) fn mismatch(failure: Failure, path: String, message: String) -> Failure {
    let field = Map::from_iter([("path", Value::from(path)), ("message", Value::from(message))]);
    failure.with_status(SCHEMA_MISMATCH).with_details(Map::from_iter([("fields", Value::List(vec![field.into()]))]))
}
