//! Function-style calls: positional and keyword arguments, to functions and to every other route.

use callboard_codec::{DType, DataType, Map, Parameters, Tensor, Value};
use callboard_core::{App, ErrorKind, Failure, FunctionCall, Pipeline, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::support::serve;

fn add() -> Stage<FunctionCall, i64> {
    Stage::each("add", |call: &FunctionCall| {
        call.check_names(&["a", "b"])?;
        Ok(call.arg::<i64>(0, "a")? + call.arg::<i64>(1, "b")?)
    })
}

#[tokio::test]
async fn a_function_gets_its_arguments_by_position_and_by_name() {
    let less = Stage::each("less", |call: &FunctionCall| Ok(call.arg::<i64>(0, "a")? - call.arg::<i64>(1, "b")?));
    let node = App::new().route("/add", add()).route("GET /less", less).start().await.unwrap();
    let client = node.client();
    assert!(client.route("/add").unwrap().is_function());
    for (args, kwargs) in [(vec![1, 2], vec![]), (vec![1], vec![("b", 2)]), (vec![], vec![("b", 2), ("a", 1)])] {
        let sum = client.send("add", args, Map::from_iter(kwargs)).await.unwrap();
        assert_eq!(sum, Value::Int(3));
    }
    // The route's own name also names the function.
    assert_eq!(client.send("/add", [1, 2], Map::new()).await.unwrap(), Value::Int(3));
    for name in ["GET /less", "less"] {
        assert_eq!(client.send(name, [1, 2], Map::new()).await.unwrap(), Value::Int(-1), "{name}");
    }
}

#[tokio::test]
async fn wrong_arguments_are_named_and_fail_their_call_only() {
    let node = App::new().route("/add", add()).start().await.unwrap();
    let client = node.client();
    let wrong = [
        (FunctionCall::new([1], Map::new()), "argument `b` is missing: give it as positional argument 2 or by name"),
        (FunctionCall::new([1, 2, 3], Map::new()), "got 3 positional arguments, but the function takes `a`, `b`"),
        (FunctionCall::new([1, 2], Map::from_iter([("c", 3)])), "unexpected argument `c`: the function takes `a`, `b`"),
        (
            FunctionCall::new([1, 2], Map::from_iter([("a", 3)])),
            "argument `a` is given twice: as positional argument 1 and by name",
        ),
    ];
    for (call, message) in wrong {
        let error = client.send_with("add", call, Default::default()).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, message));
        assert_eq!(error.stage(), Some("add"));
    }
    let error = client.send("add", ["one", "two"], Map::new()).await.unwrap_err();
    assert!(error.message().starts_with("argument `a`: "), "{error}");
}

#[tokio::test]
async fn an_unknown_function_is_not_found() {
    let node = serve(add()).await;
    let error = node.client().send("subtract", [1, 2], Map::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::NotFound, "there is no function `subtract`"));
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Guest {
    name: String,
    times: usize,
}

#[tokio::test]
async fn any_route_takes_its_one_value_or_its_fields_by_name() {
    let greet = Stage::each("greet", |guest: &Guest| Ok(vec![guest.name.clone(); guest.times].join(" ")));
    let node = App::new().route("/greet", greet).start().await.unwrap();
    let client = node.client();
    let fields = || Map::from_iter([("name", Value::from("Ada")), ("times", Value::from(2))]);
    assert_eq!(client.send("greet", FunctionCall::NO_ARGS, fields()).await.unwrap(), Value::from("Ada Ada"));
    assert_eq!(client.send("greet", [fields()], Map::new()).await.unwrap(), Value::from("Ada Ada"));
    assert!(!client.route("/greet").unwrap().is_function());

    let refused = "`/greet` takes one `Guest`: give it as the only positional argument, or its fields by name; got";
    for (call, got) in [
        (FunctionCall::default(), "0 positional and 0 keyword arguments"),
        (FunctionCall::new([1, 2], Map::new()), "2 positional and 0 keyword arguments"),
        (FunctionCall::new([1], fields()), "1 positional and 2 keyword arguments"),
    ] {
        let error = client.send_with("greet", call, Default::default()).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, format!("{refused} {got}").as_str()));
    }
    let error = client.send("greet", FunctionCall::NO_ARGS, Map::from_iter([("name", "Ada")])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("times"), "{error}");
    // Refused calls were never admitted.
    let description = node.describe();
    assert_eq!((description.admitted, description.outcomes, description.in_flight), (2, 2, 0));
}

