//! A function as the worker of a program of its own.

use callboard_codec::{Payload, Value};
use callboard_core::edge::ErrorParts;
use callboard_core::{ErrorKind, Failure};

use super::ServeWorkerError;
use super::messages::connect;
use crate::frame::limits;
use crate::message::{AHEAD, INVALID_STATUS};

/// Serves a stage of a node from this process, which the node has started: `load` once, then `run` for each item, until
/// the node ends the process.
///
/// ```no_run
/// use callboard_codec::Value;
///
/// fn main() -> Result<(), callboard_process::ServeWorkerError> {
///     callboard_process::serve_worker(
///         || Ok(()),
///         |(), item: &Value| Ok(Value::from(item.as_str().ok_or("a text is needed")?.to_uppercase())),
///     )
/// }
/// ```
///
/// # Errors
///
/// If standard input is not a node's socket, or the node breaks the protocol.
pub fn serve_worker<W>(
    load: impl FnOnce() -> Result<W, Failure>,
    run: impl Fn(&mut W, &Value) -> Result<Value, Failure>,
) -> Result<(), ServeWorkerError> {
    let (mut messages, node) = connect()?;
    let Some(start) = messages.start()? else { return Ok(()) };
    let mut worker = match load() {
        Ok(worker) => worker,
        Err(failure) => return node.failed(&failure),
    };
    node.ready(start.shared_memory, (1, start.ahead.unwrap_or_default().min(AHEAD)), None)?;
    let limits = limits(start.max_bytes);
    loop {
        let Some(batch) = messages.next()? else {
            if messages.end.is_some() {
                return Ok(());
            }
            messages.read()?;
            continue;
        };
        let mut outcomes = node.outcomes();
        for (input, _) in batch.items(&limits) {
            let output = input.and_then(|input| {
                let input = input.value().map_err(|unread| error(unread.into()))?;
                run(&mut worker, input).map_err(error)
            });
            outcomes.push(output.map(|output| Some(Payload::new(output))), None);
            // The caller of the next item may be gone by now.
            messages.look()?;
        }
        outcomes.send(batch.id, &node)?;
    }
}

/// A wrong item has the status that the protocol gives it.
fn error(failure: Failure) -> Box<ErrorParts> {
    let mut parts = failure.into_parts();
    if parts.kind == ErrorKind::InvalidInput {
        parts.status.get_or_insert(INVALID_STATUS);
    }
    Box::new(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_item_has_its_status_unless_the_code_says_another() {
        let status = |failure: Failure| error(failure).status;
        assert_eq!(status(Failure::invalid_input("no text")), Some(INVALID_STATUS));
        assert_eq!(status(Failure::invalid_input("no text").with_status(400)), Some(400));
        assert_eq!(status(Failure::new("no weights")), None);
        assert_eq!(error(Failure::new("no weights")).message, "no weights");
    }
}
