//! Each kind of error, through each door, is what the table of `docs/errors.md` says.

use std::net::SocketAddr;

use callboard_codec::Value;
use callboard_core::{App, CallError, ErrorKind, Failure, RouteSpec, Stage, Task};
use callboard_http::{ApiInfo, ApiKeys, HttpConfig};
use callboard_server::{Server, own_protocols};
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;

use crate::send::{Call, field};

const PAGE: &str = include_str!("../../../../docs/errors.md");

/// The columns that are compared here. The last one of the page is compared by the tests of the Python package.
const COLUMNS: [&str; 7] = ["HTTP", "`/v2`, `:predict`", "OpenAI", "Anthropic", "Cohere", "gRPC", "MCP"];

/// The column of MCP.
const MCP: usize = 6;

/// A row of the table.
struct Row {
    kind: ErrorKind,
    /// Whether its client may not repeat it, because user code may have done something.
    has_run: bool,
    cells: Vec<String>,
}

impl Row {
    fn failure(&self) -> Failure {
        match (self.kind, self.has_run) {
            (ErrorKind::Overloaded, false) => Failure::overloaded("no"),
            (ErrorKind::Unavailable, false) => Failure::unavailable("no"),
            // The error of a call of its own, which the stage hands on.
            (kind, _) => CallError::new(kind, "no").into(),
        }
    }
}

fn table() -> Vec<Row> {
    let mut lines = PAGE.lines().skip_while(|line| !line.starts_with("| failed call |"));
    let cells_of = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let heads = cells_of(lines.next().expect("the table of doors"));
    assert_eq!(heads[2..2 + COLUMNS.len()], COLUMNS);
    let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(cells_of);
    let rows = rows.map(|cells| {
        let (word, more) = cells[1].trim_start_matches('`').split_once('`').unwrap();
        assert!(["", ", may have run"].contains(&more), "{}", cells[1]);
        let kind = ErrorKind::from_name(word).unwrap_or_else(|| panic!("`{word}` is no kind"));
        Row { kind, has_run: !more.is_empty(), cells: cells[2..2 + COLUMNS.len()].to_vec() }
    });
    rows.collect()
}

#[test]
fn every_door_has_a_column() {
    let mut doors = own_protocols().doors();
    doors.sort_unstable();
    let of_column = |column: &str| if column.starts_with("`/v2`") { "oip".to_owned() } else { column.to_lowercase() };
    let mut columns: Vec<_> = COLUMNS.into_iter().filter(|column| *column != "HTTP").map(of_column).collect();
    columns.sort_unstable();
    assert_eq!(columns, doors);
}

/// A node whose routes fail as the row says whose number is a text somewhere in their input.
fn app() -> App {
    let fail = |row: usize| Err::<Value, _>(table()[row].failure());
    let any = move |name: &str| Stage::each(name, move |input: &Value| fail(number_in(input).unwrap()));
    let number = Stage::each("number", move |row: &f64| fail(*row as usize).map(|_| 0.0));
    App::new()
        .mount(RouteSpec::new("/any", any("any")).summary("Fails").tool())
        .mount(RouteSpec::new("/chat", any("chat")).task(Task::Chat))
        .mount(RouteSpec::new("/rank", any("rank")).task(Task::Rerank))
        .route("/number", number)
}

fn number_in(value: &Value) -> Option<usize> {
    match value {
        Value::Str(text) => text.strip_prefix("row ")?.parse().ok(),
        Value::List(items) => items.iter().find_map(number_in),
        Value::Map(map) => map.iter().find_map(|(_, value)| number_in(value)),
        _ => None,
    }
}

/// An answer over HTTP/1.1: its status, whether clients may not repeat it, and its body.
async fn post(address: SocketAddr, path: &str, body: &Json) -> (String, Json) {
    let answer = Call::json(path, body).send(address).await;
    let is_final = answer.header("x-should-retry") == Some("false");
    (format!("{}{}", answer.status, if is_final { ", final" } else { "" }), answer.json())
}

/// The status of a call of gRPC.
async fn grpc(address: SocketAddr, path: &str, message: &[u8]) -> String {
    let answer = Call::grpc(path, message).send(address).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("grpc-status").unwrap().to_owned()
}

/// The status before `more`, which a door has beside it.
fn with_type(status: &str, more: &Json) -> String {
    let (status, rest) = status.split_at(3);
    format!("{status} `{}`{rest}", more.as_str().unwrap())
}

