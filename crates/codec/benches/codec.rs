//! What a border costs: the envelope beside plain rmp-serde, postcard and prost, tensors beside one memcpy, frames
//! beside bare arrow-ipc.
//!
//! Run with `cargo bench -p callboard-codec --bench codec`. Both sides of every ratio are measured in the same run; the
//! ratios of their medians are printed at the end.

#![allow(missing_docs, reason = "criterion's macros write functions without any")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use bytes::Bytes;
use callboard_codec::{DType, DataFrame, DataType, DecodeLimits, EnvelopeDecoder, Format, Map, Payload, Tensor, Value};
use criterion::{BatchSize, Criterion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const MIB: usize = 1 << 20;
/// What a transport hands on at a time.
const CHUNK: usize = 64 * 1024;

fn main() {
    let quick = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .sample_size(30);
    let mut criterion = quick.configure_from_args();
    small_struct(&mut criterion);
    for mib in [1, 64] {
        tensor(&mut criterion, mib);
    }
    frame(&mut criterion);
    criterion.final_summary();
    ratios();
}

// ---- a struct of 1 KiB ---------------------------------------------------------------------------------------------

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Small {
    id: u64,
    name: String,
    score: f64,
    tags: Vec<String>,
    features: Vec<f32>,
    #[schemars(with = "Vec<u8>")]
    #[serde(with = "serde_bytes")]
    thumbnail: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SmallMessage {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(double, tag = "3")]
    score: f64,
    #[prost(string, repeated, tag = "4")]
    tags: Vec<String>,
    #[prost(float, repeated, tag = "5")]
    features: Vec<f32>,
    #[prost(bytes, tag = "6")]
    thumbnail: Vec<u8>,
}

fn small() -> Small {
    Small {
        id: 1 << 40,
        name: "a name of ordinary length".to_owned(),
        score: 0.75,
        tags: (0..8).map(|n| format!("tag number {n}")).collect(),
        features: (0..64_u8).map(|n| f32::from(n) / 7.0).collect(),
        thumbnail: vec![7; 512],
    }
}

fn small_struct(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("struct");
    let value = small();
    let payload = Payload::new(value.clone());
    let kind = DataType::for_type::<Small>();
    let limits = DecodeLimits::default();
    group.bench_function("envelope", |bench| {
        bench.iter(|| {
            let bytes = black_box(&payload).to_envelope().unwrap().into_bytes();
            kind.decode(Format::Envelope, &bytes, &limits).unwrap()
        });
    });
    group.bench_function("rmp-serde", |bench| {
        bench.iter(|| {
            let bytes = rmp_serde::to_vec_named(black_box(&value)).unwrap();
            rmp_serde::from_slice::<Small>(&bytes).unwrap()
        });
    });
    group.bench_function("postcard", |bench| {
        bench.iter(|| {
            let bytes = postcard::to_allocvec(black_box(&value)).unwrap();
            postcard::from_bytes::<Small>(&bytes).unwrap()
        });
    });
    let Small { id, name, score, tags, features, thumbnail } = value.clone();
    let message = SmallMessage { id, name, score, tags, features, thumbnail };
    group.bench_function("prost", |bench| {
        bench.iter(|| {
            let bytes = prost::Message::encode_to_vec(black_box(&message));
            <SmallMessage as prost::Message>::decode(&*bytes).unwrap()
        });
    });
}

// ---- tensors -------------------------------------------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawMessage {
    #[prost(string, tag = "1")]
    dtype: String,
    #[prost(uint64, repeated, tag = "2")]
    shape: Vec<u64>,
    #[prost(bytes, tag = "3")]
    data: Vec<u8>,
}

