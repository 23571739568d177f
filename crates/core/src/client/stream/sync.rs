//! What [`bells`](super::bells) are made of; their test by loom puts loom's in the place of these.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use parking_lot::Mutex;
