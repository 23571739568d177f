//! Chat and completions: one call of the route for each choice, whole or as server-sent events.
//!
//! * **Streamed:** a piece of a streaming route is a chunk; a route that does not stream answers in one chunk. A route
//!   that streams is joined for a client that does not.
//! * **Stopped:** at a stop sequence the choice ends, and its call is cancelled, whether the route knows of it or not.
//! * **Broken:** an error before the first chunk has its status. A later one is the last event, `{"error": …}`, without
//!   `[DONE]`: a stream never ends silently.
//! * **Cancelled:** a client that leaves drops the response, which cancels the calls.

mod chunks;

use std::collections::BTreeSet;
use std::sync::Arc;

use callboard_codec::{Payload, Value};
use callboard_core::edge::{LARGE_BYTES, PayloadReplies};
use callboard_core::{Deadline, LocalClient, Task};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, CodecBudget, EdgeLife, HeldBytes, SERVER_TIMING, caught_within, next_reply, total,
};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

use crate::error::invalid;
use crate::input::{InputForm, main_fields};
use crate::models::now;
use crate::reply::{Reply, Usage};
use crate::request::ModelRequest;
use crate::respond::{self, UsageJson};
use crate::stop::{Passed, StopFilter};

/// The most choices of one request: each is a call of its own.
const MAX_CHOICES: u64 = 128;

/// The most stop sequences, and the most bytes of each: every piece of a text is compared with all of them.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;

/// The memory of a call: its permit, its queue entry, its future.
const CALL_BYTES: usize = 4096;

/// Answers `POST /v1/chat/completions` and `POST /v1/completions`.
pub(crate) async fn generate(mut request: ModelRequest<'_>) -> Result<Response, ApiError> {
    let is_streamed = request.is_set("stream")?;
    let wants_usage = match request.fields.get("stream_options") {
        Some(options) => options.get("include_usage") == Some(&Value::Bool(true)),
        None => false,
    };
    let choices = choices(&mut request).await?;
    let head = AnswerHead::new(&request);
    if is_streamed {
        chunks::respond(request, head, choices, wants_usage).await
    } else {
        whole(request, &head, choices).await
    }
}

/// What all parts of one answer begin with.
#[derive(Clone, Debug)]
struct AnswerHead {
    is_chat: bool,
    id: String,
    created: u64,
    model: String,
}

impl AnswerHead {
    fn new(request: &ModelRequest<'_>) -> Self {
        let is_chat = request.task == Task::Chat;
        let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}", request.context.id.as_str());
        Self { is_chat, id, created: now(), model: request.model.clone() }
    }
}

/// Starts the calls of all choices.
pub(crate) async fn choices(request: &mut ModelRequest<'_>) -> Result<Vec<Choice>, ApiError> {
    let stops: Arc<[String]> = stops(request)?.into();
    if !stops.is_empty() {
        request.fields.insert("stop", stops.iter().cloned().map(Value::Str).collect::<Vec<_>>());
    }
    let request = &*request;
    let n = request.count("n", 1..=MAX_CHOICES)?.unwrap_or(1);
    let prompts = prompts(request)?;
    let count = (prompts.len() as u64).saturating_mul(n);
    if count > MAX_CHOICES {
        return Err(invalid(format!("{} prompts with `n` = {n} are more than {MAX_CHOICES} choices", prompts.len())));
    }
    request.take_calls(usize::try_from(count).unwrap_or(usize::MAX))?;
    let (form, budget) = (InputForm::of(request.task, request.route.input().schema()), request.budget());
    let edge = request.context.client.edge();
    let reader = Arc::new(ReplyReader {
        client: request.context.client.clone(),
        route: request.route.name().into(),
        deadline: request.deadline,
        panics: request.context.metrics.requests.panics.clone(),
    });
    // Other APIs allow no other letters in the id of a call.
    let id: String = request.context.id.as_str().chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let mut choices = Vec::new();
    let shared_bytes = request.shared_bytes(&form).saturating_add(CALL_BYTES);
    for prompt in prompts {
        let bytes = prompt.resident_bytes().saturating_add(shared_bytes);
        for of_prompt in 0..n {
            budget.charge(bytes)?;
            let input = form.input(request.task, prompt.clone(), &request.fields);
            let (admission, payload) = request.admit(input).await?;
            choices.push(Choice {
                index: choices.len(),
                replies: edge.submit_streaming(admission, payload, request.options.clone()),
                life: Arc::clone(request.context.life),
                reader: Arc::clone(&reader),
                reading: None,
                filter: StopFilter::new(Arc::clone(&stops)),
                finish_reason: None,
                tool_calls: BTreeSet::new(),
                tool_call_ids: format!("call_{id}_{}_", choices.len()),
                is_whole: !request.route.streams(),
                _account: Arc::clone(&request.account),
                counts_prompt: of_prompt == 0,
            });
        }
    }
    Ok(choices)
}

