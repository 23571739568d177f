//! The parts of a form as a type, the limit on their sum, and the required start of a form.

use callboard_codec::{DataType, Format, Map, Media, Parameters, Value};
use callboard_core::{App, Failure, Limits, RouteSpec, Stage};
use callboard_http::HttpConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::app::app;
use crate::support::{Answer, Server, config};

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=xyz");

fn part(name: &str, more: &str, content: &str) -> String {
    format!("--xyz\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{content}\r\n")
}

fn refused(answer: &Answer) -> (u16, String, String) {
    let problem = answer.problem();
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    (answer.status, text("error_type"), text("message"))
}

#[tokio::test]
async fn all_parts_share_the_decode_limits_of_one_body() {
    let server = Server::for_app(app(), config(|c| c.decode.max_elements = 1_000)).await;
    let list = format!("[{}0]", "0,".repeat(399));
    let json = "\r\nContent-Type: application/json";
    let parts =
        |count: usize| (0..count).map(|n| part(&format!("p{n}"), json, &list)).collect::<String>() + "--xyz--\r\n";
    let mut client = server.connect().await;
    assert_eq!(client.post("/size", &[FORM], parts(2)).await.status, 200);
    let (status, error_type, message) = refused(&client.post("/size", &[FORM], parts(3)).await);
    assert_eq!((status, error_type.as_str()), (400, "decode_limit_exceeded"));
    assert!(message.starts_with("part `p2`") && message.contains("max_elements"), "{message}");
}

#[tokio::test]
async fn a_form_without_a_part_at_its_start_is_refused_before_it_ends() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let endless_head = part("a", "\r\nX-More: ", "").trim_end().to_owned();
    let second = part("a", "", "1") + "--xyz\r\nContent-Disposition: form-data; name=\"b\"; more=";
    for start in [String::new(), endless_head, second] {
        let mut client = server.connect().await;
        let head = "POST /size HTTP/1.1\r\nhost: test\r\ncontent-length: 20000000\r\ncontent-type:";
        client.send(format!("{head} {}\r\n\r\n{start}", FORM.1)).await;
        // Writes until the server closes; more bytes are announced.
        let (mut reading, mut writing) = client.socket.into_split();
        let sending = tokio::spawn(async move {
            let piece = "x".repeat(1000);
            for _ in 0..100 {
                if writing.write_all(piece.as_bytes()).await.is_err() {
                    break;
                }
            }
            writing
        });
        let mut received = [0; 12];
        let answered = tokio::io::AsyncReadExt::read_exact(&mut reading, &mut received);
        tokio::time::timeout(crate::support::TEST_TIMEOUT / 4, answered)
            .await
            .expect("refused before the end of the form")
            .unwrap();
        assert_eq!(&received, b"HTTP/1.1 400");
        drop(sending.await);
    }
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_form_may_have_a_preamble_and_large_parts_and_arrive_in_any_pieces() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let file = "; filename=\"f\"\r\nContent-Type: application/octet-stream";
    let large = "x".repeat(300_000);
    let form =
        ["a preamble\r\n", &part("first", file, &large), &part("second", "", "two"), &part("third", file, &large)];
    let form = form.concat() + "--xyz--\r\nan epilogue";
    for size in [97, 5_000, form.len()] {
        let mut client = server.connect().await;
        let head = "POST /size HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\ncontent-type:";
        client.send(format!("{head} {}\r\n\r\n", FORM.1)).await;
        let pieces = form
            .as_bytes()
            .chunks(size)
            .flat_map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
        client.send(pieces.collect::<Vec<u8>>()).await;
        client.send("0\r\n\r\n").await;
        let answer = client.answer().await;
        let expected = json!({ "first": "300000 bytes", "second": "two", "third": "300000 bytes" });
        assert_eq!((answer.status, answer.json()), (200, expected), "{size}");
    }
}

/// While the pieces of a part are joined, two accounts of one request hold it.
#[tokio::test]
async fn a_form_that_alone_needs_more_than_the_memory_of_the_node_is_too_large() {
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let form = |bytes: usize| part("a", "; filename=\"f\"", &"x".repeat(bytes)) + "--xyz--\r\n";
    let refused = server.connect().await.post("/size", &[FORM], form(700 << 10)).await;
    let problem = refused.problem();
    assert_eq!((refused.status, &problem["retryable"]), (413, &false.into()), "{problem}");
    assert!(problem["detail"].as_str().unwrap().ends_with("more than max_in_flight_bytes = 1048576"), "{problem}");

    let others = server.node().client().edge().held_bytes();
    others.grow(512 << 10).unwrap();
    let refused = server.connect().await.post("/size", &[FORM], form(400 << 10)).await;
    assert_eq!((refused.status, &refused.problem()["retryable"]), (429, &true.into()), "{refused:?}");
    drop(others);
    assert_eq!(server.connect().await.post("/size", &[FORM], form(400 << 10)).await.status, 200);
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

#[tokio::test]
async fn the_name_of_a_part_has_a_maximum_length() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let answer = client.post("/size", &[FORM], part(&"n".repeat(1_024), "", "1") + "--xyz--\r\n").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let refusal = client.post("/size", &[FORM], part(&"n".repeat(1_025), "", "1") + "--xyz--\r\n").await;
    let (status, error_type, message) = refused(&refusal);
    assert_eq!((status, error_type.as_str()), (400, "bad_multipart"));
    assert_eq!(message, "the name of part 0 has 1025 bytes; at most 1024 are allowed");
}

