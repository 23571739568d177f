//! Small calls to one node share streams: calls that are ready at the same moment are sent on one stream.
//!
//! ```text
//!  dispatch.rs       which calls share a stream        coalescer.rs    the queue of calls, and its sender
//!  shared_stream.rs  one stream with its calls         write_queue.rs  its bytes to send
//!  slot.rs           a call, its caller, its stream    wake_batch.rs   callers that are woken together
//! ```

mod coalescer;
mod dispatch;
mod shared_stream;
mod slot;
mod wake_batch;
mod write_queue;

pub(super) use self::coalescer::Coalescer;
pub(crate) use self::coalescer::ROOM_WAIT;
pub(super) use self::dispatch::LargeReplyNames;
