//! The protocol on stdin and stdout, for hosts that start their servers: a message on a line each way.
//!
//! ```text
//!  stdin ── line ── a request with its headers (`message`) ──► POST /mcp of a node (`exchange`)
//!  stdout ◄─ line ── the answer, or each event of a stream (`answer`, `events`) ◄──┘
//! ```
//!
//! It translates between two transports of the protocol, so both eras are served, and every answer is that of
//! `POST /mcp`. Requests run at the same time, each as one exchange; answers come in the order in which they are ready.
//!
//! * **Full:** at most [`MAX_IN_HAND`] requests run, further ones are refused. A host that does not read its answers
//!   suspends its calls, and then its own lines are not read either.
//! * **Late:** as the call of the node.
//! * **Cancelled:** `notifications/cancelled` drops the exchange, which cancels the call in both eras; so does the end
//!   of stdin, [`LAST_ANSWERS`] after it.

mod answer;
mod events;
mod exchange;
mod lines;
pub(crate) mod message;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::timeout;

pub use self::exchange::{AnswerBody, ExchangeError, HostMessage, LocalNode, MessageExchange, PostedAnswer};

pub(crate) use self::message::CLOSING_CANCELS;

use self::answer::{Passed, passed};
use self::events::EventReader;
use self::lines::{LineReader, ReadLine};
use self::message::{HostRequest, Line, read};
use crate::rpc::{self, INTERNAL_ERROR, INVALID_REQUEST, Id, REFUSED, RpcError};

/// How many requests run at a time: more than a host has open, and little memory.
const MAX_IN_HAND: usize = 256;

/// How long answers that are nearly ready may take after the end of stdin. Hosts wait about two seconds before they
/// send a signal.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The longest answer, and the longest event of one. It is held whole, to be written as one line.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Serves the messages of `input` on `output` until `input` ends. A longer line than `max_line_bytes` is refused.
///
/// # Errors
///
/// `input` cannot be read. An `output` without a reader is an end as well, and no error.
///
/// # Cancellation
///
/// Dropping the future cancels all calls in progress.
pub async fn serve_stdio(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    node: impl MessageExchange,
    max_line_bytes: usize,
) -> io::Result<()> {
    // One line waits for its turn; all others are with their calls.
    let (answers, queued) = mpsc::channel(1);
    let mut writing = JoinSet::new();
    writing.spawn(write_lines(output, queued));
    let mut lines = LineReader::new(input, max_line_bytes);
    let mut session = Session { node: Arc::new(node), answers, running: JoinSet::new(), in_hand: Vec::new() };
    loop {
        tokio::select! {
            biased;
            Some(ended) = session.running.join_next_with_id() => session.forget(ended).await,
            // The host reads no answers any more.
            () = session.answers.closed() => return Ok(()),
            line = lines.next() => match line? {
                Some(line) => session.take(line).await,
                None => break,
            },
        }
    }
    let _ = timeout(LAST_ANSWERS, session.finish()).await;
    // The last lines are written, if the host still reads.
    drop(session);
    let _ = timeout(LAST_ANSWERS, writing.join_next()).await;
    Ok(())
}

