//! Calls that succeed, and calls that user code refuses.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::{
    App, Batch, CallContext, ChangeError, ErrorKind, Failure, Limits, Pipeline, Replica, RouteChange, RouteSpec, Stage,
    StartError, Task, Worker,
};

use super::support::{Gate, gated, serve};

#[tokio::test]
async fn each_stage_of_a_pipeline_gets_the_output_of_the_previous_stage() {
    let parse = Stage::each("parse", |text: &String| Ok(text.parse::<i64>()?));
    let square = Stage::batch("square", |batch: Batch<i64>| batch.iter().map(|n| Ok(n * n)).collect());
    let show = Stage::each("show", |n: &i64| Ok(format!("<{n}>"))).on_threads();
    let node = serve(Pipeline::from(parse).then(square).then(show)).await;
    let shown: String = node.client().call("/route", "12".to_owned()).await.unwrap();
    assert_eq!(shown, "<144>");
}

#[tokio::test]
async fn an_error_of_user_code_reaches_its_caller_with_type_and_status() {
    let parse = Stage::each("parse", |text: &String| {
        let parsed = text.parse::<i64>();
        if text == "teapot" {
            return Err(Failure::new("short and stout").with_status(418).with_type("Teapot"));
        }
        Ok(parsed?)
    });
    let node = serve(parse).await;
    let error = node.client().call::<_, i64>("/route", "twelve".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert_eq!(error.error_type(), Some("core::num::error::ParseIntError"));
    assert_eq!(error.stage(), Some("parse"));
    let error = node.client().call::<_, i64>("/route", "teapot".to_owned()).await.unwrap_err();
    assert_eq!((error.status(), error.message()), (Some(418), "short and stout"));
}

#[tokio::test]
async fn one_bad_item_does_not_fail_its_batch() {
    let gate = Gate::default();
    let first = gated(&gate);
    let halve = Stage::batch("halve", |batch: Batch<u64>| {
        let halve =
            |n: &u64| if n.is_multiple_of(2) { Ok(n / 2) } else { Err(Failure::invalid_input(format!("{n} is odd"))) };
        batch.iter().map(halve).collect()
    })
    .max_batch_size(8);
    let node = serve(Pipeline::from(first.max_batch_size(8)).then(halve)).await;
    gate.open();
    let client = node.client();
    let calls = (0..8u64).map(|n| {
        let client = client.clone();
        tokio::spawn(async move { (n, client.call::<u64, u64>("/route", n).await) })
    });
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            (n, Ok(half)) => assert_eq!(half * 2, n),
            (n, Err(error)) => {
                assert_eq!((n % 2, error.kind()), (1, ErrorKind::InvalidInput));
                assert_eq!(error.message(), format!("{n} is odd"));
            }
        }
    }
}

struct AddsOne;

impl Worker for AddsOne {
    type In = i64;
    type Out = i64;

