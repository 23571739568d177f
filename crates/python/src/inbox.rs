//! Messages of the extension's threads to Python: many share one wake-up.
//!
//! A message goes into a list. If the list was empty, a byte goes to a socket that Python waits for, and Python takes
//! the whole list at once. So no thread of the extension ever waits for the interpreter.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::failure::Fault;
use crate::own::Own;

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    messages: Own<Arc<Messages<T>>>,
    woken: UnixStream,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Messages<T> {
    list: Mutex<Vec<T>>,
    wake: UnixStream,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        Ok(Self { messages: Own::new(Arc::new(Messages { list: Mutex::default(), wake })), woken })
    }

    pub(crate) fn messages(&self) -> Result<Arc<Messages<T>>, Fault> {
        self.messages.get().cloned()
    }

    /// The socket that is readable while there are messages.
    pub(crate) fn fileno(&self) -> i32 {
        self.woken.as_raw_fd()
    }

    /// The messages since the last time. None in a forked process, which has not the wake-ups of its parent.
    pub(crate) fn take(&self) -> Vec<T> {
        let Ok(messages) = self.messages.get() else { return Vec::new() };
        // Read before the list is taken: a message after that writes again.
        let _ = (&self.woken).read(&mut [0; 64]);
        std::mem::take(&mut *messages.list.lock())
    }
}

impl<T> Messages<T> {
    pub(crate) fn push(&self, message: T) {
        let is_first = {
            let mut list = self.list.lock();
            list.push(message);
            list.len() == 1
        };
        if is_first {
            // Fails if the socket is full of wake-ups, or its reader is gone.
            let _ = (&self.wake).write(&[0]);
        }
    }
}