/// Each of a thousand names is looked up by its hash, not by comparing it with all earlier names.
#[tokio::test]
async fn a_thousand_names_keep_their_order_and_equal_ones_become_a_list() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let name = |n: usize| format!("{}{n:03}", "n".repeat(1_000));
    let parts: String = (0..500).chain(0..500).map(|n| part(&name(n), "", &n.to_string())).collect();
    let answer = server.connect().await.post("/size", &[FORM], parts + "--xyz--\r\n").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let expected: Vec<String> = (0..500).map(|n| format!("\"{}\":[\"{n}\",\"{n}\"]", name(n))).collect();
    assert_eq!(answer.text(), format!("{{{}}}", expected.join(",")));
}

const URL_ENCODED: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// As pages and curl's `-d` send forms.
#[tokio::test]
async fn a_form_of_texts_is_a_map_by_every_way_to_call() {
    let double = Stage::each("double", |number: &Value| match number {
        Value::Float(number) => Ok(Value::Float(number * 2.0)),
        other => Err(Failure::invalid_input(format!("{other:?}"))),
    });
    let number = DataType::value().with_schema(json!({ "type": "number" }));
    let number = number.with_parameters(Parameters { names: vec!["n".to_owned()], is_value: true });
    let double = RouteSpec::described("/double", double, number, DataType::value());
    let server = Server::for_app(app().mount(double), HttpConfig::default()).await;
    let mut client = server.connect().await;
    for (path, body, expected) in [
        ("/size", "a=1&b=x+y%21&a=2&c=%ff", r#"{"a":["1","2"],"b":"x y!","c":"1 bytes"}"#),
        ("/size", "", "{}"),
        ("/greet", "name=Ada&times=2", r#"{"text":"hello Ada and Ada"}"#),
        ("/greet", "name=Ada&times=", r#"{"text":"hello Ada"}"#),
        ("/v1/call/greet", "times=2&name=Ada", r#"{"text":"hello Ada and Ada"}"#),
        // The value of the only parameter.
        ("/double", "n=1.5", "3.0"),
        ("/v1/call/double", "n=1.5", "3.0"),
    ] {
        let answer = client.post(path, &[URL_ENCODED], body).await;
        assert_eq!((answer.status, answer.text()), (200, expected), "{path} {body}");
    }
    let multipart = client.post("/double", &[FORM], part("n", "", "1.5") + "--xyz--\r\n").await;
    assert_eq!((multipart.status, multipart.text()), (200, "3.0"));

    let wrong = client.post("/greet", &[URL_ENCODED], "name=Ada&times=many").await;
    assert_eq!((wrong.status, wrong.problem()["details"]["fields"][0]["path"].as_str()), (422, Some("$.times")));
    let (status, error_type, message) = refused(&client.post("/greet", &[URL_ENCODED], "=Ada").await);
    assert_eq!((status, error_type.as_str(), message.as_str()), (400, "bad_form", "field 0 has no name"));
    let (status, error_type, _) = refused(&client.post("/size", &[URL_ENCODED], "a=1&".repeat(1_025)).await);
    assert_eq!((status, error_type.as_str()), (400, "bad_form"));
}

/// Their names and texts are copied, and fields cost more than their bytes.
#[tokio::test]
async fn the_fields_of_a_form_are_charged_to_the_node() {
    let limits = Limits { max_in_flight_bytes: 1 << 20, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let text = |bytes: usize| format!("a={}", "x".repeat(bytes));
    assert_eq!(client.post("/size", &[URL_ENCODED], text(100 << 10)).await.status, 200);
    assert_eq!(client.post("/size", &[URL_ENCODED], text(600 << 10)).await.status, 413);
    let others = server.node().client().edge().held_bytes();
    others.grow(768 << 10).unwrap();
    let fields = "a=&".repeat(1_024);
    assert_eq!(client.post("/size", &[URL_ENCODED], &*fields).await.status, 429);
    drop(others);
    assert_eq!(client.post("/size", &[URL_ENCODED], &*fields).await.status, 200);
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
}

/// A type with files and fields.
#[derive(Clone, Deserialize, JsonSchema, Serialize)]
struct Upload {
    title: String,
    options: Options,
    pages: Vec<Media>,
    cover: Option<Media>,
}

#[derive(Clone, Deserialize, JsonSchema, Serialize)]
struct Options {
    scale: f64,
}

/// `/upload` describes its input; `/file` returns its file.
fn uploads() -> App {
    let upload = Stage::each("upload", |upload: &Upload| {
        let lengths: Vec<String> = upload.pages.iter().map(|page| page.len().to_string()).collect();
        let cover = upload.cover.as_ref().map_or(0, |cover| cover.len());
        Ok(format!("{} × {}: {} and {cover}", upload.title, upload.options.scale, lengths.join(", ")))
    });
    App::new().route("/upload", upload).route("/file", Stage::each("file", |file: &Media| Ok(file.clone())))
}

#[tokio::test]
async fn a_file_in_a_type_may_be_any_part_of_a_form_and_is_base64_in_json() {
    let server = Server::for_app(uploads(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let file = "; filename=\"page.png\"\r\nContent-Type: image/png";
    let options = part("options", "", "{\"scale\": 1.5}");
    let form = |pages: [String; 2], cover: &str| {
        [&part("title", "", "one"), &options, &pages[0], &pages[1], cover, "--xyz--\r\n"].concat()
    };
    let files = || [part("pages", file, "abc"), part("pages", file, "de")];
    let texts = [part("pages", "", "abc"), part("pages", "", "data:image/png;base64,ZGU=")];
    for body in [
        form(files(), &part("cover", file, "\u{1}\u{2}")),
        form(files(), &part("cover", "", "\u{1}\u{2}")),
        form(texts, &part("cover", file, "\u{1}\u{2}")),
    ] {
        let answer = client.post("/upload", &[FORM], body).await;
        assert_eq!((answer.status, answer.text()), (200, "\"one × 1.5: 3, 2 and 2\""));
    }
    let value = |page: Value| {
        let pages = Value::List(vec![page, Value::from("ZGU=")]);
        let options = Value::from(Map::from_iter([("scale", Value::from(1.5))]));
        Value::from(Map::from_iter([("title", Value::from("one")), ("options", options), ("pages", pages)]))
    };
    for (format, page) in [
        (Format::Json, Value::from("YWJj")),
        (Format::Msgpack, Value::Bytes("abc".into())),
        (Format::Envelope, Value::Bytes("abc".into())),
    ] {
        let body = value(page).encode(format).unwrap();
        let answer = client.post("/upload", &[("content-type", format.media_type())], body).await;
        assert_eq!(answer.text(), "\"one × 1.5: 3, 2 and 0\"", "{format}");
    }

    let wrong = [part("pages", "", "data:no base64!"), part("options", "", "{\"scale\": []}")].concat() + "--xyz--\r\n";
    let answer = client.post("/upload", &[FORM], wrong).await;
    let problem = answer.problem();
    let fields: Vec<_> = problem["details"]["fields"].as_array().unwrap().iter().map(|field| &field["path"]).collect();
    assert_eq!(answer.status, 422);
    for path in ["$.pages[0]", "$.options.scale", "$.title"] {
        assert!(fields.contains(&&json!(path)), "{path}: {problem}");
    }
}

/// A browser sends an empty file without a name for a field in which no file was chosen.
#[tokio::test]
async fn a_file_that_was_not_chosen_is_no_part() {
    let server = Server::for_app(uploads(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let fields = part("title", "", "one") + &part("options", "", "{\"scale\": 1.5}");
    let file = part("pages", "; filename=\"page.png\"\r\nContent-Type: image/png", "abc");
    let unchosen = |name: &str| part(name, "; filename=\"\"\r\nContent-Type: application/octet-stream", "");
    let form = [&*fields, &file, &unchosen("pages"), &unchosen("cover"), "--xyz--\r\n"].concat();
    let answer = client.post("/upload", &[FORM], form).await;
    assert_eq!((answer.status, answer.text()), (200, "\"one × 1.5: 3 and 0\""));

    let answer = client.post("/upload", &[FORM], fields + &unchosen("pages") + "--xyz--\r\n").await;
    assert_eq!((answer.status, answer.text()), (200, "\"one × 1.5:  and 0\""));
}

/// As clients write parts that no browser sends.
#[tokio::test]
async fn a_part_arrives_with_its_own_bytes_in_every_spelling() {
    let server = Server::for_app(uploads(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let part = |head: &str, content: &[u8]| {
        let title = "--xyz\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\none\r\n";
        let options = "--xyz\r\nContent-Disposition: form-data; name=\"options\"\r\n\r\n{\"scale\": 1}\r\n--xyz\r\n";
        [title.as_bytes(), options.as_bytes(), head.as_bytes(), b"\r\n\r\n", content, b"\r\n--xyz--\r\n"].concat()
    };
    for (head, content) in [
        ("Content-Disposition: form-data; name=\"pages\"; filename*=utf-8''%D1%84.txt", b"abcd".as_slice()),
        ("CONTENT-DISPOSITION: FORM-DATA; NAME=\"pages\"; FILENAME=\"a.txt\"", b"abcd"),
        ("Content-Disposition: form-data; name=\"pages\"\r\nContent-Type: text/plain", b"abcd"),
        ("Content-Disposition: form-data; name=\"pages\"\r\nContent-Transfer-Encoding: binary", b"abcd"),
        ("Content-Disposition: form-data; name=\"pages\"", b"\xff\xfe\xfd\xfc"),
    ] {
        let answer = client.post("/upload", &[FORM], part(head, content)).await;
        assert_eq!((answer.status, answer.text()), (200, "\"one × 1: 4 and 0\""), "{head}");
    }
}

#[tokio::test]
async fn a_file_is_a_raw_body() {
    let server = Server::for_app(uploads(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    let bytes = ("content-type", "application/octet-stream");
    let answer = client.post("/file", &[bytes, ("accept", "application/octet-stream")], b"\x00\xff").await;
    assert_eq!((answer.header("content-type"), &answer.body[..]), (Some(bytes.1), &b"\x00\xff"[..]));
    assert_eq!(client.post("/file", &[bytes], b"\x00\xff").await.text(), "\"AP8=\"");
    assert_eq!(client.post("/file", &[("content-type", "text/plain")], "AP8=").await.status, 415);
}

/// The first bytes of the outcome decide which of the accepted types it has.
#[tokio::test]
async fn a_file_with_a_media_type_in_its_schema_is_answered_as_that_file() {
    let picture = DataType::value().with_schema(json!({
        "type": "string", "contentEncoding": "base64", "contentMediaType": "image/*",
    }));
    let echo = Stage::each("echo", |value: &Value| Ok(value.clone()));
    let app = App::new().route_described("/picture", echo, DataType::value(), picture);
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = server.connect().await;
    let (png, gif) = (b"\x89PNG\r\n\x1a\n rest", b"GIF89a rest");
    for (accept, body, status, media_type) in [
        ("image/*", &png[..], 200, "image/png"),
        ("image/png, image/gif;q=0.5", &gif[..], 200, "image/gif"),
        ("image/png, */*;q=0.1", &gif[..], 200, "application/json"),
        ("*/*", &png[..], 200, "application/json"),
        ("image/png", &gif[..], 406, "application/problem+json"),
        ("image/*", &b"text"[..], 406, "application/problem+json"),
    ] {
        let headers = [("content-type", "application/octet-stream"), ("accept", accept)];
        let answer = client.post("/picture", &headers, body).await;
        assert_eq!((answer.status, answer.header("content-type")), (status, Some(media_type)), "{accept}");
        assert!(!media_type.starts_with("image/") || answer.body == body, "{accept}");
    }
    let document = server.get("/openapi.json?forms").await.json();
    let content = &document["paths"]["/picture"]["post"]["responses"]["200"]["content"];
    assert_eq!(content["image/gif"]["schema"], json!({ "type": "string", "format": "binary" }));
    let plain = server.get("/openapi.json").await.json();
    let content = &plain["paths"]["/picture"]["post"]["responses"]["200"]["content"];
    assert!(content.get("image/gif").is_none(), "clients have one type of answer");
}

#[tokio::test]
async fn the_document_shows_files_of_a_form_as_files() {
    let server = Server::for_app(uploads(), HttpConfig::default()).await;
    let document = server.get("/openapi.json?forms").await.json();
    let content = &document["paths"]["/upload"]["post"]["requestBody"]["content"];
    let schema = |media_type: &str| {
        let reference = content[media_type]["schema"]["$ref"].as_str().unwrap();
        document.pointer(reference.trim_start_matches('#')).unwrap()["properties"].clone()
    };
    let (form, json) = (schema("multipart/form-data"), schema("application/json"));
    assert_eq!(form["pages"], json!({ "type": "array", "items": { "type": "string", "format": "binary" } }));
    assert_eq!(form["cover"]["format"], "binary");
    assert_eq!((&form["options"], &form["title"]), (&json["options"], &json["title"]));
    assert_eq!(json["pages"]["items"]["contentEncoding"], "base64");
}
