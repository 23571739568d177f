//! A peer in tests: a node in the same process, without a network, that runs the remote stages of another one, and
//! whose actors that one asks.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use tokio::sync::watch;

use super::TestApp;
use crate::call::{CallOptions, PayloadReplies, SessionKey};
use crate::client::LocalClient;
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::edge::{OfferedStage, StageAdmission};
use crate::error::{CallError, ErrorKind, ErrorParts, RETRY_AFTER};
use crate::id::StageName;
use crate::node::{Node, StartError};
use crate::remote::{
    Reach, RemoteActors, RemoteFuture, RemoteQuestion, RemoteStages, StageCall, StageLoad, StageOutputs, StageReply,
    StageTarget,
};

/// The name of the peer, as its node has none.
const PEER: &str = "peer";

/// How long calls wait for a peer that was connected until a moment ago, as over a network.
const RETURN_WAIT: Duration = Duration::from_secs(3);

/// A peer for a test: it runs the stages of its app for a node that has them as remote stages, in the same process. It
/// can be full, or lost while it runs calls. References of the node [find](crate::NodeHandle::remote_actor) its actors.
/// Clones are the same peer.
///
/// A call gets the outcome that a cluster of these two nodes would give it: values are converted as on a network, and
/// the contracts of the peer's stages decide what happens to a call whose peer is lost. If its stages may run again, it
/// waits for the peer until its deadline; if not, its error says that it may have run. Calls also wait up to 3 s for a
/// peer that was lost a moment ago. Not simulated: several peers, the choice between them, and retry budgets.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::testing::{TestApp, TestPeer};
/// use callboard_core::{App, ErrorKind, Pipeline, Stage};
///
/// // The gateway has the stage `length` on other nodes only; a fake of it runs on the peer.
/// let gateway = App::new().route("/length", Pipeline::<String, u64>::remote("length"));
/// let fake = App::new().route("/fake", Stage::each("length", |text: &String| Ok(text.len() as u64)));
/// let peer = TestPeer::start(TestApp::new(fake)).await?;
/// let node = TestApp::new(gateway).start().await?;
/// node.handle().join(peer.clone())?;
/// assert_eq!(node.client().call::<_, u64>("/length", "seven".to_owned()).await?, 5);
///
/// peer.disconnect();
/// let error = node.client().call::<_, u64>("/length", "seven".to_owned()).await.unwrap_err();
/// assert_eq!((error.kind(), error.is_refusal()), (ErrorKind::Unavailable, true));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TestPeer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: Node,
    link: watch::Sender<Link>,
}

/// The connection to the peer.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// How often it was lost.
    losses: u64,
    lost_at: Option<Instant>,
    is_overloaded: bool,
}

impl TestPeer {
    /// Starts the app of the peer. The node under test [joins](crate::NodeHandle::join) the peer.
    ///
    /// # Errors
    ///
    /// As [`TestApp::start`].
    pub async fn start(app: TestApp) -> Result<Self, StartError> {
        let (link, _) = watch::channel(Link { losses: 0, lost_at: None, is_overloaded: false });
        Ok(Self(Arc::new(Inner { node: app.start().await?, link })))
    }

    /// From now on the peer refuses new calls as overloaded.
    pub fn overload(&self) {
        self.0.link.send_modify(|link| link.is_overloaded = true);
    }

    /// From now on the peer cannot be reached. The calls that it runs are lost.
    pub fn disconnect(&self) {
        self.0.link.send_modify(|link| {
            link.losses += 1;
            link.lost_at = Some(clock::now());
        });
    }

    /// The peer is connected and takes calls again.
    pub fn recover(&self) {
        self.0.link.send_modify(|link| (link.lost_at, link.is_overloaded) = (None, false));
    }

    fn offer(&self, stage: &str) -> Option<OfferedStage> {
        let is_connected = self.0.link.borrow().lost_at.is_none();
        let offered = || self.0.node.client().edge().offered_stages();
        offered().into_iter().find(|offered| is_connected && offered.name == stage)
    }

