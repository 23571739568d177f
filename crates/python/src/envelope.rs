//! Envelopes on their way between Python's bytes and the client's.

use bytes::Bytes;
use callboard_core::CallOptions;
use callboard_net::EncodedCall;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PySequence};

use crate::options::Options;

/// The call of these pieces. A single piece of bytes is shared with Python; else they are joined, which copies once.
pub(crate) fn encoded_call(
    route: String,
    pieces: &Bound<'_, PyAny>,
    options: &Options,
) -> PyResult<(EncodedCall, CallOptions)> {
    let given = options.call_options()?;
    let pieces =
        pieces.cast::<PySequence>().map_err(|_| PyTypeError::new_err("pieces: expected a sequence of bytes"))?;
    let single = if pieces.len()? == 1 { pieces.get_item(0)?.cast_into::<PyBytes>().ok() } else { None };
    let joined = match single {
        Some(single) => single,
        None => PyBytes::new(pieces.py(), b"").call_method1("join", (pieces,))?.cast_into::<PyBytes>()?,
    };
    let call = EncodedCall {
        route,
        is_function: options.function,
        envelope: Bytes::from_owner(PyBackedBytes::from(joined)),
        may_repeat: options.idempotent,
        is_of_stream: options.is_of_stream,
    };
    Ok((call, given))
}

/// The chunks of an envelope as one object, copied once.
pub(crate) fn joined<'py>(py: Python<'py>, chunks: &[Bytes]) -> PyResult<Bound<'py, PyBytes>> {
    if let [single] = chunks {
        return Ok(PyBytes::new(py, single));
    }
    PyBytes::new_with(py, chunks.iter().map(Bytes::len).sum(), |mut room| {
        for chunk in chunks {
            let (here, rest) = room.split_at_mut(chunk.len());
            here.copy_from_slice(chunk);
            room = rest;
        }
        Ok(())
    })
}
