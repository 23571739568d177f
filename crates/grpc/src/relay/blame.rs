//! The errors of a relay, in the two texts by which a gateway tells a missing function from a failed one.
//!
//! Whatever a function, its arguments or its output cause has the status `UNKNOWN` and the text of an exception.
//! A refusal before the function runs, and a passed deadline, keep their own status: gateways count `UNAVAILABLE` as a
//! lost connection and `DEADLINE_EXCEEDED` as a slow function.

use std::sync::Arc;

use callboard_codec::EncodeErrorKind;
use callboard_core::edge::Route;
use callboard_core::{CallError, ErrorKind, LocalClient};
use callboard_http::protocol::ApiError;

use super::write::Unwritten;

/// The longest name of a function in a text, in characters.
const SHOWN_CHARS: usize = 200;

/// The route of a function that a gateway names: `name`, `Class.method`, or the name of a method alone if one class has
/// it.
///
/// # Errors
///
/// No route has this name, or it streams: the error has the text that gateways read.
pub(super) fn find_function(client: &LocalClient, name: &str) -> Result<Arc<Route>, ApiError> {
    let is_open = |route: &Arc<Route>| !route.is_private() && !route.streams();
    let by_path = client.route(&format!("/{name}")).filter(is_open);
    let found = by_path.or_else(|| {
        let mut methods = client.routes().into_iter().filter(|route| is_open(route) && is_method(route.name(), name));
        methods.next().filter(|_| methods.next().is_none())
    });
    found.ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS).collect();
        raised(format!("No listener for {shown} was registered."))
    })
}

/// Whether a path such as `/text-model/fit` is that of the method `TextModel.fit`, or of `fit`. The path of `predict`
/// is that of its class.
fn is_method(path: &str, name: &str) -> bool {
    let mut steps = path.split('/').skip(1);
    let (Some(of_class), of_method, None) = (steps.next(), steps.next(), steps.next()) else { return false };
    match name.split_once('.') {
        Some((class, method)) => {
            folded(of_class).eq(folded(class)) && of_method.map_or(method == "predict", |step| step == method)
        }
        None => of_method == Some(name),
    }
}

/// The letters of a class name without `-`, `_` and case: `text-model` and `TextModel` are equal.
fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|letter| !['-', '_'].contains(letter)).flat_map(char::to_lowercase)
}

/// The error of a call that was made, or whose arguments do not fit.
pub(super) fn of_call(error: CallError) -> ApiError {
    use ErrorKind::{Cancelled, DeadlineExceeded, Overloaded, Unavailable};
    match error.kind() {
        DeadlineExceeded => error.into(),
        Cancelled | Overloaded | Unavailable if !error.was_started() => error.into(),
        _ => raised(error.message()),
    }
}

/// The error of an output that cannot be sent.
pub(super) fn of_output(error: Unwritten) -> ApiError {
    match error {
        Unwritten::Encode(error) if matches!(error.kind(), EncodeErrorKind::Exhausted | EncodeErrorKind::Stopped) => {
            ApiError::unencodable(error)
        }
        Unwritten::Encode(error) => raised(format!("the output cannot be sent: {error}")),
        Unwritten::NoForm(reason) => raised(format!("the output cannot be sent: {reason}")),
    }
}

/// An exception of the function: one line.
pub(super) fn raised(message: impl AsRef<str>) -> ApiError {
    let line = message.as_ref().replace(['\n', '\r'], " ");
    ApiError::new(ErrorKind::Failed, format!("Exception calling application: {line}"))
}