    /// Runs the first of the call's stages on the peer, and the next ones that it also runs. Returns their count.
    async fn dispatch<T, F: Future<Output = Result<T, CallError>>>(
        &self,
        call: StageCall,
        streams: bool,
        run: impl Fn(LocalClient, StageAdmission, Payload, CallOptions) -> F,
    ) -> Result<(T, usize), CallError> {
        let input = transferred(&call.payload).map_err(|error| {
            let message = format!("the input of stage `{}` cannot be sent: {}", call.stage(), error.message());
            if call.can_run_here { not_started(message) } else { error.with_message(message) }
        })?;
        let mut lost: Option<CallError> = None;
        loop {
            self.wait_until_connected(lost.is_some()).await;
            let offers = self.offers_for(&call, streams);
            if offers.is_empty() {
                let message = format!("no node can be reached that runs the stage `{}`", call.stage());
                return Err(lost.unwrap_or_else(|| refused(not_started(message), &call)));
            }
            let may_repeat = call.may_run_again && offers.iter().all(|offer| offer.contract.may_run_again());
            let client = self.0.node.client();
            let running = async {
                let admission = self.admit(&client, &offers, input.size_hint())?;
                run(client.clone(), admission, input.clone(), options_on_peer(&call.options)).await
            };
            let outcome = tokio::select! {
                biased;
                outcome = running => outcome,
                () = self.until_lost() => {
                    let error = connection_lost(may_repeat);
                    if error.is_retryable() && !call.can_run_here {
                        lost = Some(error);
                        continue;
                    }
                    Err(error)
                }
            };
            if !may_repeat && outcome.as_ref().err().is_none_or(|error| !error.is_refusal()) {
                call.set_ran_once();
            }
            let outcome = outcome.map_err(|error| match lost {
                // An earlier attempt may have run. A refusal does not hide that.
                Some(lost) if error.is_refusal() => lost,
                _ => refused(error, &call),
            });
            return Ok((outcome?, offers.len()));
        }
    }

    /// Waits for a lost peer; without a limit for a call that was lost with it.
    async fn wait_until_connected(&self, was_lost: bool) {
        let mut link = self.0.link.subscribe();
        let Some(lost_at) = link.borrow().lost_at else { return };
        let connected = link.wait_for(|link| link.lost_at.is_none());
        if was_lost {
            _ = connected.await;
        } else {
            _ = tokio::time::timeout_at(lost_at + RETURN_WAIT, connected).await;
        }
    }

    /// Completes when the peer is lost after this moment.
    fn until_lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut link = self.0.link.subscribe();
        let losses = link.borrow().losses;
        async move { _ = link.wait_for(|link| link.losses > losses).await }
    }

    /// The stages that the peer runs of the call, from the first one on.
    fn offers_for(&self, call: &StageCall, streams: bool) -> Vec<OfferedStage> {
        let stages = call.stages.iter().enumerate();
        let offer = |(position, stage): (usize, &StageName)| {
            self.offer(stage.as_str()).filter(|offer| offer.streams == (streams && position == 0))
        };
        stages.map_while(offer).collect()
    }

    fn admit(&self, client: &LocalClient, offers: &[OfferedStage], bytes: usize) -> Result<StageAdmission, CallError> {
        if self.0.link.borrow().is_overloaded {
            return Err(CallError::overloaded("the peer is overloaded", RETRY_AFTER));
        }
        let stages: Vec<&str> = offers.iter().map(|offer| offer.name.as_str()).collect();
        client.edge().admit_stages(&stages, bytes as u64)
    }

    /// These outputs as they arrive on the other node, until the peer is lost.
    fn cut_when_lost(
        &self,
        outputs: BoxStream<'static, Result<Payload, CallError>>,
    ) -> impl Stream<Item = Result<Payload, CallError>> + Send + 'static {
        let lost = Box::pin(self.until_lost());
        stream::unfold((Some(outputs), lost, 0_u64), |(outputs, mut lost, total)| async move {
            let mut outputs = outputs?;
            tokio::select! {
                biased;
                output = outputs.next() => {
                    Some((output?.and_then(|output| transferred(&output)), (Some(outputs), lost, total + 1)))
                }
                () = &mut lost => {
                    let error = connection_lost(false);
                    let message = format!("the stream was lost after {total} outputs: {}", error.message());
                    Some((Err(error.with_message(message)), (None, lost, total)))
                }
            }
        })
    }
}

impl RemoteActors for TestPeer {
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload> {
        let peer = self.clone();
        Box::pin(async move {
            let RemoteQuestion { actor, question, is_tell, payload, options, key, .. } = question;
            let edge = peer.0.node.client();
            let is_connected = peer.0.link.borrow().lost_at.is_none();
            if !is_connected || !edge.edge().published_actors().iter().any(|published| **published == *actor) {
                return Err(not_started(format!("no node can be reached that publishes the actor `{actor}`")));
            }
            let asking = async {
                let bytes = payload.size_hint() as u64;
                let admission = edge.edge().admit_question(&actor, key.as_deref(), question, is_tell, bytes)?;
                let (now, options) = (clock::now(), options_on_peer(&options));
                let deadline = options.deadline_from(now).unwrap_or_else(|| Deadline::never(now));
                transferred(&admission.deliver(transferred(&payload)?, deadline, options).await?)
            };
            tokio::select! {
                biased;
                answer = asking => answer,
                () = peer.until_lost() => Err(connection_lost(false)),
            }
        })
    }

