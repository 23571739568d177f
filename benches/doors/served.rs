//! Our server: one route for each case, and every door on its port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{DType, DataType, TensorField, TensorFields, Value};
use callboard_core::{App, RouteSpec, Stage, StreamStage, Task};
use callboard_grpc::GrpcProtocol;
use callboard_http::protocol::Protocol;
use callboard_http::{ApiInfo, HttpConfig, HttpEdge, serve_edge};
use callboard_mcp::{McpConfig, McpProtocol};
use callboard_oip::InferenceProtocol;
use callboard_openai::OpenAiProtocol;
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// The numbers of a vector.
pub(crate) const VECTOR: usize = 256;

/// The tokens of a stream.
pub(crate) const TOKENS: usize = 512;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Pair {
    left: i64,
    right: i64,
}

/// What the model of a chat reads of a request.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Ask {
    messages: Vec<Said>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Said {
    role: String,
    content: String,
}

fn app() -> App {
    let embed = Stage::each("embed", |text: &String| Ok(vec![text.len() as f32 / 3.0; VECTOR])).max_batch_size(32);
    let chat = StreamStage::each("chat", |_: &Ask| stream::iter((0..TOKENS).map(|_| Ok("token ".to_owned()))));
    let add = Stage::each("add", |pair: &Pair| Ok(pair.left + pair.right)).max_batch_size(32);
    App::new()
        .mount(array())
        .mount(RouteSpec::new("/embed", embed).task(Task::Embed))
        .mount(RouteSpec::streaming("/chat", chat).task(Task::Chat))
        .mount(RouteSpec::new("/add", add).description("The sum of two whole numbers.").tool())
}

/// A model with a signature that returns its array.
fn array() -> RouteSpec {
    let fields = || {
        let field = TensorField {
            name: "x".to_owned(),
            dtype: Some(DType::F32),
            shape: Some(vec![None, None]),
            is_required: true,
        };
        DataType::value().with_tensors(TensorFields { fields: vec![field], stackable: false })
    };
    let stage = Stage::each("array", |value: &Value| Ok(value.clone()));
    RouteSpec::described("/array", stage, fields(), fields())
}

/// Serves the route of each case.
pub(crate) async fn start() -> SocketAddr {
    serve(app()).await
}

/// Binds a socket, and serves an app through every door until the runtime ends.
pub(crate) async fn serve(app: App) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let node = app.start().await.unwrap();
    let inference = Arc::new(InferenceProtocol::new());
    let protocols: Vec<Arc<dyn Protocol>> = vec![
        Arc::<InferenceProtocol>::clone(&inference),
        Arc::new(OpenAiProtocol::new()),
        Arc::new(GrpcProtocol::new(inference)),
        Arc::new(McpProtocol::new(McpConfig::default())),
    ];
    let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), protocols).unwrap();
    tokio::spawn(async move {
        serve_edge(listener, edge, std::future::pending::<Duration>()).await;
        drop(node);
    });
    address
}
