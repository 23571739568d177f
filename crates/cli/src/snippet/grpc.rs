//! A program for Python with gRPC: a route of arrays is a model of the Open Inference Protocol, which Triton's client
//! calls; any other route is called by `callboard.v1.Inference` with grpcio.

use callboard_codec::{DType, TensorFields};
use callboard_core::edge::Route;
use serde_json::Value;

use super::python::{literal, text};
use super::{Body, Example, NOTHING, ServedRoutes};

/// Calls of routes. The messages are those of `callboard.proto`, which the generators of other languages read.
const ROUTES: &str = r#"
MESSAGES = """
name: "callboard.proto"
package: "callboard.v1"
syntax: "proto3"
message_type {
  name: "CallRequest"
  field { name: "route" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "content_type" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "body" number: 3 type: TYPE_BYTES label: LABEL_OPTIONAL }
}
message_type {
  name: "CallReply"
  field { name: "content_type" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "body" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "status" number: 3 type: TYPE_UINT32 label: LABEL_OPTIONAL }
}
"""
pool = descriptor_pool.DescriptorPool()
pool.AddSerializedFile(text_format.Parse(MESSAGES, descriptor_pb2.FileDescriptorProto()).SerializeToString())
CallRequest, CallReply = [
    message_factory.GetMessageClass(pool.FindMessageTypeByName("callboard.v1." + name))
    for name in ("CallRequest", "CallReply")
]
channel = CHANNEL


def read(reply):
    if reply.content_type.startswith("application/json"):
        return json.loads(reply.body)
    return f"{len(reply.body)} bytes of {reply.content_type}"
"#;

const CALL: &str = r#"

def call(route, body, content_type):
    method = channel.unary_unary("/callboard.v1.Inference/Call", CallRequest.SerializeToString, CallReply.FromString)
    return read(method(CallRequest(route=route, body=body, content_type=content_type), metadata=METADATA))
"#;

const STREAM: &str = r#"

def stream(route, body, content_type):
    method = channel.unary_stream("/callboard.v1.Inference/Stream", CallRequest.SerializeToString, CallReply.FromString)
    for reply in method(CallRequest(route=route, body=body, content_type=content_type), metadata=METADATA):
        yield read(reply)
"#;

const MODELS: &str = r#"
client = triton.InferenceServerClient(CLIENT)


def infer(model, arrays):
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    answer = client.infer(model, inputs, headers=dict(METADATA))
    return {output.name: answer.as_numpy(output.name).tolist() for output in answer.get_response().outputs}
"#;

/// The helpers that the calls need, then a call of each route.
pub(super) fn program(served: &ServedRoutes<'_>) -> String {
    if let Some(refusal) = served.refusal("grpc") {
        return refusal;
    }
    let calls: Vec<Call> = served
        .routes
        .iter()
        .map(|(route, file)| {
            let example = Example::new(route, file.as_deref());
            Call { model: Model::of(route, &example), example, has_parameters: route.name().contains('{') }
        })
        .collect();
    let (key, note) = served.key();
    written(&calls, served.base, key.as_deref(), &note)
}

/// One route that is called.
struct Call {
    example: Example,
    model: Option<Model>,
    has_parameters: bool,
}

