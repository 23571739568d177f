//! Routes that share a path, each called by other methods.

use callboard_codec::Value;
use callboard_core::{App, CallContext, ErrorKind, RouteSpec, Stage};
use callboard_http::{Cors, HttpConfig};
use serde_json::json;

use crate::functions::envelope;
use crate::support::{Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");
const ENVELOPE: (&str, &str) = ("content-type", "application/vnd.callboard.envelope");
const ACCEPT_JSON: (&str, &str) = ("accept", "application/json");

fn route(name: &str, stage: &str) -> RouteSpec {
    let own = stage.to_owned();
    let tells = Stage::each_with_context(stage, move |input: &Value, context: &CallContext| {
        let path = context.path().filter(|path| path.starts_with("/items/")).unwrap_or_default();
        Ok(format!("{own}{path}{}", if input.is_null() { "" } else { " with input" }))
    });
    RouteSpec::new(name, tells)
}

fn items() -> App {
    App::new()
        .mount(route("/items", "list").methods(["GET"]))
        .mount(route("/items", "add"))
        .mount(route("GET /items/{id}", "item"))
        .mount(route("/items/{id}", "drop").methods(["DELETE", "PUT"]))
        .mount(route("/alone", "alone"))
}

#[tokio::test]
async fn the_method_chooses_between_the_routes_of_a_path() {
    let server = Server::for_app(items(), HttpConfig::default()).await;
    for (method, path, headers, body, expected) in [
        ("GET", "/items", &[][..], "", "list"),
        ("POST", "/items", &[JSON][..], "7", "add with input"),
        ("GET", "/items/7", &[], "", "item/items/7"),
        ("DELETE", "/items/7", &[], "", "drop/items/7"),
        ("PUT", "/items/7", &[JSON], "7", "drop/items/7 with input"),
    ] {
        let answer = server.connect().await.request(method, path, headers, body).await;
        assert_eq!((answer.status, answer.json()), (200, json!(expected)), "{method} {path}");
    }
    let mut client = server.connect().await;
    client.send("HEAD /items HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.read_past("HTTP/1.1 200 OK\r\n").await;
    // A route does not change when another one gets its path.
    let status = |path: &'static str| async { server.connect().await.post(path, &[], "").await.status };
    assert_eq!(status("/items").await, status("/alone").await);
    for (method, path, allow) in [
        ("PUT", "/items", "GET, POST, HEAD"),
        ("OPTIONS", "/items", "GET, POST, HEAD"),
        ("POST", "/items/7", "GET, DELETE, PUT, HEAD"),
        ("PATCH", "/items/7", "GET, DELETE, PUT, HEAD"),
        ("GET", "/alone", "POST"),
    ] {
        let answer = server.connect().await.request(method, path, &[], "").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{method} {path}");
    }
}

#[tokio::test]
async fn a_client_of_callboard_names_the_method_of_a_route() {
    let server = Server::for_app(items(), HttpConfig::default()).await;
    let method = |name: &'static str| ("x-callboard-method", name);
    for (path, method, expected) in [
        ("/items", None, Ok("add with input")),
        ("/items", Some(method("GET")), Ok("list with input")),
        ("/items", Some(method("DELETE")), Err("GET, POST, HEAD")),
        // Without a route of `POST` that of `GET` is meant.
        ("/items/7", None, Ok("item/items/7 with input")),
        ("/items/7", Some(method("PUT")), Ok("drop/items/7 with input")),
        ("/items/7", Some(method("put")), Err("GET, DELETE, PUT, HEAD")),
    ] {
        let headers: Vec<_> = [ENVELOPE, ACCEPT_JSON].into_iter().chain(method).collect();
        let answer = server.connect().await.post(path, &headers, envelope(&Value::from(7))).await;
        match expected {
            Ok(expected) => assert_eq!((answer.status, answer.json()), (200, json!(expected)), "{path} {method:?}"),
            Err(allow) => assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{path} {method:?}"),
        }
    }
    // Other bodies are for the route of their own method.
    let answer = server.connect().await.post("/items", &[JSON, method("GET")], "7").await;
    assert_eq!(answer.json(), json!("add with input"));
    for (name, expected) in [
        ("items", "add with input"),
        ("GET%20/items", "list with input"),
        ("GET%20%2Fitems", "list with input"),
        ("DELETE%20/items/7", "drop/items/7 with input"),
    ] {
        let answer = server.connect().await.post(&format!("/v1/call/{name}"), &[JSON], "{\"args\": [7]}").await;
        assert_eq!((answer.status, answer.json()), (200, json!(expected)), "{name}");
    }
    let client = server.node().client();
    for (name, expected) in
        [("/items", "add"), ("GET /items", "list"), ("POST /items", "add"), ("DELETE /items/7", "drop/items/7")]
    {
        assert_eq!(client.call::<_, String>(name, Value::Null).await.unwrap(), expected, "{name}");
    }
    let refused = client.call::<_, String>("PATCH /items", Value::Null).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn the_document_has_all_methods_of_a_path() {
    let cors = Cors::parse(["https://app.example.org"]).unwrap();
    let server = Server::for_app(items(), config(|config| config.cors = Some(cors))).await;
    let document = server.get("/openapi.json").await.json();
    let operations = |path: &str| {
        let methods = document["paths"][path].as_object().unwrap();
        methods
            .iter()
            .map(|(method, of)| format!("{method} {}", of["operationId"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(operations("/items"), ["get get_items", "post post_items"]);
    let of_item = ["delete delete_items__id_", "get get_items__id_", "put put_items__id_"];
    let mut found = operations("/items/{id}");
    found.sort();
    assert_eq!(found, of_item);
    let index = server.get("/").await.json();
    assert_eq!((&index["routes"][0]["path"], &index["routes"][0]["methods"]), (&json!("/items"), &json!(["GET"])));
    let page = [("origin", "https://app.example.org"), ("access-control-request-method", "DELETE")];
    let permitted = server.connect().await.request("OPTIONS", "/items/7", &page, "").await;
    let methods = permitted.header("access-control-allow-methods").unwrap();
    assert!(permitted.status == 204 && methods.split(", ").any(|method| method == "DELETE"), "{methods}");
}
