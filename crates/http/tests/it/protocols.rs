//! Protocols beside the routes of an edge: which requests belong to which of them, and what none may claim.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use callboard_core::{App, Node, Stage};
use callboard_http::protocol::{
    ApiError, Claims, Protocol, ProtocolAnswer, ProtocolError, ProtocolRequest, Protocols, RequestContext,
};
use callboard_http::{Admin, ApiInfo, ApiKeys, Cors, HttpConfig, HttpEdge, HttpServeError, serve_admin};
use callboard_oip::InferenceProtocol;
use tower::Service as _;

use crate::support::{Raw, bind, config};

/// Answers with its name and the path.
#[derive(Debug)]
struct Small {
    name: &'static str,
    claims: Claims,
}

const COUNTING: Small = Small {
    name: "the counting protocol",
    claims: Claims {
        paths: &["/count"],
        shared_paths: &["/tally", "/v2/tally"],
        content_types: &[],
        upgrades: &["count"],
        endings: &[],
        open_paths: &["/count/health"],
    },
};

const FRAMES: Small = Small {
    name: "the protocol of frames",
    claims: Claims {
        paths: &[],
        shared_paths: &[],
        content_types: &["application/frames"],
        upgrades: &[],
        endings: &[],
        open_paths: &[],
    },
};

impl Protocol for Small {
    fn name(&self) -> &str {
        self.name
    }

    fn claims(&self) -> Claims {
        self.claims
    }

    fn answer<'a>(&'a self, _: RequestContext<'a>, request: ProtocolRequest<'a>) -> ProtocolAnswer<'a> {
        let answer = format!("{}: {}", self.name, request.head.uri.path());
        Box::pin(async move { Ok(answer.into_response()) })
    }

    fn error_response(&self, error: ApiError) -> Response {
        (error.status(), format!("{} failed", self.name)).into_response()
    }
}

fn three() -> Vec<Arc<dyn Protocol>> {
    vec![Arc::new(InferenceProtocol::new()), Arc::new(COUNTING), Arc::new(FRAMES)]
}

async fn node() -> Node {
    App::new().route("/double", Stage::each("double", |n: &i64| Ok(n * 2))).start().await.unwrap()
}

fn edge(node: &Node, config: HttpConfig, protocols: Vec<Arc<dyn Protocol>>) -> Result<HttpEdge, HttpServeError> {
    HttpEdge::try_new(node.client(), config, ApiInfo::default(), protocols)
}