/// A route as a model of the Open Inference Protocol, and its arrays with their types.
struct Model(Vec<(String, Value, &'static str)>);

impl Model {
    /// `None` if the example of the route is not all arrays.
    fn of(route: &Route, example: &Example) -> Option<Self> {
        let (Some(tensors), false) = (route.input().tensors(), route.streams()) else { return None };
        Self::from_tensors(tensors, &example.body)
    }

    fn from_tensors(tensors: &TensorFields, body: &Body) -> Option<Self> {
        let Body::Json(Value::Object(given)) = body else { return None };
        let array = |(name, value): (&String, &Value)| {
            let field = tensors.fields.iter().find(|field| field.name == *name)?;
            let dtype = field.dtype.map_or(Some("object"), numpy_of)?;
            // Requests have an axis of items.
            let value = if tensors.stackable { Value::Array(vec![value.clone()]) } else { value.clone() };
            Some((name.clone(), value, dtype))
        };
        given.iter().map(array).collect::<Option<_>>().map(Self)
    }
}

/// The type's name in NumPy, if Triton's client knows it without another library.
fn numpy_of(dtype: DType) -> Option<&'static str> {
    (!dtype.is_complex() && dtype != DType::BF16).then(|| dtype.numpy_name())
}

fn written(calls: &[Call], base: &str, key: Option<&str>, note: &str) -> String {
    let is_made = |call: &&Call| !call.has_parameters && call.example.body != Body::Nothing;
    let routes =
        |streams| calls.iter().filter(is_made).any(|call| call.model.is_none() && call.example.streams == streams);
    let (calls_routes, streams_routes) = (routes(false), routes(true));
    let has_routes = calls_routes || streams_routes;
    let has_models = calls.iter().filter(is_made).any(|call| call.model.is_some());
    let (address, is_tls) = match base.split_once("://") {
        Some(("https", address)) => (text(address), true),
        Some((_, address)) => (text(address), false),
        None => (text(base), false),
    };
    let channel = if is_tls {
        format!("grpc.secure_channel({address}, grpc.ssl_channel_credentials())")
    } else {
        format!("grpc.insecure_channel({address})")
    };
    let client = if is_tls { format!("{address}, ssl=True") } else { address };
    let mut packages = Vec::new();
    let (mut own, mut imports) = (Vec::new(), Vec::new());
    if has_routes {
        packages.push("grpcio protobuf");
        own.push("import json\n");
        imports.push("import grpc\n");
    }
    own.extend(key.is_some().then_some("import os\n"));
    if has_models {
        packages.push("'tritonclient[grpc]' numpy");
        imports.extend(["import numpy as np\n", "import tritonclient.grpc as triton\n"]);
    }
    if has_routes {
        imports.push("from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format\n");
    }
    if has_models {
        imports.push("from tritonclient.utils import np_to_triton_dtype\n");
    }
    let metadata = key.map_or_else(|| "[]".to_owned(), |key| format!("[(\"x-api-key\", {key})]"));
    let mut program = String::new();
    if has_routes || has_models {
        let own = if own.is_empty() { String::new() } else { own.concat() + "\n" };
        program =
            format!("# pip install {}\n{note}\n{own}{}\nMETADATA = {metadata}\n", packages.join(" "), imports.concat());
    }
    if has_routes {
        program.push_str(&ROUTES.replace("CHANNEL", &channel));
    }
    program.push_str(if calls_routes { CALL } else { "" });
    program.push_str(if streams_routes { STREAM } else { "" });
    if has_models {
        program.push_str(if has_routes { "\n" } else { "" });
        program.push_str(&MODELS.replace("CLIENT", &client));
    }
    program.push('\n');
    for call in calls {
        program.push('\n');
        program.push_str(&call.lines());
    }
    program
}

impl Call {
    fn lines(&self) -> String {
        let Example { route, streams, body, .. } = &self.example;
        if self.has_parameters {
            return format!(
                "# {route} is called over HTTP only: its path has parameters, which a call of gRPC cannot give\n"
            );
        }
        let title = self.example.title();
        if let Some(Model(arrays)) = &self.model {
            let array = |(name, value, dtype): &(String, Value, &str)| {
                format!("{}: np.array({}, {})", text(name), literal(value), text(dtype))
            };
            let arrays: Vec<String> = arrays.iter().map(array).collect();
            let model = text(route.trim_start_matches('/'));
            return format!("# {title}\nprint(infer({model}, {{{}}}))\n", arrays.join(", "));
        }
        let (before, indent, content, media_type) = match body {
            Body::Nothing => return format!("# {route} {NOTHING}\n"),
            Body::Json(json) => {
                (String::new(), "", format!("json.dumps({}).encode()", literal(json)), "application/json")
            }
            Body::File { path, media_type, .. } => (
                format!("with open({}, \"rb\") as file:\n", text(path)),
                "    ",
                "file.read()".to_owned(),
                &**media_type,
            ),
        };
        let arguments = format!("{}, {content}, {}", text(route), text(media_type));
        let call = if *streams {
            format!("{indent}for item in stream({arguments}):\n{indent}    print(item)\n")
        } else {
            format!("{indent}print(call({arguments}))\n")
        };
        format!("# {title}\n{before}{call}")
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::TensorField;
    use serde_json::json;

    use super::*;

    fn call(route: &str, streams: bool, body: Body, model: Option<Model>) -> Call {
        let example = Example { route: route.to_owned(), summary: String::new(), streams, body };
        Call { has_parameters: route.contains('{'), example, model }
    }

    /// The program has the messages that the node reads.
    #[test]
    fn the_messages_are_those_of_the_protocol() {
        let proto = include_str!("../../../grpc/proto/callboard.proto");
        let mut fields = 0;
        for line in ROUTES.lines().filter_map(|line| line.trim().strip_prefix("field { name: \"")) {
            let (name, rest) = line.split_once("\" number: ").unwrap();
            let (number, rest) = rest.split_once(" type: TYPE_").unwrap();
            let kind = rest.split(' ').next().unwrap().to_ascii_lowercase();
            assert!(proto.contains(&format!("  {kind} {name} = {number};\n")), "{line}");
            fields += 1;
        }
        assert_eq!(fields, 6);
    }

    #[test]
    fn arrays_are_those_of_the_signature_with_an_axis_of_items() {
        let field = |name: &str, dtype| TensorField { name: name.to_owned(), dtype, shape: None, is_required: true };
        let mut tensors =
            TensorFields { fields: vec![field("x", Some(DType::F32)), field("t", None)], stackable: true };
        let body = Body::Json(json!({ "x": [1.5], "t": ["a"] }));
        let model = Model::from_tensors(&tensors, &body);
        let lines = call("/m/one", false, body.clone(), model).lines();
        let expected = "# /m/one\nprint(infer(\"m/one\", {\"x\": np.array([[1.5]], \"float32\"), \
                        \"t\": np.array([[\"a\"]], \"object\")}))\n";
        assert_eq!(lines, expected);
        tensors.fields[0].dtype = Some(DType::BF16);
        assert!(Model::from_tensors(&tensors, &body).is_none(), "another library has it");
        assert!(Model::from_tensors(&tensors, &Body::Json(json!([1.5]))).is_none());
    }

    #[test]
    fn a_program_has_only_the_helpers_that_it_uses() {
        let json = || Body::Json(json!({ "x": 1 }));
        let plain = written(&[call("/a", false, json(), None)], "http://h:1", None, "");
        assert!(plain.contains("grpc.insecure_channel(\"h:1\")") && plain.contains("print(call(\"/a\", "), "{plain}");
        assert!(!plain.contains("triton") && !plain.contains("def stream("), "{plain}");
        let models = [call("/a", false, json(), Some(Model(Vec::new())))];
        let secure = written(&models, "https://h:1", Some("KEY"), "");
        assert!(secure.contains("InferenceServerClient(\"h:1\", ssl=True)") && secure.contains("(\"x-api-key\", KEY)"));
        assert!(!secure.contains("grpc.secure_channel") && !secure.contains("descriptor_pool"), "{secure}");
        let parameters = [call("/a/{id}", false, json(), None)];
        let none = written(&parameters, "http://h:1", None, "");
        assert!(none.trim().starts_with("# /a/{id} is called over HTTP only") && none.trim().lines().count() == 1);
    }
}
