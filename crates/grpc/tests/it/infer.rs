//! `ModelInfer`, and what clients read about models.

use bytes::Bytes;
use callboard_codec::{DType, DataType, TensorField, TensorFields, Value};
use callboard_core::{App, RouteSpec, Stage};

use crate::client::Server;
use crate::messages::{
    Change, Changed, Choice, Contents, Described, Empty, Infer, Named, State, Tensor, Wanted, parameters,
};

/// Routes that answer with their input, for each type; and others.
fn app() -> App {
    macro_rules! echo {
        ($app:expr, $($name:literal: $rust:ty),*) => {{
            let app = $app;
            $(let app = app.route(concat!("/", $name), Stage::each($name, |value: &Vec<$rust>| Ok(value.clone())));)*
            app
        }};
    }
    let double = Stage::each("double", |number: &f64| Ok(number * 2.0));
    echo!(
        App::new().route("/double", double),
        "BOOL": bool, "INT8": i8, "INT16": i16, "INT32": i32, "INT64": i64, "UINT8": u8, "UINT16": u16,
        "UINT32": u32, "UINT64": u64, "FP32": f32, "FP64": f64, "BYTES": String
    )
}

#[tokio::test]
async fn raw_bytes_of_every_type_are_answered_raw() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    for (datatype, raw) in [
        ("BOOL", &[1, 0][..]),
        ("INT8", &[0xff, 2]),
        ("INT16", &[1, 0, 0xff, 0xff]),
        ("INT32", &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        ("INT64", &[7; 16]),
        ("UINT8", &[0, 255]),
        ("UINT16", &[1, 2, 3, 4]),
        ("UINT32", &[9; 8]),
        ("UINT64", &[0xff; 16]),
        ("FP32", &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]),
        ("FP64", &[0; 16]),
        ("BYTES", b"\x02\0\0\0ab\0\0\0\0"),
    ] {
        let answer = client.inferred(&Infer::raw(datatype, datatype, &[2], raw.to_vec())).await;
        let output = &answer.outputs[0];
        assert_eq!((&*output.name, &*output.datatype, &output.shape[..]), ("output", datatype, &[2][..]));
        assert_eq!((answer.raw, &output.contents), (vec![Bytes::copy_from_slice(raw)], &None), "{datatype}");
        assert_eq!((&*answer.model, &*answer.version, &*answer.id), (datatype, "1", ""));
    }
}

#[tokio::test]
async fn typed_contents_of_every_type_are_answered_typed() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let none = Contents::default();
    for (datatype, contents) in [
        ("BOOL", Contents { bools: vec![true, false], ..none.clone() }),
        ("INT8", Contents { ints: vec![-128, 127], ..none.clone() }),
        ("INT16", Contents { ints: vec![-32768, 32767], ..none.clone() }),
        ("INT32", Contents { ints: vec![i32::MIN, i32::MAX], ..none.clone() }),
        ("INT64", Contents { int64s: vec![i64::MIN, i64::MAX], ..none.clone() }),
        ("UINT8", Contents { uints: vec![0, 255], ..none.clone() }),
        ("UINT16", Contents { uints: vec![0, 65535], ..none.clone() }),
        ("UINT32", Contents { uints: vec![0, u32::MAX], ..none.clone() }),
        ("UINT64", Contents { uint64s: vec![0, u64::MAX], ..none.clone() }),
        ("FP32", Contents { fp32s: vec![0.5, f32::MAX], ..none.clone() }),
        ("FP64", Contents { fp64s: vec![0.1, -1e300], ..none.clone() }),
        ("BYTES", Contents { bytes: vec!["ab".into(), Bytes::new()], ..none }),
    ] {
        let answer = client.inferred(&Infer::typed(datatype, datatype, &[2], contents.clone())).await;
        assert_eq!((&answer.outputs[0].contents, answer.raw.len()), (&Some(contents), 0), "{datatype}");
    }
}

/// A value with one array of each of these names and types.
fn tensors(fields: &[(&str, DType)], shape: &[Option<usize>], stackable: bool) -> DataType {
    let field = |(name, dtype): &(&str, DType)| TensorField {
        name: (*name).to_owned(),
        dtype: Some(*dtype),
        shape: Some(shape.to_vec()),
        is_required: false,
    };
    let fields = fields.iter().map(field).collect();
    DataType::value().with_tensors(TensorFields { fields, stackable })
}

fn mirror(route: &str, data_type: impl Fn() -> DataType) -> RouteSpec {
    let stage = Stage::each(route.trim_start_matches('/'), |value: &Value| Ok(value.clone()));
    RouteSpec::described(route, stage, data_type(), data_type())
}

