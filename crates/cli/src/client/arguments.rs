//! `--arg JSON` and `--arg NAME=JSON`: the positional and named arguments of a function.

use callboard_codec::{Format, Map, Value};
use callboard_core::FunctionCall;
use clap::{Arg, ArgAction};

use super::value;
use crate::error::CliError;

/// The argument `--arg`.
pub(crate) fn arg() -> Arg {
    Arg::new("arg")
        .long("arg")
        .value_name("JSON | NAME=JSON")
        .action(ArgAction::Append)
        .help("Call a function with this argument, positional or by name; may be repeated; what does not begin as JSON is a string")
}

/// The call with these arguments. The last value of a name counts.
///
/// # Errors
///
/// A value that begins as JSON and is invalid: probably a bracket is missing, and the function would get a text.
pub(crate) fn call(texts: &[String]) -> Result<FunctionCall, CliError> {
    texts.iter().try_fold(FunctionCall::default(), |call, text| {
        let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        Ok(match text.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, content)) => call.with_kwarg(name, value(content)?),
            None => call.with_arg(value(text)?),
        })
    })
}

fn value(text: &str) -> Result<Value, CliError> {
    match value::json(text) {
        Err(error) if text.starts_with(['{', '[', '"']) => Err(CliError::Usage(format!(
            "--arg: `{text}` begins as JSON, but is {error}; write such a text as a JSON string"
        ))),
        other => Ok(other.unwrap_or_else(|_| Value::from(text))),
    }
}

/// The same as a body for `/v1/call/{name}`.
pub(crate) fn body(texts: &[String]) -> Result<bytes::Bytes, CliError> {
    let FunctionCall { args, kwargs } = call(texts)?;
    let body = Map::from_iter([("args", Value::from(args)), ("kwargs", Value::Map(kwargs))]);
    let encoded = Value::Map(body).encode(Format::Json);
    encoded.map_err(|error| CliError::because("the arguments have no JSON", &error))
}

/// The path of a function over HTTP, from its name, its route, or that path.
pub(crate) fn route(name: &str) -> String {
    if name.starts_with(CALLS) { name.to_owned() } else { format!("{CALLS}{}", name.trim_start_matches('/')) }
}

const CALLS: &str = "/v1/call/";

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Vec<String> {
        ["3", "factor=2.5", "plain text", "flag=true", "{\"a\":1}", "url=http://x?y=1"].map(str::to_owned).to_vec()
    }

    #[test]
    fn arguments_are_positional_or_named() {
        let json = Value::from(Map::from_iter([("a", 1)]));
        let expected = FunctionCall::new([Value::from(3), Value::from("plain text"), json], Map::default());
        let expected = expected.with_kwarg("factor", 2.5).with_kwarg("flag", true).with_kwarg("url", "http://x?y=1");
        assert_eq!(call(&texts()).unwrap(), expected);
    }

    #[test]
    fn arguments_over_http_are_one_body() {
        let expected = r#"{"args":[3,"plain text",{"a":1}],"kwargs":{"factor":2.5,"flag":true,"url":"http://x?y=1"}}"#;
        assert_eq!(body(&texts()).unwrap(), expected);
        assert_eq!([route("scale"), route("/math/scale")], ["/v1/call/scale", "/v1/call/math/scale"]);
        assert_eq!(route("/v1/call/scale"), "/v1/call/scale");
    }

    #[test]
    fn invalid_json_is_not_read_as_a_text() {
        for text in ["{\"a\":1", "x=[1, 2", "x=\"quoted"] {
            let error = call(&[text.to_owned()]).unwrap_err().to_string();
            assert!(error.contains("begins as JSON, but is not valid JSON: "), "{error}");
        }
    }
}
