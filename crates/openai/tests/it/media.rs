//! Transcriptions, speech and images.

use callboard_codec::{Media, Value as Input};
use callboard_core::{App, Failure, RouteSpec, Stage, StreamStage, Task};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::edge::Served;

const HEARD: &str = "/v1/audio/transcriptions";
const SAID: &str = "/v1/audio/speech";
const DRAWN: &str = "/v1/images/generations";
const WAV: &[u8] = b"RIFF    WAVEfmt ";

/// What a model of recordings takes.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Recording {
    file: Media,
    temperature: Option<f64>,
    timestamp_granularities: Option<Vec<String>>,
}

fn app() -> App {
    let heard = Stage::each("heard", |recording: &Recording| {
        let segments =
            json!([{ "start": 0.0, "end": 1.5, "text": "one" }, { "start": 1.5, "end": 2.0, "text": "two" }]);
        let text = format!("{} bytes at {:?}", recording.file.len(), recording.temperature);
        let language = recording.timestamp_granularities.as_ref().map_or(String::new(), |asked| asked.join("+"));
        let answer = json!({ "text": text, "segments": segments, "language": language });
        Ok(Input::from_serialize(&answer).unwrap())
    });
    let words = StreamStage::each("words", |_: &Input| stream::iter(["one ", "two"].map(|word| Ok(word.to_owned()))));
    let broken =
        StreamStage::each("broken", |_: &Input| stream::iter([Ok("half ".to_owned()), Err(Failure::new("it broke"))]));
    let said = Stage::each("said", |text: &String| Ok(Input::Bytes([WAV, text.as_bytes()].concat().into())));
    let pieces = StreamStage::each("pieces", |_: &String| {
        stream::iter([b"ab".to_vec(), b"c".to_vec()].map(|piece| Ok(Input::Bytes(piece.into()))))
    });
    let drawn = Stage::each("drawn", |text: &String| Ok(Input::Bytes(text.clone().into_bytes().into())));
    App::new()
        .mount(RouteSpec::new("/heard", heard).task(Task::Transcribe))
        .mount(RouteSpec::streaming("/words", words).task(Task::Transcribe))
        .mount(RouteSpec::streaming("/broken", broken).task(Task::Transcribe))
        .mount(RouteSpec::new("/said", said).task(Task::Speak))
        .mount(RouteSpec::streaming("/pieces", pieces).task(Task::Speak))
        .mount(RouteSpec::new("/drawn", drawn).task(Task::Image))
}

