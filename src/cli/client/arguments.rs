//! `--arg JSON` and `--arg NAME=JSON`: the arguments of a function, by their places and their names.

use callboard_codec::{Format, Map, Value};
use callboard_core::FunctionCall;
use clap::{Arg, ArgAction};

use super::value;
use crate::cli::error::CliError;

/// The word.
pub(crate) fn arg() -> Arg {
    Arg::new("arg")
        .long("arg")
        .value_name("JSON | NAME=JSON")
        .action(ArgAction::Append)
        .help("Call a function with this argument, by its place or its name; may come several times, and what is no JSON is a text")
}

/// The call with these arguments. The last value of a name counts.
pub(crate) fn call(texts: &[String]) -> FunctionCall {
    texts.iter().fold(FunctionCall::default(), |call, text| {
        let value = |text: &str| value::json(text).unwrap_or_else(|_| Value::from(text));
        let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        match text.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, content)) => call.with_kwarg(name, value(content)),
            None => call.with_arg(value(text)),
        }
    })
}

/// The same as a body for `/v1/call/{name}`.
pub(crate) fn body(texts: &[String]) -> Result<bytes::Bytes, CliError> {
    let FunctionCall { args, kwargs } = call(texts);
    let body = Map::from_iter([("args", Value::from(args)), ("kwargs", Value::Map(kwargs))]);
    let encoded = Value::Map(body).encode(Format::Json);
    encoded.map_err(|error| CliError::because("the arguments have no JSON", &error))
}

/// Where a function is called over HTTP, by its name or its route's path.
pub(crate) fn route(name: &str) -> String {
    format!("/v1/call/{}", name.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Vec<String> {
        ["3", "factor=2.5", "plain text", "flag=true", "{\"a\":1}", "url=http://x?y=1"].map(str::to_owned).to_vec()
    }

    #[test]
    fn arguments_come_by_place_and_by_name() {
        let json = Value::from(Map::from_iter([("a", 1)]));
        let expected = FunctionCall::new([Value::from(3), Value::from("plain text"), json], Map::default());
        let expected = expected.with_kwarg("factor", 2.5).with_kwarg("flag", true).with_kwarg("url", "http://x?y=1");
        assert_eq!(call(&texts()), expected);
    }

    #[test]
    fn over_http_they_are_one_body() {
        let expected = r#"{"args":[3,"plain text",{"a":1}],"kwargs":{"factor":2.5,"flag":true,"url":"http://x?y=1"}}"#;
        assert_eq!(body(&texts()).unwrap(), expected);
        assert_eq!([route("scale"), route("/math/scale")], ["/v1/call/scale", "/v1/call/math/scale"]);
    }
}
