//! One call of a stage: which peer is asked, what its answer means, and who is asked next.

use std::net::SocketAddr;
use std::time::Duration;

use callboard_codec::wire::Call;
use callboard_codec::{Envelope, Payload};
use callboard_core::edge::PayloadReplies;
use callboard_core::remote::{StageCall, StageOutputs, StageReply};
use callboard_core::{CallError, ErrorKind, Instant, Reply, SessionKey};

use super::Inner;
use super::outputs::Outputs;
use super::peer::{Candidate, InHand};
use super::standing::Standing;
use super::weigh::{Weight, better_of_two, left_out, of_session};
use crate::client::{
    Answer, ROOM_WAIT, Room, Talk, had_no_room, is_lost, may_repeat, no_room, not_started, read_output,
};
use crate::convert;

/// What callers are told to wait who found no node. Links that are lost are tried again after a tenth of it, and every five seconds in
/// the end.
const LOOKED_FOR_AGAIN: Duration = Duration::from_secs(1);

/// What was told in the end, of how many stages, and by whom where that is recorded.
struct Told {
    came: Came,
    stages: usize,
    node: Option<String>,
}

/// What came of asking one peer.
enum Came {
    Outcome(Box<Answer>),
    Outputs(Box<Outputs>),
}

/// The peer that is asked next.
struct Pick {
    candidate: Candidate,
    /// How many of the call's stages go along.
    stages: usize,
    /// The peer says of all of them that they may be run again.
    idempotent: bool,
    /// Whether room on its connection is waited for.
    room: Room,
}

impl Inner {
    pub(super) async fn run(&self, call: StageCall) -> Result<StageReply, CallError> {
        let account = call.account();
        match self.ask(call, false).await? {
            Told { came: Came::Outcome(answer), stages, node } => {
                let Answer { done, body } = *answer;
                let value = read_output(body, account, |body| body.finish()).await?;
                // 0 says that all of them ran.
                let ran = if done.stages > 0 { stages.min(done.stages as usize) } else { stages };
                let reply = Reply::new(Payload::new(value), convert::timing(done.times));
                Ok(StageReply::new(reply, ran).with_node(node))
            }
            Told { came: Came::Outputs(_), .. } => {
                Err(CallError::new(ErrorKind::Internal, "a call with one outcome was streamed"))
            }
        }
    }

    pub(super) async fn stream(&self, call: StageCall) -> Result<StageOutputs, CallError> {
        match self.ask(call, true).await? {
            Told { came: Came::Outputs(outputs), stages, .. } => {
                let outputs = futures_util::stream::unfold(outputs, Outputs::next);
                Ok(StageOutputs::new(PayloadReplies::new(outputs), stages))
            }
            Told { came: Came::Outcome(_), .. } => {
                Err(CallError::new(ErrorKind::Internal, "a streaming call had one outcome"))
            }
        }
    }

    /// Asks one peer after the other, until one has an answer, or it may not be asked any more. Says how many stages went along.
    async fn ask(&self, mut call: StageCall, streams: bool) -> Result<Told, CallError> {
        let envelope = call.payload.to_envelope().map_err(|error| {
            let message = format!("the input of stage `{}` cannot be sent: {error}", call.stage());
            // A stage that runs here as well can do without the peers.
            if call.can_run_here { not_started(message) } else { CallError::new(ErrorKind::Internal, message) }
        })?;
        // A call pays for retries once.
        if !call.is_retry {
            self.retries.lock().called(Instant::now());
        }
        if call.revision.is_none() {
            call.revision = self.draw(call.stage(), call.options.session(), None);
        }
        let mut tried: Vec<SocketAddr> = Vec::new();
        let mut last: Option<CallError> = None;
        loop {
            let Some(pick) = self.pick(&call, streams, &tried) else {
                // A call that was lost and may be run again is, by whoever comes back: until it is late, which its
                // owner notices. One that was refused, or that this node can run itself, is told so.
                if call.can_run_here || !last.as_ref().is_some_and(is_lost) {
                    break;
                }
                tokio::time::sleep(LOOK_FOR_NODES_EVERY).await;
                tried.clear();
                continue;
            };
            if !tried.is_empty() {
                self.asking.again();
            }
            tried.push(pick.candidate.peer.address());
            let error = match self.attempt(&pick, &call, streams, &envelope).await {
                Ok(came) => {
                    let node = call.options.recorder().map(|_| pick.candidate.name());
                    return Ok(Told { came, stages: pick.stages, node });
                }
                Err(error) => error,
            };
            let was_lost = is_lost(&error);
            let may_have_run = was_lost && call.may_run_again.unwrap_or(pick.idempotent) && !streams;
            let goes_on = match error.kind() {
                // What could not be begun costs nothing of the budget: the peer has not had it.
                ErrorKind::Unavailable if error.is_refusal() => true,
                _ if error.is_refusal() || may_have_run => self.retries.lock().take(Instant::now()),
                _ => false,
            };
            // That it may have run stays said, whoever refuses after that; an outcome that is known says more.
            if last.as_ref().is_none_or(CallError::is_refusal) || !error.is_refusal() {
                last = Some(if may_have_run { may_repeat(error) } else { error });
            }
            if !goes_on {
                break;
            }
        }
        Err(come_again(last.unwrap_or_else(|| self.nobody(&call, streams)), &call))
    }

