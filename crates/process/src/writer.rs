//! Frames to a child: each is written whole, in the order in which they were queued.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use callboard_codec::Envelope;
use callboard_core::edge::off_the_runtime;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::frame::{ONE_PIECE_BYTES, frame_start};
use crate::message::{self, ToChild};
use crate::shared_memory::{MemoryFields, Outgoing};
use crate::socket::{self, is_not_ready};

/// The most frames that are written together, if they are small: a stream has several outputs at a time, and each write
/// wakes the child.
const MAX_TOGETHER: usize = 16;

/// A frame for a child.
pub(crate) struct OutgoingFrame {
    head: Vec<u8>,
    parts: Vec<Envelope>,
    /// Its place among the outputs that are not written.
    _room: Option<OwnedSemaphorePermit>,
}

/// The writing side of a child.
pub(crate) struct FrameWriter {
    socket: Arc<UnixStream>,
    /// If both sides share memory.
    pub(crate) memories: Option<Outgoing>,
}

impl OutgoingFrame {
    pub(crate) fn new(message: &ToChild, parts: Vec<Envelope>) -> Self {
        // The head has numbers and texts, which can be written.
        Self { head: message::encode(message).unwrap_or_default(), parts, _room: None }
    }

    /// The frame, which takes this room until it is written.
    pub(crate) fn in_room(self, room: Option<OwnedSemaphorePermit>) -> Self {
        Self { _room: room, ..self }
    }
}

impl FrameWriter {
    pub(crate) fn new(socket: Arc<UnixStream>) -> Self {
        Self { socket, memories: None }
    }

    /// Writes frames until all that queue them have ended.
    pub(crate) async fn run(mut self, mut outgoing: mpsc::Receiver<OutgoingFrame>) -> io::Result<()> {
        let mut queued = Vec::with_capacity(MAX_TOGETHER);
        while outgoing.recv_many(&mut queued, MAX_TOGETHER).await > 0 {
            let mut small = Vec::new();
            for frame in queued.drain(..) {
                self.append_or_write(&mut small, &frame).await?;
            }
            self.write_all(&small, &mut None).await?;
        }
        Ok(())
    }

    pub(crate) async fn write(&mut self, frame: &OutgoingFrame) -> io::Result<()> {
        let mut small = Vec::new();
        self.append_or_write(&mut small, frame).await?;
        self.write_all(&small, &mut None).await
    }

    /// Appends a small frame to those that wait in `small`, or writes them and it.
    async fn append_or_write(&mut self, small: &mut Vec<u8>, frame: &OutgoingFrame) -> io::Result<()> {
        let OutgoingFrame { head, parts, .. } = frame;
        let lengths = parts.iter().map(Envelope::len);
        let bytes: usize = lengths.clone().sum();
        let MemoryFields { memory, mut descriptor } = match &mut self.memories {
            Some(memories) => {
                off_the_runtime(bytes, || memories.place(parts.iter().map(|part| (part.len(), part.parts()))))
            }
            None => MemoryFields::default(),
        };
        let start = frame_start(head, lengths, memory)?;
        let pieces = parts.iter().flat_map(Envelope::parts);
        let own = start.len() + if memory == 0 { bytes } else { 0 };
        if small.len() + own > ONE_PIECE_BYTES || descriptor.is_some() {
            self.write_all(small, &mut None).await?;
            small.clear();
        }
        if memory != 0 || own <= ONE_PIECE_BYTES {
            small.extend_from_slice(&start);
            if memory == 0 {
                pieces.for_each(|piece| small.extend_from_slice(piece));
            } else if descriptor.is_some() {
                self.write_all(small, &mut descriptor).await?;
                small.clear();
            }
            return Ok(());
        }
        self.write_all(&start, &mut None).await?;
        for piece in pieces {
            self.write_all(piece, &mut None).await?;
        }
        Ok(())
    }

    /// Writes bytes, and the descriptor with the first of them.
    async fn write_all(&self, mut bytes: &[u8], descriptor: &mut Option<OwnedFd>) -> io::Result<()> {
        while !bytes.is_empty() {
            let write = || socket::send(&*self.socket, bytes, descriptor.as_ref());
            match self.socket.try_io(Interest::WRITABLE, write) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    *descriptor = None;
                }
                Err(error) if is_not_ready(&error) => self.socket.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
