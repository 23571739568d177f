//! State that belongs to one process. A fork copies it, and the copy is useless.
//!
//! A thread that did not survive the fork may have held a lock in it, which no thread frees. So the forked process
//! neither reads nor drops its copy: the copy is leaked.

use std::mem::ManuallyDrop;
use std::process;

use crate::failure::Fault;

/// A value that only the process that made it may use and drop.
#[derive(Debug)]
pub(crate) struct Own<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: process::id(), value: Some(value) }
    }

    pub(crate) fn get(&self) -> Result<&T, Fault> {
        self.value.as_ref().filter(|_| self.is_here()).ok_or(Fault::Forked)
    }

    /// Takes it to drop it. `None` in a forked process.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_here() { self.value.take() } else { None }
    }

    fn is_here(&self) -> bool {
        self.process == process::id()
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            let _leaked = ManuallyDrop::new(self.value.take());
        }
    }
}
