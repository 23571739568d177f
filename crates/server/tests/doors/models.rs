//! The models behind the doors. Those that stream are held until a test releases them, empty, or endless.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::{Map, Value};
use callboard_core::{App, Failure, RouteSpec, Stage, StreamStage, Task};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;

/// What all models of an app do.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// One output, and a second one when the sender says so.
    Held(watch::Receiver<bool>),
    Empty,
    /// Outputs of this size for ever. The count is the outputs of all models.
    Endless {
        bytes: usize,
        made: Arc<AtomicUsize>,
    },
}

impl Script {
    fn run<T: Clone + Send + 'static>(&self, piece: impl Fn(usize) -> T) -> BoxStream<'static, Result<T, Failure>> {
        match self {
            Self::Empty => stream::empty().boxed(),
            Self::Held(released) => {
                let (mut released, piece) = (released.clone(), piece(1));
                let last = piece.clone();
                let rest = async move {
                    released.wait_for(|is_released| *is_released).await.map_err(|_| Failure::new("no test"))?;
                    Ok(last)
                };
                stream::iter([Ok(piece)]).chain(stream::once(rest)).boxed()
            }
            Self::Endless { bytes, made } => {
                let (piece, made) = (piece(*bytes), Arc::clone(made));
                let count = move |_: &T| {
                    made.fetch_add(1, Ordering::Relaxed);
                };
                stream::repeat(piece).inspect(count).map(Ok).boxed()
            }
        }
    }
}

fn text(bytes: usize) -> String {
    "a".repeat(bytes)
}

/// A model for each task that streams, and two plain routes, of which one has numbers for the Open Inference Protocol.
pub(crate) fn streaming(app: App, script: &Script) -> App {
    let texts = |name: &str| {
        let script = script.clone();
        StreamStage::each(name, move |_: &Value| script.run(text))
    };
    let sounds = script.clone();
    let sounds =
        StreamStage::each("sounds", move |_: &Value| sounds.run(|bytes| Value::Bytes(vec![b'a'; bytes].into())));
    let numbers = script.clone();
    let numbers = StreamStage::each("numbers", move |_: &f64| numbers.run(|bytes| vec![7.0_f64; bytes.div_ceil(8)]));
    app.mount(RouteSpec::streaming("/plain", texts("plain")).summary("Streams").tool())
        .mount(RouteSpec::streaming("/chat", texts("chat")).task(Task::Chat))
        .mount(RouteSpec::streaming("/complete", texts("complete")).task(Task::Complete))
        .mount(RouteSpec::streaming("/hear", texts("hear")).task(Task::Transcribe))
        .mount(RouteSpec::streaming("/speak", sounds).task(Task::Speak))
        .route_streaming("/numbers", numbers)
}

/// A model for each task that answers at once, and two plain routes. All answers have this number, where they have one,
/// and are counted.
pub(crate) fn whole(app: App, number: f64, runs: &Arc<AtomicUsize>) -> App {
    let stage = |name: &str, answer: Value| {
        let runs = Arc::clone(runs);
        Stage::each(name, move |_: &Value| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(answer.clone())
        })
    };
    let counted = Arc::clone(runs);
    let numbers = Stage::each("number", move |_: &f64| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    });
    let of = |entries: &[(&str, Value)]| Value::Map(entries.iter().cloned().collect::<Map>());
    let scores = of(&[("category_scores", of(&[("rude", number.into())]))]);
    let talk = of(&[("content", "a".into()), ("number", number.into())]);
    app.mount(RouteSpec::new("/any", stage("any", talk)).task(Task::Chat))
        .mount(RouteSpec::new("/embed", stage("embed", vec![Value::from(number)].into())).task(Task::Embed))
        .mount(RouteSpec::new("/rank", stage("rank", number.into())).task(Task::Rerank))
        .mount(RouteSpec::new("/rude", stage("rude", scores)).task(Task::Moderate))
        .mount(RouteSpec::new("/draw", stage("draw", Value::Bytes(b"\x89PNG\r\n\x1a\n"[..].into()))).task(Task::Image))
        .mount(RouteSpec::new("/number", numbers).summary("Tells a number").tool())
}
