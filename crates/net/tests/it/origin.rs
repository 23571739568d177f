//! What user code sees of the caller and its request, wherever it runs, and who may say it.

use callboard_codec::Value;
use callboard_codec::wire::{Call, Fail, FrameKind, Origin, frame_head};
use callboard_core::{
    App, CallContext, CallOptions, Caller, ErrorKind, Pipeline, RouteSpec, Stage, StreamPipeline, StreamStage,
};
use callboard_net::Role;
use futures_util::{StreamExt, stream};

use crate::common::{Member, ServingNode, patient, peer};
use crate::lab::{Lab, builder, serve_app, url};

fn describe(context: &CallContext) -> String {
    let pairs = |pairs: Vec<(&str, &str)>| format!("{pairs:?}");
    let (headers, query) = (pairs(context.headers().collect()), pairs(context.query_pairs().collect()));
    let (caller, tags) = (context.caller(), pairs(context.tags().collect()));
    let request =
        [context.path(), context.method(), context.client_address()].map(|fact| fact.unwrap_or("-")).join(" ");
    format!("{caller:?} {request} {headers} {query} {tags}")
}

fn tells(name: &str) -> Stage<i64, String> {
    Stage::each_with_context(name, |_: &i64, context: &CallContext| Ok(describe(context)))
}

fn options() -> CallOptions {
    let options = CallOptions::new().with_caller("web").with_path("/run").with_header("x-city", "Lima");
    let options = options.with_method("PUT").with_client_address("10.0.0.7");
    options.with_query("q", "7").with_tag("tenant", "acme").with_tag("flag", "on")
}

const FACTS: &str =
    r#"Some("web") /run PUT 10.0.0.7 [("x-city", "Lima")] [("q", "7")] [("tenant", "acme"), ("flag", "on")]"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_on_another_node_sees_the_caller_and_its_request_as_on_its_own() {
    let streams = StreamStage::each_with_context("streams", |_: &i64, context: &CallContext| {
        stream::iter([Ok(describe(context)), Ok(describe(context))])
    });
    let asks = Stage::each_async_with_context("asks", |n: std::sync::Arc<i64>, context: CallContext| async move {
        Ok(context.client()?.call::<i64, String>("/tells", *n).await?)
    });
    let there = App::new().route("/tells", tells("tells")).route("/asks", asks).route_streaming("/streams", streams);
    let worker = ServingNode::start(there).await;
    let app = App::new()
        .route("/here", tells("tells"))
        .route("/there", Pipeline::<i64, String>::remote("tells"))
        .route("/inner", Pipeline::<i64, String>::remote("asks"));
    let app = app.route_streaming("/streams", StreamPipeline::<i64, String>::remote("streams"));
    let gateway = Member::start(app, &[&worker.edge]).await;
    gateway.until_offered("asks").await;
    let client = gateway.served.node.client();
    for route in ["/here", "/there", "/inner"] {
        let told: String = client.call_with(route, 1_i64, options()).await.unwrap();
        assert_eq!(told, FACTS, "{route}");
        let nothing: String = client.call(route, 1_i64).await.unwrap();
        assert_eq!(nothing, "None - - - [] [] []", "{route}");
    }
    let replies: Vec<_> = client.replies_with::<i64, String>("/streams", 1, options()).unwrap().collect().await;
    assert_eq!(replies.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [FACTS, FACTS]);

    let many = (0..65).fold(CallOptions::new(), |options, n: u32| options.with_tag(n.to_string(), ""));
    let error = client.call_with::<i64, String>("/there", 1, many).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, "the call has more than 64 tags"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_node_may_name_a_caller_and_a_route_gets_the_fields_that_it_reads() {
    let lab = Lab::start("origin").await;
    let identity = lab.member(Role::Node, "serves").await;
    let app =
        App::new().mount(RouteSpec::new("/tells", tells("tells")).headers(["x-city"])).route("/plain", tells("plain"));
    let (edge, _node) = serve_app(identity, patient(), app).await;
    let node = builder(&lab.member(Role::Node, "other").await).connect(&url(&edge)).await.unwrap();
    let client = builder(&lab.member(Role::Client, "desk").await).connect(&url(&edge)).await.unwrap();

    let told: String = node.call_with("/tells", 1_i64, options()).await.unwrap();
    assert_eq!(told, FACTS.replace(r#"[("q", "7")]"#, "[]"));
    let told: String = node.call_with("/plain", 1_i64, options()).await.unwrap();
    assert_eq!(told, r#"Some("web") - - - [] [] [("tenant", "acme"), ("flag", "on")]"#);

    let tagged = CallOptions::new().with_tag("tenant", "acme");
    let told: String = client.call_with("/tells", 1_i64, tagged.clone()).await.unwrap();
    assert_eq!(told, r#"None - - - [] [] [("tenant", "acme")]"#);
    let error = client.call_with::<i64, String>("/tells", 1, tagged.with_caller("web")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("`caller`") && !error.was_started(), "{error}");
    let many = CallOptions::new().with_tag("name", "x".repeat(32 * 1024));
    let error = client.call_with::<i64, String>("/tells", 1, many).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidInput && error.message().starts_with("the call's tags exceed"),
        "{error}"
    );
}

/// A peer that keeps no limits. A parameter twice is refused as over HTTP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_with_too_many_facts_is_refused_by_the_name_of_the_field() {
    let served = ServingNode::start(App::new().mount(RouteSpec::new("/tells", tells("tells")).query(["q"]))).await;
    let peer = peer(&served).await;
    let origin = Origin { caller: "x".repeat(257), ..Origin::default() };
    let long = Origin { tags: vec![("name".to_owned(), "x".repeat(40_000))], ..Origin::default() };
    let twice =
        Origin { query: ["1", "2"].map(|value| ("q".to_owned(), value.to_owned())).into(), ..Origin::default() };
    let twice = (twice, "query parameter `q` must be given once");
    for (origin, field) in [(origin, "caller: "), (long, "the call's tags exceed"), twice] {
        let call = Call { route: "/tells".to_owned(), origin: Some(Box::new(origin)), ..Call::default() };
        let body = Value::from(1).to_envelope().unwrap().into_bytes();
        let head = frame_head(FrameKind::Call, 0, &call, body.len()).unwrap();
        let answers = peer.exchange(vec![head, body]).await.unwrap();
        let fail: Fail = answers[0].0.header().unwrap();
        assert_eq!((fail.kind.as_str(), fail.started), ("invalid_input", false));
        assert!(fail.message.starts_with(field), "{}", fail.message);
    }
}