/// The status and the body of an answer to `POST path` with a body of this type.
async fn post(edge: &HttpEdge, path: &str, content_type: &str) -> (StatusCode, String) {
    let request = Request::post(path).header("content-type", content_type).body(Body::from("21")).unwrap();
    let answer = edge.clone().call(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn three_protocols_answer_the_requests_that_they_claim() {
    let node = node().await;
    let edge = edge(&node, HttpConfig::default(), three()).unwrap();
    let answer = async |path, content_type| post(&edge, path, content_type).await;
    let json = "application/json";
    assert_eq!(answer("/double", json).await, (StatusCode::OK, "42".to_owned()));
    assert_eq!(answer("/count", json).await.1, "the counting protocol: /count");
    assert_eq!(answer("/count/all", json).await.1, "the counting protocol: /count/all");
    assert_eq!(answer("/a.B/C", "application/frames+proto").await.1, "the protocol of frames: /a.B/C");
    assert_eq!(answer("/count", "Application/Frames; v=1").await.1, "the protocol of frames: /count");
    let (status, infer) = answer("/v2/models/double/infer", json).await;
    assert_eq!(status, 400);
    assert!(infer.starts_with("{\"error\":"), "{infer}");
    for unclaimed in ["/counting", "/double/x"] {
        assert_eq!(answer(unclaimed, "application/frames-web").await.0, 404, "{unclaimed}");
    }
    // A route comes before a media type.
    assert_eq!(answer("/double", "application/frames").await.0, 415);
}

/// The clients of a protocol in a web page add headers that no list has.
#[tokio::test]
async fn pages_of_the_listed_origins_may_send_any_header_to_a_protocol() {
    let (node, origin) = (node().await, "https://app.example.org");
    let config = HttpConfig { cors: Some(Cors::parse([origin]).unwrap()), ..HttpConfig::default() };
    let edge = edge(&node, config, three()).unwrap();
    let permitted = async |path: &str| {
        let ask = Request::options(path)
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "x-client-version");
        let answer = edge.clone().call(ask.body(Body::empty()).unwrap()).await.unwrap();
        let names = answer.headers()["access-control-allow-headers"].to_str().unwrap();
        names.split(", ").any(|name| name == "x-client-version")
    };
    assert!(permitted("/count").await);
    assert!(!permitted("/double").await, "a route lists the headers that it reads");
}

#[tokio::test]
async fn a_shared_path_belongs_to_its_protocol_unless_a_route_has_it() {
    let tally = Stage::each("tally", |n: &i64| Ok(n + 1));
    for (app, answered) in [(App::new(), "the counting protocol: /tally"), (App::new().route("/tally", tally), "22")] {
        let node = app.start().await.unwrap();
        let edge = edge(&node, HttpConfig::default(), three()).unwrap();
        let answer = async |path| post(&edge, path, "application/json").await;
        assert_eq!(answer("/tally").await.1, answered);
        assert_eq!(answer("/v2/tally").await.1, "the counting protocol: /v2/tally", "below a path of another protocol");
        assert_eq!(answer("/tally/x").await.0, 404);
        assert_eq!(answer("/v2/tally/x").await.0, 404);
    }
}

#[tokio::test]
async fn two_protocols_with_one_claim_are_an_error_that_names_both() {
    let rival = |claims| Small { name: "the rival", claims };
    let none = Claims::default();
    let node = node().await;
    for (claims, message) in [
        (
            Claims { paths: &["/v2/models"], ..none },
            "the Open Inference Protocol and the rival both claim `/v2/models`",
        ),
        (
            Claims { content_types: &["application/frames+x"], ..none },
            "the protocol of frames and the rival both claim `application/frames+x`",
        ),
        (Claims { shared_paths: &["/v2/tally"], ..none }, "the counting protocol and the rival both claim `/v2/tally`"),
        (Claims { upgrades: &["Count"], ..none }, "the counting protocol and the rival both claim `Count`"),
        (
            Claims { endings: &[("/v1", ":predict")], ..none },
            "the Open Inference Protocol and the rival both claim `:predict`",
        ),
    ] {
        let protocols = three().into_iter().chain([Arc::new(rival(claims)) as Arc<dyn Protocol>]).collect();
        let error = edge(&node, HttpConfig::default(), protocols).unwrap_err();
        assert!(matches!(error, HttpServeError::Protocols(ProtocolError::Clash { .. })), "{error:?}");
        assert_eq!(error.to_string(), message);
    }
}

/// A part of a path that another protocol claims.
#[tokio::test]
async fn an_ending_belongs_to_its_protocol_below_the_prefix_alone() {
    let claims = Claims { paths: &["/v1/models"], ..Claims::default() };
    let models: Vec<Arc<dyn Protocol>> =
        vec![Arc::new(Small { name: "the models", claims }), Arc::new(InferenceProtocol::new())];
    let node = node().await;
    let edge = edge(&node, HttpConfig::default(), models).unwrap();
    for models in ["/v1/models", "/v1/models/double", "/v1/models/double:explain"] {
        assert_eq!(post(&edge, models, "application/json").await.1, format!("the models: {models}"));
    }
    let (status, predicted) = post(&edge, "/v1/models/double:predict", "application/json").await;
    assert!(status == 400 && predicted.contains("must be an object"), "{predicted}");
    assert_eq!(post(&edge, "/v1/modelsx/double:predict", "application/json").await.0, 404);
    assert_eq!(post(&edge, "/double:predict", "application/json").await.0, 404);
}

/// What is off answers as if it were not there.
#[tokio::test]
async fn a_protocol_that_is_switched_off_has_no_paths() {
    let node = node().await;
    let off = |door: &str| config(|config| config.doors_off = vec![door.to_owned()]);
    let without = edge(&node, off("oip"), three()).unwrap();
    for path in ["/v2", "/v2/models/double/infer", "/v1/models/double:predict"] {
        let (status, body) = post(&without, path, "application/json").await;
        assert!(status == 404 && body.contains("not_found"), "{path}: {body}");
    }
    assert_eq!(post(&without, "/count", "application/json").await.0, 200);
    let error = edge(&node, off("oib"), three()).unwrap_err();
    assert_eq!(error.to_string(), "there is no door `oib` to switch off; there are: oip, other");
}

#[test]
fn a_protocol_claims_no_page_of_the_edge_and_opens_no_path_of_another() {
    let claims = |paths, open_paths| {
        let claims = Claims { paths, open_paths, ..Claims::default() };
        Protocols::try_new(vec![Arc::new(Small { name: "the small one", claims })]).map(drop)
    };
    let error = |paths, open_paths| claims(paths, open_paths).unwrap_err().to_string();
    for page in [&["/metrics"][..], &["/docs/mine"], &["/v1"], &["/v1/call"], &["/"]] {
        assert_eq!(error(page, &[]), format!("the http edge and the small one both claim `{}`", page[0]));
    }
    assert_eq!(error(&["/x"], &["/y"]), "the small one opens `/y`, which it does not claim");
    assert_eq!(error(&["x"], &[]), "the small one claims `x`, which is not a path such as `/v2`");
    assert_eq!(claims(&["/v1/models", "/v1/chat"], &["/v1/models"]), Ok(()), "function calls have a part of /v1 only");
}

#[tokio::test]
async fn no_route_has_a_path_that_a_protocol_claims() {
    let route = || Stage::each("all", |n: &i64| Ok(*n));
    let node = App::new().route("/count/all", route()).start().await.unwrap();
    let error = edge(&node, HttpConfig::default(), three()).unwrap_err();
    assert_eq!(error.to_string(), "route `/count/all` has a path that is reserved for the counting protocol");
    // Without the protocol the path is free.
    let edge = edge(&node, HttpConfig::default(), Vec::new()).unwrap();
    assert_eq!(post(&edge, "/count/all", "application/json").await, (StatusCode::OK, "21".to_owned()));
}

#[tokio::test]
async fn open_paths_of_a_protocol_need_no_key_and_its_refusals_have_its_form() {
    let keys = ApiKeys::parse("ann a-key-that-is-long-enough-for-it").unwrap();
    let node = node().await;
    let edge = edge(&node, config(|config| config.api_keys = Some(keys)), three()).unwrap();
    let answer = async |path| post(&edge, path, "application/json").await;
    assert_eq!(answer("/count/health").await.0, 200);
    // With a body of another protocol it is a call of that one.
    for open in ["/count/health", "/livez", "/"] {
        assert_eq!(post(&edge, open, "application/frames").await.0, StatusCode::UNAUTHORIZED, "{open}");
    }
    assert_eq!(answer("/count").await, (StatusCode::UNAUTHORIZED, "the counting protocol failed".to_owned()));
}

#[tokio::test]
async fn a_protocol_without_a_document_or_admin_answers_has_none() {
    let node = node().await;
    let edge = edge(&node, HttpConfig::default(), three()).unwrap();
    let document =
        callboard_http::openapi(&node.client().routes(), &ApiInfo::default(), &Protocols::try_new(three()).unwrap());
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.contains_key("/v2") && paths.contains_key("/double") && !paths.contains_key("/count"));

    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let admin = Admin::new(node.handle(), &edge);
    let serving = tokio::spawn(serve_admin(listener, admin, HttpConfig::default(), std::future::pending()));
    let mut operator = Raw::connect(address).await;
    for (path, status, body) in [("/count", 404, "the counting protocol failed"), ("/nothing", 404, "/v1/status")] {
        operator.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        let answer = operator.answer().await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.text().contains(body), "{}", answer.text());
    }
    operator.send("POST /v2/repository/index HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await;
    let answer = operator.answer().await;
    assert_eq!((answer.status, &answer.json()[0]["name"]), (200, &"double".into()));
    serving.abort();
}