/// The prompts, each of which has its own choices. A list of numbers is one prompt of token ids.
fn prompts<'r>(request: &'r ModelRequest<'_>) -> Result<Vec<&'r Value>, ApiError> {
    let name = main_fields(request.task)[0];
    match (request.required(name)?, request.task) {
        (Value::List(messages), Task::Chat) if messages.is_empty() => {
            Err(invalid("`messages` must have one message or more"))
        }
        (messages @ Value::List(_), Task::Chat) => Ok(vec![messages]),
        (other, Task::Chat) => Err(invalid(format!("`messages` must be a list, not {}", other.kind()))),
        (Value::List(prompts), _) if prompts.is_empty() => Err(invalid("`prompt` must have one entry or more")),
        (Value::List(prompts), _) if !matches!(prompts[0], Value::Int(_)) => Ok(prompts.iter().collect()),
        (prompt, _) => Ok(vec![prompt]),
    }
}

fn stops(request: &ModelRequest<'_>) -> Result<Vec<String>, ApiError> {
    let rule = format!("a text or up to {MAX_STOPS} texts, each of 1 to {MAX_STOP_BYTES} bytes");
    let refused = || invalid(format!("`stop` must be {rule}"));
    let text = |value: &Value| match value {
        Value::Str(text) if (1..=MAX_STOP_BYTES).contains(&text.len()) => Ok(text.clone()),
        _ => Err(refused()),
    };
    match request.fields.get("stop") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::List(stops)) if stops.len() <= MAX_STOPS => stops.iter().map(text).collect(),
        Some(Value::List(_)) => Err(refused()),
        Some(stop) => Ok(vec![text(stop)?]),
    }
}

/// One choice: a call, and its text until now.
pub(crate) struct Choice {
    index: usize,
    replies: PayloadReplies,
    life: Arc<EdgeLife>,
    reader: Arc<ReplyReader>,
    /// An answer that is being read.
    reading: Option<BoxFuture<'static, Result<Reply, ApiError>>>,
    filter: StopFilter,
    finish_reason: Option<String>,
    /// The indexes of its tool calls until now.
    tool_calls: BTreeSet<i64>,
    /// What the ids begin with that the route does not give to its tool calls.
    tool_call_ids: String,
    /// Whether the route answers once.
    is_whole: bool,
    /// Pays for its input, as long as its call may wait.
    _account: Arc<HeldBytes>,
    /// Whether the tokens of its prompt count: those of a prompt with several choices count once.
    counts_prompt: bool,
}

/// A piece of a choice. The last one has the end.
pub(crate) struct Piece {
    pub(crate) index: usize,
    pub(crate) reply: Reply,
    pub(crate) end: Option<Ending>,
}

/// How a choice ended.
pub(crate) struct Ending {
    /// `stop`, `length`, `tool_calls`, `content_filter`, or what the route says.
    pub(crate) reason: String,
    /// The stop sequence that ended it.
    pub(crate) stop: Option<String>,
}

/// The pieces of a choice, which is dropped with the last one: that cancels what still runs of its call.
pub(crate) struct ChoicePieces(Option<Choice>);

impl ChoicePieces {
    pub(crate) async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        let piece = self.0.as_mut()?.next().await;
        if !matches!(&piece, Ok(Piece { end: None, .. })) {
            self.0 = None;
        }
        Some(piece)
    }
}

impl Choice {
    pub(crate) fn pieces(self) -> ChoicePieces {
        ChoicePieces(Some(self))
    }

    /// The next piece. Nothing is lost if the future is dropped before it is ready.
    async fn next(&mut self) -> Result<Piece, ApiError> {
        loop {
            let Some(mut reply) = self.next_answer().await? else {
                let reply = Reply { content: self.filter.finish(), ..Reply::default() };
                let natural = if self.tool_calls.is_empty() { "stop" } else { "tool_calls" };
                let reason = self.finish_reason.take().unwrap_or_else(|| natural.to_owned());
                return Ok(Piece { index: self.index, reply, end: Some(Ending { reason, stop: None }) });
            };
            if !self.counts_prompt {
                reply.usage.prompt_tokens = None;
            }
            reply.number_tool_calls(&mut self.tool_calls, self.is_whole, &self.tool_call_ids);
            self.finish_reason = reply.finish_reason.take().or_else(|| self.finish_reason.take());
            let (content, stop) = match self.filter.push(std::mem::take(&mut reply.content)) {
                Passed::Text(text) => (text, None),
                Passed::Stopped { text, stop } => (text, Some(stop)),
            };
            reply.content = content;
            let end = stop.map(|stop| Ending { reason: "stop".to_owned(), stop: Some(stop) });
            if end.is_some() || reply.usage.is_known() || !reply.is_empty() {
                return Ok(Piece { index: self.index, reply, end });
            }
        }
    }