    /// That there is nobody to ask: whoever reads it should know whether a node is missing, or its name is another one.
    fn nobody(&self, call: &StageCall, streams: bool) -> CallError {
        let stage = call.stage();
        if !self.candidates(stage, Some(!streams), Instant::now()).is_empty() {
            let form = if streams { "with one output" } else { "with a stream" };
            return not_started(format!(
                "the nodes that run the stage `{stage}` answer {form}, and it was called as if not"
            ));
        }
        let linked = self.peers.load().iter().filter(|peer| peer.is_linked()).count();
        not_started(match linked {
            0 => format!("no node can be reached that runs the stage `{stage}`: none is linked"),
            1 => format!("no node can be reached that runs the stage `{stage}`: the one that is linked does not"),
            _ => format!(
                "no node can be reached that runs the stage `{stage}`: none of the {linked} that are linked does"
            ),
        })
    }

    /// Asks one peer, and remembers how it did.
    async fn attempt(
        &self,
        pick: &Pick,
        call: &StageCall,
        streams: bool,
        envelope: &Envelope,
    ) -> Result<Came, CallError> {
        let Pick { candidate, stages, .. } = pick;
        let (peer, stage, began) = (&candidate.peer, call.stage(), Instant::now());
        let in_hand = peer.begin(stage, began);
        let told = match streams {
            false => {
                let limits = (&self.frames, &self.decode);
                let answered = candidate.link.call(&header(call, *stages), envelope, limits, pick.room).await;
                answered.map(|answer| Came::Outcome(Box::new(answer)))
            }
            true => {
                let begun = self.begin(pick, call, envelope.clone(), in_hand).await;
                begun.map(|outputs| Came::Outputs(Box::new(outputs)))
            }
        };
        self.asking.asked(told.as_ref().err());
        let now = Instant::now();
        peer.note(stage, |standing| match &told {
            Ok(Came::Outcome(answer)) => {
                standing.answered(now, now - began, Some(answer.done.load.queued as usize));
            }
            Ok(Came::Outputs(_)) => standing.answered(now, now - began, None),
            Err(error) => blame(standing, error, now, now - began),
        });
        told
    }

    async fn begin(
        &self,
        pick: &Pick,
        call: &StageCall,
        envelope: Envelope,
        in_hand: InHand,
    ) -> Result<Outputs, CallError> {
        let talk = self.talk(pick).await?;
        let mut header = header(call, pick.stages);
        header.credit = u32::try_from(call.credit.max(1)).unwrap_or(u32::MAX);
        Outputs::begin(talk, &header, envelope, in_hand).await
    }

    async fn talk(&self, pick: &Pick) -> Result<Talk, CallError> {
        let opening = Talk::open(&pick.candidate.link, &self.frames, &self.decode);
        if pick.room == Room::Wait {
            return opening.await;
        }
        let opened = tokio::time::timeout(ROOM_WAIT, opening).await;
        opened.unwrap_or_else(|_| Err(no_room("the peer has no room for another stream")))
    }

    /// The next peer for a call, of those that were not tried.
    fn pick(&self, call: &StageCall, streams: bool, tried: &[SocketAddr]) -> Option<Pick> {
        let mut candidates = self.candidates(call.stage(), Some(streams), Instant::now());
        candidates.retain(|candidate| !tried.contains(&candidate.peer.address()));
        // Nobody else is left, and this node does not run the stage: then it is worth waiting for, within the deadline.
        let room = match candidates.len() {
            1 if !call.can_run_here => Room::Wait,
            _ => Room::OrElsewhere,
        };
        if candidates.iter().any(|candidate| Some(candidate.revision) == call.revision) {
            candidates.retain(|candidate| Some(candidate.revision) == call.revision);
        }
        // One crossing rather than several.
        let along = |candidate: &Candidate| can_chain(candidate, call);
        let most = candidates.iter().map(|candidate| along(candidate).0).max()?;
        candidates.retain(|candidate| along(candidate).0 == most);
        let weights: Vec<Weight> = candidates.iter().map(|candidate| candidate.weight).collect();
        let place = match call.options.session() {
            Some(session) => of_session(&weights, session.number()),
            None => better_of_two(&weights, (fastrand::usize(..), fastrand::usize(..))),
        };
        let candidate = candidates.swap_remove(place?);
        let (stages, idempotent) = can_chain(&candidate, call);
        Some(Pick { candidate, stages, idempotent, room })
    }

