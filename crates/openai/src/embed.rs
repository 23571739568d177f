//! Embeddings: each input of a request is one item of the route's batches.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use callboard_codec::Value;
use callboard_core::{ErrorKind, Task};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;
use serde::{Serialize, Serializer};

use crate::error::{bad_answer, invalid};
use crate::input::InputForm;
use crate::items;
use crate::request::ModelRequest;
use crate::respond;

/// The most memory of the answer per byte of a number: its copy, and its text with a comma, of four bytes.
const TEXT_PER_BYTE: usize = 5;

#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<EmbeddingObject<'a>>,
    model: &'a str,
    usage: EmbeddingUsage,
}

#[derive(Serialize)]
struct EmbeddingObject<'a> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'a>,
}

/// Tokens that the route has counted, else 0: clients demand the field.
#[derive(Serialize)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// Numbers as the client wants them.
struct Numbers<'a> {
    numbers: &'a [f32],
    is_base64: bool,
}

impl Serialize for Numbers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_base64 {
            let bytes: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            serializer.serialize_str(&STANDARD.encode(bytes))
        } else {
            serializer.collect_seq(self.numbers)
        }
    }
}

/// Answers `POST /v1/embeddings`.
pub(crate) async fn embed(mut request: ModelRequest<'_>) -> Result<Response, ApiError> {
    let is_base64 = match request.fields.get("encoding_format") {
        None | Some(Value::Null) => false,
        Some(Value::Str(format)) if format == "float" => false,
        Some(Value::Str(format)) if format == "base64" => true,
        Some(_) => return Err(invalid("`encoding_format` must be \"float\" or \"base64\"")),
    };
    let route = Arc::clone(&request.route);
    let form = InputForm::of(Task::Embed, route.input().schema());
    if request.count("dimensions", 1..=1 << 20)?.is_some() && !form.takes("dimensions") {
        return Err(invalid(format!(
            "model `{}` has a fixed number of dimensions: leave out `dimensions`",
            request.model
        )));
    }
    let inputs = inputs(request.take("input")?)?;
    let input_of = |input| form.input(Task::Embed, input, &request.fields);
    let has_tokens = inputs.iter().any(|input| matches!(input, Value::List(_)));
    let run = items::run(&request, inputs, request.shared_bytes(&form), input_of).await;
    let (answers, slowest) = run.map_err(|error| if has_tokens { of_tokens(error) } else { error })?;

    let bytes = answers.iter().map(Value::resident_bytes).fold(0, usize::saturating_add);
    let model = request.model.clone();
    let write = move || {
        let read = |answer: &Value| embedding(route.name(), answer);
        let embeddings: Vec<Embedding> = answers.iter().map(read).collect::<Result<_, _>>()?;
        let tokens = embeddings.iter().filter_map(|embedding| embedding.tokens).fold(0, u64::saturating_add);
        let data = embeddings.iter().enumerate().map(|(index, embedding)| {
            let embedding = Numbers { numbers: &embedding.numbers, is_base64 };
            EmbeddingObject { object: "embedding", index, embedding }
        });
        let usage = EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens };
        respond::written(&EmbeddingList { object: "list", data: data.collect(), model: &model, usage })
    };
    let response = respond::json(&request, bytes.saturating_mul(TEXT_PER_BYTE), write).await?;
    Ok(items::timed(response, &slowest))
}

/// A text, texts, token ids or lists of token ids.
fn inputs(input: Value) -> Result<Vec<Value>, ApiError> {
    match input {
        Value::Str(_) => Ok(vec![input]),
        Value::List(ref ids) if matches!(ids.first(), Some(Value::Int(_))) => Ok(vec![input]),
        Value::List(items) => items::check_count("input", items.len()).map(|()| items),
        other => Err(invalid(format!("`input` must be a text or a list, not {}", other.kind()))),
    }
}

/// A model of texts refuses token ids, which LangChain sends by default.
fn of_tokens(error: ApiError) -> ApiError {
    if error.kind() != ErrorKind::InvalidInput {
        return error;
    }
    let hint =
        "the input is token ids: if the model takes texts, send texts (LangChain: check_embedding_ctx_length=False)";
    invalid(format!("{}; {hint}", error.message()))
}

struct Embedding {
    numbers: Vec<f32>,
    tokens: Option<u64>,
}

/// Numbers, or an object with `embedding` and perhaps `usage`.
fn embedding(route: &str, answer: &Value) -> Result<Embedding, ApiError> {
    let (numbers, tokens) = match answer {
        Value::Map(map) => {
            let tokens = map.get("usage").and_then(|usage| usage.get("prompt_tokens")).and_then(Value::as_u64);
            (map.get("embedding").unwrap_or(&Value::Null), tokens)
        }
        numbers => (numbers, None),
    };
    let bad = || bad_answer(route, answer.kind(), "a list or a vector of finite numbers");
    // One row of a matrix is a vector to some models.
    let numbers = match numbers {
        Value::Tensor(tensor) if tensor.shape().len() == 2 && tensor.shape()[0] == 1 => {
            let row = tensor.reshape(&[tensor.len()]).map_err(|_| bad())?;
            Value::Tensor(row).deserialize::<Vec<f32>>()
        }
        numbers => numbers.deserialize::<Vec<f32>>(),
    };
    let numbers = numbers.map_err(|_| bad())?;
    if numbers.iter().all(|number| number.is_finite()) { Ok(Embedding { numbers, tokens }) } else { Err(bad()) }
}