#[tokio::test]
async fn a_recording_becomes_a_text_in_each_format() {
    let served = Served::start(app()).await;
    let ask = async |format: &str| {
        let fields = [
            ("model", "heard"),
            ("temperature", "0.5"),
            ("timestamp_granularities[]", "word"),
            ("response_format", format),
        ];
        served.post_form(HEARD, b"12345", &fields).await
    };
    assert_eq!(ask("json").await.ok(), json!({ "text": "5 bytes at Some(0.5)" }));
    let verbose = ask("verbose_json").await.ok();
    assert_eq!((&verbose["language"], verbose["segments"].as_array().unwrap().len()), (&json!("word"), 2));
    let text = ask("text").await;
    assert_eq!(
        (text.text.as_str(), &text.headers["content-type"]),
        ("5 bytes at Some(0.5)", &"text/plain; charset=utf-8".parse().unwrap())
    );
    assert!(ask("srt").await.text.starts_with("1\n00:00:00,000 --> 00:00:01,500\none\n\n2\n"));
    assert!(ask("vtt").await.text.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\none\n"));
    ask("mp3").await.refused(400, "invalid_value");

    let refused = served.post_form(HEARD, b"1", &[("model", "absent")]).await;
    assert!(refused.refused(404, "model_not_found").contains("absent"));
    assert_eq!(served.post(HEARD, &json!({ "model": "heard" })).await.status, 415);
    let refused = served.post_form(HEARD, b"1", &[("model", "words"), ("response_format", "srt")]).await;
    assert!(refused.refused(400, "invalid_value").contains("no times"));
}

/// What a model takes that translates, too.
#[derive(Serialize, Deserialize, JsonSchema)]
struct TranslatorInput {
    file: Media,
    task: Option<String>,
}

#[tokio::test]
async fn a_recording_is_translated_by_a_model_that_takes_the_task() {
    const TRANSLATED: &str = "/v1/audio/translations";
    let either = Stage::each("either", |asked: &TranslatorInput| Ok(asked.task.clone().unwrap_or_default()));
    let app = app().mount(RouteSpec::new("/either", either).task(Task::Transcribe));
    let served = Served::start(app).await;
    let ask = async |path: &str, format: &str| {
        served.post_form(path, WAV, &[("model", "either"), ("response_format", format)]).await.ok()
    };
    assert_eq!(ask(TRANSLATED, "json").await, json!({ "text": "translate" }));
    assert_eq!(ask(HEARD, "json").await, json!({ "text": "" }));
    let verbose = ask(TRANSLATED, "verbose_json").await;
    assert_eq!((&verbose["task"], &verbose["text"]), (&json!("translate"), &json!("translate")));
    let refused = served.post_form(TRANSLATED, WAV, &[("model", "heard")]).await;
    assert_eq!(
        refused.refused(400, "invalid_value"),
        "model `heard` transcribes only: to translate it must take a `task`"
    );
    served.send("GET", TRANSLATED, "").await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn a_transcription_is_streamed_and_never_ends_silently() {
    let served = Served::start(app()).await;
    let streamed =
        async |model: &str| served.post_form(HEARD, b"1", &[("model", model), ("stream", "true")]).await.events().0;
    let delta = |text: &str| json!({ "type": "transcript.text.delta", "delta": text });
    let done = json!({ "type": "transcript.text.done", "text": "one two" });
    assert_eq!(streamed("words").await, [delta("one "), delta("two"), done]);
    let broken = streamed("broken").await;
    assert_eq!((&broken[0], &broken[1]["error"]["message"], broken.len()), (&delta("half "), &json!("it broke"), 2));
    // A transcript is one, and whole.
    let fields = [("model", "words"), ("n", "100"), ("stop", "two")];
    assert_eq!(served.post_form(HEARD, b"1", &fields).await.ok(), json!({ "text": "one two" }));
    assert_eq!(served.node.describe().stages.iter().map(|stage| stage.batches).sum::<u64>(), 3);
}

#[tokio::test]
async fn a_text_becomes_bytes_with_their_media_type() {
    let served = Served::start(app()).await;
    let body = |model: &str, more: Value| {
        let mut body = json!({ "model": model, "input": "hi", "voice": "alloy" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let said = served.post(SAID, &body("said", json!({ "response_format": "mp3" }))).await;
    assert_eq!((said.status, said.text.as_str()), (200, "RIFF    WAVEfmt hi"));
    assert_eq!(said.headers["content-type"], "audio/wav", "by its bytes, not by what was asked for");
    let pieces = served.post(SAID, &body("pieces", json!({ "response_format": "mp3" }))).await;
    assert_eq!((pieces.text.as_str(), &pieces.headers["content-type"]), ("abc", &"audio/mpeg".parse().unwrap()));
    let (events, _) = served.post(SAID, &body("pieces", json!({ "stream_format": "sse" }))).await.events();
    let audio: Vec<_> = events.iter().map(|event| (event["type"].as_str().unwrap(), event["audio"].as_str())).collect();
    let expected =
        [("speech.audio.delta", Some("YWI=")), ("speech.audio.delta", Some("Yw==")), ("speech.audio.done", None)];
    assert_eq!(audio, expected);
    served.post(SAID, &body("said", json!({ "input": 7 }))).await.refused(400, "invalid_value");
}

#[tokio::test]
async fn each_picture_is_a_call() {
    let served = Served::start(app()).await;
    let body = json!({ "model": "drawn", "prompt": "abc", "n": 2 });
    let list = served.post(DRAWN, &body).await.ok();
    assert_eq!(list["data"], json!([{ "b64_json": "YWJj" }, { "b64_json": "YWJj" }]));
    assert!(list["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(served.node.client().describe().admitted, 2);
    let list = served.post(DRAWN, &json!({ "model": "drawn", "prompt": "abc", "response_format": "url" })).await.ok();
    assert_eq!(list["data"][0]["url"], "data:application/octet-stream;base64,YWJj");
    served.post(DRAWN, &json!({ "model": "drawn", "prompt": "abc", "n": 11 })).await.refused(400, "invalid_value");
    let document = served.get("/openapi.json").await.ok();
    let body = &document["paths"][HEARD]["post"]["requestBody"]["content"];
    assert!(body["multipart/form-data"].is_object() && document["paths"][SAID].is_object(), "{body}");
}
