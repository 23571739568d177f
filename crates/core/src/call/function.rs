//! The arguments of a function-style call.

use callboard_codec::{Map, Value};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// The arguments of a function-style call. A stage or pipeline that takes one is a **function**.
///
/// The error of an argument names it, and is an [`InvalidInput`](crate::ErrorKind::InvalidInput) of this call only.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use callboard_core::{App, FunctionCall, Stage};
/// use callboard_codec::{Map, Value};
///
/// let scale = Stage::each("scale", |call: &FunctionCall| {
///     call.check_names(&["x", "factor"])?;
///     let x: f64 = call.arg(0, "x")?;
///     let factor: f64 = call.optional_arg(1, "factor")?.unwrap_or(2.0);
///     Ok(x * factor)
/// });
/// let node = App::new().route("/scale", scale).start().await?;
/// let client = node.client();
///
/// assert_eq!(client.send("scale", [3.0], Map::new()).await?, Value::Float(6.0));
/// assert_eq!(client.send("scale", [3.0], Map::from_iter([("factor", 3.0)])).await?, Value::Float(9.0));
///
/// let error = client.send("scale", FunctionCall::NO_ARGS, Map::from_iter([("factor", 3.0)])).await.unwrap_err();
/// assert_eq!(error.message(), "argument `x` is missing: give it as positional argument 1 or by name");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionCall {
    /// The positional arguments, in order.
    pub args: Vec<Value>,
    /// The keyword arguments by name.
    pub kwargs: Map,
}

impl FunctionCall {
    /// No positional arguments, for [`LocalClient::send`](crate::LocalClient::send).
    pub const NO_ARGS: [Value; 0] = [];

    /// A call with these arguments.
    pub fn new<A>(args: A, kwargs: Map) -> Self
    where
        A: IntoIterator,
        A::Item: Into<Value>,
    {
        Self { args: args.into_iter().map(Into::into).collect(), kwargs }
    }

    /// The same call with one more positional argument: for arguments of several types.
    ///
    /// ```
    /// use callboard_core::FunctionCall;
    ///
    /// let call = FunctionCall::default().with_arg("seven.png").with_arg(28).with_kwarg("color", "gray");
    /// assert_eq!(call.arg::<u32>(1, "width").unwrap(), 28);
    /// ```
    #[must_use]
    pub fn with_arg(mut self, value: impl Into<Value>) -> Self {
        self.args.push(value.into());
        self
    }

    /// The same call with one more keyword argument. The last value of a name counts.
    #[must_use]
    pub fn with_kwarg(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.kwargs.insert(name, value);
        self
    }

    /// The argument at `index` (from 0) or with the name `name`.
    ///
    /// # Errors
    ///
    /// If it is missing, given in both ways, or no `T`.
    pub fn arg<T: DeserializeOwned>(&self, index: usize, name: &str) -> Result<T, Failure> {
        match self.find(index, name)? {
            Some(value) => read(name, value),
            None => {
                let position = index + 1;
                Err(Failure::invalid_input(format!(
                    "argument `{name}` is missing: give it as positional argument {position} or by name"
                )))
            }
        }
    }

    /// The argument at `index` (from 0) or with the name `name`, if it is given and not null.
    ///
    /// # Errors
    ///
    /// If it is given in both ways, or no `T`.
    pub fn optional_arg<T: DeserializeOwned>(&self, index: usize, name: &str) -> Result<Option<T>, Failure> {
        self.find(index, name)?.map_or(Ok(None), |value| read(name, value))
    }

    /// The keyword argument `name`.
    ///
    /// # Errors
    ///
    /// If it is missing, or no `T`.
    pub fn kwarg<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        match self.kwargs.get(name) {
            Some(value) => read(name, value),
            None => Err(Failure::invalid_input(format!("keyword argument `{name}` is missing"))),
        }
    }

    /// The keyword argument `name`, if it is given and not null.
    ///
    /// # Errors
    ///
    /// If it is no `T`.
    pub fn optional_kwarg<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        self.kwargs.get(name).map_or(Ok(None), |value| read(name, value))
    }

    /// Checks that there are no arguments except `names`, and none is given twice. Each name is a positional argument
    /// in this order, or a keyword.
    ///
    /// # Errors
    ///
    /// More positional arguments than names, an unknown keyword, or an argument in both ways.
    pub fn check_names(&self, names: &[&str]) -> Result<(), Failure> {
        if self.args.len() > names.len() {
            let given = self.args.len();
            let message = format!("got {given} positional arguments, but the function takes {}", listed(names));
            return Err(Failure::invalid_input(message));
        }
        if let Some(unknown) = self.kwargs.keys().find(|keyword| !names.contains(keyword)) {
            let message = format!("unexpected argument `{unknown}`: the function takes {}", listed(names));
            return Err(Failure::invalid_input(message));
        }
        names.iter().enumerate().try_for_each(|(index, name)| self.find(index, name).map(|_| ()))
    }

    fn find(&self, index: usize, name: &str) -> Result<Option<&Value>, Failure> {
        match (self.args.get(index), self.kwargs.get(name)) {
            (Some(_), Some(_)) => Err(Failure::invalid_input(format!(
                "argument `{name}` is given twice: as positional argument {} and by name",
                index + 1
            ))),
            (positional, keyword) => Ok(positional.or(keyword)),
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let values = self.args.iter().chain(self.kwargs.values());
        values.map(|value| value.resident_bytes() as u64).sum()
    }
}

fn read<T: DeserializeOwned>(name: &str, value: &Value) -> Result<T, Failure> {
    value.deserialize().map_err(|error| Failure::invalid_input(format!("argument `{name}`: {error}")))
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn message<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        let failure = result.unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::InvalidInput);
        failure.message().to_owned()
    }

    #[test]
    fn an_argument_is_positional_or_named_and_never_both() {
        let call = FunctionCall::default().with_arg(1).with_kwarg("y", "two").with_kwarg("nothing", Value::Null);
        assert_eq!(call.arg::<i64>(0, "x").unwrap(), 1);
        assert_eq!(call.arg::<String>(1, "y").unwrap(), "two");
        assert_eq!(call.kwarg::<String>("y").unwrap(), "two");
        assert_eq!(call.optional_arg::<i64>(2, "z").unwrap(), None);
        assert_eq!(call.optional_kwarg::<i64>("nothing").unwrap(), None);

        assert_eq!(
            message(call.arg::<i64>(2, "z")),
            "argument `z` is missing: give it as positional argument 3 or by name"
        );
        assert_eq!(
            message(call.arg::<i64>(0, "y")),
            "argument `y` is given twice: as positional argument 1 and by name"
        );
        assert_eq!(message(call.kwarg::<i64>("z")), "keyword argument `z` is missing");
        assert!(message(call.arg::<i64>(1, "y")).starts_with("argument `y`: "));
    }

    #[test]
    fn unexpected_arguments_are_named() {
        let call = FunctionCall::new([1, 2], Map::from_iter([("z", 3)]));
        assert!(call.check_names(&["x", "y", "z"]).is_ok());
        assert_eq!(message(call.check_names(&["x"])), "got 2 positional arguments, but the function takes `x`");
        assert_eq!(message(call.check_names(&["x", "y"])), "unexpected argument `z`: the function takes `x`, `y`");
        assert_eq!(
            message(call.check_names(&["x", "z"])),
            "argument `z` is given twice: as positional argument 2 and by name"
        );
        assert_eq!(message(call.check_names(&[])), "got 2 positional arguments, but the function takes none");
    }
}
