//! How often a typed value is encoded: never between stages of one process, once at a border.

use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::{DataType, DecodeLimits, Format, Local, Payload};
use callboard_core::{Pipeline, Stage};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::support::serve;

static ENCODED: AtomicUsize = AtomicUsize::new(0);
static DECODED: AtomicUsize = AtomicUsize::new(0);

/// Counts how often it is written or read.
#[derive(Debug, Clone, PartialEq)]
struct Counted(u64);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ENCODED.fetch_add(1, Ordering::SeqCst);
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DECODED.fetch_add(1, Ordering::SeqCst);
        u64::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Counted {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Counted".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        u64::json_schema(generator)
    }
}

fn counts() -> (usize, usize) {
    (ENCODED.load(Ordering::SeqCst), DECODED.load(Ordering::SeqCst))
}

/// One test, because the counts are shared.
#[tokio::test]
async fn a_typed_value_is_encoded_only_at_a_border() {
    let add = |name: &str| Stage::each(name, |n: &Counted| Ok(Counted(n.0 + 1)));
    let pipeline = Pipeline::from(add("task")).then(add("threads").on_threads()).then(add("batches").max_batch_size(8));
    let node = serve(pipeline).await;
    let out: Counted = node.client().call("/route", Counted(1)).await.unwrap();
    assert_eq!((out.0, counts()), (4, (0, 0)), "stages of one process pass Rust values");

    let envelope = Payload::new(out).to_envelope().unwrap().into_bytes();
    assert_eq!(counts(), (1, 0), "a border encodes once");
    let kind = DataType::for_type::<Counted>();
    let received = kind.decode(Format::Envelope, &envelope, &DecodeLimits::default()).unwrap();
    assert_eq!(counts(), (1, 1), "and the other side decodes once");
    assert_eq!(received.downcast_ref::<Counted>(), Some(&Counted(4)));
}

/// Neither serde nor a clone.
struct Opened(std::sync::Mutex<u64>);

#[tokio::test]
async fn a_type_between_stages_needs_no_serde() {
    let open = Stage::each("open", |n: &u64| Ok(Local(Opened((*n).into())))).on_threads();
    let take = Stage::each("take", |opened: &Local<Opened>| Ok(*opened.0.0.lock().unwrap() + 1));
    let node = serve(Pipeline::from(open).then(take.max_batch_size(4))).await;
    assert_eq!(node.client().call::<u64, u64>("/route", 4).await.unwrap(), 5);
}