    async fn next_answer(&mut self) -> Result<Option<Reply>, ApiError> {
        if self.reading.is_none() {
            let Some(payload) = next_reply(&mut self.replies, &self.life).await else { return Ok(None) };
            match self.reader.read_at_once(payload?) {
                Ok(reply) => return reply.map(Some),
                Err(payload) => self.reading = Some(Arc::clone(&self.reader).read(payload).boxed()),
            }
        }
        let Some(reading) = &mut self.reading else { return Ok(None) };
        let reply = reading.as_mut().await;
        self.reading = None;
        reply.map(Some)
    }

    /// The whole of it, at the expense of this budget.
    pub(crate) async fn collect(mut self, budget: &CodecBudget<'_>) -> Result<(Reply, Ending), ApiError> {
        let mut whole = Reply::default();
        loop {
            let piece = self.next().await?;
            budget.charge_outcome(piece.reply.bytes())?;
            whole.join(piece.reply);
            if let Some(end) = piece.end {
                return Ok((whole, end));
            }
        }
    }
}

/// Reads the answers of a route.
struct ReplyReader {
    client: LocalClient,
    route: Arc<str>,
    deadline: Deadline,
    /// Counts panics of user code in codecs.
    panics: Counter,
}

impl ReplyReader {
    /// An answer that needs no account: a text, or a value below [`LARGE_BYTES`], that nothing else shares. Any other
    /// payload is given back.
    fn read_at_once(&self, payload: Payload) -> Result<Result<Reply, ApiError>, Payload> {
        let payload = match payload.downcast::<String>() {
            Ok(text) => return Arc::try_unwrap(text).map(|text| Ok(Reply::of_text(text))).map_err(Payload::from_arc),
            Err(payload) => payload,
        };
        if payload.size_up_to(LARGE_BYTES) == LARGE_BYTES {
            return Err(payload);
        }
        let value = Arc::try_unwrap(payload.downcast::<Value>()?).map_err(Payload::from_arc)?;
        Ok(Reply::read(&self.route, value))
    }

    /// One answer, at the expense of an account of its own; a large one is read off the runtime. A panic of user code
    /// is its error.
    async fn read(self: Arc<Self>, payload: Payload) -> Result<Reply, ApiError> {
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        let bytes = payload.size_up_to(LARGE_BYTES);
        let route = Arc::clone(&self.route);
        let read = move || Reply::read(&route, payload.to_value().map_err(ApiError::unencodable)?);
        caught_within(&self.panics, Box::pin(budget.run_outcome(bytes, read))).await?
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageJson>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChoiceJson<'a> {
    Chat { index: usize, message: Message<'a>, logprobs: Option<&'a Value>, finish_reason: &'a str },
    Text { index: usize, text: &'a str, logprobs: Option<&'a Value>, finish_reason: &'a str },
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<&'a str>,
    #[serde(flatten)]
    more: &'a callboard_codec::Map,
}

/// Waits for all choices and answers with them.
async fn whole(request: ModelRequest<'_>, head: &AnswerHead, choices: Vec<Choice>) -> Result<Response, ApiError> {
    let (budget, calls) = (request.budget(), choices.len());
    let ended = try_join_all(choices.into_iter().map(|choice| Box::pin(choice.collect(&budget)))).await;
    let ended = ended.map_err(|error| request.error_of(calls, error))?;
    let usage = ended.iter().fold(Usage::default(), |usage, (reply, _)| usage.with(reply.usage));
    let bytes = ended.iter().map(|(reply, _)| reply.bytes()).fold(0, usize::saturating_add);
    let head = head.clone();
    let write = move || {
        let choices =
            ended.iter().enumerate().map(|(index, (reply, end))| choice_json(&head, index, reply, &end.reason));
        let object = if head.is_chat { "chat.completion" } else { "text_completion" };
        let (id, created, model) = (&*head.id, head.created, &*head.model);
        let usage = usage.is_known().then(|| usage.into());
        respond::written_of(bytes, &Answer { id, object, created, model, choices: choices.collect(), usage })
    };
    let mut response = respond::json(&request, bytes, write).await?;
    response.headers_mut().insert(SERVER_TIMING, total(request.context.start.elapsed()));
    Ok(response)
}

fn choice_json<'a>(head: &AnswerHead, index: usize, reply: &'a Reply, finish_reason: &'a str) -> ChoiceJson<'a> {
    let logprobs = reply.logprobs.as_ref();
    if !head.is_chat {
        return ChoiceJson::Text { index, text: &reply.content, logprobs, finish_reason };
    }
    // The text beside tool calls is null, unless there is one.
    let content = Some(&*reply.content).filter(|content| !content.is_empty() || !reply.has_tool_calls());
    let message = Message { role: "assistant", content, more: &reply.more };
    ChoiceJson::Chat { index, message, logprobs, finish_reason }
}
