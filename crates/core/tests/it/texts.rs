//! The texts of errors: bounded in length, and with their location.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_core::actor::{Actor, ActorContext, ActorSpec};
use callboard_core::edge::{ErrorParts, MAX_ERROR_CHARS};
use callboard_core::{App, AsyncWorker, Batch, CallError, ErrorKind, Failure, Replica, RouteSpec, Stage};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use super::support::{hide_panics, serve};

fn is_cut(text: &str) -> bool {
    text.chars().count() <= MAX_ERROR_CHARS && text.contains("… (") && text.ends_with(" more characters)")
}

#[tokio::test]
async fn a_long_text_of_user_code_is_cut_visibly() {
    let fails = Stage::each("fails", |length: &usize| -> Result<u64, Failure> {
        Err(Failure::new("é".repeat(*length)).with_type("T".repeat(*length)))
    });
    let node = serve(fails).await;
    let error = |length: usize| {
        let client = node.client();
        async move { client.call::<usize, u64>("/route", length).await.unwrap_err() }
    };
    let whole = error(MAX_ERROR_CHARS).await;
    assert_eq!(whole.message().chars().count(), MAX_ERROR_CHARS);
    let cut = error(20_000).await;
    assert!(is_cut(cut.message()), "{} characters", cut.message().chars().count());
    assert!(cut.error_type().unwrap().chars().count() <= 256);
    // A text that another node has cut is not cut again.
    let again = CallError::from(cut.clone().into_parts());
    assert_eq!(again.message(), cut.message());
}

#[tokio::test]
async fn a_long_text_of_a_panic_is_cut_in_message_and_trace() {
    hide_panics();
    let panics = Stage::each("panics", |length: &usize| -> Result<u64, Failure> {
        std::panic::resume_unwind(Box::new("x".repeat(*length)))
    });
    let error = serve(panics).await.client().call::<usize, u64>("/route", 20_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert!(is_cut(error.message()) && is_cut(error.remote_trace().unwrap()));
    let mut parts = ErrorParts::new(ErrorKind::Failed, "short");
    parts.remote_trace = Some("x".repeat(20_000));
    assert!(is_cut(CallError::from(parts).remote_trace().unwrap()));
}

/// Notes the length of each text in the log, by the message of its line and the name of its field.
#[derive(Clone, Default)]
struct Lengths(Arc<Mutex<BTreeMap<String, usize>>>);

impl Lengths {
    fn max_of(&self, line: &str) -> Option<usize> {
        let lengths = self.0.lock().unwrap();
        lengths.iter().filter(|(key, _)| key.starts_with(line)).map(|(_, length)| *length).max()
    }
}

impl Subscriber for Lengths {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Texts(BTreeMap<&'static str, String>);
        impl Visit for Texts {
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name(), value.to_owned());
            }
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
        }
        let mut texts = Texts(BTreeMap::new());
        event.record(&mut texts);
        let message = texts.0.get("message").cloned().unwrap_or_default();
        for (name, text) in texts.0 {
            self.0.lock().unwrap().insert(format!("{message}: {name}"), text.chars().count());
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Panics with a long text when it is asked.
struct Fragile;

impl Actor for Fragile {
    type Message = ();

    async fn handle(&mut self, (): (), _: &ActorContext<Self>) -> Result<(), Failure> {
        panics()
    }
}

struct Dies;

impl AsyncWorker for Dies {
    type In = u64;
    type Out = u64;

    async fn call(&self, _: Batch<u64>) -> Vec<Result<u64, Failure>> {
        vec![panics()]
    }
}

fn panics<T>() -> Result<T, Failure> {
    std::panic::resume_unwind(Box::new("x".repeat(20_000)))
}

/// On one thread, and the test gets all of its log lines.
#[tokio::test(start_paused = true)]
async fn no_text_in_a_line_of_the_log_is_longer_than_an_error() {
    hide_panics();
    let lengths = Lengths::default();
    // With only one subscriber, a thread of another test without a subscriber decides what is logged.
    let _second = tracing::Dispatch::new(Lengths::default());
    let _here = tracing::subscriber::set_default(lengths.clone());
    let late = Stage::each_async("late", |n: Arc<u64>| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Err::<u64, _>(Failure::new("x".repeat(20_000 + *n as usize)))
    });
    let dies = Stage::async_worker("dies", |replica: &Replica| match replica.generation() {
        0 => Ok(Dies),
        _ => Err(Failure::new("x".repeat(20_000))),
    });
    // Of no thread of its own: while one runs, the paused clock may jump, and crashes are then too far apart.
    let poisoned = Stage::async_worker("poisoned", |_: &Replica| Ok(Dies)).pure();
    let actor = ActorSpec::new("fragile", |_| Fragile);
    let fragile = actor.reference();
    let app = App::new().route("/late", late).route("/dies", dies).route("/poisoned", poisoned).actor(actor);
    let node = app.start().await.unwrap();
    let client = node.client();
    client.call_detached("/late", 1_u64).unwrap();
    for _ in 0..1_000 {
        if ["stage has failed", "a group of actors has failed"].iter().all(|line| lengths.max_of(line).is_some()) {
            break;
        }
        let _ = client.call::<u64, u64>("/dies", 1).await;
        let _ = client.call::<u64, u64>("/poisoned", 1).await;
        let _ = fragile.tell(());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let lines =
        ["a detached call failed", "replica died", "stage has failed", "an input kills its worker", "actor died"];
    for line in lines.iter().chain(&["a group of actors has failed"]) {
        let longest = lengths.max_of(line);
        let limit = MAX_ERROR_CHARS / 2..=MAX_ERROR_CHARS;
        assert!(longest.is_some_and(|longest| limit.contains(&longest)), "{line}: {longest:?}");
    }
    let lengths = lengths.0.lock().unwrap().clone();
    let too_long: Vec<_> = lengths.iter().filter(|(_, length)| **length > MAX_ERROR_CHARS).collect();
    assert!(too_long.is_empty(), "{too_long:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_and_routes_cannot_exceed_the_maximum_timeouts() {
    use callboard_core::{CallOptions, Instant, Limits};
    let waits = |name: &str| Stage::each_async(name, |_: Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let limits = Limits { max_timeout: Duration::from_secs(5), ..Limits::default() };
    let app = App::new()
        .limits(limits)
        .mount(RouteSpec::new("/node", waits("one")).default_timeout(Duration::from_secs(20)))
        .mount(RouteSpec::new("/route", waits("two")).max_timeout(Duration::from_millis(100)))
        .mount(RouteSpec::new("/lax", waits("three")).max_timeout(Duration::from_secs(60)));
    let node = app.start().await.unwrap();
    for (route, allowed) in [("/node", 5_000), ("/route", 100), ("/lax", 5_000)] {
        for asked in [None, Some(Duration::from_secs(60))] {
            let started = Instant::now();
            let mut options = CallOptions::new();
            if let Some(asked) = asked {
                options = options.with_timeout(asked);
            }
            let error = node.client().call_with::<u64, u64>(route, 1, options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            assert_eq!(
                started.elapsed().as_millis().abs_diff(allowed) / 10,
                0,
                "{route}, {asked:?}: {:?}",
                started.elapsed()
            );
        }
    }
}
