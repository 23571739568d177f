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

    #[cfg(test)]
    pub(crate) fn message(&self) -> ToChild {
        message::decode(&self.head.clone().into()).unwrap()
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    fn pair() -> (FrameWriter, StdStream) {
        let (ours, theirs) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (FrameWriter::new(Arc::new(UnixStream::from_std(ours).unwrap())), theirs)
    }

    /// The bytes of a frame before its part.
    fn before_part() -> usize {
        let head = message::encode(&ToChild::Ping).unwrap();
        frame_start(&head, [0].into_iter(), 0).unwrap().len()
    }

    /// A frame of this many bytes, with one part.
    fn frame(bytes: usize) -> OutgoingFrame {
        let part = Envelope::from_bytes(vec![7; bytes - before_part()].into());
        OutgoingFrame::new(&ToChild::Ping, vec![part])
    }

    /// The bytes that the child may read by now.
    fn arrived(socket: &mut StdStream) -> usize {
        let mut all = Vec::new();
        assert!(is_not_ready(&socket.read_to_end(&mut all).unwrap_err()));
        all.len()
    }

    #[tokio::test]
    async fn small_frames_wait_for_each_other_up_to_one_piece() {
        const PIECE: usize = ONE_PIECE_BYTES;
        let least = before_part();
        // The bytes of two frames; then those that wait and those that were written, after each frame.
        for (first, second, after_first, after_second) in [
            (least, least, (least, 0), (2 * least, 0)),
            (PIECE, least, (PIECE, 0), (least, PIECE)),
            (PIECE + 1, least, (0, PIECE + 1), (least, 0)),
            (least, PIECE - least, (least, 0), (PIECE, 0)),
            (least, PIECE - least + 1, (least, 0), (PIECE - least + 1, least)),
            (least, PIECE + 1, (least, 0), (0, least + PIECE + 1)),
        ] {
            let ((mut writer, mut socket), mut small) = (pair(), Vec::new());
            writer.append_or_write(&mut small, &frame(first)).await.unwrap();
            assert_eq!((small.len(), arrived(&mut socket)), after_first, "{first} {second}");
            writer.append_or_write(&mut small, &frame(second)).await.unwrap();
            assert_eq!((small.len(), arrived(&mut socket)), after_second, "{first} {second}");
        }
    }

    /// Only the start of a frame goes through the socket when its parts lie in shared memory; a new one is sent at
    /// once.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_parts_of_a_large_frame_lie_in_memory() {
        let ((mut writer, mut socket), mut small) = (pair(), vec![0; 3]);
        writer.memories = Some(Outgoing::default());
        let large = frame(1 << 20);
        writer.append_or_write(&mut small, &large).await.unwrap();
        assert_eq!((small.len(), arrived(&mut socket)), (0, 3 + before_part()), "with the descriptor");
        writer.append_or_write(&mut small, &large).await.unwrap();
        assert_eq!((small.len(), arrived(&mut socket)), (0, before_part()), "the first memory is in use");
        writer.append_or_write(&mut small, &frame(ONE_PIECE_BYTES)).await.unwrap();
        assert_eq!((small.len(), arrived(&mut socket)), (ONE_PIECE_BYTES, 0), "it is not large");
    }

    #[tokio::test]
    async fn frames_are_written_until_none_can_come() {
        let (writer, mut socket) = pair();
        let (frames, queued) = mpsc::channel(2 * MAX_TOGETHER);
        for _ in 0..=MAX_TOGETHER {
            frames.try_send(frame(before_part())).unwrap();
        }
        drop(frames);
        writer.run(queued).await.unwrap();
        let mut all = Vec::new();
        assert_eq!(socket.read_to_end(&mut all).unwrap(), (MAX_TOGETHER + 1) * before_part());
    }

    #[tokio::test]
    async fn a_full_socket_is_waited_for_and_a_closed_one_is_an_error() {
        let (mut writer, socket) = pair();
        let reader = std::thread::spawn(move || {
            socket.set_nonblocking(false).unwrap();
            let mut all = vec![0; 4 << 20];
            (&socket).read_exact(&mut all).map(|()| socket)
        });
        writer.write(&frame(4 << 20)).await.unwrap();
        drop(reader.join().unwrap().unwrap());
        let error = writer.write(&frame(before_part())).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