#[tokio::test]
async fn half_floats_come_and_go_as_raw_bytes_only() {
    let app = App::new()
        .mount(mirror("/fp16", || tensors(&[("input", DType::F16)], &[Some(2)], false)))
        .mount(mirror("/bf16", || tensors(&[("input", DType::BF16)], &[Some(2)], false)));
    let server = Server::start(app).await;
    let client = server.connect().await;
    for (model, datatype) in [("fp16", "FP16"), ("bf16", "BF16")] {
        let mut request = Infer::raw(model, datatype, &[2], vec![0, 0x3c, 0, 0x40]);
        let answer = client.inferred(&request).await;
        assert_eq!((&*answer.outputs[0].datatype, &answer.raw[0][..]), (datatype, &[0, 0x3c, 0, 0x40][..]));
        request.inputs[0].contents = Some(Contents { fp32s: vec![1.0, 2.0], ..Contents::default() });
        request.raw.clear();
        let refused = client.infer(&request).await.refused(3);
        assert_eq!(refused, format!("input 'input' of {datatype} has no typed contents: use raw_input_contents"));
    }
}

fn floats(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

#[tokio::test]
async fn rows_are_calls_of_their_own_and_outputs_may_be_classes() {
    let app = App::new().mount(mirror("/rows", || tensors(&[("input", DType::F32)], &[Some(3)], true)));
    let server = Server::start(app).await;
    let client = server.connect().await;
    let mut request = Infer::raw("rows", "FP32", &[2, 3], floats(&[0.1, 0.7, 0.2, 0.5, 0.2, 0.3]));
    request.id = "seven".to_owned();
    let answer = client.inferred(&request).await;
    assert_eq!((&answer.outputs[0].shape[..], &answer.raw[0], &*answer.id), (&[2, 3][..], &request.raw[0], "seven"));
    let classes = parameters([("classification", Choice::Int(1))]);
    request.outputs = vec![Wanted { name: "input".to_owned(), parameters: classes }];
    let answer = client.inferred(&request).await;
    assert_eq!((&*answer.outputs[0].datatype, &answer.outputs[0].shape[..]), ("BYTES", &[2, 1][..]));
    assert_eq!(&answer.raw[0][..], b"\x0a\0\0\x000.700000:1\x0a\0\0\x000.500000:0");
    request.inputs[0].shape = vec![257, 3];
    request.raw = vec![floats(&[0.0; 257 * 3]).into()];
    let refused = client.infer(&request).await.refused(3);
    assert_eq!(refused, "inference request batch-size must be <= 256 for 'rows'");
}

#[tokio::test]
async fn raw_and_typed_inputs_are_not_mixed() {
    let two = || tensors(&[("a", DType::F32), ("b", DType::F32)], &[Some(1)], false);
    let server = Server::start(App::new().mount(mirror("/two", two))).await;
    let client = server.connect().await;
    let one = Contents { fp32s: vec![1.0], ..Contents::default() };
    let (a, b) = (Tensor::new("a", "FP32", &[1]), Tensor::new("b", "FP32", &[1]));
    let request = |inputs: [&Tensor; 2], raw: usize| Infer {
        model: "two".to_owned(),
        inputs: inputs.map(Clone::clone).to_vec(),
        raw: vec![floats(&[1.0]).into(); raw],
        ..Infer::default()
    };
    assert_eq!(client.inferred(&request([&a, &b], 2)).await.raw.len(), 2);
    let typed = b.clone().with(one.clone());
    for (request, message) in [
        (request([&a, &typed], 2), "contents field must not be specified when using raw_input_contents for input 'b'"),
        (request([&a, &b], 1), "input 'b' has no entry of raw_input_contents: 1 for 2 inputs"),
        (request([&a, &b], 3), "3 entries of raw_input_contents for 2 inputs"),
        (request([&a, &typed], 0), "unexpected size for input 'a': 0 elements, expecting 1"),
        (request([&a, &a], 2), "input 'a' is given twice"),
        (
            request([&a, &Tensor::new("b", "FP32", &[2])], 2),
            "unexpected shape for input 'b' for model 'two'. Expected [1], got [2]",
        ),
        (request([&a, &Tensor::new("b", "FP32", &[-1])], 2), "input 'b' has an axis of less than 0 elements"),
        (
            request([&a, &Tensor::new("b", "INT8", &[1])], 2),
            "inference input 'b' data-type is 'INT8', but model 'two' expects 'FP32'",
        ),
        (
            request([&a, &b.clone().with(Contents { ints: vec![1], ..Contents::default() })], 0),
            "unexpected size for input 'a': 0 elements, expecting 1",
        ),
        (
            request(
                [&a.clone().with(one.clone()), &b.clone().with(Contents { ints: vec![1], ..Contents::default() })],
                0,
            ),
            "input 'b' of FP32 has int_contents",
        ),
    ] {
        assert_eq!(client.infer(&request).await.refused(3), message);
    }
}

#[tokio::test]
async fn typed_numbers_are_checked() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let none = Contents::default();
    for (datatype, contents, message) in [
        (
            "INT8",
            Contents { ints: vec![1, 128], ..none.clone() },
            "unable to read input 'input': 128 does not fit INT8",
        ),
        ("INT16", Contents { ints: vec![1, -40_000], ..none.clone() }, "-40000 does not fit INT16"),
        ("UINT8", Contents { uints: vec![1, 256], ..none.clone() }, "256 does not fit UINT8"),
        ("FP64", Contents { fp64s: vec![1.0; 3], ..none.clone() }, "3 elements, expecting 2"),
        ("FP64", Contents { fp64s: vec![1.0], ..none.clone() }, "1 element, expecting 2"),
        ("BYTES", Contents { bytes: vec!["a".into(); 3], ..none }, "3 elements, expecting 2"),
    ] {
        let refused = client.infer(&Infer::typed(datatype, datatype, &[2], contents)).await.refused(3);
        assert!(refused.contains(message), "{refused}");
    }
}