    fn call(&mut self, batch: Batch<i64>) -> Vec<Result<i64, Failure>> {
        batch.into_inputs().into_iter().map(|n| Ok(n + 1)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_input_that_cannot_be_decoded_is_excluded_from_its_batch() {
    let stage = Stage::worker("adds_one", |_: &Replica| Ok(AddsOne)).as_tasks().max_batch_size(4);
    let node = serve(stage.max_delay(Duration::from_secs(1))).await;
    let client = node.client();
    let inputs = [Value::from(1i64), Value::from("x"), Value::from(2i64), Value::Null];
    let calls = inputs.map(|input| client.call::<Value, i64>("/route", input));
    let outcomes = futures_util::future::join_all(calls).await;
    let kinds: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.kind())).collect();
    assert_eq!(kinds, [Ok(2), Err(ErrorKind::InvalidInput), Ok(3), Err(ErrorKind::InvalidInput)]);
}

#[tokio::test]
async fn a_wrong_number_of_results_is_an_error_for_all_and_the_stage_stays_up() {
    let forgetful =
        Stage::batch(
            "forgetful",
            |batch: Batch<u64>| {
                if batch[0] == 0 { Vec::new() } else { batch.iter().map(|n| Ok(*n)).collect() }
            },
        );
    let node = serve(forgetful).await;
    let error = node.client().call::<u64, u64>("/route", 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert_eq!(error.message(), "the worker returned 0 results for 1 items");
    assert_eq!(node.client().call::<u64, u64>("/route", 7).await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn too_few_or_too_many_results_fail_the_whole_batch() {
    for results in [2usize, 4] {
        let stage = Stage::batch("miscounts", move |_: Batch<u64>| (0..results as u64).map(Ok).collect());
        let node = serve(stage.max_batch_size(3).max_delay(Duration::from_secs(3600))).await;
        let client = node.client();
        let calls = (0..3u64).map(|n| client.call::<u64, u64>("/route", n));
        for outcome in futures_util::future::join_all(calls).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WorkerFailed);
            assert_eq!(error.message(), format!("the worker returned {results} results for 3 items"));
        }
        assert!(node.health().ready, "an error is not a crash");
    }
}

#[tokio::test]
async fn an_unknown_route_is_not_found() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    let error = node.client().call::<u64, u64>("/other", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.message(), "there is no route `/other`");
    for near in ["/rout", "route", "/ROUTES"] {
        let error = node.client().call::<u64, u64>(near, 1).await.unwrap_err();
        assert_eq!(error.message(), format!("there is no route `{near}`; did you mean `/route`?"));
    }
    let long = "/route".repeat(10_000);
    assert!(!node.client().call::<u64, u64>(&long, 1).await.unwrap_err().message().contains("mean"));
}

#[tokio::test]
async fn an_input_of_another_type_is_converted_or_refused() {
    let node = serve(Stage::each("echo", |n: &u64| Ok(*n))).await;
    let error = node.client().call::<String, u64>("/route", "one".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // The same number in another type is the same value.
    assert_eq!(node.client().call::<u8, u64>("/route", 7).await.unwrap(), 7);
}

#[tokio::test]
async fn a_shared_stage_is_one_queue_and_one_pool() {
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let node = App::new().route("/a", echo.clone()).route("/b", echo).start().await.unwrap();
    node.client().call::<u64, u64>("/a", 1).await.unwrap();
    node.client().call::<u64, u64>("/b", 1).await.unwrap();
    let description = node.describe();
    assert_eq!(description.stages.len(), 1);
    assert_eq!(description.stages[0].batches, 2);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_a_shared_stage_mixes_routes() {
    let sizes = Stage::batch("sizes", |batch: Batch<u64>| batch.iter().map(|_| Ok(batch.len())).collect());
    let sizes = sizes.max_batch_size(2).max_delay(Duration::from_secs(3600));
    let node = App::new().route("/a", sizes.clone()).route("/b", sizes).start().await.unwrap();
    let client = node.client();
    let (a, b) = tokio::join!(client.call::<u64, usize>("/a", 1), client.call::<u64, usize>("/b", 1));
    assert_eq!((a.unwrap(), b.unwrap()), (2, 2), "both were in one batch");
}

#[tokio::test]
async fn a_route_with_parameters_takes_a_path_that_no_literal_name_takes() {
    let tells = |name: &str| {
        let own = name.to_owned();
        Stage::each(name, move |(): &()| Ok(own.clone()))
    };
    let app = App::new().route("/{a}/{b}", tells("any")).route("/items/{id}", tells("item"));
    let node = app.route("/items/latest", tells("latest")).start().await.unwrap();
    let client = node.client();
    for (path, expected) in [("/items/latest", "latest"), ("/items/7", "item"), ("/other/7", "any")] {
        assert_eq!(client.call::<(), String>(path, ()).await.unwrap(), expected, "{path}");
    }
    for other in ["/items", "/items/", "/items/7/8"] {
        assert_eq!(client.call::<(), String>(other, ()).await.unwrap_err().kind(), ErrorKind::NotFound, "{other}");
    }
}

#[tokio::test]
async fn the_parameters_of_a_route_are_those_of_the_path_that_was_called() {
    let path = |context: &CallContext| context.path().unwrap_or_default().to_owned();
    let inner = Stage::each_with_context("inner", move |(): &(), context: &CallContext| Ok(path(context)));
    let outer = Stage::each_async_with_context("outer", move |_: Arc<()>, context: CallContext| async move {
        let inner: String = context.client()?.call("/items/7", ()).await?;
        Ok(format!("{} {inner}", path(&context)))
    });
    let node = App::new().route("/items/{id}", inner).route("/all/{id}", outer).start().await.unwrap();
    assert_eq!(node.client().call::<(), String>("/all/9", ()).await.unwrap(), "/all/9 /items/7");
}

#[tokio::test]
async fn routes_of_one_path_are_called_by_their_names() {
    let tells = |name: &str| {
        let own = name.to_owned();
        Stage::each(name, move |(): &()| Ok(own.clone()))
    };
    let app = App::new().route("PUT /items", tells("put")).route("GET /items", tells("get"));
    let node = app.route("PUT /{id}/x", tells("put x")).route("PATCH /{id}/x", tells("patch x")).start().await.unwrap();
    let client = node.client();
    let call = async |name: &str| client.call::<(), String>(name, ()).await;
    for (name, expected) in [("GET /items", "get"), ("PUT /items", "put"), ("/items", "get"), ("PUT /7/x", "put x")] {
        assert_eq!(call(name).await.unwrap(), expected, "{name}");
    }
    // The route of `POST` has the path as its name, and a change may add it.
    node.change(RouteChange::new().add_route(RouteSpec::new("/items", tells("post")))).await.unwrap();
    for (name, expected) in [("/items", "post"), ("POST /items", "post"), ("GET /items", "get")] {
        assert_eq!(call(name).await.unwrap(), expected, "{name}");
    }
    let clash = RouteSpec::new("/items", tells("other")).methods(["POST", "PUT"]);
    let refused = node.change(RouteChange::new().replace_route(clash)).await.unwrap_err();
    assert!(matches!(refused, ChangeError::SameMethod { .. }), "{refused}");
    node.change(RouteChange::new().remove_route("/items").remove_route("PUT /items")).await.unwrap();
    assert_eq!(call("/items").await.unwrap(), "get");
    for other in ["PUT /items", "/7/x", "DELETE /7/x", "get /items"] {
        assert_eq!(call(other).await.unwrap_err().kind(), ErrorKind::NotFound, "{other}");
    }
    let names: Vec<_> = client.routes().iter().map(|route| format!("{} {}", route.name(), route.path())).collect();
    assert_eq!(names, ["GET /items /items", "PUT /{id}/x /{id}/x", "PATCH /{id}/x /{id}/x"]);
}

#[tokio::test]
async fn plans_that_contradict_themselves_do_not_start() {
    let echo = |name: &str| Stage::each(name, |n: &u64| Ok(*n));
    let twice = App::new().route("/a", echo("e")).route("/a", echo("f")).start().await;
    assert!(matches!(twice, Err(StartError::DuplicateRoute { .. })));
    let same_name = App::new().route("/a", echo("e")).route("/b", echo("e")).start().await;
    assert!(matches!(same_name, Err(StartError::DuplicateStage { .. })));
    let same_paths = App::new().route("/a/{x}", echo("e")).route("/a/{y}", echo("f")).start().await;
    let message = same_paths.unwrap_err().to_string();
    assert_eq!(message, "the routes `/a/{x}` and `/a/{y}` take the same paths");
    let by = |methods: &[&str], stage: &str| RouteSpec::new("/a", echo(stage)).methods(methods);
    let same_method = App::new().mount(by(&["GET", "POST"], "e")).mount(by(&["GET"], "f")).start().await;
    assert_eq!(same_method.unwrap_err().to_string(), "the routes `/a` and `GET /a` are both called by `GET`");
    let twice = App::new().mount(by(&["GET"], "e")).mount(by(&["GET", "PUT"], "f")).start().await;
    assert_eq!(twice.unwrap_err().to_string(), "two routes are named `GET /a`");
    let other_names = App::new().route("GET /a/{x}", echo("e")).route("PUT /a/{y}", echo("f")).start().await;
    let message = other_names.unwrap_err().to_string();
    assert_eq!(message, "the routes `GET /a/{x}` and `PUT /a/{y}` take the same paths");
    let model = |name: &str, stage: &str| RouteSpec::new(name, echo(stage)).task(Task::Embed);
    let same_model = App::new().mount(model("/a", "e")).mount(model("/b", "f").aliases(["a"])).start().await;
    let message = same_model.unwrap_err().to_string();
    assert_eq!(message, "routes `/a` and `/b` are both the model `a`");
    let plain = ["", "/", "digits", "/a//b", "/a/", "/../etc", "/a b", "/a?b", "/a{x}", "/{x}/{x}", "/{}", "/{a-b}"];
    for bad in plain.into_iter().chain(["@", "@a/", "@a//b", "@a/{b}", "@a/../b"]) {
        let refused = App::new().route(bad, echo("e")).start().await;
        assert!(matches!(refused, Err(StartError::BadRouteName { .. })), "{bad:?}");
    }
    for (limits, message) in [
        (Limits { max_in_flight: 0, ..Limits::default() }, "`max_in_flight` must be above zero"),
        (Limits { max_in_flight_bytes: 0, ..Limits::default() }, "`max_in_flight_bytes` must be above zero"),
        (Limits { default_timeout: Duration::ZERO, ..Limits::default() }, "`default_timeout` must be above zero"),
    ] {
        let refused = App::new().route("/a", echo("e")).limits(limits).start().await;
        assert_eq!(refused.unwrap_err().to_string(), message);
    }
}

#[tokio::test]
async fn every_outcome_is_counted_once() {
    let node = serve(Stage::each("parse", |text: &String| Ok(text.parse::<i64>()?))).await;
    let client = node.client();
    for text in ["1", "2", "x"] {
        let _ = client.call::<_, i64>("/route", text.to_owned()).await;
    }
    let metrics = node.metrics();
    let line = |outcome: &str| format!(r#"callboard_requests_total{{route="/route",outcome="{outcome}"}}"#);
    assert!(metrics.contains(&format!("{} 2", line("ok"))), "{metrics}");
    assert!(metrics.contains(&format!("{} 1", line("failed"))), "{metrics}");
    let description = node.describe();
    assert_eq!((description.admitted, description.outcomes, description.in_flight), (3, 3, 0));
}

#[tokio::test]
async fn a_wrong_output_type_is_no_error_of_the_input() {
    let node = serve(Stage::each("echo", |text: &String| Ok(text.clone()))).await;
    let error = node.client().call::<String, u64>("/route", "seven".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let expected = "route `/route` gives `alloc::string::String`, which cannot be read as `u64`: ";
    assert!(error.message().starts_with(expected), "{error}");
    assert!(
        node.metrics().contains(r#"callboard_requests_total{route="/route",outcome="ok"} 1"#),
        "the call itself succeeded"
    );
}
