//! A Unix socket that passes descriptors along with bytes.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The most descriptors without a frame. Between two reads a partly read frame has at most one, and a read returns at
/// most one more.
const MAX_WAITING: usize = 2;

/// The sender broke the rules of descriptors. The descriptors that were received are closed.
#[derive(Debug, thiserror::Error)]
#[error("it sent more than one descriptor with a frame, or this process has no descriptor left")]
struct TooManyDescriptors;

/// The source of frames: bytes, and the descriptors that arrived with them.
pub(crate) trait Source: Read {
    /// The first descriptor that no frame has taken.
    fn take_descriptor(&mut self) -> Option<OwnedFd> {
        None
    }

    /// Whether a descriptor arrived without a frame to claim it.
    fn has_stray_descriptor(&self) -> bool {
        false
    }
}

/// The reading side of a socket.
#[derive(Debug)]
pub(crate) struct Inbox {
    stream: UnixStream,
    descriptors: VecDeque<OwnedFd>,
}

impl Inbox {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, descriptors: VecDeque::new() }
    }

    /// The socket, for a writer without descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// The writing side, with a descriptor for the first byte.
    pub(crate) fn outbox(&self, descriptor: Option<OwnedFd>) -> Outbox<'_> {
        Outbox { stream: &self.stream, descriptor }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for Inbox {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(&self.stream, buffer, &mut self.descriptors)
    }
}

impl Source for BufReader<Inbox> {
    fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.get_mut().descriptors.pop_front()
    }

    fn has_stray_descriptor(&self) -> bool {
        self.buffer().is_empty() && !self.get_ref().descriptors.is_empty()
    }
}

/// The writing side of a socket.
#[derive(Debug)]
pub(crate) struct Outbox<'s> {
    stream: &'s UnixStream,
    /// Goes with the first byte that is written.
    descriptor: Option<OwnedFd>,
}

impl Write for Outbox<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = send(self.stream, bytes, self.descriptor.as_ref())?;
        self.descriptor = None;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a socket has nothing to read, or no room, for now.
pub(crate) fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock)
}

#[cfg(target_os = "linux")]
fn receive(stream: &UnixStream, buffer: &mut [u8], descriptors: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    use std::mem::MaybeUninit;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [io::IoSliceMut::new(buffer)];
    let received = recvmsg(stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let before = descriptors.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    let is_more_than_one = descriptors.len() > before + 1 || received.flags.contains(ReturnFlags::CTRUNC);
    if is_more_than_one || descriptors.len() > MAX_WAITING {
        descriptors.clear();
        return Err(io::Error::new(io::ErrorKind::InvalidData, TooManyDescriptors));
    }
    Ok(received.bytes)
}

/// Sends bytes, and a descriptor with the first of them.
#[cfg(target_os = "linux")]
pub(crate) fn send(stream: impl AsFd, bytes: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<usize> {
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut control, descriptors) = (SendAncillaryBuffer::new(&mut space), descriptor.map(AsFd::as_fd));
    if descriptor.is_some() && !control.push(SendAncillaryMessage::ScmRights(descriptors.as_slice())) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Only memory that Linux has is sent as descriptors.
#[cfg(not(target_os = "linux"))]
fn receive(mut stream: &UnixStream, buffer: &mut [u8], _: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    stream.read(buffer)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn send(stream: impl AsFd, bytes: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<usize> {
    match descriptor {
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None => Ok(rustix::io::write(stream, bytes)?),
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs::File;
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn pair() -> (UnixStream, BufReader<Inbox>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, BufReader::with_capacity(1, Inbox::new(theirs)))
    }

    fn file() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    /// Sends one byte with this many descriptors.
    fn send_with(stream: &UnixStream, count: usize) {
        let files: Vec<_> = (0..count).map(|_| file()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        assert!(count == 0 || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(stream, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    }

    fn read(inbox: &mut BufReader<Inbox>) -> Result<usize, String> {
        inbox.get_mut().read(&mut [0; 16]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_descriptor_comes_with_the_first_byte_of_what_is_written() {
        let (ours, mut inbox) = pair();
        let outbox = Inbox::new(ours);
        let mut outbox = outbox.outbox(Some(file()));
        assert_eq!((outbox.write(b"a").unwrap(), outbox.write(b"b").unwrap()), (1, 1));
        outbox.flush().unwrap();
        assert!(inbox.take_descriptor().is_none());
        assert_eq!(read(&mut inbox), Ok(1), "bytes after a descriptor come with the next read");
        assert!(inbox.has_stray_descriptor());
        assert_eq!(read(&mut inbox), Ok(1));
        assert!(inbox.take_descriptor().is_some() && inbox.take_descriptor().is_none());
        assert!(!inbox.has_stray_descriptor());
    }

    #[test]
    fn a_descriptor_is_stray_when_no_byte_of_its_frame_is_left() {
        let (ours, mut inbox) = pair();
        send_with(&ours, 1);
        assert_eq!(io::BufRead::fill_buf(&mut inbox).unwrap(), b"x");
        assert!(!inbox.has_stray_descriptor());
        io::BufRead::consume(&mut inbox, 1);
        assert!(inbox.has_stray_descriptor());
    }

    #[test]
    fn more_than_one_descriptor_with_a_byte_or_two_without_a_frame_are_refused_and_closed() {
        let refused = TooManyDescriptors.to_string();
        for count in [2, 3, 8] {
            let (ours, mut inbox) = pair();
            send_with(&ours, count);
            assert_eq!(read(&mut inbox), Err(refused.clone()), "{count}");
            assert!(inbox.take_descriptor().is_none());
        }
        let (ours, mut inbox) = pair();
        (0..3).for_each(|_| send_with(&ours, 1));
        assert_eq!((read(&mut inbox), read(&mut inbox), read(&mut inbox)), (Ok(1), Ok(1), Err(refused)));
        assert!(inbox.take_descriptor().is_none());
    }

    #[test]
    fn descriptors_that_are_taken_may_be_followed_by_others() {
        let (ours, mut inbox) = pair();
        for _ in 0..10 {
            send_with(&ours, 1);
            send_with(&ours, 0);
            assert_eq!((read(&mut inbox), read(&mut inbox)), (Ok(1), Ok(1)));
            assert!(inbox.take_descriptor().is_some());
        }
    }

    #[test]
    fn only_a_socket_that_would_block_is_not_ready() {
        let (ours, mut inbox) = pair();
        inbox.get_ref().stream.set_nonblocking(true).unwrap();
        assert!(is_not_ready(&inbox.get_mut().read(&mut [0]).unwrap_err()));
        drop(ours);
        assert_eq!(read(&mut inbox), Ok(0));
        assert!(!is_not_ready(&io::ErrorKind::Interrupted.into()));
    }
}