    fn publishers(&self, actor: &str) -> Vec<Arc<str>> {
        let is_connected = self.0.link.borrow().lost_at.is_none();
        let published = self.0.node.client().edge().published_actors();
        let has_it = is_connected && published.iter().any(|published| published == actor);
        has_it.then(|| PEER.into()).into_iter().collect()
    }

    fn reach(&self, _: &str, _: &str) -> Reach {
        if self.0.link.borrow().lost_at.is_none() { Reach::Connected } else { Reach::Gone }
    }
}

impl RemoteStages for TestPeer {
    fn choose(&self, _: &str, _: Option<SessionKey>, _: &StageLoad) -> StageTarget {
        StageTarget::default()
    }

    fn can_chain(&self, _: &str) -> bool {
        true
    }

    fn offers(&self, stage: &str) -> bool {
        self.offer(stage).is_some()
    }

    fn may_run_again(&self, stage: &str) -> bool {
        self.offer(stage).is_some_and(|offer| offer.contract.may_run_again())
    }

    fn actors(&self) -> Option<&dyn RemoteActors> {
        Some(self)
    }

    fn run(&self, call: StageCall) -> RemoteFuture<StageReply> {
        let peer = self.clone();
        Box::pin(async move {
            let run = |client: LocalClient, admission, input, options| async move {
                client.edge().submit_stages(admission, input, options).await
            };
            let (mut ran, _) = peer.dispatch(call, false, run).await?;
            ran.reply.payload = transferred(&ran.reply.payload)?;
            Ok(ran)
        })
    }

    fn stream(&self, call: StageCall) -> RemoteFuture<StageOutputs> {
        let peer = self.clone();
        Box::pin(async move {
            let run = |client: LocalClient, admission, input, options| async move {
                let mut outputs = client.edge().submit_stages_streaming(admission, input, options);
                let first = outputs.next().await.transpose()?;
                Ok((first, outputs))
            };
            let ((first, outputs), stages) = peer.dispatch(call, true, run).await?;
            let all = stream::iter(first.map(Ok)).chain(outputs).boxed();
            Ok(StageOutputs::new(PayloadReplies::new(peer.cut_when_lost(all)), stages))
        })
    }
}

/// The value as it arrives on the other node.
pub(super) fn transferred(payload: &Payload) -> Result<Payload, CallError> {
    Ok(Payload::new(payload.to_value()?))
}

/// The options that cross a network.
pub(super) fn options_on_peer(options: &CallOptions) -> CallOptions {
    let mut sent = options.priority().into_iter().fold(CallOptions::new(), CallOptions::with_priority);
    sent = options.deadline_from(clock::now()).into_iter().fold(sent, CallOptions::with_deadline);
    sent = options.session().into_iter().fold(sent, CallOptions::with_session_key);
    sent = options.first_item_timeout().into_iter().fold(sent, CallOptions::with_first_item_timeout);
    sent = options.caller().into_iter().fold(sent, CallOptions::with_caller);
    sent = options.request_id().into_iter().fold(sent, CallOptions::with_request_id);
    options.traceparent().into_iter().fold(sent, CallOptions::with_traceparent)
}

pub(super) fn not_started(message: String) -> CallError {
    CallError::new(ErrorKind::Unavailable, format!("the call was not started: {message}"))
}

/// The error of a call whose peer was lost: it may have run.
pub(super) fn connection_lost(may_repeat: bool) -> CallError {
    let message = "the call was sent, and may have run: the peer was lost";
    ErrorParts { may_repeat, ..ErrorParts::connection_lost(message) }.into()
}

/// The error, with the stage and a retry time if no peer has started the call.
fn refused(error: CallError, call: &StageCall) -> CallError {
    if error.kind() != ErrorKind::Unavailable || !error.is_refusal() {
        return error;
    }
    let mut parts = error.into_parts();
    parts.stage = parts.stage.or_else(|| call.stages.first().cloned());
    parts.retry_after = parts.retry_after.or(Some(RETRY_AFTER));
    parts.into()
}