#[tokio::test]
async fn parameters_are_those_of_the_protocol() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let mut request = Infer::raw("double", "FP64", &[1], 1.0_f64.to_le_bytes().to_vec());
    request.parameters = parameters([
        ("priority", Choice::Uint(1)),
        ("sequence_id", Choice::Text("talk".to_owned())),
        ("sequence_start", Choice::Bool(true)),
        ("mine", Choice::Double(0.5)),
        ("timeout", Choice::Int(1_000_000)),
    ]);
    assert_eq!(client.inferred(&request).await.raw[0], 2.0_f64.to_le_bytes()[..]);
    request.parameters = parameters([("priority", Choice::Text("high".to_owned()))]);
    assert_eq!(client.infer(&request).await.refused(3), "parameter 'priority' must be a whole number, 0 or more");
    request.parameters = parameters([("triton_mine", Choice::Bool(true))]);
    assert!(client.infer(&request).await.refused(3).contains("reserved"));
    request.parameters.clear();
    request.inputs[0].parameters = parameters([("shared_memory_region", Choice::Text("r".to_owned()))]);
    assert_eq!(client.infer(&request).await.refused(12), "shared memory is not supported; send the data");
}

#[tokio::test]
async fn models_describe_themselves_as_over_http() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let double = Named { name: "double".to_owned(), version: String::new() };
    let described: Described = client.ask("ModelMetadata", &double).await.message();
    assert_eq!(
        (&*described.name, &*described.platform, &described.versions[..]),
        ("double", "callboard", &["1".to_owned()][..])
    );
    assert_eq!(described.inputs, [Tensor::new("input", "FP64", &[1])]);
    assert_eq!(described.outputs, [Tensor::new("output", "FP64", &[1])]);
    for (method, state) in [("ServerLive", 1), ("ServerReady", 1)] {
        assert_eq!(client.ask(method, &Empty {}).await.message::<State>().state, state, "{method}");
    }
    assert_eq!(client.ask("ModelReady", &double).await.message::<State>().state, 1);
    // Extensions are the third field, as the platform of a model.
    let named: Named = client.ask("ServerMetadata", &Empty {}).await.message();
    assert_eq!((&*named.name, &*named.version), ("callboard", env!("CARGO_PKG_VERSION")));
    for method in ["ModelConfig", "ModelStatistics", "RepositoryIndex"] {
        assert!(!client.ask(method, &double).await.messages::<Empty>().is_empty(), "{method}");
    }
    let other = |version: &str| Named { name: "double".to_owned(), version: version.to_owned() };
    for (named, status) in [(other("2"), 5), (other("one"), 3), (Named { name: "triple".to_owned(), ..double }, 5)] {
        client.ask("ModelMetadata", &named).await.refused(status);
        client.ask("ModelReady", &named).await.refused(status);
    }
    client.ask("SystemSharedMemoryStatus", &Empty {}).await.refused(12);
    client.ask("ModelExplain", &Empty {}).await.refused(12);
}

/// KServe's own clients name the model in the first field, Triton's in the second one.
#[tokio::test]
async fn models_are_loaded_by_either_numbering_and_only_if_that_is_allowed() {
    let config = crate::client::config(|config| config.model_control = true);
    let server = Server::with(app(), config).await;
    let client = server.connect().await;
    let of = |first: &str, second: &str| Change { first: first.to_owned(), second: second.to_owned() };
    for change in [of("", "double"), of("double", "")] {
        let refused = client.ask("RepositoryModelUnload", &change).await.refused(3);
        assert_eq!(refused, "failed to unload 'double': model control is not enabled on this server");
    }
    let repository = std::sync::Arc::new(Loaded::default());
    server.inference.load_from(std::sync::Arc::clone(&repository) as _);
    for change in [of("", "double"), of("double", "")] {
        let changed: Changed = client.ask("RepositoryModelLoad", &change).await.message();
        assert_eq!(changed, Changed { model: "double".to_owned(), is_loaded: true });
    }
    assert_eq!(*repository.0.lock().unwrap(), ["/double", "/double"]);
}

/// Notes which routes were loaded.
#[derive(Debug, Default)]
struct Loaded(std::sync::Mutex<Vec<String>>);

impl callboard_oip::ModelRepository for Loaded {
    fn routes(&self) -> Vec<String> {
        Vec::new()
    }

    fn load<'a>(&'a self, route: &'a str) -> callboard_oip::RepositoryChange<'a> {
        self.0.lock().unwrap().push(route.to_owned());
        Box::pin(async { Ok(()) })
    }

    fn unload<'a>(&'a self, _: &'a str) -> callboard_oip::RepositoryChange<'a> {
        Box::pin(async { Err(callboard_oip::RepositoryError::Unknown) })
    }
}