    /// The peers that may be asked to run a stage, without those that are left alone for a while.
    pub(super) fn candidates(&self, stage: &str, streams: Option<bool>, now: Instant) -> Vec<Candidate> {
        let peers = self.peers.load();
        let mut candidates: Vec<_> = peers.iter().filter_map(|peer| peer.candidate(stage, streams, now)).collect();
        if candidates.iter().any(|candidate| candidate.out_until.is_some()) {
            let until: Vec<_> = candidates.iter().map(|candidate| candidate.out_until).collect();
            let mut out = left_out(&until).into_iter();
            candidates.retain(|_| !out.next().unwrap_or(false));
        }
        candidates
    }

    /// The revision whose turn it is, where the stage's calls are divided; `here` is that of this node, if it runs the stage.
    pub(super) fn draw(&self, stage: &str, session: Option<SessionKey>, here: Option<u64>) -> Option<u64> {
        let split = self.splits.load().get(stage).cloned()?;
        let mut offered: Vec<u64> = here.into_iter().collect();
        let candidates = self.candidates(stage, None, Instant::now());
        offered.extend(candidates.iter().map(|candidate| candidate.revision));
        split.draw(session.map(SessionKey::number), |revision| offered.contains(&revision))
    }
}

/// How often a call that was lost looks whether there is a node for it again.
const LOOK_FOR_NODES_EVERY: Duration = Duration::from_millis(20);

/// Nobody had the call: its first stage is where it stands, and a node that comes back is linked at the next try.
fn come_again(error: CallError, call: &StageCall) -> CallError {
    if error.kind() != ErrorKind::Unavailable || !error.is_refusal() {
        return error;
    }
    let mut parts = error.into_parts();
    parts.stage = parts.stage.or_else(|| call.stages.first().cloned());
    parts.retry_after = parts.retry_after.or(Some(LOOKED_FOR_AGAIN));
    parts.into()
}

/// How many of the call's stages this peer runs in one go, and whether all of those may be run again.
fn can_chain(candidate: &Candidate, call: &StageCall) -> (usize, bool) {
    let most = (candidate.link.welcome().max_stages.max(1) as usize).min(call.stages.len());
    let (mut stages, mut idempotent) = (1, candidate.idempotent);
    for stage in call.stages.iter().take(most).skip(1) {
        let offer = candidate.link.offer_of_stage(stage.as_str()).filter(|offer| !offer.streams);
        let Some(offer) = offer else { break };
        idempotent &= offer.idempotent;
        stages += 1;
    }
    (stages, idempotent)
}

/// What an error says of the peer that was asked.
fn blame(standing: &mut Standing, error: &CallError, now: Instant, took: Duration) {
    match error.kind() {
        ErrorKind::Overloaded => standing.refused(now),
        // Busy with our own calls, and none the worse for it.
        ErrorKind::Unavailable if had_no_room(error) => standing.refused(now),
        // Said by user code, and heard well.
        ErrorKind::Unavailable if error.was_started() && !is_lost(error) => standing.failed(now, took),
        ErrorKind::Unavailable => standing.lost(now),
        _ => standing.failed(now, took),
    }
}

fn header(call: &StageCall, stages: usize) -> Call {
    let names = call.stages.iter().take(stages).map(|stage| stage.as_str().to_owned()).collect();
    let mut header = Call { stages: names, ..Call::default() };
    convert::put_options(&mut header, &call.options, Instant::now());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_connection_makes_its_peer_busy_and_a_lost_one_makes_it_suspect() {
        let (mut busy, mut lost, now) = (Standing::default(), Standing::default(), Instant::now());
        for _ in 0..100 {
            blame(&mut busy, &no_room("a test"), now, ROOM_WAIT);
            blame(&mut lost, &not_started("a test".to_owned()), now, ROOM_WAIT);
        }
        assert!(busy.breaker.out_of_order_until(now).is_none() && busy.in_hand(now) > 0);
        assert!(lost.breaker.out_of_order_until(now).is_some() && lost.in_hand(now) == 0);
    }
}