/// The parameters of a function in another language.
#[tokio::test]
async fn a_route_with_known_parameters_takes_arguments_by_position_and_by_name() {
    let echo = |name: &str| Stage::each(name, |value: &Value| Ok(value.clone()));
    let parameters = |names: &[&str], is_value| {
        let names = names.iter().copied().map(str::to_owned).collect();
        DataType::value().with_parameters(Parameters { names, is_value })
    };
    let app = App::new().route_described("/add", echo("add"), parameters(&["a", "b"], false), DataType::value());
    let app = app.route_described("/half", echo("half"), parameters(&["x"], true), DataType::value());
    let with_default = parameters(&["x"], true).with_schema(serde_json::json!({ "type": "integer", "default": 7 }));
    let app = app.route_described("/seven", echo("seven"), with_default, DataType::value());
    let no_fields = DataType::value().with_schema(serde_json::json!({ "type": "object", "properties": {} }));
    let app = app.route_described("/unnamed", echo("unnamed"), no_fields, DataType::value());
    let node = app.start().await.unwrap();
    let client = node.client();
    let map = |fields: &[(&str, i64)]| Map::from_iter(fields.iter().copied());

    for (args, kwargs) in [(vec![1, 2], vec![]), (vec![1], vec![("b", 2)]), (vec![], vec![("b", 2), ("a", 1)])] {
        let input = client.send("add", args, map(&kwargs)).await.unwrap();
        assert_eq!(input, Value::from(map(&[("a", 1), ("b", 2)])));
    }
    // A map of arguments is the input; any other one is an argument.
    assert_eq!(client.send("add", [map(&[("a", 1)])], Map::new()).await.unwrap(), Value::from(map(&[("a", 1)])));
    let other = client.send("add", [map(&[("c", 1)])], Map::new()).await.unwrap();
    assert_eq!(other, Value::from(Map::from_iter([("a", map(&[("c", 1)]))])));
    assert_eq!(client.send("half", [4], Map::new()).await.unwrap(), Value::Int(4));
    assert_eq!(client.send("half", FunctionCall::NO_ARGS, map(&[("x", 4)])).await.unwrap(), Value::Int(4));

    for (name, default) in [("half", Value::Null), ("seven", Value::Int(7)), ("unnamed", Value::from(Map::new()))] {
        assert_eq!(client.send(name, FunctionCall::NO_ARGS, Map::new()).await.unwrap(), default, "{name}");
    }

    for (name, args, kwargs, message) in [
        ("add", vec![1, 2, 3], vec![], "got 3 positional arguments: `/add` takes `a`, `b`"),
        ("add", vec![1], vec![("a", 2)], "argument `a` is given twice: `/add` takes `a`, `b`"),
        ("half", vec![], vec![("y", 2)], "there is no argument `y`: `/half` takes `x`"),
    ] {
        let error = client.send(name, args, map(&kwargs)).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, message));
    }
}

#[tokio::test]
async fn values_keep_their_types_through_a_function() {
    let echo = Stage::each("echo", |call: &FunctionCall| Ok(Value::Tuple(call.args.clone())));
    // A second stage with another input type needs a conversion.
    let count = Stage::each("count", |value: &Value| {
        let Value::Tuple(items) = value else { return Err(Failure::new("no tuple")) };
        Ok(items.clone())
    });
    let node = serve(Pipeline::from(echo).then(count)).await;
    let args = vec![
        Value::Null,
        Value::Bool(true),
        Value::from(u64::MAX),
        Value::Float(0.1),
        Value::Tuple(vec![Value::Int(1)]),
        Value::List(vec![Value::Int(1)]),
        Value::Bytes("raw".into()),
        Value::from(Tensor::try_new(DType::U8, &[1, 3], "abc".into()).unwrap()),
    ];
    let back = node.client().send("route", args.clone(), Map::new()).await.unwrap();
    assert_eq!(back, Value::List(args));
}

#[test]
fn a_function_call_survives_its_encodings() {
    use callboard_codec::{DataType, DecodeLimits, Format, Payload};
    let call = FunctionCall::default().with_arg(1).with_arg("two").with_kwarg("deep", vec![Value::Float(0.5)]);
    let of_calls = DataType::for_type::<FunctionCall>();
    for format in [Format::Json, Format::Msgpack, Format::Envelope] {
        let bytes = Payload::new(call.clone()).encode(format).unwrap();
        let back = of_calls.decode(format, &bytes, &DecodeLimits::default()).unwrap();
        assert_eq!(back.downcast_ref::<FunctionCall>(), Some(&call), "{format:?}");
    }
    let limits = DecodeLimits::default();
    let short = of_calls.decode(Format::Json, &r#"{"kwargs": {"x": 1}}"#.into(), &limits).unwrap();
    assert_eq!(short.downcast_ref(), Some(&FunctionCall::default().with_kwarg("x", 1)));
    let typo = of_calls.decode(Format::Json, &r#"{"arguments": []}"#.into(), &limits).unwrap_err();
    assert!(typo.to_string().contains("arguments"), "{typo}");
    assert_eq!(of_calls.schema()["properties"]["kwargs"]["type"], "object");
}