async fn write_lines(mut output: impl AsyncWrite + Unpin, mut queued: mpsc::Receiver<Bytes>) {
    while let Some(line) = queued.recv().await {
        let written = async {
            output.write_all(&line).await?;
            output.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

/// What the host has asked for, and has no answer to.
struct Session<E> {
    node: Arc<E>,
    answers: mpsc::Sender<Bytes>,
    running: JoinSet<()>,
    in_hand: Vec<InHand>,
}

struct InHand {
    task: tokio::task::Id,
    id: Id,
    abort: AbortHandle,
}

impl<E: MessageExchange> Session<E> {
    async fn take(&mut self, line: ReadLine) {
        let line = match line {
            ReadLine::Whole(bytes) => read(bytes),
            ReadLine::TooLong { limit } => {
                let message = format!("the message is longer than {limit} bytes");
                Line::Refused(rpc::error(None, &RpcError::new(INVALID_REQUEST, message)))
            }
        };
        match line {
            Line::Ignored => {}
            Line::Refused(answer) => send(&self.answers, answer).await,
            Line::Cancel(id) => {
                for cancelled in self.in_hand.iter().filter(|in_hand| in_hand.id == id) {
                    cancelled.abort.abort();
                }
            }
            Line::Request(request) if self.in_hand.len() >= MAX_IN_HAND => {
                let message = format!("{MAX_IN_HAND} requests of this host run; ask again when one is answered");
                send(&self.answers, rpc::error(Some(&request.id), &RpcError::new(REFUSED, message))).await;
            }
            Line::Request(request) => {
                let id = request.id.clone();
                let abort = self.running.spawn(answer(Arc::clone(&self.node), request, self.answers.clone()));
                self.in_hand.push(InHand { task: abort.id(), id, abort });
            }
        }
    }

    async fn forget(&mut self, ended: Result<(tokio::task::Id, ()), JoinError>) {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, ())| *task);
        let Some(at) = self.in_hand.iter().position(|in_hand| in_hand.task == task) else { return };
        let id = self.in_hand.swap_remove(at).id;
        if ended.is_err_and(|error| error.is_panic()) {
            let error = RpcError::new(INTERNAL_ERROR, "a defect of the bridge: the call may have run");
            send(&self.answers, rpc::error(Some(&id), &error)).await;
        }
    }

    async fn finish(&mut self) {
        while let Some(ended) = self.running.join_next_with_id().await {
            self.forget(ended).await;
        }
    }
}

/// An error means that nobody reads, which ends the session.
async fn send(answers: &mpsc::Sender<Bytes>, mut line: Vec<u8>) {
    line.push(b'\n');
    let _ = answers.send(line.into()).await;
}

/// One exchange: the answer is written in any case, and only once.
async fn answer(node: Arc<impl MessageExchange>, request: HostRequest, answers: mpsc::Sender<Bytes>) {
    let HostRequest { id, message } = request;
    let error = match node.post(message).await {
        Err(ExchangeError::NotSent(reason)) => RpcError::new(REFUSED, reason),
        Err(ExchangeError::Lost(reason)) => lost(&reason),
        Ok(posted) => match pass_on(&id, posted, &answers).await {
            Ok(()) => return,
            Err(error) => error,
        },
    };
    send(&answers, rpc::error(Some(&id), &error)).await;
}

fn lost(reason: &str) -> RpcError {
    RpcError::new(INTERNAL_ERROR, format!("the answer was lost, and the call may have run: {reason}"))
}

/// Writes the messages of an answer. An error means that the answer itself was not among them.
async fn pass_on(id: &Id, posted: PostedAnswer, answers: &mpsc::Sender<Bytes>) -> Result<(), RpcError> {
    let PostedAnswer { status, is_stream, mut body } = posted;
    if is_stream {
        let (mut events, mut is_answered) = (EventReader::new(MAX_ANSWER_BYTES), false);
        // To its end, so that the node sees a response that was read.
        while let Some(piece) = body.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(_) if is_answered => break,
                Err(reason) => return Err(lost(&reason)),
            };
            for event in events.push(&piece).map_err(|error| lost(&error.to_string()))? {
                match passed(id, event) {
                    Some(Passed::Notification(line)) if !is_answered => send(answers, line).await,
                    Some(Passed::Answer(line)) if !is_answered => {
                        is_answered = true;
                        send(answers, line).await;
                    }
                    _ => {}
                }
            }
        }
        return if is_answered { Ok(()) } else { Err(lost("the stream ended without it")) };
    }
    let mut whole = Vec::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|reason| lost(&reason))?;
        if piece.len() > MAX_ANSWER_BYTES - whole.len() {
            return Err(lost(&format!("it has more than {MAX_ANSWER_BYTES} bytes")));
        }
        whole.extend_from_slice(&piece);
    }
    match passed(id, whole) {
        Some(Passed::Answer(line)) => {
            send(answers, line).await;
            Ok(())
        }
        _ => {
            let message = format!("status {status} came without a message of this protocol: is it a Callboard node?");
            Err(RpcError::new(INTERNAL_ERROR, message))
        }
    }
}

#[cfg(test)]
mod tests;
