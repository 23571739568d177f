//! Reranking, where each pair of query and document is one item, and moderation, where each text is.

use std::sync::Arc;

use callboard_codec::{Map, Value};
use callboard_core::{ErrorKind, Task};
use callboard_http::axum::response::Response;
use callboard_http::protocol::ApiError;
use serde::Serialize;

use crate::error::{bad_answer, invalid};
use crate::input::InputForm;
use crate::items;
use crate::request::ModelRequest;
use crate::respond;

/// The API in whose words documents are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Jina's, which vLLM and others have, and Cohere's first version.
    Jina,
    /// Cohere's second version: documents are never repeated.
    Cohere,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Ranking<'a> {
    Jina { id: &'a str, model: &'a str, results: Vec<Ranked<'a>> },
    Cohere { id: &'a str, results: Vec<Ranked<'a>>, meta: Meta },
}

/// Of Cohere's answers.
#[derive(Serialize)]
struct Meta {
    api_version: ApiVersion,
}

#[derive(Serialize)]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize)]
struct Ranked<'a> {
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document<'a>>,
}

#[derive(Serialize)]
struct Document<'a> {
    text: &'a str,
}

/// Answers with the documents, the best first.
pub(crate) async fn rerank(mut request: ModelRequest<'_>, dialect: Dialect) -> Result<Response, ApiError> {
    let query = request.take("query")?;
    let documents = texts("documents", request.take("documents")?)?;
    let most = request.count("top_n", 1..=u64::from(u32::MAX))?.and_then(|most| usize::try_from(most).ok());
    let shows_documents = dialect == Dialect::Jina && request.is_set("return_documents")?;
    let route = Arc::clone(&request.route);
    let form = InputForm::of(Task::Rerank, route.input().schema());
    if !form.takes("document") {
        let name = request.route.name();
        let message = format!("route `{name}` must take an object with `query` and `document` to rank documents");
        return Err(ApiError::new(ErrorKind::Internal, message));
    }
    let shared = request.shared_bytes(&form).saturating_add(query.resident_bytes());
    let input_of = |document| {
        let mut input = form.input(Task::Rerank, query.clone(), &request.fields);
        if let Value::Map(fields) = &mut input {
            fields.insert("document", document);
        }
        input
    };
    request.budget().charge(documents.iter().map(String::len).sum())?;
    let items = documents.iter().cloned().map(Value::Str).collect();
    let (answers, slowest) = items::run(&request, items, shared, input_of).await?;
    let score = |answer: &Value| {
        let number =
            answer.as_f64().or_else(|| answer.get("relevance_score").or_else(|| answer.get("score"))?.as_f64());
        let number = number.or_else(|| answer.deserialize::<[f64; 1]>().ok().map(|[number]| number));
        number
            .filter(|score| score.is_finite())
            .ok_or_else(|| bad_answer(request.route.name(), answer.kind(), "a finite score"))
    };
    let mut scores: Vec<(usize, f64)> =
        answers.iter().map(score).collect::<Result<Vec<_>, _>>()?.into_iter().enumerate().collect();
    scores.sort_by(|(_, first), (_, second)| second.total_cmp(first));
    scores.truncate(most.unwrap_or(usize::MAX));
    let (model, id) = (request.model.clone(), format!("rerank-{}", request.context.id.as_str()));
    let bytes = if shows_documents { documents.iter().map(String::len).sum() } else { 0 };
    let write = move || {
        let results = scores.iter().map(|&(index, relevance_score)| {
            let document = shows_documents.then(|| Document { text: &documents[index] });
            Ranked { index, relevance_score, document }
        });
        let results = results.collect();
        respond::written(&match dialect {
            Dialect::Jina => Ranking::Jina { id: &id, model: &model, results },
            Dialect::Cohere => {
                Ranking::Cohere { id: &id, results, meta: Meta { api_version: ApiVersion { version: "2" } } }
            }
        })
    };
    Ok(items::timed(respond::json(&request, bytes, write).await?, &slowest))
}

#[derive(Serialize)]
struct Moderation<'a> {
    id: &'a str,
    model: &'a str,
    results: &'a [Map],
}

/// Answers `POST /v1/moderations`.
pub(crate) async fn moderate(mut request: ModelRequest<'_>) -> Result<Response, ApiError> {
    let inputs = texts("input", request.take("input")?)?;
    let route = Arc::clone(&request.route);
    let form = InputForm::of(Task::Moderate, route.input().schema());
    let input_of = |text| form.input(Task::Moderate, text, &request.fields);
    let items = inputs.into_iter().map(Value::Str).collect();
    let (answers, slowest) = items::run(&request, items, request.shared_bytes(&form), input_of).await?;
    let read = |answer| verdict(request.route.name(), answer);
    let results: Vec<Map> = answers.into_iter().map(read).collect::<Result<_, _>>()?;
    let (model, id) = (request.model.clone(), format!("modr-{}", request.context.id.as_str()));
    let bytes = results.iter().flat_map(Map::values).map(Value::resident_bytes).fold(0, usize::saturating_add);
    let write = move || respond::written(&Moderation { id: &id, model: &model, results: &results });
    Ok(items::timed(respond::json(&request, bytes, write).await?, &slowest))
}

/// The verdict on a text: whether it is flagged, or an answer for each category; without `flagged` a true one flags it.
fn verdict(route: &str, answer: Value) -> Result<Map, ApiError> {
    let mut verdict = match answer {
        Value::Bool(flagged) => Map::from_iter([("flagged", Value::Bool(flagged))]),
        Value::Map(map) => map,
        other => return Err(bad_answer(route, other.kind(), "true, false or an object with `flagged`")),
    };
    // JSON would have null for them, which is no score.
    let is_number = |score: &Value| score.as_f64().is_none_or(f64::is_finite);
    if matches!(verdict.get("category_scores"), Some(Value::Map(scores)) if !scores.values().all(is_number)) {
        return Err(bad_answer(route, "a score that is no number", "finite scores"));
    }
    let is_true = |value: &Value| *value == Value::Bool(true);
    let flagged = matches!(verdict.get("categories"), Some(Value::Map(each)) if each.values().any(is_true));
    for (name, value) in
        [("flagged", Value::Bool(flagged)), ("categories", Map::new().into()), ("category_scores", Map::new().into())]
    {
        if !verdict.contains_key(name) {
            verdict.insert(name, value);
        }
    }
    Ok(verdict)
}

/// A text or texts; a text may be the `text` of an object.
fn texts(name: &str, value: Value) -> Result<Vec<String>, ApiError> {
    let text = |value: Value| match value {
        Value::Str(text) => Ok(text),
        Value::Map(mut map) => match map.remove("text") {
            Some(Value::Str(text)) => Ok(text),
            _ => Err(invalid(format!("`{name}` must be texts, or objects with a `text`"))),
        },
        other => Err(invalid(format!("`{name}` must be texts, or objects with a `text`, not {}", other.kind()))),
    };
    match value {
        Value::List(items) => {
            items::check_count(name, items.len())?;
            items.into_iter().map(text).collect()
        }
        one => Ok(vec![text(one)?]),
    }
}
