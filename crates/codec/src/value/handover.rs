//! A side door beside serde, for what serde's data model would copy: tensors, frames and byte strings are handed over
//! as they are, by reference count.
//!
//! Both ends of the door are in this crate and on one thread, one call apart: the bridge opens it around exactly one
//! call into [`exact`](super::exact) or [`serde`](super::serde), and closes it behind that. No user code runs between.

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
    /// A leaf of so many bytes or more is not to be written in place.
    Below(usize),
    /// One was met.
    Met,
}

/// Runs the serializer's side: `write` may hand a value over in place of writing it.
pub(crate) fn ask<T>(write: impl FnOnce() -> T) -> (T, Option<Value>) {
    ASKED.set(true);
    let written = write();
    ASKED.set(false);
    (written, take())
}

/// Hands over the value if the serializer at hand asked for it.
pub(crate) fn offer(value: impl FnOnce() -> Value) -> bool {
    let asked = ASKED.replace(false);
    if asked {
        let value = value();
        HANDED.with_borrow_mut(|handed| *handed = Some(value));
    }
    asked
}

/// Runs the deserializer's side: `read` may take the value.
pub(crate) fn give<T>(value: Value, read: impl FnOnce() -> T) -> T {
    HANDED.with_borrow_mut(|handed| *handed = Some(value));
    let made = read();
    take();
    made
}

/// Takes what was handed over, if anything was.
pub(crate) fn take() -> Option<Value> {
    HANDED.with_borrow_mut(Option::take)
}

/// Runs `write`, in which a leaf of `max` bytes or more fails instead of being written. Says whether one was met.
pub(crate) fn watch<T>(max: usize, write: impl FnOnce() -> T) -> (T, bool) {
    let before = WATCH.replace(Watch::Below(max));
    let written = write();
    (written, WATCH.replace(before) == Watch::Met)
}

/// Whether a leaf of this size must not be written in place.
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
