//! The call context in user code, in every form of a stage, and in its log lines.

use std::io;
use std::sync::{Arc, Mutex};

use callboard_core::actor::{Actor, ActorContext, ActorSpec, ReplyPort};
use callboard_core::{
    App, AsyncWorker, Batch, CallContext, CallOptions, ErrorKind, Failure, Pipeline, Priority, Replica, Replies,
    Rollout, RouteSpec, SessionKey, Stage, StreamStage, Worker,
};
use futures_util::stream;
use tracing::instrument::WithSubscriber;
use tracing::span::Id;
use tracing::{Instrument, Subscriber};
use tracing_subscriber::layer::{self, Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::registry::LookupSpan;

use super::support::{serve, until};

/// All of the context, on one line.
fn describe(context: &CallContext) -> String {
    let (id, trace, caller) = (context.request_id(), context.traceparent(), context.caller());
    let (header, tag) = (context.header("x-city"), context.tag("tenant"));
    let (query, path) = (context.query("q"), context.path());
    let session = context.session() == Some(SessionKey::new("s"));
    let (route, stage, priority) = (context.route(), context.stage(), context.priority());
    format!(
        "{id:?} {trace:?} {caller:?} {header:?} {query:?} {path:?} {tag:?} {session} {priority:?} {route:?} {stage}"
    )
}

fn options() -> CallOptions {
    CallOptions::new()
        .with_request_id("r-1")
        .with_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
        .with_caller("web")
        .with_header("x-city", "Lima")
        .with_query("q", "7")
        .with_path("/route")
        .with_tag("tenant", "acme")
        .with_session_key("s")
        .with_priority(Priority::High)
}

const EXPECTED: &str = "Some(\"r-1\") Some(\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\") Some(\"web\") \
                    Some(\"Lima\") Some(\"7\") Some(\"/route\") Some(\"acme\") true High Some(RouteName(\"/route\")) tells";

#[tokio::test]
async fn a_name_that_is_unfit_for_logs_is_omitted() {
    let tells = Stage::each_with_context("tells", |_: &u64, context: &CallContext| {
        Ok(format!("{:?} {:?}", context.request_id(), context.traceparent()))
    });
    let node = serve(tells).await;
    let ask = async |text: &str| {
        let options = CallOptions::new().with_request_id(text).with_traceparent(text);
        node.client().call_with::<u64, String>("/route", 1, options).await.unwrap()
    };
    let longest = "x".repeat(CallOptions::MAX_REQUEST_ID_CHARS);
    assert_eq!(ask(&longest).await, format!("Some({longest:?}) Some({longest:?})"));
    for refused in ["", "two words", "a\nforged line", "grüße", &format!("{longest}x")] {
        assert_eq!(ask(refused).await, "None None", "{refused:?}");
    }
}

#[tokio::test]
async fn a_call_with_too_many_attributes_is_refused_by_the_name_of_the_field_and_its_limit() {
    let node = serve(Stage::each_with_context("tells", |_: &u64, context: &CallContext| Ok(describe(context)))).await;
    let refusal = async |options: CallOptions| {
        let outcome = node.client().call_with::<u64, String>("/route", 1, options).await;
        outcome.map(|_| String::new()).unwrap_or_else(|error| {
            assert!(error.kind() == ErrorKind::InvalidInput && !error.was_started(), "{error:?}");
            error.message().to_owned()
        })
    };
    let many = |kind: fn(CallOptions, String) -> CallOptions, count| {
        (0..count).fold(CallOptions::new(), |options, n: u32| kind(options, n.to_string()))
    };
    let tag: fn(CallOptions, String) -> CallOptions = |options, name| options.with_tag(name, "v");
    assert_eq!(refusal(many(tag, 64)).await, "");
    assert_eq!(refusal(many(tag, 65)).await, "the call has more than 64 tags");
    let header = |options: CallOptions, name| options.with_header(name, "v");
    assert_eq!(refusal(many(header, 65)).await, "the call has more than 64 headers");
    let of_bytes = |bytes: usize| CallOptions::new().with_query("q", "x".repeat(bytes - 1));
    assert_eq!(refusal(of_bytes(32_768)).await, "");
    let twice = CallOptions::new().with_query("q", "1").with_query("q", "1");
    assert_eq!(refusal(twice).await, "query parameter `q` must be given once; a list is written `q=a,b`");
    let message =
        "exceed the limit: headers, query parameters, tags, path, method and client may have 32768 bytes together";
    assert_eq!(refusal(of_bytes(32_769)).await, format!("the call's query parameters {message}"));
    assert_eq!(refusal(of_bytes(32_768).with_path("/")).await, format!("the call's path {message}"));
    let caller = |bytes| CallOptions::new().with_caller("x".repeat(bytes));
    assert_eq!(refusal(caller(256)).await, "");
    assert_eq!(refusal(caller(257)).await, "caller: the name has more than 256 bytes");
}

#[tokio::test]
async fn an_inner_call_inherits_what_fits_beside_its_own_attributes() {
    let count = Stage::each_with_context("count", |_: &u64, context: &CallContext| {
        let own = context.tag("own").unwrap_or("none");
        Ok(format!("{own}, {} and {}", context.tag("63").is_none(), context.tag("62").is_some()))
    });
    let outer = Stage::each_async_with_context("outer", |_: Arc<u64>, context: CallContext| async move {
        let options = CallOptions::new().with_tag("own", "kept");
        Ok(context.client()?.call_with::<u64, String>("/inner", 1, options).await?)
    });
    let node = App::new().route("/inner", count).route("/outer", outer).start().await.unwrap();
    let options = (0..64).fold(CallOptions::new(), |options, n| options.with_tag(n.to_string(), "v"));
    let answer = node.client().call_with::<u64, String>("/outer", 1, options).await.unwrap();
    assert_eq!(answer, "kept, true and true");
}

#[derive(Clone)]
struct Tenant(&'static str);

#[derive(Clone)]
struct Plan(&'static str);

#[tokio::test]
async fn an_extension_reaches_the_stages_of_its_call_and_of_inner_calls_without_their_own() {
    let tells = Stage::each_with_context("tells", |_: &u64, context: &CallContext| {
        let (tenant, plan) = (context.extension::<Tenant>(), context.extension::<Plan>());
        Ok(format!("{:?} {:?}", tenant.map(|tenant| tenant.0), plan.map(|plan| plan.0)))
    });
    let asks = |name: &str, options: fn(CallOptions) -> CallOptions| {
        Stage::each_async_with_context(name, move |_: Arc<u64>, context: CallContext| async move {
            Ok(context.client()?.call_with::<u64, String>("/tells", 1, options(CallOptions::new())).await?)
        })
    };
    let app = App::new()
        .route("/tells", tells)
        .route("/inherits", asks("inherits", |options| options.with_tag("own", "kept")))
        .route("/overrides", asks("overrides", |options| options.with_extension(Plan("free"))))
        .route("/leaves", asks("leaves", CallOptions::for_several_callers));
    let node = app.start().await.unwrap();
    let ask = async |route: &str| {
        let options = CallOptions::new().with_extension(Tenant("acme")).with_extension(Plan("paid"));
        node.client().call_with::<u64, String>(route, 1, options).await.unwrap()
    };
    assert_eq!(ask("/tells").await, "Some(\"acme\") Some(\"paid\")");
    assert_eq!(ask("/inherits").await, "Some(\"acme\") Some(\"paid\")");
    assert_eq!(ask("/overrides").await, "Some(\"acme\") Some(\"free\")");
    assert_eq!(ask("/leaves").await, "None None");
    assert_eq!(node.client().call::<u64, String>("/inherits", 1).await.unwrap(), "None None");
}

struct DescribesContext;

impl Worker for DescribesContext {
    type In = u64;
    type Out = String;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<String, Failure>> {
        (0..batch.len()).map(|index| Ok(describe(&batch.context(index)))).collect()
    }
}

impl AsyncWorker for DescribesContext {
    type In = u64;
    type Out = String;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<String, Failure>> {
        (0..batch.len()).map(|index| Ok(describe(&batch.context(index)))).collect()
    }
}

#[tokio::test]
async fn every_form_of_a_stage_has_the_context_of_its_call() {
    let forms = [
        Stage::worker("tells", |_| Ok(DescribesContext)),
        Stage::async_worker("tells", |_| Ok(DescribesContext)),
        Stage::batch("tells", |batch: Batch<u64>| (0..batch.len()).map(|n| Ok(describe(&batch.context(n)))).collect()),
        Stage::each_with_context("tells", |_: &u64, context| Ok(describe(context))),
        Stage::each_async_with_context("tells", |_: Arc<u64>, context| async move { Ok(describe(&context)) }),
    ];
    for form in forms {
        let node = serve(form).await;
        let received: String = node.client().call_with("/route", 1_u64, options()).await.unwrap();
        assert_eq!(received, EXPECTED);
        let nothing: String = node.client().call("/route", 1_u64).await.unwrap();
        assert_eq!(nothing, "None None None None None None None false Normal Some(RouteName(\"/route\")) tells");
    }
    let streams = StreamStage::each_with_context("tells", |_: &u64, context| stream::iter([Ok(describe(context))]));
    let node = App::new().route_streaming("/route", streams).start().await.unwrap();
    let mut replies: Replies<String> = node.client().replies_with("/route", 1_u64, options()).unwrap();
    assert_eq!(replies.next().await.unwrap().unwrap(), EXPECTED);
}

#[tokio::test]
async fn ensemble_members_and_later_stages_also_have_the_context() {
    let tells = || Stage::each_with_context("tells", |_: &u64, context: &CallContext| Ok(describe(context)));
    let both = Pipeline::from(Stage::each("first", |n: &u64| Ok(*n)))
        .then(Pipeline::ensemble((Pipeline::from(tells()), Pipeline::<u64, u64>::pass_through())));
    let node = serve(both).await;
    let (received, _): (String, u64) = node.client().call_with("/route", 1_u64, options()).await.unwrap();
    assert_eq!(received, EXPECTED);
}

/// The output of the user's own subscriber.
#[derive(Clone, Default)]
pub(crate) struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogBuffer {
    pub(crate) fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

/// Takes the log of this test; a thread's own subscriber gets all lines of its runtime.
fn logged() -> (LogBuffer, impl Sized) {
    let written = LogBuffer::default();
    // With only one subscriber, a thread of another test without a subscriber decides what is logged.
    let second = tracing::Dispatch::new(subscriber(&LogBuffer::default()));
    let here = tracing::subscriber::set_default(subscriber(&written));
    (written, (second, here))
}

pub(crate) fn subscriber(written: &LogBuffer) -> impl Subscriber + Send + Sync + use<> {
    let written = written.clone();
    tracing_subscriber::fmt().with_writer(move || written.clone()).with_ansi(false).without_time().finish()
}

/// A stage that logs a line.
fn says(name: &str) -> Stage<u64, u64> {
    Stage::each(name, |n: &u64| {
        tracing::info!("hello");
        Ok(*n)
    })
}

#[tokio::test]
async fn a_log_line_of_user_code_names_its_call() {
    let (written, _here) = logged();
    let says = says("says");
    let says_later = Stage::each_async("later", |n: Arc<u64>| async move {
        tokio::task::yield_now().await;
        tracing::info!("hello");
        Ok(*n)
    });
    for (stage, name) in [(says, "says"), (says_later, "later")] {
        let node = serve(stage.max_batch_size(2).max_delay(super::support::PATIENCE)).await;
        let client = node.client();
        let call = |id: &'static str| client.call_with::<u64, u64>("/route", 1, CallOptions::new().with_request_id(id));
        let (first, second) = tokio::join!(call("r-1"), call("r-2"));
        assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
        let lines = written.take();
        let (batch, call) = (format!("batch{{stage=\"{name}\" replica=0 entries=2}}"), "call{route=\"/route\"");
        for id in ["r-1", "r-2"] {
            let line = format!("{batch}:{call} stage=\"{name}\" request_id=\"{id}\"}}: ");
            assert!(lines.lines().any(|text| text.contains(&line) && text.ends_with("hello")), "{lines}");
        }
    }
    let node = serve(self::says("says")).await;
    node.client().call_with::<u64, u64>("/route", 1, CallOptions::new().with_request_id("r-3")).await.unwrap();
    let lines = written.take();
    let span = " call{route=\"/route\" stage=\"says\" replica=0 request_id=\"r-3\"}: ";
    assert!(lines.lines().any(|text| text.contains(span) && text.ends_with("hello")), "{lines}");
}

/// Also where a call is one of a batch, and where a stage makes the call.
#[tokio::test]
async fn the_span_of_a_caller_is_above_the_span_of_its_stages_code() {
    let (written, _here) = logged();
    let outer = Stage::each_async_with_context("outer", |n: Arc<u64>, context: CallContext| async move {
        let client = context.client().expect("the stage runs on the node");
        Ok(client.call::<u64, u64>("/inner", *n).await?)
    });
    let threads = says("thread").on_threads();
    let both = Pipeline::from(says("says").max_batch_size(2).max_delay(super::support::PATIENCE)).then(threads);
    let app = App::new().route("/both", both).route("/outer", outer).route("/inner", says("inner"));
    let node = app.start().await.unwrap();
    let client = node.client();

    let call =
        |user: &'static str| client.call::<u64, u64>("/both", 1).instrument(tracing::info_span!("request", user));
    let (ada, bob) = tokio::join!(call("ada"), call("bob"));
    assert_eq!((ada.unwrap(), bob.unwrap()), (1, 1));
    let lines = written.take();
    for user in ["ada", "bob"] {
        let line = format!("request{{user=\"{user}\"}}:call{{route=\"/both\" stage=\"says\"}}: ");
        assert!(lines.lines().any(|text| text.contains(&line) && text.ends_with("hello")), "{user}: {lines}");
    }

    client.call::<u64, u64>("/outer", 1).instrument(tracing::info_span!("request")).await.unwrap();
    let lines = written.take();
    let line =
        "request:call{route=\"/outer\" stage=\"outer\" replica=0}:call{route=\"/inner\" stage=\"inner\" replica=0}: ";
    assert!(lines.lines().any(|text| text.contains(line) && text.ends_with("hello")), "{lines}");
}

/// Keeps the names of the spans from which others follow.
#[derive(Clone, Default)]
struct Follows(Arc<Mutex<Vec<Option<&'static str>>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Follows {
    fn on_follows_from(&self, _: &Id, follows: &Id, context: layer::Context<'_, S>) {
        self.0.lock().unwrap().push(context.span(follows).map(|span| span.name()));
    }
}

/// The id of a span means nothing, or another span, to another subscriber.
#[tokio::test]
async fn a_batch_follows_from_the_callers_of_its_own_subscriber_only() {
    let (own, other) = (Follows::default(), Follows::default());
    let _here = tracing::subscriber::set_default(registry().with(own.clone()));
    let stage = Stage::batch("sum", |batch: Batch<u64>| batch.iter().map(|n| Ok(*n)).collect());
    let node = serve(stage.max_batch_size(3).max_delay(super::support::PATIENCE)).await;
    let client = node.client();
    let call = || client.call::<u64, u64>("/route", 1).instrument(tracing::info_span!("request"));
    let elsewhere = tracing::Dispatch::new(registry().with(other.clone()));
    let foreign = tracing::dispatcher::with_default(&elsewhere, call).with_subscriber(elsewhere);
    let (first, second, third) = tokio::join!(call(), foreign, call());
    assert_eq!((first.unwrap(), second.unwrap(), third.unwrap()), (1, 1, 1));
    assert_eq!(*own.0.lock().unwrap(), [Some("request"); 2]);
    assert_eq!(*other.0.lock().unwrap(), []);
}

/// The copy of a call for a candidate lasts longer than the call.
#[tokio::test]
async fn the_copy_of_a_shadow_is_in_no_span_of_its_caller() {
    let (written, _here) = logged();
    let node = serve(Stage::each("model", |n: &u64| Ok(*n)).pure()).await;
    let candidate = RouteSpec::new("/route", says("model").pure());
    node.roll_out(candidate, Rollout::shadow(1.0).min_calls(u64::MAX)).await.unwrap();
    let span = tracing::info_span!("request");
    node.client().call::<u64, u64>("/route", 1).instrument(span).await.unwrap();
    let lines = Mutex::new(String::new());
    until("the copy has run", || {
        let mut lines = lines.lock().unwrap();
        lines.push_str(&written.take());
        lines.contains("hello")
    })
    .await;
    let lines = lines.into_inner().unwrap();
    let line = lines.lines().find(|line| line.contains("hello")).unwrap();
    assert!(line.contains("call{") && !line.contains("request:"), "{line}");
}

/// The engine has a span around each actor, which tells a reader nothing.
#[tokio::test]
async fn no_line_of_a_node_is_inside_a_span_of_its_engine() {
    struct Counter;

    impl Actor for Counter {
        type Message = ReplyPort<u64>;

        async fn started(&mut self, _: &ActorContext<Self>) -> Result<(), Failure> {
            tracing::info!("started");
            Ok(())
        }

        async fn handle(&mut self, answer: ReplyPort<u64>, _: &ActorContext<Self>) -> Result<(), Failure> {
            tracing::info!("handled");
            answer.send(1);
            Ok(())
        }
    }

    let (written, _here) = logged();
    let dies = Stage::async_worker("dies", |_: &Replica| {
        tracing::info!("built");
        Ok(Dies)
    });
    let app = App::new().route("/dies", dies).actor(ActorSpec::new("counter", |_| Counter));
    let node = app.start().await.unwrap();
    node.client().call::<u64, u64>("/dies", 1).await.unwrap_err();
    let counter = node.actor::<ReplyPort<u64>>("counter").unwrap();
    assert_eq!(counter.ask(super::support::PATIENCE, |answer| answer).await.unwrap(), 1);
    let _ = node.shutdown(super::support::PATIENCE).await;
    let lines = written.take();
    for (span, event) in [
        ("replica{stage=\"dies\" replica=0}: ", "built"),
        ("actor{name=\"counter\"}: ", "started"),
        ("actor{name=\"counter\"}: ", "handled"),
        ("", "replica died"),
        ("", "stage state"),
    ] {
        assert!(lines.lines().any(|text| text.contains(span) && text.contains(event)), "{event}: {lines}");
    }
    assert!(!lines.contains("Actor{"), "{lines}");
}

struct Dies;

impl AsyncWorker for Dies {
    type In = u64;
    type Out = u64;

    async fn call(&self, _: Batch<u64>) -> Vec<Result<u64, Failure>> {
        panic!("dies")
    }
}
