//! What operators learn of a model whose items may or must not share a run: in the log, and in the node's description.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use callboard_codec::Value;
use callboard_onnx::{EngineChoice, Model, OnnxConfig, Signature};

use crate::stage::start_stage;
use crate::support::{F32, Fixed, Graph, Named, TempFile, add, mixing};

/// A buffer that a subscriber writes to.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of all tests. Workers are built on threads of their own, so the subscriber is that of the process.
fn log() -> &'static LogBuffer {
    static LOG: OnceLock<LogBuffer> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = LogBuffer::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).without_time();
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        log
    })
}

/// Items of more numbers than a trial makes up, and an operator that only a trial could tell of.
fn untried() -> Graph {
    let axes = [Named("batch"), Fixed(1536), Fixed(2048)];
    Graph::new().input("x", F32, &axes).output("y", F32, &axes).node("Trilu", &["x"], "y")
}

/// The same items, with operators that are known to compute within each.
fn proven() -> Graph {
    let axes = [Named("batch"), Fixed(1536), Fixed(2048)];
    Graph::new().input("x", F32, &axes).output("y", F32, &axes).node("Relu", &["x"], "y")
}

const TOO_LARGE: &str = "it cannot be tried with made-up items: one of its input `x` has more than 2097152 numbers";

#[tokio::test]
async fn the_log_says_once_what_becomes_of_batches_and_why() {
    let (mixing, untried, apart) =
        (mixing().load("mixing").unwrap(), untried().load("untried").unwrap(), add().load("add").unwrap());
    let mixes = mixing.mixes_items().unwrap();
    let one_by_one = format!(
        "items run one by one, because a batch would change their answers: {mixes}; set \
         max_batch_size to batch them all the same stage=mixing"
    );
    let share = format!(
        "items share a run, as max_batch_size says, and callers get other answers under \
         load: {mixes} stage=mixing-set max_batch_size=4"
    );
    let unknown = format!(
        "it is not known whether a batch would change answers: {TOO_LARGE}; items run one \
         by one unless max_batch_size is set stage=untried"
    );
    let set = format!(
        "it is not known whether a batch would change answers: {TOO_LARGE} \
         stage=untried-set max_batch_size=4"
    );
    for (name, model, max_batch_size, line) in [
        ("mixing", &mixing, None, Some(("WARN", one_by_one))),
        ("mixing-set", &mixing, Some(4), Some(("WARN", share))),
        ("untried", &untried, None, Some(("WARN", unknown))),
        ("untried-set", &untried, Some(4), Some(("INFO", set))),
        ("apart", &apart, None, None),
    ] {
        log();
        let stage = callboard_onnx::stage(name, model).replicas(2);
        let stage = if let Some(most) = max_batch_size { stage.max_batch_size(most) } else { stage };
        drop(start_stage(model, stage).await.unwrap());
        let text = String::from_utf8(log().0.lock().unwrap().clone()).unwrap();
        let of_stage =
            |line: &&str| line.contains("items") && line.split(' ').any(|word| word == format!("stage={name}"));
        let lines: Vec<&str> = text.lines().filter(of_stage).map(str::trim).collect();
        let expected = line.map(|(level, line)| {
            format!("{level} replica{{stage=\"{name}\" replica=0}}: callboard_onnx::stage: {line}")
        });
        assert_eq!(lines, expected.iter().collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test]
async fn a_model_that_could_not_be_tried_runs_items_one_by_one_unless_its_operators_show_that_they_are_apart() {
    let described = async |model: &Model, max_batch_size: Option<usize>| {
        let stage = callboard_onnx::stage("model", model);
        let stage = if let Some(most) = max_batch_size { stage.max_batch_size(most) } else { stage };
        let described = start_stage(model, stage).await.unwrap().describe();
        (described.stages[0].max_batch_size, described.stages[0].note.clone())
    };
    let model = untried().load("untried").unwrap();
    assert_eq!((model.mixes_items(), model.may_mix_items()), (None, Some(TOO_LARGE)));
    let note = format!(
        "it is not known whether a batch would change answers: {TOO_LARGE}; items run one by one unless max_batch_size \
         is set"
    );
    assert_eq!(described(&model, None).await, (1, Some(note.clone())));
    assert_eq!(described(&model, Some(4)).await, (4, Some(note)));
    let model = proven().load("proven").unwrap();
    assert_eq!((model.mixes_items(), model.may_mix_items()), (None, None));
    assert_eq!(model.default_max_batch_size(), Signature::DEFAULT_MAX_BATCH_SIZE);
    assert_eq!(described(&model, Some(4)).await, (4, None));
}

/// Only the load shows it, which the first call begins.
#[tokio::test]
async fn the_finding_of_a_load_by_the_first_call_is_in_the_description() {
    let file = TempFile::new("mixing-later", &mixing().to_onnx());
    let mut config = OnnxConfig::new(&file.0);
    config.engine = EngineChoice::Rten;
    let model = Model::on_demand(&config).unwrap();
    let stage = callboard_onnx::stage("model", &model).replicas_between(0, 1);
    let node = start_stage(&model, stage).await.unwrap();
    assert_eq!(node.describe().stages[0].note, None);
    let item: Value = [1.0, 2.0].into_iter().collect();
    let _: Value = node.client().call("/model", item).await.unwrap();
    let loaded = Model::from_config(&config).unwrap();
    assert_eq!(node.describe().stages[0].note.as_deref(), Some(loaded.mixes_items().unwrap()));
}