/// What two ways into one door answer alike.
#[track_caller]
fn both(one: String, other: String) -> String {
    assert_eq!(one, other);
    one
}

/// What each door answers to a call that fails as this row says.
async fn answers(address: SocketAddr, row: usize) -> [String; COLUMNS.len()] {
    let text = format!("row {row}");
    let (plain, problem) = post(address, "/any", &json!(text)).await;
    let (function, _) = post(address, "/v1/call/any", &json!({ "args": [text] })).await;
    let inputs = json!([{ "name": "input", "datatype": "FP64", "shape": [1], "data": [row] }]);
    let (infer, _) = post(address, "/v2/models/number/infer", &json!({ "inputs": inputs })).await;
    let (predict, _) = post(address, "/v1/models/number:predict", &json!({ "instances": [row] })).await;
    let messages = json!([{ "role": "user", "content": text }]);
    let chat = json!({ "model": "chat", "max_tokens": 9, "messages": messages });
    let (openai, error) = post(address, "/v1/chat/completions", &chat).await;
    let response = json!({ "model": "chat", "input": text });
    let (responses, _) = post(address, "/v1/responses", &response).await;
    let (anthropic, message) = post(address, "/v1/messages", &chat).await;
    let rank = json!({ "model": "rank", "query": text, "documents": ["a"] });
    let (jina, _) = post(address, "/v1/rerank", &rank).await;
    let (cohere, _) = post(address, "/v2/rerank", &rank).await;
    let call = [field(1, b"/any"), field(3, json!(text).to_string().as_bytes())].concat();
    let call = grpc(address, "/callboard.v1.Inference/Call", &call).await;
    let tensor = [field(1, b"input"), field(2, b"FP64"), field(3, &[1])].concat();
    let tensor = [field(1, b"number"), field(5, &tensor), field(7, &(row as f64).to_le_bytes())].concat();
    let infer_grpc = grpc(address, "/inference.GRPCInferenceService/ModelInfer", &tensor).await;
    let params = json!({ "name": "any", "arguments": { "input": text } });
    let message_of_tool = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let (status, tool) = post(address, "/mcp", &message_of_tool).await;
    let tool = match (&tool["result"]["isError"], &tool["error"]["code"]) {
        (Json::Bool(true), _) => "`isError`".to_owned(),
        (_, Json::Number(code)) if status == "200" => format!("{code}"),
        _ => format!("status {status}"),
    };
    assert!(problem["kind"].is_string(), "{problem}");
    [
        both(plain, function),
        both(infer, predict),
        both(
            both(with_type(&openai, &error["error"]["type"]), with_type(&responses, &error["error"]["type"])),
            with_type(&jina, &error["error"]["type"]),
        ),
        with_type(&anthropic, &message["error"]["type"]),
        cohere,
        both(call, infer_grpc),
        tool,
    ]
}

#[tokio::test]
async fn every_kind_has_the_answers_of_the_page_through_every_door() {
    let table = table();
    for kind in ErrorKind::ALL {
        assert!(table.iter().any(|row| row.kind == kind), "{kind} has no row");
    }
    let server = Server::start(app(), "127.0.0.1:0", HttpConfig::default()).await.unwrap();
    for (number, row) in table.iter().enumerate() {
        if row.kind == ErrorKind::Cancelled {
            assert!(row.cells.iter().all(|cell| cell == "–"), "it has no reader");
            continue;
        }
        let answers = answers(server.address(), number).await;
        for ((column, cell), answer) in COLUMNS.iter().zip(&row.cells).zip(&answers) {
            assert_eq!(answer, cell, "{}, has run: {}, {column}", row.kind, row.has_run);
        }
    }
}

/// What the edge itself refuses is answered in the same words. Only MCP has the status then: its message was not read.
#[tokio::test]
async fn refusals_of_the_edge_have_the_same_columns() {
    let table = table();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let starting = Server::builder().info(ApiInfo::default()).open(listener).unwrap();
    let closed = HttpConfig { api_keys: Some(keys), ..HttpConfig::default() };
    let closed = Server::start(app(), "127.0.0.1:0", closed).await.unwrap();
    for (kind, address) in [(ErrorKind::Unavailable, address), (ErrorKind::Unauthenticated, closed.address())] {
        let row = table.iter().find(|row| row.kind == kind && !row.has_run).unwrap();
        let mut expected = row.cells.clone();
        expected[MCP] = format!("status {}", kind.row().http_status);
        assert_eq!(answers(address, 0).await.to_vec(), expected, "{kind}");
    }
    drop(starting);
}
