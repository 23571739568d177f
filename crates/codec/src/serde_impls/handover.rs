//! Passes tensors, frames and byte strings by reference count between our own serializers and types. serde's data model
//! would copy them.
//!
//! Both ends are in this crate and on one thread. The giving end opens the handover for exactly one call into
//! [`exact`](super::exact) or [`value`](super::value), and closes it after that call. No user code runs in between.

use std::cell::{Cell, RefCell};

use crate::value::Value;

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
    static HANDED: RefCell<Option<Value>> = const { RefCell::new(None) };
    static WATCH: Cell<Watch> = const { Cell::new(Watch::Off) };
}

#[derive(Clone, Copy, PartialEq)]
enum Watch {
    Off,
    /// A leaf of at least this many bytes must not be written in place.
    Below(usize),
    /// Such a leaf was met.
    Met,
}

/// Runs the serializer's side: `write` may hand over a value instead of writing it.
pub(crate) fn ask<T>(write: impl FnOnce() -> T) -> (T, Option<Value>) {
    ASKED.set(true);
    let written = write();
    ASKED.set(false);
    (written, take())
}

/// Hands over the value if the serializer asked for it.
pub(crate) fn offer(value: impl FnOnce() -> Value) -> bool {
    let was_asked = ASKED.replace(false);
    if was_asked {
        let value = value();
        HANDED.with_borrow_mut(|handed| *handed = Some(value));
    }
    was_asked
}

/// Runs the deserializer's side: `read` may take the value.
pub(crate) fn give<T>(value: Value, read: impl FnOnce() -> T) -> T {
    HANDED.with_borrow_mut(|handed| *handed = Some(value));
    let made = read();
    take();
    made
}

/// Takes the value that was handed over, if any.
pub(crate) fn take() -> Option<Value> {
    HANDED.with_borrow_mut(Option::take)
}

/// Runs `write`, in which a leaf of `max` bytes or more fails instead of being written. Returns whether one was met.
pub(crate) fn watch<T>(max: usize, write: impl FnOnce() -> T) -> (T, bool) {
    let before = WATCH.replace(Watch::Below(max));
    let written = write();
    (written, WATCH.replace(before) == Watch::Met)
}

/// Whether a leaf of this size must not be written in place. Remembers that one was met.
pub(crate) fn refuses(bytes: usize) -> bool {
    let refused = match WATCH.get() {
        Watch::Off => false,
        Watch::Below(max) => bytes >= max,
        Watch::Met => true,
    };
    if refused {
        WATCH.set(Watch::Met);
    }
    refused
}
