//! Function-style calls: a name, positional and keyword arguments in, one value out.

use callboard_codec::{Map, Parameters, Payload, Value};

use super::LocalClient;
use crate::call::{CallOptions, FunctionCall};
use crate::clock;
use crate::error::{CallError, ErrorKind};
use crate::router::{Route, split_route_name};

impl FunctionCall {
    /// The payload for `route`: the arguments themselves if the route is a function, else its input.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the arguments do not fit the route.
    pub fn into_payload(self, route: &Route) -> Result<Payload, CallError> {
        if route.is_function() {
            Ok(Payload::new(self))
        } else {
            Ok(route.input().from_value(self.into_input(route)?)?)
        }
    }

    /// The input for a route that takes no `FunctionCall`: its arguments by the names of its parameters, if these are
    /// known; else the only positional argument, or the keywords as a map. Without arguments it is the
    /// [default](callboard_codec::DataType::default_value) of its type.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the arguments are neither.
    pub fn into_input(mut self, route: &Route) -> Result<Value, CallError> {
        if let Some(parameters) = route.input().parameters() {
            return self.bind(route, parameters);
        }
        if self.args.is_empty()
            && self.kwargs.is_empty()
            && let Some(input) = route.input().default_value()
        {
            return Ok(input);
        }
        match (self.args.len(), self.kwargs.len()) {
            (1, 0) => Ok(self.args.swap_remove(0)),
            (0, keywords) if keywords > 0 => Ok(Value::Map(self.kwargs)),
            (positional, keywords) => {
                let (name, input) = (route.name(), route.input().name());
                let message = format!(
                    "`{name}` takes one `{input}`: give it as the only positional argument, or its fields by name; \
                     got {positional} positional and {keywords} keyword arguments"
                );
                Err(CallError::new(ErrorKind::InvalidInput, message))
            }
        }
    }

    /// The input of a function with these parameters. A map of nothing but arguments by name is the input itself.
    fn bind(mut self, route: &Route, parameters: &Parameters) -> Result<Value, CallError> {
        let Parameters { names, is_value } = parameters;
        let refused = |reason: String| {
            let message = format!("{reason}: `{}` takes {}", route.name(), list(names));
            Err(CallError::new(ErrorKind::InvalidInput, message))
        };
        if let ([Value::Map(map)], false, true) = (self.args.as_slice(), is_value, self.kwargs.is_empty())
            && map.keys().all(|key| names.iter().any(|name| name == key))
        {
            return Ok(self.args.swap_remove(0));
        }
        if self.args.len() > names.len() {
            return refused(format!("got {} positional arguments", self.args.len()));
        }
        let mut input = Map::with_capacity(names.len());
        for (name, value) in names.iter().zip(self.args) {
            if self.kwargs.contains_key(name) {
                return refused(format!("argument `{name}` is given twice"));
            }
            input.insert(name, value);
        }
        for (name, value) in self.kwargs {
            if !names.contains(&name) {
                return refused(format!("there is no argument `{name}`"));
            }
            input.insert(name, value);
        }
        match names.first() {
            Some(only) if *is_value => {
                let given = input.remove(only);
                Ok(given.or_else(|| route.input().default_value()).unwrap_or(Value::Null))
            }
            _ => Ok(Value::Map(input)),
        }
    }
}

/// Names for a message.
fn list(names: &[String]) -> String {
    match names {
        [] => "no arguments".to_owned(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

impl LocalClient {
    /// Calls a function by its name, with positional and keyword arguments, and waits for its value.
    ///
    /// The name is that of a route, with or without the leading `/`. A route over [`FunctionCall`] gets the arguments
    /// as they are. For any other route, exactly one positional argument without keywords is its input, or keywords
    /// alone are its input as a map. The input is then read as the route's type, a conversion that [`call`](Self::call)
    /// does not need.
    ///
    /// For arguments of several types see [`FunctionCall::with_arg`] and [`send_with`](Self::send_with); for none,
    /// [`NO_ARGS`](crate::FunctionCall::NO_ARGS).
    ///
    /// # Errors
    ///
    /// `NotFound` without such a route, `InvalidInput` if the arguments do not fit it; for the rest see [`ErrorKind`].
    ///
    /// # Cancellation
    ///
    /// As [`call`](Self::call).
    pub async fn send<A>(&self, name: &str, args: A, kwargs: Map) -> Result<Value, CallError>
    where
        A: IntoIterator,
        A::Item: Into<Value>,
    {
        self.send_with(name, FunctionCall::new(args, kwargs), CallOptions::new()).await
    }

    /// Calls a function with options, such as a deadline or a priority.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use callboard_core::{App, CallOptions, FunctionCall, Priority, Stage};
    /// use callboard_codec::Value;
    ///
    /// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    /// let node = App::new().route("/shout", shout).start().await?;
    ///
    /// let call = FunctionCall::default().with_arg("hey");
    /// let options = CallOptions::new().with_priority(Priority::High);
    /// assert_eq!(node.client().send_with("shout", call, options).await?, Value::from("HEY"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub async fn send_with(&self, name: &str, call: FunctionCall, options: CallOptions) -> Result<Value, CallError> {
        let route = self.find_function(name)?;
        let bytes = call.resident_bytes();
        let payload = call.into_payload(&route)?;
        if options.retry().is_some() {
            return self.call_payload(route.name(), payload, options).await;
        }
        let admission = self.let_in(clock::now(), self.hold_route(&route, options.session())?, bytes)?;
        let now = admission.admitted_at();
        let reply = self.submit_at(now, admission, payload, options).await?;
        Ok(reply.payload.into_inner()?)
    }

    /// The route of this name, with or without its leading `/` if it has no method.
    ///
    /// # Errors
    ///
    /// `NotFound` without such a route.
    pub fn find_function(&self, name: &str) -> Result<std::sync::Arc<Route>, CallError> {
        let is_whole = name.starts_with('/') || split_route_name(name).0.is_some();
        let route = if is_whole { self.route(name) } else { self.route(&format!("/{name}")) };
        route.ok_or_else(|| self.missing("function", name))
    }
}