fn tensor(criterion: &mut Criterion, mib: usize) {
    let mut group = criterion.benchmark_group(format!("tensor {mib} MiB"));
    if mib > 16 {
        group.sample_size(10).measurement_time(Duration::from_secs(5));
    }
    let bytes = mib * MIB;
    let data = vec![7_u8; bytes];
    let tensor = Tensor::try_new(DType::F32, &[mib, 512, 512], data.clone().into()).unwrap();
    let value = Value::from(Map::from_iter([("image", tensor)]));
    let limits = DecodeLimits { max_bytes: 2 * bytes, ..DecodeLimits::default() };

    group.bench_function("memcpy", |bench| bench.iter(|| black_box(&data).clone()));
    // A transport owns what it received: chunks that come in anyway, so making them is not the codec's cost.
    let wire = value.encode(Format::Envelope).unwrap();
    let chunks = || wire.chunks(CHUNK).map(|chunk| wire.slice_ref(chunk)).collect::<Vec<Bytes>>();
    group.bench_function("envelope, received in chunks", |bench| {
        bench.iter_batched(
            chunks,
            |chunks| {
                let sent = black_box(&value).to_envelope().unwrap();
                let mut decoder = EnvelopeDecoder::new(&limits);
                chunks.into_iter().for_each(|chunk| decoder.push(chunk).unwrap());
                (sent, decoder.finish().unwrap())
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("envelope, received in one buffer", |bench| {
        bench.iter(|| {
            let sent = black_box(&value).to_envelope().unwrap();
            (sent, Value::decode(Format::Envelope, black_box(&wire), &limits).unwrap())
        });
    });
    group.bench_function("envelope, joined into one buffer", |bench| {
        bench.iter(|| {
            let sent = black_box(&value).to_envelope().unwrap().into_bytes();
            Value::decode(Format::Envelope, &sent, &limits).unwrap()
        });
    });
    let shape = vec![mib as u64, 512, 512];
    let raw = Raw { dtype: "f32".to_owned(), shape: shape.clone(), data: data.clone() };
    group.bench_function("rmp-serde", |bench| {
        bench.iter(|| {
            let bytes = rmp_serde::to_vec_named(black_box(&raw)).unwrap();
            rmp_serde::from_slice::<Raw>(&bytes).unwrap()
        });
    });
    group.bench_function("postcard", |bench| {
        bench.iter(|| {
            let bytes = postcard::to_allocvec(black_box(&raw)).unwrap();
            postcard::from_bytes::<Raw>(&bytes).unwrap()
        });
    });
    let message = RawMessage { dtype: "f32".to_owned(), shape, data };
    group.bench_function("prost", |bench| {
        bench.iter(|| {
            let bytes = prost::Message::encode_to_vec(black_box(&message));
            <RawMessage as prost::Message>::decode(&*bytes).unwrap()
        });
    });
}

// ---- a frame of 10,000 × 10 f64 ------------------------------------------------------------------------------------

fn frame(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    let column = |n: u8| Arc::new(Float64Array::from_iter_values((0..10_000_u32).map(|x| f64::from(x) * f64::from(n))));
    let columns = (0..10).map(|n| (format!("c{n}"), column(n) as ArrayRef));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let value = Value::from(DataFrame::from(batch.clone()));
    let limits = DecodeLimits::default();
    let data = vec![7_u8; 10_000 * 10 * 8];

    group.bench_function("memcpy", |bench| bench.iter(|| black_box(&data).clone()));
    group.bench_function("arrow-ipc", |bench| {
        bench.iter(|| {
            let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
            writer.write(black_box(&batch)).unwrap();
            let mut buffer = Buffer::from(writer.into_inner().unwrap());
            StreamDecoder::new().decode(&mut buffer).unwrap().unwrap()
        });
    });
    group.bench_function("stream", |bench| {
        bench.iter(|| {
            let bytes = black_box(&value).encode(Format::ArrowStream).unwrap();
            Value::decode(Format::ArrowStream, &bytes, &limits).unwrap()
        });
    });
    group.bench_function("envelope", |bench| {
        bench.iter(|| {
            let bytes = black_box(&value).to_envelope().unwrap().into_bytes();
            Value::decode(Format::Envelope, &bytes, &limits).unwrap()
        });
    });
}

// ---- ratios --------------------------------------------------------------------------------------------------------

/// What, beside what, and the most (or, of a speed, the least) that was promised.
const RATIOS: &[(&str, &str, &str, &str)] = &[
    ("struct", "envelope", "rmp-serde", "at most 1.5"),
    ("struct", "envelope", "postcard", ""),
    ("struct", "envelope", "prost", ""),
    ("tensor 1 MiB", "envelope, received in chunks", "memcpy", "at most 1.11"),
    ("tensor 1 MiB", "envelope, received in one buffer", "memcpy", "at most 1.11"),
    ("tensor 1 MiB", "envelope, joined into one buffer", "memcpy", ""),
    ("tensor 1 MiB", "envelope, received in chunks", "rmp-serde", ""),
    ("tensor 1 MiB", "envelope, received in chunks", "postcard", ""),
    ("tensor 1 MiB", "envelope, received in chunks", "prost", ""),
    ("tensor 64 MiB", "envelope, received in chunks", "memcpy", "at most 1.11"),
    ("tensor 64 MiB", "envelope, received in one buffer", "memcpy", "at most 1.11"),
    ("tensor 64 MiB", "envelope, joined into one buffer", "memcpy", ""),
    ("tensor 64 MiB", "envelope, received in chunks", "rmp-serde", ""),
    ("tensor 64 MiB", "envelope, received in chunks", "postcard", ""),
    ("tensor 64 MiB", "envelope, received in chunks", "prost", ""),
    ("frame", "stream", "arrow-ipc", "at most 1.1"),
    ("frame", "envelope", "arrow-ipc", "at most 1.1"),
    ("frame", "envelope", "memcpy", ""),
];

/// Times of whole round trips over each other: the median of one over the median of the other.
fn ratios() {
    println!("\n{:<64}{:>9}  promised", "", "ratio");
    for (group, ours, theirs, promised) in RATIOS {
        let (Some(ours_ns), Some(theirs_ns)) = (median(group, ours), median(group, theirs)) else { continue };
        println!("{group:<16}{ours:<36}{theirs:<12}{:>9.3}  {promised}", ours_ns / theirs_ns);
    }
}

/// What criterion has written about a benchmark of this run.
fn median(group: &str, name: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")), PathBuf::from);
    let file = target.join("criterion").join(group).join(name).join("new/estimates.json");
    let estimates: serde_json::Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}
